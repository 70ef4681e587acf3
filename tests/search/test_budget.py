"""The wall time of whole searches on machines whose steps take longer than expected."""

from __future__ import annotations

import math
import re
import tempfile
from collections import deque
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from analyzer.domain.configuration import VariantKey
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.study import StudyResult
from analyzer.domain.units import format_duration
from analyzer.domain.workload import Poisson
from analyzer.errors import AnalyzerError, BuildTimeoutError
from analyzer.measure.jobs import Job, JobResult
from analyzer.measure.tasks import BuildTask, MeasureTask, ProbeTask
from analyzer.measure.virtual import VirtualExecutor, VirtualWorld
from analyzer.report.advice import round_budget
from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.report.terminal import render_terminal
from analyzer.search.request import SearchRequest, SilentProgress
from analyzer.search.time_plan import OVERRUN_SHARE, TimePlan
from analyzer.search.virtual import VIRTUAL_MODEL, MemoryStore, search_virtually
from analyzer.spaces.loader import SpaceContext, load_space
from analyzer.twin.service import ServiceTime

SPACE = """
device: cpu
threads_per_core: 1.0
parameters:
  precision: [fp32, fp16]
  instance_count: [1, 2]
  intra_op_threads: [1]
  dynamic_batching: [false, true]
  max_batch_size: {choices: [8], when: {dynamic_batching: true}}
  max_queue_delay: {choices: [0], when: {dynamic_batching: true}}
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What steps take, seconds.

    Args:
        start_s: Of the command, until its plan begins.
        workers_s: Until the workers are there.
        build_s: Building one variant.
        probe_s: All that probes take, if they may; ``process_s`` the start of their process or of a
            server.
        kill_s: Ending what runs.
        inference_ms: Of one inference.
        latency_budget: In inferences.
    """

    start_s: float = 1.0
    workers_s: float = 3.0
    build_s: float = 2.0
    probe_s: float = 3.0
    process_s: float = 1.2
    kill_s: float = 0.2
    inference_ms: float = 5.0
    latency_budget: float = 12.0

    def service(self, key: VariantKey, threads: int, instances: int) -> ServiceTime:
        """Twice as fast at fp16; batches gain half."""
        speed = self.inference_ms * (0.5 if key.precision == "fp16" else 1.0)
        sizes = (1, 2, 4, 8)
        return ServiceTime(
            batch_sizes=sizes,
            service_ms=tuple(speed * (0.5 + 0.5 * size) for size in sizes),
            distribution="lognormal",
            cv=0.05,
        )


