"""A twin whose probes were wrong learns from the execution times of load tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    Breakdown,
    Conditions,
    ExecutionTimes,
    LatencySummary,
    LoadTest,
    Validity,
)
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.learning import Observed, Place, ServiceCorrection, _covariance, pooled
from analyzer.twin.probes import Probe, ProbeResult
from analyzer.twin.server_model import ServerModel
from analyzer.twin.simulator import OpenWorkload
from analyzer.twin.twin import Twin

FP32 = Configuration().variant
SLA = Sla(latency_budget_ms=40.0)
ARRIVALS = UnitArrivals.draw(Poisson(), request_batch_size=1, seed=5, count=60_000)


def configuration(batch: int = 8, instances: int = 1) -> Configuration:
    return Configuration(
        max_batch_size=batch,
        dynamic_batching=True,
        instance_count=instances,
        intra_op_threads=1,
    ).canonical()


def calibration() -> VariantCalibration:
    results = [
        ProbeResult(
            probe=Probe(threads=1, busy=busy, batch=batch), samples_ms=(2.0 + 0.5 * batch,) * 12
        )
        for busy in (1, 2)
        for batch in (1, 8, 32)
    ]
    return VariantCalibration(variant=FP32, results=tuple(results))


def twin() -> Twin:
    return Twin({FP32: calibration()}, SLA, Poisson(), seed=1, cores=4)


def slower(model: ServerModel, factor: float) -> ServerModel:
    times = tuple(factor * ms for ms in model.service.service_ms)
    return replace(model, service=replace(model.service, service_ms=times))


def load_test(truth: ServerModel, rate_rps: float, *, work_us: float = 0.0) -> LoadTest:
    count = 2000
    workload = OpenWorkload(
        arrival_ns=(ARRIVALS.time_s[:count] * (1e9 / rate_rps)).astype(np.int64),
        batch_size=np.array([1]),
    )
    return LoadTest(
        kind="edge", offered_rps=rate_rps, achieved_rps=rate_rps, throughput_ips=rate_rps,
        requests=count, errors=0, duration_s=count / rate_rps, latency_ms=LatencySummary(),
        executions=truth.simulate(workload).execution_times(), validity=Validity(valid=True),
        conditions=Conditions(seconds=1.0, work_us=(work_us,)) if work_us else None,
    )  # fmt: skip


def measured(of: Configuration, *tests: LoadTest) -> Measurement:
    return Measurement(configuration=of, edge=Edge(interval_rps=(None, None)), load_tests=tests)


def edge_of(model: ServerModel) -> float:
    found = model.edge(ARRIVALS, budget_ms=SLA.latency_budget_ms, percentile=SLA.percentile)
    assert found is not None
    return found


def test_the_measured_and_its_neighbours_are_predicted_better() -> None:
    subject = twin()
    first, second, third = configuration(8), configuration(32), configuration(8, instances=2)
    models = {c.config_id: subject.server_model(c) for c in (first, second, third)}
    truths = {key: slower(model, 1.4) for key, model in models.items() if model is not None}
    before = subject.edges([first, second, third])
    rates = [0.5 * (before[0] or 0.0), 0.65 * (before[0] or 0.0)]
    tests = [load_test(truths[first.config_id], rate) for rate in rates]
    assert subject.learn(measured(first, *tests))
    after = subject.edges([first, second, third])
    limits = (0.05, 0.06, 0.15)
    for of, old, new, limit in zip((first, second, third), before, after, limits, strict=True):
        true = edge_of(truths[of.config_id])
        assert old is not None and new is not None
        assert old / true - 1 > 0.3
        assert abs(new / true - 1) < limit, (of, new, true)


def test_learning_again_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges of a large space follow their approximations; only the best are simulated again."""
    subject = twin()
    space = [configuration(batch, instances) for batch in range(2, 33) for instances in (1, 2, 3)]
    subject.edges(space)
    simulated = 0
    edge = ServerModel.edge

    def counted(self: ServerModel, *args: object, **more: object) -> float | None:
        nonlocal simulated
        simulated += 1
        return edge(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ServerModel, "edge", counted)
    model = subject.server_model(space[0])
    assert model is not None
    subject.learn(measured(space[0], load_test(slower(model, 1.3), 100.0)))
    assert None not in subject.edges(space)
    assert 0 < simulated <= 12


def test_targets_without_times_teach_nothing() -> None:
    subject = twin()
    model = subject.server_model(configuration())
    assert model is not None
    assert not subject.learn(
        measured(configuration(), replace(load_test(model, 50.0), executions=()))
    )


def test_a_rare_batch_size_corrects_little_and_another_variant_hardly() -> None:
    place = Place.of(configuration())
    many = Observed(place=place, batch_size=8, log_ratio=0.3, variance=1e-3)
    few = Observed(place=place, batch_size=8, log_ratio=0.3, variance=0.1)
    (much,), (little,) = (ServiceCorrection([o]).log_factor(place, [8]) for o in (many, few))
    assert much > 0.28 and little < 0.1
    other = Place(variant=replace(FP32, precision="fp16"), instances=1, threads=1)
    assert 0 < ServiceCorrection([many]).log_factor(other, [8])[0] < 0.1


def test_the_overhead_is_that_of_light_load() -> None:
    subject = twin()
    at = configuration()
    model = subject.server_model(at)
    assert model is not None
    light = replace(load_test(model, 30.0), breakdown_ms=Breakdown(overhead=1.5))
    heavy = replace(load_test(model, 1100.0), breakdown_ms=Breakdown(overhead=9.0))
    subject.learn(measured(at, light, heavy))
    learned = subject.server_model(at)
    assert learned is not None and learned.overhead_ms == 1.5
    assert all(isinstance(e, ExecutionTimes) for e in light.executions)


