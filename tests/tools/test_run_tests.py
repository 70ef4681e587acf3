"""Which tests run beside others, which alone, and which failures get a second run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN_TESTS = Path(__file__).parents[2] / "tools" / "run_tests.py"
# Of the plugins that are installed the one that is used: the others take seconds to import.
SETTINGS = (
    "[pytest]\naddopts = --strict-markers -p no:schemathesis\n"
    "markers =\n  timing: real clocks\n  long: long\n"
)
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


BESIDE = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_beside(number):
    assert os.environ["PYTEST_XDIST_WORKER_COUNT"] == "2"
    pathlib.Path(__file__).with_name(f"beside-{number}").touch()
"""
ALONE = """
import os, pathlib, pytest

@pytest.mark.timing
def test_alone():
    assert "PYTEST_XDIST_WORKER" not in os.environ
    assert len(list(pathlib.Path(__file__).parent.glob("beside-*"))) == 4

@pytest.mark.timing
@pytest.mark.long
def test_left_out():
    assert False
"""


def run_tests(folder: Path, tests: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(SETTINGS)
    for number, text in enumerate(tests):
        (folder / f"test_{number}.py").write_text(text)
    return subprocess.run(
        [sys.executable, str(RUN_TESTS), "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
    )  # fmt: skip


def test_only_tests_without_a_clock_run_beside_each_other(tmp_path: Path) -> None:
    done = run_tests(tmp_path, [ALONE, BESIDE], "-n", "2", "-m", "not long")
    assert done.returncode == 0, done.stdout + done.stderr
    beside, alone = done.stdout.splitlines()[-2:]
    assert beside.startswith("on several workers: 4 passed in ")
    assert alone.startswith("one at a time: 1 passed in ")


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
    done = run_tests(tmp_path, tests, "-n", "0")
    assert done.returncode == code, done.stdout + done.stderr
    marked = [line for line in done.stdout.splitlines() if "runs once more" in line]
    assert [line.rpartition(" ")[2] for line in marked] == again
    if "test_deterministic" in "".join(tests):
        assert "does not depend on the clock: test_1.py::test_deterministic" in done.stdout
