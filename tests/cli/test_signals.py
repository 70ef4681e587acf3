"""A signal that a callback swallows is heard all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The object's end is run by Python, which drops what is raised there.
SWALLOWED = """
import os, signal, time
from analyzer.cli.signals import hear_signals, take_signals

class Deaf:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)

take_signals()
hear_signals()
try:
    Deaf()
    print("lost", flush=True)
    time.sleep(5.0)
except KeyboardInterrupt:
    print("heard")
"""


def test_a_signal_is_not_lost_in_a_callback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["lost", "heard"], done
    assert done.stderr == ""


def test_the_end_looks_at_no_objects_any_more_and_keeps_its_status() -> None:
    program = (
        "import atexit, gc; from analyzer.cli.signals import end_program\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000)); end_program(3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (3, "True"), done.stderr


# A terminal that closes; "ignored" is what nohup begins a program with.
HANGS_UP = """
import os, signal, sys
from analyzer.cli.signals import take_signals

ignored = sys.argv[1] == "ignored"
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
take_signals()
try:
    os.kill(os.getpid(), signal.SIGHUP)
    print("goes on")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(("begun", "ended"), [("", "interrupted"), ("ignored", "goes on")])
def test_a_terminal_that_closes_interrupts_but_under_nohup(begun: str, ended: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS_UP, begun],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, ended), done