def test_light_load_is_light_for_requests_of_their_own_size() -> None:
    """Requests of 8 saturate at 167/s, single ones at 1,333/s: 150/s is no light load."""
    subject = Twin({FP32: calibration()}, SLA, Poisson(), request_batch_size=8, seed=1, cores=4)
    at = configuration()
    model = subject.server_model(at)
    assert model is not None
    light, heavy = (
        replace(load_test(model, rate), executions=(), breakdown_ms=Breakdown(overhead=ms))
        for rate, ms in ((50.0, 1.5), (150.0, 9.0))
    )
    subject.learn(measured(at, light, heavy))
    learned = subject.server_model(at)
    assert learned is not None and learned.overhead_ms == 1.5


def test_what_a_study_learned_is_solved_for_once_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solved, solve = 0, np.linalg.solve

    def counted(*args: object) -> object:
        nonlocal solved
        solved += 1
        return solve(*args)  # type: ignore[call-overload]

    monkeypatch.setattr(np.linalg, "solve", counted)
    subject = twin()
    space = [configuration(batch, instances) for batch in range(2, 22) for instances in (1, 2)]
    models = {member.config_id: subject.server_model(member) for member in space}
    for member in space:
        model = models[member.config_id]
        assert model is not None
        assert subject.learn(measured(member, load_test(slower(model, 1.3), 100.0)))
    assert solved == 0
    for member in space:
        assert subject.server_model(member) is not None
    assert solved == 1


def test_observations_of_one_kind_count_as_their_mean() -> None:
    """Pooled or one by one they estimate the same, to the last digits."""
    rng = np.random.default_rng(7)
    places = [
        Place(variant=variant, instances=instances, threads=1)
        for variant in (FP32, replace(FP32, precision="fp16"))
        for instances in (1, 2)
    ]
    observed = [
        Observed(
            place=places[int(rng.integers(len(places)))],
            batch_size=int(rng.choice([1, 2, 3, 8])),
            log_ratio=float(rng.normal(0.2, 0.1)),
            variance=float(rng.uniform(1e-3, 0.02)),
        )
        for _ in range(120)
    ]
    assert len(pooled(observed)) == 16
    keys = [(each.place, each.batch_size) for each in observed]
    noise = np.diag([each.variance for each in observed])
    values = np.array([each.log_ratio for each in observed])
    unpooled = np.linalg.solve(_covariance(keys, keys) + noise, values)
    correction = ServiceCorrection(observed)
    elsewhere = Place(variant=FP32, instances=4, threads=1)
    for place in (*places, elsewhere):
        sizes = [1, 4, 8, 32]
        expected = _covariance([(place, size) for size in sizes], keys) @ unpooled
        assert correction.log_factor(place, sizes) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("instances", "threads", "learned"), [(1, 1, 1.0), (2, 2, 1.4)])
def test_the_variation_of_crowded_deployments_is_not_the_machines(
    instances: int, threads: int, learned: float
) -> None:
    """Executions whose slow tenths of a second make them 1.4 times as long on the whole.

    Of one thread on two cores these tell of a slow machine, at whose usual speed nothing is new.
    Four threads on them are so slow themselves.
    """
    subject = Twin({FP32: calibration()}, SLA, Poisson(), seed=1, cores=2)
    at = replace(configuration(instances=instances), intra_op_threads=threads)
    model = subject.server_model(at)
    assert model is not None
    test = load_test(replace(slower(model, 1.4), path=None), 60.0)
    subject.learn(measured(at, replace(test, slowness=(1.0,) * 6 + (2.0,) * 4)))
    after = subject.server_model(at)
    assert after is not None
    ratio = after.service.curve_ms(np.array([1]))[0] / model.service.curve_ms(np.array([1]))[0]
    assert ratio == pytest.approx(learned, rel=0.05)


def test_what_seemed_to_keep_the_sla_at_no_rate_may_do_so_with_shorter_times() -> None:
    """An edge of 0 stayed 0, since edges change in proportion."""
    results = [
        ProbeResult(
            probe=Probe(threads=1, busy=1, batch=batch), samples_ms=(15.0 + 5 * batch,) * 12
        )
        for batch in (1, 2)
    ]
    known = VariantCalibration(variant=FP32, results=tuple(results))
    subject = Twin({FP32: known}, Sla(latency_budget_ms=30.0), Poisson(), seed=1, cores=4)
    space = [replace(configuration(2), max_queue_delay_us=1000 * ms) for ms in range(16)]
    before = subject.edges(space)
    assert before[0] and before[-1] == 0.0
    model = subject.server_model(space[0])
    assert model is not None
    subject.learn(measured(space[0], load_test(slower(model, 0.5), 20.0)))
    after = subject.edges(space)
    assert after[-1] and after[0]
    assert after[-1] < after[0]
    hurried = Twin({FP32: known}, Sla(latency_budget_ms=30.0), Poisson(), seed=1, cores=4)
    hurried.edges(space)
    hurried.learn(measured(space[0], load_test(slower(model, 0.5), 20.0)))
    (none,) = hurried.edges(space[-1:], seconds_max=0.0)
    assert none == 0.0, "an approximation leaves the delay out"


def test_edges_need_no_path_of_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those at the usual speed; the path was made for each of them and thrown away."""
    subject = twin()
    with monkeypatch.context() as patched:
        patched.setattr(Twin, "_speeds", property(lambda self: pytest.fail("made a path")))
        (edge,) = subject.edges([configuration()])
    assert edge
