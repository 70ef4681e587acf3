"""Which probes are run on machines of many cores, and what is told of deployments that were not."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.probes import PROBES_MAX, Probe, ProbeResult, plan_probes
from analyzer.twin.service import ServiceTime

FP32 = Configuration().variant
# Batch sizes by (threads, busy), as they were planned before thread counts competed for the limit.
CURVE, ENDS = (1, 4, 16, 64), (1, 16, 64)
PLANS = {
    1: {(1, 1): CURVE},
    2: {(1, 1): CURVE, (1, 2): ENDS, (2, 1): ENDS},
    4: {(1, 1): CURVE, (1, 2): ENDS, (1, 4): ENDS, (2, 1): ENDS, (2, 2): ENDS, (4, 1): ENDS},
}


def deployments(cores: int) -> list[tuple[int, int]]:
    """(instances, threads) of search_spaces/cpu.yaml on so many cores."""
    numbers = {1, 2, 4, max(1, cores // 2), cores}
    return sorted((i, t) for i in numbers for t in numbers if i * t <= cores)


def plan(cores: int) -> list[Probe]:
    return plan_probes(deployments=deployments(cores), batch_max=64)


@pytest.mark.parametrize("cores", PLANS)
def test_machines_of_few_cores_are_probed_as_before(cores: int) -> None:
    expected = [
        Probe(threads=threads, busy=busy, batch=size)
        for (threads, busy), sizes in PLANS[cores].items()
        for size in sizes
    ]
    assert plan(cores) == expected


@pytest.mark.parametrize("cores", [1, 2, 4, 6, 8, 16, 64])
def test_every_thread_count_is_probed_alone_and_with_all_its_instances(cores: int) -> None:
    """On 8 cores 4 and 8 threads had none of 31 probes; on 64 one thread had 16 of 20."""
    probes = plan(cores)
    assert len(probes) <= PROBES_MAX
    assert probes == sorted(probes, key=lambda p: (p.threads, p.busy, p.batch))
    for threads in {threads for _, threads in deployments(cores)}:
        most = max(instances for instances, t in deployments(cores) if t == threads)
        for busy in {1, most}:
            found = {p.batch for p in probes if (p.threads, p.busy) == (threads, busy)}
            assert {1, 64} <= found, (threads, busy)
    assert {p.batch for p in probes if (p.threads, p.busy) == (1, 1)} == set(CURVE)


def test_of_too_many_thread_counts_each_is_timed_alone() -> None:
    many = [(instances, threads) for threads in range(1, 15) for instances in (1, 3)]
    probes = plan_probes(deployments=[*many, (1, 0)], batch_max=64)
    assert len(probes) == PROBES_MAX
    assert {p.threads for p in probes if p.batch == 1} == {*range(15)}
    assert probes[-1].threads == 0, "ONNX Runtime's own choice comes last"


@pytest.mark.parametrize(
    ("request_size", "batch_max", "sizes"),
    [
        (1, 64, CURVE),
        (1, 32, (1, 2, 4, 8, 16, 32)),
        (8, 64, (8, 16, 32, 64)),
        (64, 64, (64,)),
        # Where a single size was timed, and nothing beyond 64.
        (64, 512, (64, 128, 256, 512)),
        (96, 256, (96, 192, 256)),
        (1, 100, (1, 4, 16, 64, 100)),
        (1, 1024, (1, 4, 16, 64, 256, 1024)),
    ],
)
def test_a_curve_reaches_from_the_smallest_batch_to_the_largest(
    request_size: int, batch_max: int, sizes: tuple[int, ...]
) -> None:
    probes = plan_probes(deployments=[(1, 1)], batch_max=batch_max, request_batch_size=request_size)
    assert tuple(p.batch for p in probes) == sizes


def service(times: dict[tuple[int, int], float], threads: int, instances: int = 1) -> ServiceTime:
    """Of probes that took so long for one inference, and 64 times as long for 64."""
    results = tuple(
        ProbeResult(
            probe=Probe(threads=t, busy=busy, batch=batch), samples_ms=(batch * each_ms,) * 20
        )
        for (t, busy), each_ms in times.items()
        for batch in (1, 64)
    )
    known = VariantCalibration(variant=FP32, results=results)
    found = known.service(threads, instances, cores=64)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("by_threads", "threads", "expected_ms"),
    [
        # No gain from 2 threads: 3.0 times faster with 4 before, 27.9 times with 64.
        ({1: 10.0, 2: 10.0}, 4, 10.0),
        ({1: 10.0, 2: 10.0}, 64, 10.0),
        ({1: 10.0, 2: 5.0}, 4, 2.5),
        ({1: 10.0, 2: 5.0}, 8, 1.25),
        # No faster than in proportion, no slower than what was measured.
        ({1: 10.0, 2: 4.0}, 4, 2.0),
        ({1: 10.0, 2: 12.0}, 4, 12.0),
        ({2: 5.0, 4: 4.0}, 1, 6.25),
        # Between two as they were measured; beyond, the nearest two count.
        ({1: 10.0, 4: 12.0}, 2, 120.0**0.5),
        ({1: 10.0, 4: 2.0}, 2, 20.0**0.5),
        ({1: 10.0, 2: 5.0, 4: 5.0}, 8, 5.0),
        # A single one: the usual gain, from the nearest.
        ({2: 5.0}, 4, 5.0 * 2**-0.8),
    ],
)
def test_threads_that_were_not_probed_gain_what_those_that_were_did(
    by_threads: dict[int, float], threads: int, expected_ms: float
) -> None:
    found = service({(t, 1): each_ms for t, each_ms in by_threads.items()}, threads)
    assert found.service_ms == pytest.approx((expected_ms, 64 * expected_ms))


def test_instances_that_were_not_probed_slow_down_as_those_of_another_thread_count() -> None:
    """Four busy cores are four busy cores: beside each other 1.6 times as slow, two 1.2 times."""
    times = {(1, 1): 10.0, (1, 4): 16.0, (2, 1): 5.0}

    def factors(known: dict[tuple[int, int], float], threads: int, instances: int) -> list[float]:
        at = service(known, threads, instances).interference_at(instances, np.array([1]))
        return [float(factor) for factor in at[:, 0]]

    assert factors(times, 2, 2) == pytest.approx([1.0, 1.6 / 1.2])
    assert factors(times, 1, 4) == pytest.approx([1.0, 1.2, 1.4, 1.6]), "its own are its own"
    own = times | {(2, 2): 5.5}
    assert factors(own, 2, 2) == pytest.approx([1.0, 1.1])
    # More threads than cores take turns; what was seen of free cores tells nothing of that.
    assert factors(times, 2, 64)[-1] == 2.0
    assert factors({(1, 1): 10.0, (1, 128): 25.0, (2, 1): 5.0}, 2, 2) == [1.0, 1.0]
