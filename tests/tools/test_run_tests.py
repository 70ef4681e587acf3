"""Which failures CI forgives: those of tests marked ``timing`` that pass when run once more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN_TESTS = Path(__file__).parents[2] / "tools" / "run_tests.py"
SETTINGS = "[pytest]\naddopts = --strict-markers\nmarkers =\n  timing: real clocks\n"
PASSES = "def test_passes():\n    pass\n"
DETERMINISTIC = "def test_deterministic():\n    assert False\n"
# Passes from the second run on.
RACE = """
import pathlib, pytest

@pytest.mark.timing
def test_race():
    ran = pathlib.Path(__file__).with_name("ran")
    first = not ran.exists()
    ran.touch()
    assert not first
"""
SLOW = "import pytest\n\n@pytest.mark.timing\ndef test_slow():\n    assert False\n"
SETUP = """
import pytest

@pytest.fixture
def server():
    raise RuntimeError("did not start")

def test_setup(server):
    pass
"""


@pytest.mark.parametrize(
    ("tests", "code", "again"),
    [
        ([PASSES], 0, []),
        ([PASSES, RACE], 0, ["test_1.py::test_race"]),
        ([PASSES, SLOW], 1, ["test_1.py::test_slow"]),
        ([RACE, DETERMINISTIC], 1, []),
        ([RACE, SETUP], 1, []),
        (["syntax error", RACE], 2, []),
        ([], 5, []),
    ],
    ids=["passes", "race", "slow", "deterministic", "setup", "not collected", "none"],
)
def test_only_timing_tests_get_a_second_run(
    tmp_path: Path, tests: list[str], code: int, again: list[str]
) -> None:
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    for number, text in enumerate(tests):
        (tmp_path / f"test_{number}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(RUN_TESTS), "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    marked = [line for line in done.stdout.splitlines() if "runs once more" in line]
    assert [line.rpartition(" ")[2] for line in marked] == again
    if "test_deterministic" in "".join(tests):
        assert "does not depend on the clock: test_1.py::test_deterministic" in done.stdout
