"""Children import this very package, and find what is put first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import analyzer
from analyzer.resources import child_environment, search_path


def test_a_child_imports_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "further.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = "import analyzer, further; print(analyzer.__file__)"
    said = subprocess.check_output(
        [sys.executable, "-c", program], env=child_environment(), cwd=tmp_path, text=True
    )
    assert Path(said.strip()) == Path(analyzer.__file__)


def test_a_child_takes_no_module_from_the_folder_that_it_is_in(tmp_path: Path) -> None:
    for module in ("types.py", "analyzer/__init__.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text("raise RuntimeError('the user\\'s own')\n")
    # And so do those that it starts.
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import analyzer'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=child_environment(), cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""


def test_a_search_path_leaves_out_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    assert search_path("PATH", None, Path("/a")) == "/a"
    monkeypatch.setenv("PATH", "/b")
    assert search_path("PATH", "/a", None, "") == f"/a{os.pathsep}/b"