class TimedExecutor(VirtualExecutor):
    """Steps take their time by the virtual clock; a job's result comes when that is over."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(VirtualWorld(service=machine.service))
        self._machine = machine
        self.clock = 100.0
        self._up = self.clock + machine.workers_s
        self._jobs: deque[tuple[float, JobResult]] = deque()

    def now(self) -> float:
        return self.clock

    def ready(self, timeout_s: float) -> bool:
        self.clock += min(max(self._up - self.clock, 0.0), max(timeout_s, 0.0))
        return self.clock >= self._up

    def submit(self, job: Job) -> None:
        machine, task, value = self._machine, job.run, None
        error: AnalyzerError | None = None
        before = self.load_test_seconds
        if isinstance(task, MeasureTask):
            task = replace(task, seconds_max=task.seconds_max - machine.process_s)
        try:
            value = self._answer(task)
        except AnalyzerError as raised:
            error = raised
        took_s = machine.process_s + self.load_test_seconds - before
        if isinstance(task, BuildTask):
            took_s = min(machine.build_s * len(task.keys), task.seconds_max)
            if took_s == task.seconds_max:
                value = {key: BuildTimeoutError("too late") for key in task.keys}
        elif isinstance(task, ProbeTask):
            took_s += min(machine.probe_s, task.seconds_max)
        result = JobResult(
            job_id=job.job_id, value=value, error=error, lost=False, seconds=took_s, worker_id="w"
        )
        # Builds run beside the start of the workers.
        begins = self.clock if isinstance(task, BuildTask) else max(self.clock, self._up)
        self._jobs.append((begins + took_s, result))

    def next_result(self, timeout_s: float) -> JobResult | None:
        until = self.clock + timeout_s
        if not self._jobs or self._jobs[0][0] > until:
            self.clock = until
            return None
        ends, result = self._jobs.popleft()
        self.clock = max(self.clock, ends)
        return result

    def cancel_all(self) -> None:
        self.clock += self._machine.kill_s if self._jobs else 0.0
        self._jobs.clear()


class Stuck(TimedExecutor):
    """Its load tests never end."""

    def submit(self, job: Job) -> None:
        super().submit(job)
        if isinstance(job.run, MeasureTask):
            _, result = self._jobs.pop()
            self._jobs.append((math.inf, result))

    def next_result(self, timeout_s: float) -> JobResult | None:
        return super().next_result(max(timeout_s, 1e-3))  # less may not move the clock


def search(
    budget_s: float,
    machine: Machine,
    store: MemoryStore | None = None,
    kind: type[TimedExecutor] = TimedExecutor,
) -> tuple[StudyResult, float]:
    """The result, and the seconds of the command up to its end; it goes on with ``store``."""
    resume, store = store is not None, store or MemoryStore()
    executor = kind(machine)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(SPACE)
        file.flush()
        space = load_space(file.name, SpaceContext(device="cpu", cores=2))
    request = SearchRequest(
        study="virtual-1",
        model=VIRTUAL_MODEL,
        sla=Sla(latency_budget_ms=machine.latency_budget * machine.inference_ms),
        space=space,
        arrivals=Poisson(),
        budget_s=budget_s,
        seed=1,
        inference_s=machine.inference_ms / 1e3,
        provenance={},
    )
    begun = executor.clock - machine.start_s
    found = search_virtually(
        request, executor, store, cores=2, start_s=machine.start_s, resume=resume
    )
    return found, executor.clock - begun


def allowed_s(budget_s: float, machine: Machine, found: StudyResult) -> float:
    """The seconds that a search may take, its end apart."""
    slack_s = 0.05 * budget_s if budget_s >= 20.0 else 1.0
    if any("complete a first proof" in warning for warning in found.warnings):
        slack_s += OVERRUN_SHARE * budget_s
    return max(budget_s + slack_s - end_s(machine), machine.start_s)


def end_s(machine: Machine) -> float:
    now = 0.0
    return TimePlan.begun(budget_s=1.0, started=now - machine.start_s, clock=lambda: now).end_s


@given(
    budget_s=st.floats(1.0, 600.0),
    start_s=st.floats(0.5, 4.0),
    factors=st.tuples(*[st.floats(0.3, 3.0)] * 4),
    inference_ms=st.floats(5.0, 500.0),
)
@example(budget_s=3.0, start_s=1.0, factors=(3.0, 3.0, 3.0, 3.0), inference_ms=10.0)
@example(budget_s=10.0, start_s=1.0, factors=(1.0, 1.0, 1.0, 1.0), inference_ms=10.0)
@example(budget_s=40.0, start_s=1.5, factors=(3.0, 3.0, 3.0, 3.0), inference_ms=500.0)
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_no_search_takes_longer_than_its_budget(
    budget_s: float, start_s: float, factors: tuple[float, ...], inference_ms: float
) -> None:
    """Steps take up to three times what is expected of them."""
    workers, builds, probes, processes = factors
    machine = Machine(
        start_s=start_s,
        workers_s=2.5 * start_s * workers,
        build_s=1.5 * start_s * builds,
        probe_s=2.0 * start_s * probes,
        process_s=start_s * processes,
        inference_ms=inference_ms,
    )
    found, took_s = search(budget_s, machine)
    assert took_s <= allowed_s(budget_s, machine, found) + 1e-6
    assert found.verdict in ("found", "undecided")


def budgets_named(found: StudyResult) -> set[str]:
    """Every budget that the answer, its notes and its command name, durations in seconds apart."""
    text = " ".join((render_terminal(make_report(found)), *found.warnings))
    return set(re.findall(r"(?:budget of|--budget|about|\() ?(\d+[smh]\b)", text))


def test_a_budget_that_suffices_for_nothing_is_answered_at_once() -> None:
    machine = Machine(start_s=1.5)
    found, took_s = search(3.0, machine)
    assert took_s == pytest.approx(machine.start_s)
    assert found.verdict == "undecided"
    assert found.search.budget_needed_s is not None and found.search.budget_needed_s > 3.0
    report = make_report(found)
    told = " ".join(render_terminal(report).split())
    said = "Nothing was measured: 3s did not suffice for a first load test."
    assert told.count(said) == 1 and "Nothing could be" not in told
    assert "ended" not in told, "nothing was begun, so that most of the budget was left"
    assert not any("suffice" in warning for warning in found.warnings), "the report names it"
    document = build_document(report)
    assert document["closest"] is None and document["search"]["budget_needed_s"] >= 10.0
    again, _ = search(document["search"]["budget_needed_s"], machine)
    assert again.verdict == "found"


@pytest.mark.parametrize(("budget_s", "warned"), [(12.0, True), (60.0, False)])
def test_a_budget_that_may_not_suffice_for_a_measurement_is_told_at_the_start(
    monkeypatch: pytest.MonkeyPatch, budget_s: float, warned: bool
) -> None:
    """With the budget that does; the answer tells what came of it."""
    told: list[str] = []
    monkeypatch.setattr(SilentProgress, "warn", lambda self, text: told.append(text))
    found, _ = search(budget_s, Machine(start_s=1.5, workers_s=6.0))
    named = [text for text in told if "may not suffice for a measurement" in text]
    assert bool(named) is warned and not set(named) & set(found.warnings)
    if warned:
        assert found.search.budget_needed_s is not None
        assert f"about {format_duration(round_budget(found.search.budget_needed_s))}" in named[0]


def test_a_slow_models_proof_and_the_budget_that_suffices_are_told_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer keeps what a proof takes; which budget suffices is best known at its end."""
    told: list[str] = []
    monkeypatch.setattr(SilentProgress, "warn", lambda self, text: told.append(text))
    found, _ = search(60.0, Machine(inference_ms=2000.0))
    said = [text for text in told if "One inference took 2,000 ms" in text]
    assert len(said) == 1 and said[0] in found.warnings
    suffices = told[told.index(said[0]) + 1]
    assert suffices.startswith("By what is known now, about ") and suffices not in found.warnings


