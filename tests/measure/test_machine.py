"""The calibration of a machine: what it makes of its rounds, and that its parts really run."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.measure.machine import (
    Pieces,
    _Spinner,
    _together,
    busy_levels,
    interference_of,
    series_of,
    server_cost,
)
from analyzer.twin.speed import SpeedPath
from analyzer.twin.variation import estimate


def pieces(path: SpeedPath, start_s: float, seconds: float, *, slower: float = 1.0) -> Pieces:
    """A millisecond of work at a time on a machine of this speed."""
    found, at = [], start_s
    while at < start_s + seconds:
        piece = int(np.searchsorted(path.start_s, at, side="right")) - 1
        ms = slower / float(path.speed[piece])
        found.append((at, ms))
        at += ms / 1e3
    return found


def test_levels_are_few_and_reach_from_one_to_all_cores() -> None:
    assert busy_levels(1) == [1]
    assert busy_levels(2) == [1, 2]
    for cores in (3, 4, 16, 128):
        levels = busy_levels(cores)
        assert levels[0] == 1 and levels[-1] == cores and len(levels) <= 4


def test_interference_is_told_from_drift() -> None:
    """The machine gets 40 % slower meanwhile; rounds are held against their neighbours."""
    drifting = SpeedPath(start_s=np.arange(40) * 0.15, speed=1.0 / np.linspace(1.0, 1.4, 40))
    truth = {1: 1.0, 2: 1.1, 4: 1.5}
    rounds, now = [], 0.0
    for _ in range(6):
        for k, factor in truth.items():
            rounds.append((k, [pieces(drifting, now, 0.15, slower=factor)] * k))
            now += 0.15
    found = dict(interference_of(rounds))
    assert found == {2: pytest.approx(1.1, rel=0.03), 4: pytest.approx(1.5, rel=0.04)}
    assert dict(interference_of([(1, [[(0.0, 1.0)] * 3]), (2, [[(0.0, 0.9)] * 3] * 2)])) == {2: 1.0}
    assert interference_of([(1, [[(0.0, 1.0)] * 3])]) == ()


def test_slow_states_are_seen_while_all_cores_compute() -> None:
    """Each process against its own usual time: cores need not be alike."""
    rng = np.random.default_rng(3)
    path = SpeedPath.two_speeds(slow=0.6, dwell_s=(0.1, 1.0), until_s=40.0, rng=rng)
    both = [pieces(path, 0.0, 30.0), pieces(path, 0.0, 30.0, slower=1.3)]
    found = estimate([series_of(both)])
    assert found is not None and found.slow_factor == pytest.approx(1 / 0.6, rel=0.15)
    assert 0.05 < found.dwell_s < 1.0
    steady = SpeedPath.constant()
    assert estimate([series_of([pieces(steady, 0.0, 10.0)])]) is None


def test_processes_compute_together_and_time_their_pieces() -> None:
    with _Spinner() as first, _Spinner() as second:
        alone, both = _together([first], 0.1), _together([first, second], 0.1)
        assert len(alone) == 1 and len(both) == 2
        for found in (*alone, *both):
            assert len(found) > 3 and all(ms > 0 for _, ms in found)
            starts = [start for start, _ in found]
            assert starts == sorted(starts) and starts[-1] - starts[0] < 1.0
        assert both[0][0][0] > alone[0][-1][0]
    assert first._process.poll() is not None and second._process.poll() is not None


def test_a_server_without_a_model_costs_something() -> None:
    found = server_cost()
    assert 0.0 < found.overhead_ms < 50.0 and 0.0 < found.host_ms < 10.0
