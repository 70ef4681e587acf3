"""Whole searches in a virtual machine: found, proven, robust against everything planted."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration, VariantKey, baseline_configuration
from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import (
    Edge,
    Failure,
    Measurement,
)
from analyzer.domain.sla import Sla
from analyzer.domain.space import ListedConfiguration, SearchSpace
from analyzer.domain.study import Acceptance, Pricing, StudyResult
from analyzer.domain.workload import Poisson
from analyzer.errors import AnalyzerError, BuildTimeoutError
from analyzer.measure import witness
from analyzer.measure.jobs import Job, JobResult
from analyzer.measure.plan import STREAM_VERIFY, CertifyPlan, LoadPlan
from analyzer.measure.tasks import BuildTask, MeasureTask, ProbeTask
from analyzer.measure.virtual import VirtualExecutor, VirtualVariant, VirtualWorld
from analyzer.measure.virtual_session import VirtualSession
from analyzer.report.advice import next_command
from analyzer.report.entries import make_report
from analyzer.report.gain_text import gain_sentence
from analyzer.report.terminal import render_terminal
from analyzer.search import measuring
from analyzer.search import next_step as module_of_steps
from analyzer.search.build import BuiltVariants
from analyzer.search.candidates import Candidates
from analyzer.search.context import SearchContext
from analyzer.search.designer import Designer
from analyzer.search.next_step import Step, next_step
from analyzer.search.outcome_log import OutcomeLog
from analyzer.search.request import PRECISIONS, SearchRequest
from analyzer.search.samplers import SAMPLERS
from analyzer.search.screening import Screening, screen
from analyzer.search.step_tasks import StepTasks
from analyzer.search.virtual import VIRTUAL_MODEL, MemoryStore, search_virtually
from analyzer.spaces.loader import SpaceContext, load_space
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath
from analyzer.twin.twin import Twin
from analyzer.variants.tensorrt_build import EngineFacts

# Small enough to be screened in a second: 4 variants × 3 deployments × (1 + 2 × 2).
SPACE = """
device: cpu
threads_per_core: 1.0
parameters:
  precision: [fp32, fp16, int8]
  quantization: {choices: [static, dynamic], when: {precision: int8}}
  instance_count: [1, 2]
  intra_op_threads: [1, 2]
  dynamic_batching: [false, true]
  max_batch_size: {choices: [8, 32], when: {dynamic_batching: true}}
  max_queue_delay: {choices: [0, 5ms], when: {dynamic_batching: true}}
"""
SPEED = {"fp32": 1.0, "fp16": 1.05, "int8-static": 0.45, "int8-dynamic": 0.7, "fp16 tensorrt": 0.2}


def service(key: VariantKey, threads: int, instances: int) -> ServiceTime | None:
    """Two cores: batches gain, threads gain less than instances, neighbours cost a little."""
    speed = SPEED[key.label] / (1.0 if threads == 1 else 1.7)
    sizes = (1, 2, 4, 8, 16, 32)
    times = tuple(speed * (2.0 + 1.5 * size) for size in sizes)
    per_core = 1.06 if threads == 1 else 1.8
    return ServiceTime(
        batch_sizes=sizes,
        service_ms=times,
        distribution="lognormal",
        cv=0.05,
        interference=(1.0, per_core),
    )


ONE_CONFIGURATION = """
name: one
parameters:
  precision: [fp32]
  instance_count: [1]
  intra_op_threads: [1]
  dynamic_batching: [true]
  max_batch_size: [8]
  max_queue_delay: [0]
