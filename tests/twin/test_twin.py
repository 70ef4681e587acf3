"""The twin of a study: what it computes once, its time limit, and whose probes it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.model import TensorSpec
from analyzer.domain.sla import Sla
from analyzer.domain.workload import ArrivalProcess, Poisson, Trace
from analyzer.twin import probes
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.machine_constants import MachineConstants
from analyzer.twin.probe_cache import ProbeCache
from analyzer.twin.probes import Probe, ProbeResult
from analyzer.twin.twin import Twin, kept_server_model

FP32 = Configuration().variant
INT8 = VariantKey(precision="int8", quantization="static", backend="onnxruntime")


PYTHON_BACKEND = MachineConstants(server="triton-python")


def configuration(batch: int = 8, instances: int = 1, threads: int = 1) -> Configuration:
    return Configuration(
        max_batch_size=batch,
        dynamic_batching=True,
        instance_count=instances,
        intra_op_threads=threads,
    ).canonical()


def calibration(samples: int = 20) -> VariantCalibration:
    results = [
        ProbeResult(
            probe=Probe(threads=threads, busy=busy, batch=batch),
            samples_ms=tuple((3.0 + 0.7 * batch) * (1 + 0.01 * (i % 5)) for i in range(samples)),
        )
        for threads in (1, 2)
        for busy in (1, 2)
        for batch in (1, 8, 32)
    ]
    return VariantCalibration(variant=FP32, results=tuple(results))


def twin(
    known: VariantCalibration,
    *,
    arrivals: ArrivalProcess | None = None,
    budget_ms: float = 40.0,
    **more: Any,
) -> Twin:
    return Twin(
        {FP32: known},
        Sla(latency_budget_ms=budget_ms),
        arrivals or Poisson(),
        **{"seed": 1, "cores": 2} | more,
    )


def test_each_mean_is_computed_once_for_a_whole_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was once per sample, which took 12.7 of 13.3 s for 279 configurations."""
    calls = 0
    original = probes.trimmed_mean_ms

    def counted(samples_ms: Sequence[float], *, crowded: bool) -> float:
        nonlocal calls
        calls += 1
        return original(samples_ms, crowded=crowded)

    monkeypatch.setattr(probes, "trimmed_mean_ms", counted)
    known = calibration(samples=400)
    subject = twin(known)
    space = [configuration(b, i, t) for b in range(2, 33) for i in (1, 2) for t in (1, 2)]
    assert len(space) == 124
    assert all(subject.server_model(member) is not None for member in space)
    assert calls == len(known.results)


def test_configurations_that_differ_in_batching_share_their_service_times() -> None:
    subject = twin(calibration())
    small, large = (subject.server_model(configuration(batch)) for batch in (2, 16))
    assert small is not None and large is not None
    assert small.service is large.service
    beside = subject.server_model(configuration(2, instances=2))
    assert beside is not None and beside.service != small.service


