"""The program as people run it: one call in this process, or the real thing as a subprocess."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = [sys.executable, "-m", "analyzer.cli.main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one call came to."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found


Call = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with a cache of its own."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path / "cache"))
    return work


@pytest.fixture
def call(folder: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Runs the command line in this process."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*args: str) -> Answer:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        assert isinstance(left.value.code, int)
        return Answer(code=left.value.code, stdout=out, stderr=err)

    yield run
    signal.signal(signal.SIGTERM, before)


def start(*args: str, cwd: Path, cache: Path) -> subprocess.Popen[str]:
    """The real program, its streams piped."""
    root = str(EXAMPLES.parent)
    return subprocess.Popen(
        [*PROGRAM, *args],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TRITUNE_CACHE": str(cache), "PYTHONPATH": root},
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 100.0) -> Answer:
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Answer(code=process.returncode, stdout=out, stderr=err)


@pytest.fixture(scope="session")
def program() -> Any:
    """``start`` and ``finish``."""
    return sys.modules[__name__]