"""


def _space(text: str = SPACE) -> SearchSpace:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return load_space(file.name, SpaceContext(device="cpu", cores=2))


def run(
    world: VirtualWorld,
    *,
    sla: Sla | None = None,
    sampler: str = "twin",
    trials_max: int | None = 12,
    resume: bool = False,
    store: MemoryStore | None = None,
    seed: int = 1,
    space: SearchSpace | None = None,
    budget_s: float = 200.0,
    baseline: Configuration | None = None,
    kind: type[VirtualExecutor] = VirtualExecutor,
    precisions: tuple[str, ...] = PRECISIONS,
    study: str = "virtual-1",
    accept: Acceptance = "certified",
    start_s: float = 0.0,
    pricing: Pricing | None = None,
) -> tuple[StudyResult, VirtualExecutor, MemoryStore]:
    sla = sla or Sla(latency_budget_ms=40.0)
    store = store or MemoryStore()
    request = SearchRequest(
        study=study,
        model=VIRTUAL_MODEL,
        sla=sla,
        space=space or _space(),
        arrivals=Poisson(),
        budget_s=budget_s,
        trials_max=trials_max,
        sampler=sampler,
        seed=seed,
        precisions=precisions,
        provenance={},
        accept=accept,
        pricing=pricing or Pricing(),
    )

    executor = kind(world)
    result = search_virtually(
        request, executor, store, cores=2, resume=resume, baseline=baseline, start_s=start_s
    )
    return result, executor, store


def winner(facts: StudyResult) -> Measurement:
    found = [
        outcome
        for outcome in facts.outcomes
        if outcome.configuration.config_id == facts.recommended_id
    ]
    assert isinstance(found[0], Measurement)
    return found[0]


@pytest.fixture(scope="module")
def searched() -> StudyResult:
    """One search of seconds, looked at by several tests."""
    return run(VirtualWorld(service=service))[0]


def test_the_twin_finds_the_fast_variant_and_proves_it(searched: StudyResult) -> None:
    facts = searched
    best = winner(facts)
    assert facts.verdict == "found"
    assert best.configuration.variant.label == "int8-static"
    assert best.configuration.dynamic_batching
    assert best.certificate is not None and best.certificate.verdict == "PASS"
    assert best.capacity_rps is not None and best.edge.rate_rps is not None
    assert 0.4 * best.edge.rate_rps <= best.capacity_rps <= best.edge.rate_rps
    assert facts.search.evaluated_live <= 10
    assert facts.explanation.trusted
    assert [step.measured for step in facts.explanation.contributions][-1]


def test_what_was_left_out_as_hopeless_is_explained_with_a_prediction_of_its_own(
    searched: StudyResult,
) -> None:
    """A step back to fp32 costs a factor, not everything."""
    facts = searched
    best = winner(facts).edge.rate_rps
    edges = [step.edge_rps for step in facts.explanation.contributions]
    edges += [step.predicted_edge_rps for step in facts.explanation.what_if]
    known = [edge for edge in edges if edge is not None]
    assert best is not None and len(known) > 4
    assert min(known) > 0.02 * best


def test_a_variant_that_loses_too_much_is_left_out_and_says_so() -> None:
    facts, _, _ = run(VirtualWorld(service=service, accuracy_drop={"int8-static": 0.05}))
    assert winner(facts).configuration.variant.label == "int8-dynamic"
    failures = [o for o in facts.outcomes if isinstance(o, Failure)]
    assert [f.reason for f in failures] == ["accuracy"]


def test_a_study_names_its_engine_and_goes_on_with_no_other() -> None:
    space = SearchSpace(
        name="engines",
        device="cpu",
        parameters=(),
        listed=tuple(
            ListedConfiguration(label=backend, params=(("precision", "fp16"), ("backend", backend)))
            for backend in ("onnxruntime", "tensorrt")
        ),
    )
    facts = EngineFacts(tensorrt="11.4.0", gpu="NVIDIA A10", compute_capability="8.6")
    result, executor, store = run(VirtualWorld(service=service, engine=facts), space=space)
    assert winner(result).configuration.variant.label == "fp16 tensorrt"
    (engine,) = result.engines
    assert result.engine_of(winner(result).configuration) == engine
    assert (engine.sha256, engine.tensorrt) == ("virtual-fp16 tensorrt", "11.4.0")
    assert all(
        task.assets.engines == (engine,)
        for task in executor.tasks
        if isinstance(task, MeasureTask | ProbeTask)
    )
    # The study goes on: whatever is built now, what was measured is asked for.
    _, again, _ = run(
        VirtualWorld(service=service, engine=facts), space=space, resume=True, store=store
    )
    builds = [task for task in again.tasks if isinstance(task, BuildTask)]
    assert [task.assets.engines for task in builds] == [(engine,)]


def test_a_variant_that_cannot_be_built_costs_nobody_the_study() -> None:
    def broken(key: VariantKey, threads: int, instances: int) -> ServiceTime | None:
        return None if key.precision == "int8" else service(key, threads, instances)

    facts, _, _ = run(VirtualWorld(service=broken))
    assert facts.verdict == "found"
    assert winner(facts).configuration.precision == "fp32"


class LateBuilds(VirtualExecutor):
    """There is no time to build int8."""

    def _build(self, key: VariantKey) -> VirtualVariant | AnalyzerError:
        late = key.precision == "int8"
        return BuildTimeoutError(f"{key.label} took too long.") if late else super()._build(key)


TWO_VARIANTS = """
name: two
parameters:
  precision: [fp32, int8]
  quantization: {choices: [static], when: {precision: int8}}
  instance_count: [1]
  intra_op_threads: [1]
  dynamic_batching: [false]
"""


def test_what_had_no_time_to_be_built_is_measured_once_it_has() -> None:
    """A study that went on left the variant out as if it failed."""
    world, space = VirtualWorld(service=service), _space(TWO_VARIANTS)
    first, _, store = run(world, space=space, kind=LateBuilds, budget_s=60.0)
    assert winner(first).configuration.precision == "fp32"
    assert [o.reason for o in first.outcomes if isinstance(o, Failure)] == ["budget"]
    then, _, _ = run(world, space=space, budget_s=60.0, store=store, resume=True)
    assert first.verdict == then.verdict == "found"
    assert then.outcomes[-1].configuration.precision == "int8"
    assert not any(isinstance(outcome, Failure) for outcome in then.outcomes)


def test_a_server_that_crashes_teaches_the_search_to_go_elsewhere() -> None:
    facts, _, _ = run(
        VirtualWorld(service=service, crash=lambda c: c.max_batch_size == 32), trials_max=20
    )
    assert facts.verdict == "found"
    assert winner(facts).configuration.max_batch_size < 32


def test_one_fault_does_not_end_what_was_measured_before() -> None:
    """A worker that was lost in a climb took the best candidate's further steps with it."""
    starts = Counter[str]()

    def second(configuration: Configuration) -> bool:
        starts[configuration.config_id] += 1
        return starts[configuration.config_id] == 2

    sla = Sla(latency_budget_ms=40.0, confidence=0.9999)  # so that climbs are left to do
    facts, _, _ = run(VirtualWorld(service=service, crash=second), trials_max=1, sla=sla)
    assert facts.verdict == "found"
    assert starts[winner(facts).configuration.config_id] > 3, "three without a further try"


@pytest.mark.parametrize(
    "world",
    [
        VirtualWorld(service=service, probe_factor=2.0),
        VirtualWorld(service=service, probe_interference=False),
        VirtualWorld(service=service, drift=1.005),
    ],
    ids=["service times doubled", "interference left out", "service times drift"],
)
def test_a_twin_that_is_wrong_on_purpose_still_ends_in_a_true_certificate(
    world: VirtualWorld,
) -> None:
    facts, _, _ = run(world)
    best = winner(facts)
    assert facts.verdict == "found"
    assert best.configuration.variant.label == "int8-static"
    # The claim holds on the true machine, whatever the twin believed.
    true_edge = best.edge.rate_rps
    assert best.capacity_rps is not None and true_edge is not None
    assert best.capacity_rps <= true_edge * 1.02


