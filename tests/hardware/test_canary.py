"""The witness of the machine: what it makes of samples, and that it really samples."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from analyzer.hardware.canary import STUDY_PERIOD_NS, Canary, conditions_of

PERIOD_NS = 10_000_000


def samples(late_ms: list[float], work_us: list[float]) -> np.ndarray:
    due = np.arange(len(late_ms)) * PERIOD_NS
    return np.stack([due, np.array(late_ms) * 1e6, np.array(work_us) * 1e3], axis=1).astype(
        np.int64
    )


def test_stalls_and_speed_of_samples() -> None:
    late = [0.1] * 1000
    late[500], late[700] = 500.0, 30.0
    found = conditions_of(samples(late, [10.0] * 600 + [18.0] * 400))
    assert found is not None
    assert found.stalls_ms == (500.0, 30.0)
    assert found.seconds == pytest.approx(10.0, rel=0.01)
    assert found.work_us == (10.0,) * 6 + (18.0,) * 4
    # Of the long stall all but 40 ms, of the short one nothing.
    assert found.stalled_share(40.0) == pytest.approx(0.460 / 10.0, rel=0.01)
    assert found.stalled_share(1e6) == 0.0


@pytest.mark.parametrize("more", [3, 40])
def test_what_is_left_of_a_second_at_the_end_is_none_of_its_own(more: int) -> None:
    """A load test ends with moments of an idle machine, in which the work takes twice as long.

    Three such moments of 31 load tests were a slow state of a machine that was quick all the time.
    """
    found = conditions_of(samples([0.1] * (400 + more), [5.5] * 400 + [9.9] * more))
    assert found is not None and found.work_us == (5.5,) * 4
    longer = conditions_of(samples([0.1] * 460, [5.5] * 400 + [9.9] * 60))
    assert longer is not None and longer.work_us == (5.5,) * 4 + (9.9,)
    short = conditions_of(samples([0.1] * 30, [9.9] * 30))
    assert short is not None and short.work_us == (9.9,)


def test_nothing_is_said_without_samples() -> None:
    assert conditions_of(np.zeros((0, 3), dtype=np.int64)) is None


def test_a_terminals_interrupt_is_not_for_the_witness() -> None:
    """It was told with a traceback in the middle of the command's own message."""
    with Canary() as canary:
        assert os.getsid(canary.pid) == canary.pid != os.getsid(0)


def test_the_users_folder_takes_the_place_of_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their types.py, or a folder called analyzer, ended the witness: nothing was watched."""
    for module in ("types.py", "analyzer/__init__.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text("raise RuntimeError('the user\\'s own')\n")
    monkeypatch.chdir(tmp_path)
    with Canary() as canary:
        deadline = time.monotonic() + 20
        while canary.since() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert canary.since() is not None


@pytest.mark.timing
def test_a_real_witness_sees_a_stall_and_ends() -> None:
    with Canary() as canary:
        assert canary._process is not None
        pid = canary._process.pid
        deadline = time.monotonic() + 10
        while canary.since() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        start_ns = time.monotonic_ns()
        time.sleep(0.2)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
        found = canary.since(start_ns)
        assert canary.since(time.monotonic_ns() + 10**9) is None
    assert found is not None
    assert 250 < found.stalls_ms[0] < 600
    assert found.seconds > 0.5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.timing
def test_watching_a_study_costs_less_than_a_hundredth_of_a_core() -> None:
    with Canary(period_ns=STUDY_PERIOD_NS) as canary:
        assert canary._process is not None
        process = psutil.Process(canary._process.pid)
        time.sleep(1.0)
        before = process.cpu_times()
        time.sleep(8.0)
        after = process.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.08