def test_threads_that_share_a_core_wait_as_long_in_large_batches() -> None:
    """Once in 25 executions of the smallest batch a thread waits 4 ms, with each batch size."""

    def samples(batch: int, count: int) -> tuple[float, ...]:
        return tuple(1.6 * batch + 4.0 * (i % 25 == 24) for i in range(count))

    results = [
        ProbeResult(
            probe=Probe(threads=2, busy=1, batch=batch), samples_ms=samples(batch, 200 // batch)
        )
        for batch in (1, 8)
    ]
    subject = twin(VariantCalibration(variant=FP32, results=tuple(results)), cores=4)
    known = subject.server_model(configuration(8, threads=2))
    assert known is not None
    service = known.service
    slowest = float(service.noise_at(np.array([0.999]))[0])
    sizes = np.array([1, 8])
    small, large = service.noisy_ms(service.curve_ms(sizes), sizes, slowest)
    assert small == pytest.approx(5.6, rel=0.1)
    assert large == pytest.approx(8 * 1.6 + 4.0, rel=0.1)
    assert twin(calibration()).server_model(configuration(8)).service.noise_ms == np.inf  # type: ignore[union-attr]


def test_interruptions_of_a_quick_model_are_no_longer_behind_a_slow_backend() -> None:
    """Executions of 0.01 ms, one in 50 of them interrupted for 0.2 ms, in Triton's python backend.

    With as many times the backend's half millisecond no rate would keep 3 ms.
    """
    samples = tuple(0.01 + 0.2 * (i % 50 == 49) for i in range(400))
    results = [
        ProbeResult(probe=Probe(threads=1, busy=1, batch=batch), samples_ms=samples)
        for batch in (1, 8)
    ]
    known = VariantCalibration(variant=FP32, results=tuple(results))
    subject = twin(known, budget_ms=3.0, constants=PYTHON_BACKEND)
    (edge,) = subject.edges([configuration(8)])
    assert edge is not None and edge > 500.0
    # Threads that share cores slow down the backend as well.
    alone, crowded = (
        known.service_of(configuration(8, n, threads), cores=2, constants=PYTHON_BACKEND)
        for n, threads in ((1, 1), (2, 2))
    )
    assert alone is not None and crowded is not None
    assert alone.steady_ms == pytest.approx((0.6, 1.3)) and crowded.steady_ms == ()


def test_variants_do_not_share_probes() -> None:
    subject = twin(calibration())
    int8 = Configuration(precision="int8", quantization="static")
    assert int8.variant == INT8
    assert subject.server_model(int8) is None
    assert subject.edges([int8]) == [None]
    assert subject.latency_ms(int8, 10.0) is None


def test_the_time_limit_is_of_the_clock_that_is_given() -> None:
    """What it leaves no time to simulate is approximated, and never missing."""
    seconds = iter(range(100))
    subject = twin(calibration(), clock=lambda: float(next(seconds)))
    space = [configuration(batch) for batch in range(2, 34)]
    found = subject.edges(space, seconds_max=1.5)
    assert all(found)
    assert next(seconds) < 10


def test_the_cores_that_are_given_decide_what_is_shared() -> None:
    """Two instances on two cores leave none to the server; on 64 cores they do."""
    of_two, of_many = (
        twin(calibration(), cores=cores).server_model(configuration(instances=2))
        for cores in (2, 64)
    )
    assert of_two is not None and of_many is not None
    assert of_many.service.service_ms == pytest.approx((3.76, 8.77, 25.9), rel=0.01)
    assert all(
        a > b for a, b in zip(of_two.service.service_ms, of_many.service.service_ms, strict=True)
    )


@pytest.mark.parametrize(("cores", "slower"), [(2, 2.0), (4, 1.0), (1, 4.0)])
def test_instances_never_probed_side_by_side_share_the_cores(cores: int, slower: float) -> None:
    alone = [result for result in calibration().results if result.probe.busy == 1]
    known = VariantCalibration(variant=FP32, results=tuple(alone))
    service = known.service(1, 4, cores=cores)
    assert service is not None
    assert service.interference_at(4, np.array([1]))[3, 0] == slower


def of_constant_ms(each_ms: float) -> VariantCalibration:
    """A model whose executions take as long whatever is in them."""
    results = [
        ProbeResult(probe=Probe(threads=1, busy=busy, batch=batch), samples_ms=(each_ms,) * 20)
        for busy in (1, 2)
        for batch in (1, 32)
    ]
    return VariantCalibration(variant=FP32, results=tuple(results))


def test_quick_models_are_bounded_by_what_the_embedded_server_does_one_at_a_time() -> None:
    """Edges were predicted 25 times too high: 818,000/s where 32,000 were measured."""
    quick = of_constant_ms(0.012)
    unbatched = replace(configuration(), dynamic_batching=False, max_queue_delay_us=None)
    members = [unbatched, configuration(8, 2), configuration(16, 2), configuration(32)]
    here, arrivals = twin(quick), UnitArrivals.draw(Poisson(), seed=1, count=1000)
    edges = np.array(here.edges(members), dtype=np.float64)
    # As measured (docs/twin.md): 7,200, 26,500, 32,200 and 39,700/s.
    assert edges == pytest.approx([7_200, 26_500, 32_200, 39_700], rel=0.25)
    for member, edge in zip(members, edges, strict=True):
        model = here.server_model(member)
        assert model is not None
        assert edge <= model.saturation_rps()
        beyond_rps = 1.05 * model.saturation_rps()
        assert model.inflation(arrivals, beyond_rps, budget_ms=40.0) == np.inf
    quicker = MachineConstants(host_ms=0.5 * MachineConstants().host_ms)
    doubled = np.array(twin(quick, constants=quicker).edges(members), dtype=np.float64)
    assert doubled == pytest.approx(2 * edges, rel=0.05), "its costs scale as its CPU time does"
    unbound = twin(quick, constants=MachineConstants(server="triton")).edges(members)
    assert (unbound[0] or 0.0) > 40_000.0


def test_a_triton_that_runs_onnx_in_python_serves_quick_models_more_slowly() -> None:
    """Shared memory, its stub process and HTTP cost a quick model more than its own time."""
    quick = of_constant_ms(0.1)
    here, elsewhere = (MachineConstants(server=it) for it in ("triton-python", "triton"))
    small, large = configuration(1, 2), configuration(32, 2)
    own = twin(quick, constants=elsewhere).edges([small, large])
    python = twin(quick, constants=here).edges([small, large])
    assert all(edge is not None for edge in (*own, *python))
    small_rps, large_rps = (edge or 0.0 for edge in python)
    of_small, of_large = (a / b for a, b in zip(own, python, strict=True) if a and b)
    assert of_small > 4.0 and of_large > 10.0
    assert large_rps > 3.0 * small_rps  # an execution costs more than what is in it
    native = quick.service_of(replace(large, backend="python"), cores=2, constants=elsewhere)
    assert native == quick.service_of(large, cores=2, constants=here)


def test_a_trace_is_simulated_with_its_own_sizes() -> None:
    """Requests of 1 and 8 in turn saturate later than requests of 8."""
    times = np.arange(200) / 100.0
    mixed, large = (
        Trace(path="t", arrival_s=times, batch_size=np.resize(sizes, 200))
        for sizes in ([1, 8], [8])
    )
    of_mixed, of_large = (
        twin(calibration(), arrivals=trace, request_batch_size=8).edges([configuration(8)])[0]
        for trace in (mixed, large)
    )
    assert of_mixed is not None and of_large is not None
    assert of_mixed > 1.15 * of_large


def test_kept_probes_give_the_model_that_the_search_used() -> None:
    kept: dict[tuple[str, str], dict[str, Any]] = {}

    def write(kind: str, key: str, value: dict[str, Any]) -> None:
        kept[kind, key] = value

    now = [1e9]

    def opened(hardware: str = "hardware", length: int = 16) -> ProbeCache:
        inputs = [TensorSpec(name="x", datatype="FP32", shape=(length,))]
        return ProbeCache(
            lambda kind, key: kept.get((kind, key)),
            write,
            hardware,
            inputs=inputs,
            now=lambda: now[0],
        )

    cache = opened()
    known = calibration()
    cache.save("abc", known, "cpu")
    assert cache.load(FP32, "abc", "cpu") == known
    assert cache.load(FP32, "abc", "gpu") is None
    assert kept_server_model(cache, configuration(), "other", cores=2) is None
    assert kept_server_model(cache, configuration(), "abc", cores=2) == twin(known).server_model(
        configuration()
    )
    assert opened("other hardware").load(FP32, "abc", "cpu") is None
    assert opened(length=512).load(FP32, "abc", "cpu") is None, "as --input-shape says"
    now[0] += 5 * 86400.0
    later = opened()
    assert later.load(FP32, "abc", "cpu") == known
    later.save("abc", known, "cpu")
    now[0] += 3 * 86400.0
    assert opened().load(FP32, "abc", "cpu") is None, "a further probe makes the others no younger"