def test_an_estimate_is_still_accepted_where_a_resumed_study_can_measure_nothing_more() -> None:
    slow = VirtualWorld(
        service=lambda key, threads, instances: ServiceTime(
            batch_sizes=(1, 8), service_ms=(200.0, 800.0)
        )
    )
    again = partial(run, slow, sla=Sla(latency_budget_ms=900.0), accept="estimated")
    first, _, store = again(budget_s=40.0)
    then, _, _ = again(budget_s=4.0, start_s=3.5, store=store, resume=True)
    assert first.verdict == then.verdict == "estimated"
    assert first.recommended_id == then.recommended_id and first.recommended_id is not None
    assert then.search.budget_needed_s is not None


def test_a_budget_nobody_can_keep_is_infeasible_with_a_bound() -> None:
    facts, _, _ = run(VirtualWorld(service=service), sla=Sla(latency_budget_ms=0.5))
    assert facts.verdict == "infeasible"
    assert facts.recommended_id is None
    assert facts.search.bound and "budget is 0.5 ms" in facts.search.bound


def test_that_rates_far_too_high_fail_says_nothing_of_lower_ones() -> None:
    """A twin that is twenty times too high, and no time to prove what the server answers."""
    world = VirtualWorld(service=service, probe_factor=0.05)
    found, _, store = run(world, budget_s=8.0, space=_space(ONE_CONFIGURATION))
    measured = [o.outcome for o in store.outcomes if isinstance(o.outcome, Measurement)]
    low, high = measured[-1].evidence
    assert high.over_budget > 0.9 * high.requests and low.over_budget == 0
    assert low.rate_rps < 0.1 * high.rate_rps, "one step down, not one after the other"
    assert found.verdict == "undecided"


def test_a_search_in_which_all_fails_ends_and_says_nothing_of_rates() -> None:
    """26 configurations that refused every request were tried, and told as too slow."""
    facts, _, store = run(VirtualWorld(service=service, crash=lambda configuration: True))
    tried = [stored for stored in store.outcomes if stored.role in ("trial", "baseline")]
    assert [stored.role for stored in tried] == ["trial"] * 6 + ["baseline"]
    assert facts.verdict == "undecided"
    assert not any("No rate" in warning for warning in facts.warnings)

    # Nor where the baseline alone runs, and then the others may as well.
    def others(configuration: Configuration) -> bool:
        return configuration.max_batch_size != 4

    facts, _, store = run(VirtualWorld(service=service, crash=others))
    assert facts.verdict == "found" and winner(facts).configuration.max_batch_size == 4


def test_what_qualifies_a_measurement_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a Triton had no ONNX Runtime backend was stored, and told by verify alone."""
    monkeypatch.setattr(VirtualSession, "notes", ("Another backend was measured.",))
    facts, _, _ = run(VirtualWorld(service=service), space=_space(ONE_CONFIGURATION), budget_s=30.0)
    assert facts.warnings.count("Another backend was measured.") == 1


def test_memory_is_a_limit_of_the_search() -> None:
    def memory(configuration: Configuration) -> int:
        return (100 << 20) * configuration.instance_count

    facts, _, _ = run(
        VirtualWorld(service=service, memory_bytes=memory),
        sla=Sla(latency_budget_ms=40.0, max_memory_bytes=150 << 20),
    )
    assert winner(facts).configuration.instance_count == 1


def test_a_memory_limit_that_everything_misses_is_no_lack_of_time_and_of_no_rate() -> None:
    """Rates were kept; 65 s were to prove it, and no rate was said to keep the promise."""

    def memory(configuration: Configuration) -> int:
        return (100 << 20) + (10 << 20) * configuration.max_batch_size

    found, _, _ = run(
        VirtualWorld(service=service, memory_bytes=memory),
        sla=Sla(latency_budget_ms=40.0, max_memory_bytes=50 << 20),
        trials_max=2,
    )
    assert found.verdict == "undecided" and found.search.budget_needed_s is None
    assert not [text for text in found.warnings if "No rate" in text or "time did not" in text]
    report = make_report(found)
    assert report.closest is not None and report.closest.entry.measurement.edge.at_least_rps
    assert next_command(report) is None
    text = " ".join(render_terminal(report).split())
    assert "It misses the memory limit" in text and "raise --max-memory to about" in text
    assert "--budget" not in text and "budget of" not in text


def test_a_study_with_few_predictions_makes_no_claim_about_the_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A screen that lost most of the space must not look like an optimum."""
    edges = Twin.edges

    def collapsed(
        self: Twin, configurations: Sequence[Configuration], *, seconds_max: float = np.inf
    ) -> list[float | None]:
        found = edges(self, configurations, seconds_max=seconds_max)
        return found if len(found) == 1 else [*found[:2], *[None] * (len(found) - 2)]

    monkeypatch.setattr(Twin, "edges", collapsed)
    facts, _, _ = run(VirtualWorld(service=service), trials_max=3)
    assert not facts.search.bound or (
        "no configuration" not in facts.search.bound and "have neither" in facts.search.bound
    )
    assert "The twin predicted" in facts.explanation.trust_reason


def test_each_trial_teaches_also_where_it_breaks_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How far the twin is off shows whether or not the memory suffices, resumed or not."""
    taught: list[tuple[str, bool, bool]] = []
    update = Designer.update

    def spy(
        self: Designer, config_id: str, value: float | None, *, feasible: bool, exact: bool
    ) -> None:
        taught.append((config_id, value is not None, feasible))
        update(self, config_id, value, feasible=feasible, exact=exact)

    monkeypatch.setattr(Designer, "update", spy)
    sla = Sla(latency_budget_ms=40.0, max_memory_bytes=50 << 20)
    facts, _, store = run(VirtualWorld(service=service), sla=sla, trials_max=3)
    trials = [o.outcome.configuration.config_id for o in store.outcomes if o.trial_number >= 0]
    assert {entry for entry in taught if entry[0] in trials} == {(t, True, False) for t in trials}
    assert len(trials) == 3 and facts.explanation.error_median is not None
    taught.clear()
    again, _, _ = run(
        VirtualWorld(service=service),
        sla=sla,
        trials_max=3,
        resume=True,
        store=store,
    )
    assert {entry for entry in taught if entry[0] in trials} == {(t, True, False) for t in trials}
    assert again.explanation.error_median == pytest.approx(facts.explanation.error_median, rel=0.3)


def test_the_latency_objective_is_judged_at_the_target_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once that is proven, no higher rate is climbed to."""
    climbs: list[float | None] = []
    task = StepTasks.task

    def recorded(
        self: StepTasks, step: Step, configuration: Configuration, known: Any, **more: Any
    ) -> Any:
        if step == "climb":
            climbs.append(known.capacity_rps)
        return task(self, step, configuration, known, **more)

    monkeypatch.setattr(StepTasks, "task", recorded)
    sla = Sla(latency_budget_ms=40.0, target_rate_rps=100.0, objective="latency")
    facts, _, _ = run(VirtualWorld(service=service), sla=sla)
    best = winner(facts)
    assert best.headline is not None and best.headline.offered_rps == pytest.approx(100.0)
    assert best.configuration.variant.label == "int8-static"
    assert not any(climbs), "what climbs is proven, and was not"


