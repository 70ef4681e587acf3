"""Accelerators that ONNX Runtime lists and cannot load."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli import search_request
from analyzer.cli.search_options import SearchOptions
from analyzer.engine.gpu_backends import loadable_accelerators
from analyzer.spaces.loader import SpaceContext, load_space

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ONNX Runtime with a TensorRT provider; the folder where the linker looks first."""
    capi = tmp_path / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    text = b"\0libcublas.so.13\0libnvinfer.so.97\0libnvonnxparser.so.97\0libnvinfer_plugin.so.97\0"
    (capi / "libonnxruntime_providers_tensorrt.so").write_bytes(b"\x7fELF" + text)
    names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(onnxruntime, "__file__", str(capi.parent / "__init__.py"))
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    path = os.pathsep.join(filter(None, (str(libraries), os.environ.get("LD_LIBRARY_PATH"))))
    monkeypatch.setenv("LD_LIBRARY_PATH", path)
    return libraries


def _make_library(folder: Path, name: str) -> None:
    subprocess.run(
        ["cc", "-shared", "-x", "c", "/dev/null", "-o", str(folder / name)], check=True, timeout=60
    )


def test_a_listed_provider_without_its_libraries_is_told_once_and_not_tried(
    listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its four variants was built, and told as failed."""
    found, absent = loadable_accelerators("gpu")
    assert found == ()
    assert absent.startswith("the accelerator tensorrt needs libnvinfer.so.97, which is not found")
    told: list[str] = []
    options: Any = SearchOptions.__new__(SearchOptions)
    monkeypatch.setattr(search_request, "space_of", lambda *_, **machine: machine)
    for space, notes in ((None, 1), ("mine.yaml", 0)):
        object.__setattr__(options, "space", space)
        object.__setattr__(options, "server", "embedded")
        machine: Any = type("Machine", (), {"cores": 2})()
        told.clear()
        context: Any = search_request.space_here(
            options, machine, "gpu", machine, 1, "onnxruntime", told.append
        )
        assert context["accelerators"] == () and len(told) == notes
    space = load_space(
        "gpu",
        SpaceContext(device="gpu", cores=2, accelerator_absent=context["accelerator_absent"]),
    )
    assert {c.execution.accelerator for c, _ in space.candidates().values()} == {None}
    assert [note for note in space.left_out if absent in note]  # told by a named space


def test_a_provider_whose_libraries_are_there_is_tried(listed: Path) -> None:
    _make_library(listed, "libnvinfer.so.97")
    found, absent = loadable_accelerators("gpu")
    assert found == () and "libnvonnxparser.so.97" in absent
    _make_library(listed, "libnvonnxparser.so.97")
    assert loadable_accelerators("gpu") == (("tensorrt",), "")


def test_a_library_that_is_there_and_does_not_load_is_left_to_the_session(listed: Path) -> None:
    for name in ("libnvinfer.so.97", "libnvonnxparser.so.97"):
        (listed / name).write_bytes(b"no library")
    assert loadable_accelerators("gpu") == (("tensorrt",), "")
