"""Who comes first on a busy core: a load generator, or the server that it loads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WORDS = """
import ctypes, os
from analyzer.hardware.timing import first_in_line, give_way
if {dropped}:
    libc = ctypes.CDLL(None)
    libc.prctl(24, 23, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_NICE
    os.execv("{python}", ["{python}", "-c", '''{again}'''])
give_way()
print(os.sched_getscheduler(0))
"""


def policy_of_a_server(*, may_run_in_real_time: bool) -> int:
    """The scheduling policy of a process that has given way."""
    again = WORDS.format(dropped=False, python=sys.executable, again="")
    words = WORDS.format(dropped=not may_run_in_real_time, python=sys.executable, again=again)
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run in real time")
def test_a_server_stays_ordinary_where_the_generator_runs_in_real_time() -> None:
    assert policy_of_a_server(may_run_in_real_time=True) == os.SCHED_OTHER


def test_a_server_gives_way_where_the_generator_may_not_run_in_real_time() -> None:
    assert policy_of_a_server(may_run_in_real_time=False) == os.SCHED_IDLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run in real time")
def test_real_time_ends_for_who_may_begin_it_by_a_limit_alone() -> None:
    # The kernel lets a user without CAP_SYS_NICE leave it, but not take the flag back.
    words = """
import os
from analyzer.hardware.timing import first_in_line
with first_in_line() as priority:
    os.setuid(65534)
print(priority, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
"""
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["realtime", str(os.SCHED_OTHER)]
