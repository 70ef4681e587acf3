"""Runs the tests in two parts, and what failed and is marked ``timing`` once more.

    python tools/run_tests.py [arguments of pytest]

The tests that are not marked ``timing`` run on several workers at once (pytest-xdist; as many as
there are cores, at most four; ``-n`` changes that). A test marked ``timing`` uses the real clock,
so these run after the others, one at a time. Such a test may still lose a race on a busy machine:
if only tests marked ``timing`` failed, they are run once more, in a new process; their names are
printed.

The exit code is pytest's: that of the third run where there was one; otherwise 1 where a test
failed, 5 where there was no test at all, and 0. Anything else that a part ends with (interrupted,
not collected, wrong options) is final.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter

import pytest

MARKER = "timing"
# Each worker may have a database, a Ray or a server of its own.
WORKERS_MAX = 4
OK, FAILED, NONE = 0, 1, 5  # of pytest's exit codes those that let the other part run


class Outcomes:
    """A pytest plugin that counts the tests by outcome and notes which failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has up to three reports (setup, call, teardown); each may fail."""
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
            self.counts["failed"] += 1
        elif report.skipped or (report.passed and report.when == "call"):
            self.counts[report.outcome] += 1


def parts(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of pytest for the tests on several workers, and for those one at a time."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-m", dest="markers", default="")
    parser.add_argument("-n", "--numprocesses", dest="workers")
    known, rest = parser.parse_known_args(arguments)
    chosen = f"({known.markers}) and " if known.markers else ""
    workers = known.workers or str(min(os.cpu_count() or 1, WORKERS_MAX))
    beside = [
        *rest, "-m", f"{chosen}not {MARKER}", "-n", workers, "--dist", "loadfile",
        "--no-loadscope-reorder", "--max-worker-restart", "2",
    ]  # fmt: skip
    return beside, [*rest, "-m", f"{chosen}{MARKER}"]


def main(arguments: list[str]) -> int:
    """Runs the tests that ``arguments`` choose; the exit code."""
    # Small matrices: threads of the linear algebra only wait for each other beside other tests.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    codes, failed, summary = [], [], ["--- summary ---"]
    for name, options in zip(
        ("on several workers", "one at a time"), parts(arguments), strict=True
    ):
        print(f"--- tests {name} ---", flush=True)
        outcomes, begun = Outcomes(), time.monotonic()
        codes.append(int(pytest.main(options, plugins=[outcomes])))
        if codes[-1] not in (OK, FAILED, NONE):
            return codes[-1]
        said = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.counts.items())
        summary.append(f"{name}: {said or 'none'} in {time.monotonic() - begun:.0f} s")
        failed.append(outcomes.failed)
    again = codes == [OK, FAILED] or codes == [NONE, FAILED]
    summary += [f"failed, and does not depend on the clock: {test}" for test in failed[0]]
    more = ", runs once more" if again else ""
    summary += [f"failed, marked {MARKER}{more}: {test}" for test in failed[1]]
    print(*summary, sep="\n", flush=True)
    if again and failed[1]:
        once_more = [sys.executable, "-m", "pytest", "-q", *failed[1]]
        return subprocess.run(once_more, check=False).returncode
    return next(code for code in (FAILED, OK, NONE) if code in codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