def test_predicted_latencies_take_no_longer_than_the_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a simulation: those of the highest edges come first, and the rest have none."""
    simulated: list[str] = []
    edges: dict[str, float | None] = {}
    latency_ms = Twin.latency_ms

    class Timed(VirtualExecutor):
        """Each of these simulations takes a second."""

        def now(self) -> float:
            return super().now() + len(simulated)

    def timed(self: Twin, configuration: Configuration, *given: Any, **more: Any) -> float | None:
        if not more:
            simulated.append(configuration.config_id)
        return latency_ms(self, configuration, *given, **more)

    def recorded(context: SearchContext, built: BuiltVariants) -> Screening:
        found = screen(context, built)
        edges.update({config_id: found.predicted[config_id] for config_id in found.allowed})
        return found

    monkeypatch.setattr(Twin, "latency_ms", timed)
    monkeypatch.setattr("analyzer.search.study.screen", recorded)
    sla = Sla(latency_budget_ms=40.0, target_rate_rps=100.0, objective="latency")
    found, _, _ = run(VirtualWorld(service=service), sla=sla, budget_s=60.0, kind=Timed)
    assert found.verdict == "found"
    assert len(simulated) == 3, "seconds: as many as the edges may take"
    highest = sorted((edge or 0.0 for edge in edges.values()), reverse=True)
    assert [edges[config_id] for config_id in simulated] == highest[:3]


@pytest.mark.parametrize(("devices", "enough_rps"), [(1, 400.0), (4, 100.0)])
def test_what_a_machines_devices_carry_together_is_enough(devices: int, enough_rps: float) -> None:
    """No time goes to a rate at which no machine less is needed."""
    sla = Sla(latency_budget_ms=40.0, target_rate_rps=400.0, objective="cost")
    found, _, _ = run(
        VirtualWorld(service=service), sla=sla, pricing=Pricing(devices_per_machine=devices)
    )
    assert winner(found).capacity_rps == enough_rps
    entry = make_report(found).recommendation
    assert entry is not None and entry.fleet is not None and entry.fleet.machines == 1


def test_an_open_certificate_whose_few_runs_broke_the_sla_goes_on_in_the_time_left() -> None:
    """Stalls make 2 % of the requests late, many at once: short runs decide nothing."""
    sla = Sla(latency_budget_ms=40.0, target_rate_rps=100.0, objective="latency")
    facts, executor, _ = run(
        VirtualWorld(
            service=service, speed=SpeedPath.stalls(every_s=22.0, length_s=0.5, until_s=400.0)
        ),
        sla=sla,
        space=_space(ONE_CONFIGURATION),
    )
    (known,) = [m for m in facts.outcomes if isinstance(m, Measurement) and m.certificate]
    assert known.certificate is not None and facts.verdict != "found"
    assert known.certificate.verdict == "FAIL" or executor.now() > 150.0
    assert len(executor.measured) >= 2


@pytest.mark.parametrize("sampler", [s for s in SAMPLERS if s not in ("twin", "gp")])
def test_optunas_own_samplers_run_through_the_same_study(sampler: str) -> None:
    facts, executor, _ = run(VirtualWorld(service=service), sampler=sampler, trials_max=6)
    assert facts.verdict == "found"
    trials = executor.measured
    assert len(trials) >= 6


def test_resuming_repeats_no_trial_and_keeps_what_was_proven() -> None:
    """The new budget may still climb, on what the certificates have gathered."""
    first, _, store = run(VirtualWorld(service=service), trials_max=4)
    again, executor, _ = run(VirtualWorld(service=service), trials_max=4, resume=True, store=store)
    assert set(executor.measured) <= {first.recommended_id, first.baseline_id}
    assert again.recommended_id == first.recommended_id
    assert again.verdict == "found"
    assert (winner(again).capacity_rps or 0.0) >= (winner(first).capacity_rps or 0.0) > 0


def test_the_twins_probes_come_from_the_cache_in_the_next_study() -> None:
    store = MemoryStore()
    run(VirtualWorld(service=service), store=store, trials_max=1)
    kinds = {kind for kind, _ in store.cache}
    assert kinds == {"probes", "speeds"}

    def no_probes(key: VariantKey, threads: int, instances: int) -> ServiceTime | None:
        return service(key, threads, instances)

    world = replace(VirtualWorld(service=no_probes), probe_factor=np.nan)
    facts, _, _ = run(world, store=store, trials_max=2)
    assert facts.verdict == "found"


def test_the_ablation_measures_its_eight_configurations() -> None:
    space = load_space("ablation", SpaceContext(device="cpu", cores=2))
    facts, executor, _ = run(
        VirtualWorld(service=service),
        space=space,
        sampler="grid",
        trials_max=None,
        budget_s=600.0,
    )
    measured = [o for o in facts.outcomes if isinstance(o, Measurement)]
    assert set(space.labels()) <= set(executor.measured)
    assert any("stands where TensorRT stands" in note for m in measured for note in m.notes)
    assert not any("stands where TensorRT stands" in warning for warning in facts.warnings)


def test_an_answer_comes_first_and_is_improved_then() -> None:
    found, _, store = run(VirtualWorld(service=service), budget_s=60.0, trials_max=None)
    roles = [outcome.role for outcome in store.outcomes if outcome.role != "variant"]
    first = next(o.outcome for o in store.outcomes if o.role == "trial")
    assert isinstance(first, Measurement) and first.capacity_rps, "certified on the same server"
    assert roles[:2] == ["trial", "baseline"]
    assert found.verdict == "found"
    assert found.search.wall_seconds <= 60.0 * 1.05
    best = max(
        o.capacity_rps or 0.0
        for o in found.outcomes
        if isinstance(o, Measurement) and o.configuration.config_id != found.baseline_id
    )
    winner = next(o for o in found.outcomes if o.configuration.config_id == found.recommended_id)
    assert isinstance(winner, Measurement)
    assert winner.capacity_rps == best >= (first.capacity_rps or 0.0)


def slow(key: VariantKey, threads: int, instances: int) -> ServiceTime | None:
    """Some ten to twenty requests a second, whatever their batches."""
    times = tuple(60.0 * SPEED[key.label] * size for size in (1, 32))
    return ServiceTime(batch_sizes=(1, 32), service_ms=times)


def test_where_the_time_is_scarce_the_proof_comes_before_the_edge() -> None:
    found, _, store = run(VirtualWorld(service=slow), sla=Sla(latency_budget_ms=400.0), budget_s=45)
    first = next(o.outcome for o in store.outcomes if o.role == "trial")
    assert isinstance(first, Measurement)
    assert first.load_tests[0].kind == "certify"
    assert found.verdict == "found" and found.search.wall_seconds <= 45 * 1.05
    assert (winner(found).edge.at_least_rps or 0.0) >= (winner(found).capacity_rps or 0.0) > 0.0


def test_the_first_proof_of_a_slow_model_takes_what_the_baseline_s_edge_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no time for a second one, and would leave what a climb cannot use."""
    firsts: list[tuple[CertifyPlan, float]] = []
    task = StepTasks.task

    def recorded(self: StepTasks, step: Step, *given: Any, leaves_time: bool) -> Any:
        seconds, made = task(self, step, *given, leaves_time=leaves_time)
        if step == "first" and made.certify is not None:
            firsts.append((made.certify, self._context.plan.left_s))
        return seconds, made

    monkeypatch.setattr(StepTasks, "task", recorded)
    found, _, _ = run(VirtualWorld(service=slow), sla=Sla(latency_budget_ms=400.0), budget_s=100)
    plan, left_s = firsts[0]
    assert plan.supposed_rps is None, "the edge comes first"
    assert 0.65 * left_s < plan.seconds < left_s - 2 * 8.0, "its own edge's and the baseline's"
    known = {o.configuration.config_id: o for o in found.outcomes}
    baseline = known[found.baseline_id]
    assert isinstance(baseline, Measurement) and baseline.edge.at_least_rps
    assert found.verdict == "found"


