"""Where Ray cannot start, the user is told what works without it."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest
from click.testing import CliRunner

from analyzer.cli.search import search
from analyzer.cluster.ray_session import as_startup_error, ray_session
from analyzer.errors import AnalyzerError, MissingPartError, UsageError

WITHOUT_RAY = "--executor in-process"


def test_the_hints_name_an_option_that_exists() -> None:
    shown = CliRunner().invoke(search, ["--help"]).output
    assert "--executor [ray|in-process]" in shown


def start() -> AnalyzerError:
    with pytest.raises(MissingPartError) as refusal, ray_session(address=None, cores=1):
        pass
    return refusal.value


# In a process of its own, since Ray leaves what it has started to whoever ends the process.
REFUSED_BY_RAY = """
from analyzer.cluster.ray_session import ray_session
from analyzer.errors import MissingPartError

try:
    with ray_session(address=None, cores=-1):
        pass
except MissingPartError as error:
    print(error.message, error.hint)
"""


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    error = start()
    assert "cannot be imported" in error.message
    assert "pip install ray" in error.hint and WITHOUT_RAY in error.hint


@pytest.mark.ray
def test_ray_that_does_not_start() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    done = subprocess.run(
        [sys.executable, "-c", REFUSED_BY_RAY],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.startswith("Ray does not start on this machine"), done
    assert WITHOUT_RAY in done.stdout


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    error = start()
    assert "/proc/nowhere" in error.message
    assert "TMPDIR" in error.hint and WITHOUT_RAY in error.hint


def test_any_other_fault_at_the_start() -> None:
    error = as_startup_error(RuntimeError("no room\nand more"))
    assert "RuntimeError: no room" in error.message and "and more" not in error.message
    assert WITHOUT_RAY in error.hint
    own = UsageError("wrong", hint="right")
    assert as_startup_error(own) is own
