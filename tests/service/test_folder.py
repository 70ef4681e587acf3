"""What a job's command finds of the worker's environment."""

from __future__ import annotations

import pytest

from analyzer.service.folder import JobFolder
from analyzer.service.sandbox import Isolation


def test_a_job_finds_the_triton_that_the_worker_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--server triton`` found none: the variable was passed on under another name."""
    monkeypatch.setenv("TRITUNE_TRITON_HOME", "/srv/triton")
    with JobFolder(Isolation()) as folder:
        assert folder.environment()["TRITUNE_TRITON_HOME"] == "/srv/triton"
        assert "/srv/triton" in folder.reading()