@pytest.mark.parametrize("budget_s", [20.0, 30.0])
def test_a_first_proof_leaves_time_to_the_baselines_edge(budget_s: float) -> None:
    """The gain is told, and what an open proof misses is what the notes say of it."""
    found, _, store = run(
        VirtualWorld(service=slow), sla=Sla(latency_budget_ms=400.0), budget_s=budget_s
    )
    roles = [outcome.role for outcome in store.outcomes if outcome.role != "variant"]
    assert roles[:2] == ["trial", "baseline"]
    first = next(o.outcome for o in store.outcomes if o.role == "trial")
    assert isinstance(first, Measurement) and not first.capacity_rps, "it is open"
    baseline = next(o for o in found.outcomes if o.configuration.config_id == found.baseline_id)
    assert isinstance(baseline, Measurement) and baseline.edge.at_least_rps


def test_the_proof_that_lacks_the_least_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline whose short runs went further has nothing proven at all."""
    completed: list[str] = []
    complete = StepTasks.completion

    def recorded(self: StepTasks, candidate: Measurement, seconds: float) -> MeasureTask:
        completed.append(candidate.configuration.config_id)
        return complete(self, candidate, seconds)

    monkeypatch.setattr(StepTasks, "completion", recorded)
    monkeypatch.setattr("analyzer.search.time_plan.OVERRUN_SHARE", 1.0)
    found, _, store = run(VirtualWorld(service=slow), sla=Sla(latency_budget_ms=400.0), budget_s=36)
    outcomes = [o.outcome for o in store.outcomes if o.role in ("trial", "baseline")]
    assert all(isinstance(outcome, Measurement) for outcome in outcomes)
    edges = [o.edge.at_least_rps or 0.0 for o in outcomes if isinstance(o, Measurement)]
    assert len(edges) == 2 and edges[1] > edges[0]
    assert completed == [outcomes[0].configuration.config_id]
    assert found.verdict == "found" and found.recommended_id == completed[0]


def test_a_late_proof_leaves_the_baselines_edge_for_after_the_budget() -> None:
    """A proof that ends in the time that was kept for it goes first."""
    found, _, store = run(VirtualWorld(service=slow), sla=Sla(latency_budget_ms=400.0), budget_s=40)
    roles = [outcome.role for outcome in store.outcomes if outcome.role != "variant"]
    assert roles == ["trial", "baseline"] and found.verdict == "found"
    assert found.search.wall_seconds <= 46.0
    assert any("measured beyond --budget" in note for note in found.warnings)


def test_where_the_time_is_ample_an_open_edge_is_closed() -> None:
    def slower(key: VariantKey, threads: int, instances: int) -> ServiceTime | None:
        found = slow(key, threads, instances)
        return found and replace(found, service_ms=tuple(2.0 * ms for ms in found.service_ms))

    world = VirtualWorld(service=slower)
    found, _, store = run(world, sla=Sla(latency_budget_ms=1200.0), budget_s=600, trials_max=3)
    edges: dict[str, list[Edge]] = {}
    for stored in store.outcomes:
        if isinstance(stored.outcome, Measurement):
            config_id = stored.outcome.configuration.config_id
            edges.setdefault(config_id, []).append(stored.outcome.edge)
    told = [edges[found.recommended_id or ""], edges[found.baseline_id]]
    assert any(each[0].rate_rps is None for each in told), "its runs have too few requests"
    assert all(each[-1].rate_rps for each in told)


def test_a_rate_that_was_taken_back_is_none_that_a_further_walk_must_exceed() -> None:
    """A slow spell takes it back; a walk that proves a lower one gained, and goes on from there."""
    spell = SpeedPath(start_s=np.array([0.0, 40.0, 52.0]), speed=np.array([1.0, 0.6, 1.0]))
    best = searched_in_a_spell(spell, seed=3)
    assert best.capacity_rps and best.edge.at_least_rps
    # The spell carries about 0.47 of the edge, which is that of the usual speed.
    assert best.capacity_rps > 0.5 * best.edge.at_least_rps
    assert len([known for known in best.evidence if known.claim]) > 1


def test_an_edge_is_stated_over_a_slow_spell_that_a_certificate_s_runs_did_not_meet() -> None:
    """They kept 471/s before it; over all of the time, the spell in it, 382/s keeps the SLA."""
    spell = SpeedPath(start_s=np.array([0.0, 128.5, 138.0]), speed=np.array([1.0, 0.71, 1.0]))
    best = searched_in_a_spell(spell, seed=14)
    stated_rps = best.edge.rate_rps or 0.0
    sla = Sla(latency_budget_ms=50.0)
    server = service(best.configuration.variant, 1, best.configuration.instance_count)
    assert server is not None

    def late(rate: float) -> float:
        true = ServerModel.of(best.configuration, server, overhead_ms=0.2)
        session = VirtualSession(true, LoadPlan(sla=sla, arrivals=Poisson(), seed=1), speed=spell)
        test = session.run(rate, 400.0, kind="verify", stream=STREAM_VERIFY, abort=False)
        return (test.over_budget or 0) / test.requests

    assert late(0.8 * stated_rps) < sla.miss_rate_max < late(1.2 * stated_rps)
    assert (best.capacity_rps or 0.0) < stated_rps


def searched_in_a_spell(spell: SpeedPath, *, seed: int) -> Measurement:
    """What a search of 400 s recommends on a machine that is slower for some seconds."""
    request = SearchRequest(
        study="spell",
        model=VIRTUAL_MODEL,
        sla=Sla(latency_budget_ms=50.0),
        space=_space(ONE_CONFIGURATION),
        arrivals=Poisson(),
        budget_s=400.0,
        sampler="twin",
        seed=seed,
        provenance={},
    )
    executor = VirtualExecutor(VirtualWorld(service=service, speed=spell, seed=seed))
    ((only, _),) = request.space.candidates().values()
    worse = replace(only, max_batch_size=2, preferred_batch_size=None)
    return winner(search_virtually(request, executor, MemoryStore(), cores=1, baseline=worse))


TWO_PRECISIONS = """
device: cpu
threads_per_core: 1.0
parameters:
  precision: [fp32, fp16]
  instance_count: [2]
  intra_op_threads: [1]
  dynamic_batching: [true]
  max_batch_size: [8]
  max_queue_delay: [0]