def test_an_inference_beyond_the_latency_budget_is_told_and_no_budget_for_its_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Minutes were said to suffice for what no minutes prove."""
    told: list[str] = []
    monkeypatch.setattr(SilentProgress, "warn", lambda self, text: told.append(text))
    found, _ = search(60.0, Machine(inference_ms=500.0, latency_budget=0.9))
    assert any("and the latency budget is" in warning for warning in found.warnings)
    assert not any("suffices for a proof" in text for text in told)


def test_a_model_too_slow_for_any_proof_is_measured_and_a_budget_for_one_is_named() -> None:
    """Six servers were started, nothing was sent, and two minutes were said to suffice."""
    found, took_s = search(60.0, Machine(inference_ms=500.0, latency_budget=0.62))
    assert found.verdict == "undecided" and took_s <= 60.0 * 1.05
    first = next(outcome for outcome in found.outcomes if isinstance(outcome, Measurement))
    assert first.load_tests[0].requests == 20
    needed_s = found.search.budget_needed_s
    assert needed_s is not None and needed_s > 1000.0


def test_the_budget_named_after_nothing_was_measured_clearly_exceeds_it() -> None:
    """What was prepared took most of it, and no load test ended."""
    machine = Machine()
    found, took_s = search(24.0, machine, kind=Stuck)
    assert took_s <= 24.0 * 1.05
    assert any("the budget ended meanwhile" in warning for warning in found.warnings)
    assert not any(isinstance(outcome, Measurement) for outcome in found.outcomes)
    needed_s = found.search.budget_needed_s
    assert needed_s is not None and needed_s >= 1.5 * 24.0
    assert len(budgets_named(found)) == 1
    again, _ = search(needed_s, machine)
    assert again.verdict == "found"


def test_what_was_proven_before_stays_the_answer_of_a_budget_that_is_too_small() -> None:
    store = MemoryStore()
    machine = Machine()
    before, _ = search(60.0, machine, store)
    after, took_s = search(2.0, machine, store)
    assert took_s <= 2.0
    assert after.verdict == before.verdict == "found"
    assert after.recommended_id == before.recommended_id


def test_workers_that_do_not_come_up_are_not_waited_for_beyond_the_budget() -> None:
    machine = Machine(start_s=0.5, workers_s=1e4)
    found, took_s = search(60.0, machine)
    assert found.verdict == "undecided" and took_s <= 60.0


def test_a_model_that_takes_forever_to_build_ends_with_the_budget() -> None:
    machine = Machine(start_s=0.5, build_s=1e4)
    found, took_s = search(60.0, machine)
    assert found.verdict == "undecided" and took_s <= 60.0


def test_a_proof_that_no_budget_of_this_size_brings_is_told_at_the_start() -> None:
    """With half a second for an inference; the search goes on, and tells what it measured."""
    found, _ = search(60.0, Machine(inference_ms=500.0))
    assert len(budgets_named(found)) == 1, "which suffices is told once, at the end"
    assert any("a proof is expected" in warning for warning in found.warnings)
    assert any(not isinstance(outcome, Failure) for outcome in found.outcomes)
