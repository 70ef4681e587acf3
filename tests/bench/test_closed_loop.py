from __future__ import annotations

import numpy as np
import pytest

from benchlib.closed_loop import ClosedLoopTwin, LoadPoint, features, fit, informative

REAL = ClosedLoopTwin(
    service_s={"m": 0.005},
    contention=0.35,
    coherence=0.04,
    idling=0.2,
    marginal=0.15,
    overhead_share=0.1,
)


def grid(dynamic: bool = False) -> list[LoadPoint]:
    return [
        LoadPoint(
            group="m",
            instances=instances,
            concurrency=concurrency,
            max_batch_size=16 if dynamic else 1,
            dynamic_batching=dynamic,
        )
        for instances in (1, 2, 3, 4, 5)
        for concurrency in (1, 2, 4, 8, 16, 32)
    ]


def test_one_instance_saturates_at_its_service_time() -> None:
    points = [LoadPoint(group="m", instances=1, concurrency=n) for n in (1, 2, 64)]
    throughput = REAL.throughput_ips(points)
    assert throughput[0] == pytest.approx(1 / 0.0055)
    assert throughput[1:] == pytest.approx([200.0, 200.0])
    assert REAL.latency_s_mean(points)[2] == pytest.approx(64 / 200)


def test_client_batches_and_dynamic_batching_raise_the_throughput() -> None:
    def ips(dynamic: bool, batch: int) -> float:
        point = LoadPoint(
            group="m",
            instances=1,
            concurrency=16,
            max_batch_size=8,
            dynamic_batching=dynamic,
            request_batch_size=batch,
        )
        return float(REAL.throughput_ips([point])[0])

    assert ips(False, 1) < ips(False, 4)
    assert ips(False, 1) < ips(True, 1)
    # Eight items in one execution cost 1 + 0.15 · 7 of one.
    assert ips(True, 1) == pytest.approx(8 / (0.005 * 2.05))


def test_a_dozen_noisy_rows_predict_the_rest() -> None:
    points = grid() + grid(dynamic=True)
    truth = REAL.throughput_ips(points)
    rng = np.random.default_rng(0)
    measured = truth * np.exp(0.01 * rng.standard_normal(len(points)))
    taken = informative(points, 12, rng)
    found = fit([points[i] for i in taken], measured[taken])
    error = np.abs(found.throughput_ips(points) / truth - 1)
    assert np.median(error) < 0.03
    assert found.contention == pytest.approx(REAL.contention, abs=0.15)


def test_one_row_is_enough_to_start() -> None:
    point = LoadPoint(group="m", instances=2, concurrency=4)
    found = fit([point], np.array([300.0]))
    assert found.throughput_ips([point])[0] == pytest.approx(300.0, rel=0.02)
    stranger = LoadPoint(group="other", instances=2, concurrency=4)
    assert found.throughput_ips([stranger])[0] == pytest.approx(300.0, rel=0.02)


def test_informative_rows_differ_and_come_from_every_corner() -> None:
    points = grid() * 3
    taken = informative(points, 12, np.random.default_rng(1))
    assert len(set(taken)) == 12
    assert {1, 2, 3} < {points[i].instances for i in taken}
    assert {1, 32} < {points[i].concurrency for i in taken}
    assert len(informative(points[:2], 12, np.random.default_rng(1))) == 2
    assert features(points).shape[0] == len(points)