"""


def test_a_proof_that_a_slow_state_takes_back_is_made_again_at_once() -> None:
    """The machine goes to half of its speed while the baseline is proven: that can wait."""
    slower = SpeedPath(start_s=np.array([0.0, 42.0]), speed=np.array([1.0, 0.5]))
    result, _, _ = run(
        VirtualWorld(service=service, speed=slower),
        sla=Sla(latency_budget_ms=50.0),
        space=_space(TWO_PRECISIONS),
        budget_s=60.0,
        trials_max=None,
    )
    best = winner(result)
    assert best.capacity_rps and best.certificate is not None
    assert best.certificate.verdict == "PASS"
    assert (result.search.wall_seconds or 0.0) <= 60.0


def test_requests_larger_than_triton_s_own_batches_have_a_baseline_that_takes_them() -> None:
    """Of 8 inferences each, where its automatic configuration takes four at a time."""
    request = SearchRequest(
        study="large",
        model=VIRTUAL_MODEL,
        sla=Sla(latency_budget_ms=100.0),
        space=replace(_space(ONE_CONFIGURATION), request_batch_size=8),
        arrivals=Poisson(),
        request_batch_size=8,
        budget_s=100.0,
        sampler="twin",
        seed=1,
        provenance={},
    )
    executor = VirtualExecutor(VirtualWorld(service=service))
    given = replace(baseline_configuration(batchable=True), intra_op_threads=1)
    for baseline in (None, given):
        store = MemoryStore()
        result = search_virtually(request, executor, store, cores=2, baseline=baseline)
        measured = next(
            of for of in result.outcomes if of.configuration.config_id == result.baseline_id
        )
        assert isinstance(measured, Measurement) and measured.edge.rate_rps
        assert measured.configuration.max_batch_size == 8


def test_what_earlier_studies_met_of_the_machine_holds_a_claim_back() -> None:
    """A minute of quick seconds on a machine that was slow in half of the last study's."""
    two_speeds = SpeedPath(start_s=np.array([0.0, 8.0]), speed=np.array([1.0, 0.55]), period_s=16.0)
    store, sla = MemoryStore(), Sla(latency_budget_ms=40.0)
    space = _space(ONE_CONFIGURATION)
    run(VirtualWorld(service=service, speed=two_speeds), store=store, space=space, study="slow")
    quick = VirtualWorld(service=service, speed=SpeedPath(start_s=np.zeros(1), speed=np.ones(1)))
    alone, _, _ = run(quick, space=space, study="quick")
    after, _, _ = run(quick, space=space, store=store, study="quick")
    free, held = winner(alone).capacity_rps, winner(after).capacity_rps
    edge_rps = winner(after).edge.rate_rps
    assert free and held and edge_rps
    assert free > 0.7 * edge_rps and 0.3 * edge_rps < held < 0.6 * edge_rps
    assert edge_rps == pytest.approx(winner(alone).edge.rate_rps, rel=0.1), "what this study met"
    assert any("In earlier studies" in warning for warning in after.warnings)
    assert not any("In earlier studies" in warning for warning in alone.warnings)
    fixed = replace(sla, target_rate_rps=400.0, objective="latency")
    asked, _, _ = run(quick, sla=fixed, space=space, store=store, study="asked")
    assert winner(asked).capacity_rps == 400.0, "a rate that was asked for is not chosen"
    assert any("is not known" in warning for warning in asked.warnings)


