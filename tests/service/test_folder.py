"""What a job's command finds of the worker's machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from analyzer.service import sandbox
from analyzer.service.folder import JobFolder
from analyzer.service.sandbox import Isolation
from analyzer.targets.triton_install import HOME_VARIABLE


@pytest.mark.parametrize("triton", [False, True])
def test_a_job_that_starts_a_triton_finds_the_worker_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, triton: bool
) -> None:
    """``--server triton`` found none: the variable was passed on under another name."""
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "backends" / "onnxruntime").mkdir(parents=True)
    (tmp_path / "backends" / "onnxruntime" / "libtriton_onnxruntime.so").touch()
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    with JobFolder(Isolation()) as folder:
        task = folder.task([], output=tmp_path / "log", until=time.time(), triton=triton)
    assert (task.environment.get(HOME_VARIABLE) == str(tmp_path)) is triton
    assert (str(tmp_path) in task.reading) is triton
    assert task.making == ([sandbox.OF_TRITON] if triton else [])
