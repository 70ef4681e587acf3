"""What bench/peers.py concludes from runs, and how its arbiter looks for a load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import peers
from benchlib.real_triton import Arbiter, Level, telling_s


def write_steps(bench: Any, *, ours: float, claimed: float | None) -> None:
    """Searches of 200 and 50 s, three rounds; ``ours`` times the peer's 100 and 80 per second."""
    peer = {"wall_seconds": 200.0, "chosen": {"max_batch_size": 2, "instances": "3:CPU"}}
    bench.steps.save("model-analyzer", peer)
    for label in ("ours-fp32", "ours-int8"):
        choice = {"edge_rps": claimed, "edge_interval_rps": [0.0, None], "config": CONFIG}
        step = {"wall_seconds": 50.0, "verdict": "found", "choice": choice}
        bench.steps.save(label, step)
    for label, factor in (("model-analyzer", 1.0), ("ours-fp32", ours), ("ours-int8", 2 * ours)):
        # One round in which the machine was slow counts for nothing in a median of three.
        rounds = [
            {"closed_throughput_ips": 100 * speed * factor, "open_edge_rps": 80 * speed * factor}
            for speed in (1.0, 0.4, 1.0)
        ]
        bench.steps.save(f"measured-{label}", rounds)


CONFIG = {
    "precision": "int8", "quantization": "dynamic", "max_batch_size": 8, "dynamic_batching": True,
    "max_queue_delay_us": 2000, "instance_count": 2, "intra_op_threads": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "claimed", "missed"),
    [
        (1.35, 108.0, 1),  # the claim is fp32's edge, and half of int8's
        (0.95, 76.0, 3),  # and both ratios of fp32
        (1.35, None, 2),
    ],
)
def test_a_goal_that_is_missed_is_marked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ours: float,
    claimed: float | None,
    missed: int,
) -> None:
    monkeypatch.setattr(peers, "WORK", tmp_path)
    bench = peers.Bench("perceptron")
    write_steps(bench, ours=ours, claimed=claimed)
    found = bench.result()
    assert found is not None
    fp32 = found["sides"]["ours-fp32"]
    assert fp32["open_edge_rps_ratio"] == pytest.approx(ours)
    assert fp32["wall_share"] == 0.25
    assert fp32["edge_error"] == (None if claimed is None else pytest.approx(0.0))
    text = peers.shown({"models": {"perceptron": found}})
    assert len(text.splitlines()) == 2 + 3
    assert text.count("**missed**") == missed


def test_a_model_that_was_not_searched_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "WORK", tmp_path)
    assert peers.Bench("encoder").result() is None


class Counting(Arbiter):
    """An arbiter of a server that keeps its SLA up to 37 requests in flight."""

    def __init__(self) -> None:
        self.tried: list[int] = []

    def at(self, *, concurrency: int | None = None, rate_rps: float | None = None) -> Level:
        assert concurrency is not None
        self.tried.append(concurrency)
        return Level(
            concurrency=concurrency, rate_rps=None, throughput_ips=10.0 * concurrency,
            latency_ms_p50=1.0, latency_ms_p99=1.0, kept=concurrency <= 37, stable=True,
        )  # fmt: skip


@pytest.mark.parametrize("start", [1, 4, 37, 40, 500])
@pytest.mark.parametrize("factor", [1.25, 2.0])
def test_the_closed_loop_is_found_from_any_start(start: int, factor: float) -> None:
    arbiter = Counting()
    levels = arbiter.closed(start, factor)
    assert 34 <= max(level.concurrency or 0 for level in levels if level.kept) <= 37
    assert len(set(arbiter.tried)) == len(arbiter.tried) < 22


def test_a_server_that_keeps_nothing_ends_the_search() -> None:
    arbiter = Counting()
    arbiter.at = lambda **load: Level(  # type: ignore[method-assign]
        concurrency=load["concurrency"], rate_rps=None, throughput_ips=1.0,
        latency_ms_p50=1.0, latency_ms_p99=1.0, kept=False, stable=True,
    )  # fmt: skip
    assert [level.concurrency for level in arbiter.closed(8)] == [8, 4, 2, 1]


def test_a_low_rate_is_run_until_its_throughput_tells() -> None:
    """25 of 33/s in 4 s, none of them late, counted as a server that lagged behind."""
    assert telling_s(2000.0) < 1.0 and telling_s(33.1) == 30.0
    assert 3.0 / (140.0 * telling_s(140.0)) ** 0.5 == pytest.approx(0.08)