def test_a_target_that_only_the_baseline_keeps_is_found() -> None:
    """Its one candidate breaks the target; the search had said that nothing keeps it."""
    sla = Sla(latency_budget_ms=40.0, target_rate_rps=700.0, objective="latency")
    found, _, _ = run(VirtualWorld(service=service), sla=sla, space=_space(ONE_CONFIGURATION))
    assert found.verdict == "found" and found.recommended_id == found.baseline_id


def test_a_climb_that_brought_nothing_takes_the_time_that_it_left_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It left time to the baseline's certificate, which does not fit after its runs."""
    climbs: list[bool] = []
    task = StepTasks.task

    def recorded(self: StepTasks, step: Step, *given: Any, leaves_time: bool) -> Any:
        if step == "climb":
            climbs.append(leaves_time)
        return task(self, step, *given, leaves_time=leaves_time)

    monkeypatch.setattr(StepTasks, "task", recorded)
    monkeypatch.setattr(StepTasks, "baseline_comparable", lambda self, *_: not climbs)
    monkeypatch.setattr(measuring, "_gained", lambda pending, *_: pending.step != "climb")
    monkeypatch.setattr(module_of_steps, "_CLOSE_SHARE", 2.0)
    space = _space(ONE_CONFIGURATION)
    ((only, _),) = space.candidates().values()
    worse = replace(only, max_batch_size=2, preferred_batch_size=None)
    run(VirtualWorld(service=service), space=space, budget_s=100.0, baseline=worse)
    assert climbs == [True, False], "the second one has the rest, and is the last"


def test_the_time_that_is_left_goes_to_rates_above_what_a_slow_state_surely_carries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where that is known badly, a search ended far below it with more than half of its time."""
    path = SpeedPath(start_s=np.array([0.0, 12.0]), speed=np.array([1.0, 0.7]), period_s=16.0)
    monkeypatch.setattr(witness, "SURE_SHARE", 0.6)
    world, space = VirtualWorld(service=service, speed=path), _space(ONE_CONFIGURATION)

    def searched() -> tuple[StudyResult, list[str]]:
        steps: list[str] = []
        task = StepTasks.task

        def recorded(self: StepTasks, step: Step, *given: Any, **more: Any) -> Any:
            steps.append(step)
            return task(self, step, *given, **more)

        with monkeypatch.context() as patch:
            patch.setattr(StepTasks, "task", recorded)
            result, _, _ = run(world, space=space, budget_s=600.0)
        return result, steps

    with monkeypatch.context() as patch:
        patch.setattr(Candidates, "risked", None)
        before, usual = searched()
    after, steps = searched()
    assert "climb_beyond" not in usual and steps[: len(usual)] == usual
    assert set(steps[len(usual) :]) == {"climb_beyond"}
    held, found = winner(before).capacity_rps, winner(after).capacity_rps
    assert held and found and found > 1.05 * held
    edge_rps = winner(after).edge.rate_rps
    assert edge_rps and found > 0.85 * edge_rps, "of the edge over all speeds"
    served = service(winner(after).configuration.variant, 1, 1)
    assert served is not None
    true = ServerModel.of(winner(after).configuration, served, overhead_ms=world.overhead_ms)
    true = replace(true, path=path)
    arrivals = UnitArrivals.draw(Poisson(), count=100_000, seed=7)
    assert true.miss_rate(arrivals, found, budget_ms=40.0) <= 0.01


@pytest.mark.parametrize("lowered", [False, True])
def test_an_edge_is_told_as_lowered_where_it_was(
    monkeypatch: pytest.MonkeyPatch, lowered: bool
) -> None:
    """What its own speed gave is kept beside it, and is no lower edge."""

    def revised(edge: Edge, tests: Sequence[LoadTest], *, miss_rate_max: float) -> Edge:
        less = edge.rate_rps and 0.9 * edge.rate_rps
        found = replace(edge, before_rps=edge.own_speed_rps)
        return replace(found, rate_rps=less) if lowered else found

    monkeypatch.setattr(measuring, "revised_edge", revised)
    found, _, _ = run(VirtualWorld(service=service), space=_space(ONE_CONFIGURATION), budget_s=30.0)
    assert any("so it was lowered" in text for text in found.warnings) is lowered


def test_every_allowed_configuration_has_a_prediction() -> None:
    found, _, _ = run(VirtualWorld(service=service), budget_s=30.0)
    assert found.search.evaluated_twin == found.search.space_size, "the baseline is not in it"


def test_what_said_that_a_proof_may_not_be_is_no_note_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that was found said that its budget leaves no room for a proof."""
    told = "A proof may not fit."

    def doubt(context: SearchContext, enough_s: float) -> None:
        context.log.warn(told, until_proven=True)

    monkeypatch.setattr("analyzer.search.study.tell_at_start", doubt)
    space = _space(ONE_CONFIGURATION)
    found, _, store = run(VirtualWorld(service=service), space=space, budget_s=30.0)
    assert found.verdict == "found" and told not in found.warnings
    again, _, _ = run(
        VirtualWorld(service=service), space=space, budget_s=2.0, store=store, resume=True
    )
    assert again.verdict == "found" and told not in again.warnings
    open_, _, _ = run(VirtualWorld(service=service), space=space, budget_s=2.0)
    assert open_.verdict == "undecided" and told in open_.warnings


