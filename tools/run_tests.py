"""Runs the tests for CI: what failed and is marked ``timing`` gets a second run, nothing else does.

    python tools/run_tests.py [arguments of pytest]

A test marked ``timing`` uses the real clock and may lose a race on a busy machine. If only such
tests failed, they are run once more, by themselves and in a new process; their names are printed.
The exit code is pytest's: that of the second run where there was one, otherwise that of the first.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

MARKER = "timing"


class FailedTests:
    """A pytest plugin that notes the tests that failed, by whether they are marked ``timing``."""

    def __init__(self) -> None:
        self.timing: list[str] = []
        self.deterministic: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has up to three reports (setup, call, teardown); each may fail."""
        if report.failed:
            names = self.timing if MARKER in report.keywords else self.deterministic
            if report.nodeid not in names:
                names.append(report.nodeid)


def main(arguments: list[str]) -> int:
    """Runs the tests that ``arguments`` choose; the exit code."""
    failed = FailedTests()
    code = int(pytest.main(arguments, plugins=[failed]))
    # Anything but failed tests (2: interrupted or not collected, 5: none, …) is final.
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    for name in failed.deterministic:
        print(f"failed, and does not depend on the clock: {name}")
    if failed.deterministic or not failed.timing:
        return code
    for name in failed.timing:
        print(f"failed, marked {MARKER}, runs once more: {name}", flush=True)
    again = [sys.executable, "-m", "pytest", "-q", *failed.timing]
    return subprocess.run(again, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