def test_a_budget_that_is_too_small_is_said_before_it_is_spent() -> None:
    def slow(key: VariantKey, threads: int, instances: int) -> ServiceTime | None:
        times = tuple(400.0 * SPEED[key.label] * size for size in (1, 32))
        return ServiceTime(batch_sizes=(1, 32), service_ms=times)

    found, _, _ = run(VirtualWorld(service=slow), sla=Sla(latency_budget_ms=4000.0), budget_s=30.0)
    assert found.verdict == "undecided"
    warned = [text for text in found.warnings if "proof is expected to take" in text]
    assert warned and "--budget" in warned[0]
    assert not any("suffice" in text for text in found.warnings), "told once, at the end"
    assert found.search.budget_needed_s is None or found.search.budget_needed_s > 30.0


def test_a_model_that_is_as_quick_as_the_server_is_told(searched: StudyResult) -> None:
    """What the embedded server carries then is no Triton's."""

    def quick(key: VariantKey, threads: int, instances: int) -> ServiceTime | None:
        return ServiceTime(batch_sizes=(1, 32), service_ms=(0.1 * SPEED[key.label],) * 2)

    found, _, _ = run(VirtualWorld(service=quick), sla=Sla(latency_budget_ms=5.0), budget_s=30.0)
    told = "on a Triton other rates hold"
    assert found.verdict == "found" and any(told in text for text in found.warnings)
    assert not any(told in text for text in searched.warnings)


def test_nothing_is_measured_where_no_time_is_left() -> None:
    found, executor, _ = run(VirtualWorld(service=service), budget_s=2.0)
    assert found.verdict == "undecided"
    assert executor.measured == []


class Counting(VirtualExecutor):
    """Two workers; counts the certificates of which nobody has heard yet."""

    workers = 2

    def __init__(self, world: VirtualWorld) -> None:
        super().__init__(world)
        self.certifying: set[str] = set()
        self.most = 0

    def submit(self, job: Job) -> None:
        task = job.run
        ours = isinstance(task, MeasureTask) and task.certify is not None
        if ours and "baseline" not in job.job_id:
            self.certifying.add(job.job_id)
            self.most = max(self.most, len(self.certifying))
        super().submit(job)

    def next_result(self, timeout_s: float) -> JobResult | None:
        result = super().next_result(timeout_s)
        if result is not None:
            self.certifying.discard(result.job_id)
        return result


def test_certificates_at_once_never_take_the_same_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the next step were asked for without telling what is pending."""
    monkeypatch.setattr(
        measuring,
        "next_step",
        lambda standing: next_step(replace(standing, pending=frozenset())),
    )
    _, executor, _ = run(VirtualWorld(service=service), kind=Counting)
    assert isinstance(executor, Counting) and executor.most == 1


@pytest.mark.parametrize("inside", [True, False])
def test_a_baseline_that_may_be_recommended_spends_the_same_error(
    monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """A claim of any of them is one of the family, in the space or not."""
    families: list[set[str]] = []
    open_claims = OutcomeLog.open_claims

    def spy(self: OutcomeLog, config_ids: Collection[str]) -> int:
        families.append(set(config_ids))
        return open_claims(self, config_ids)

    monkeypatch.setattr(OutcomeLog, "open_claims", spy)
    space = _space()
    baseline, _ = list(space.candidates().values())[-1]
    baseline = baseline if inside else replace(baseline, max_batch_size=64)
    found, _, store = run(VirtualWorld(service=service), space=space, baseline=baseline)
    assert any(o.role == "baseline" and _certified(o.outcome) for o in store.outcomes)
    assert found.recommended_id and all(baseline.config_id in family for family in families)
    assert len(set(map(frozenset, families))) == 1


def test_a_baseline_that_no_candidate_beats_is_recommended() -> None:
    """The space has one instance alone; Triton's own two carry nearly twice as much."""
    space = _space(ONE_CONFIGURATION)
    found, _, _ = run(VirtualWorld(service=service), space=space)
    best = winner(found)
    assert found.recommended_id == found.baseline_id not in space.candidates()
    edges = {
        o.configuration.config_id: o.edge.at_least_rps or 0.0
        for o in found.outcomes
        if isinstance(o, Measurement)
    }
    assert best.capacity_rps and best.capacity_rps > 0.6 * edges[found.baseline_id]
    assert edges[found.baseline_id] == max(edges.values()) > 1.3 * min(edges.values())
    assert found.search.bound, "what the space may hold is told of its own candidate"
    report = make_report(found)
    assert report.gain is not None and report.gain.ratio == 1.0
    assert gain_sentence(report) == "it is the baseline itself"


def test_a_baseline_of_a_precision_that_was_not_asked_for_is_not_recommended() -> None:
    space = _space(ONE_CONFIGURATION.replace("fp32", "int8") + "  quantization: [dynamic]\n")
    found, _, _ = run(VirtualWorld(service=service), space=space, precisions=("int8",))
    assert found.recommended_id in space.candidates()


def _certified(outcome: Measurement | Failure) -> bool:
    return isinstance(outcome, Measurement) and outcome.certificate is not None


@pytest.mark.parametrize("budget_s", [3600.0, 7200.0])
def test_a_model_that_takes_seconds_is_proven_in_an_hour(budget_s: float) -> None:
    """No run of a search for an edge was slow enough for it: given up after five minutes."""

    def slow(key: VariantKey, threads: int, instances: int) -> ServiceTime:
        return ServiceTime(batch_sizes=(1, 4, 8), service_ms=(2000.0, 4600.0, 8000.0))

    result, _, _ = run(
        VirtualWorld(service=slow),
        sla=Sla(latency_budget_ms=6000.0, percentile=95.0),
        space=_space(ONE_CONFIGURATION),
        budget_s=budget_s,
        trials_max=None,
    )
    assert result.verdict == "found"
    assert winner(result).edge.at_least_rps
