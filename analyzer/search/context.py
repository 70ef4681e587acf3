"""What every step of a search needs, made once at its start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analyzer.domain.configuration import Configuration, baseline_configuration
from analyzer.domain.measurement import Accuracy, Measurement, Prediction
from analyzer.domain.study import identity
from analyzer.measure.jobs import Executor, Job, JobResult
from analyzer.measure.plan import CertifyPlan, EdgePlan, LoadPlan
from analyzer.measure.tasks import Assets, MeasureTask
from analyzer.search.outcome_log import OutcomeLog, TrialStore
from analyzer.search.request import Progress, SearchRequest
from analyzer.search.time_plan import TimePlan
from analyzer.search.watch import StudyWatch
from analyzer.store.records import StoredOutcome
from analyzer.twin.machine_constants import FALLBACK, MachineConstants
from analyzer.twin.probe_cache import ProbeCache
from analyzer.twin.speed_memory import SpeedMemory

# Seconds that starting a server (or loading a model) and warming it up take, by and large, until
# one has told.
_EMBEDDED_START_S = 1.2
_OTHER_START_S = 2.2
# What proves a rate has run for this share of the budget, at most so many seconds: of a model of
# a millisecond at 9,500/s 1.2 s sufficed, which met no slow moment of the machine; in the next 15 s
# runs at higher rates were 200 times as correlated (docs/decisions/050-what-higher-rates-met.md).
_LEAST_SHARE, _LEAST_S = 1 / 15, 8.0
# How long one wait for a result lasts; an interruption by the user is noticed in between.
WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchContext:
    """One search's request, and what it works with.

    Args:
        candidates: The space's configurations by id, and ``labels`` the names of listed ones.
        baseline: What the winner is compared with.
        assets: The model and its data, and ``load`` how targets are loaded.
        hardware: A short name of the machine, for people.
        cores: That this process may use.
        constants: What the twin supposes of the machine.
        speeds: How fast it was in earlier studies.
        plan: What is left of the budget, and for what.
        watch: Watches the machine from the first probe to the end of measuring.
        settle: Waits so many seconds until nothing of ours runs any more beside what will be
            measured, and tells whether that is so.
    """

    request: SearchRequest
    executor: Executor
    store: TrialStore
    progress: Progress
    log: OutcomeLog
    speeds: SpeedMemory
    probe_cache: ProbeCache
    candidates: Mapping[str, Configuration]
    labels: Mapping[str, str]
    baseline: Configuration
    assets: Assets
    load: LoadPlan
    hardware: str
    cores: int
    constants: MachineConstants
    plan: TimePlan
    watch: StudyWatch
    settle: Callable[[float], bool]

    @property
    def recommendable(self) -> Mapping[str, Configuration]:
        """The candidates and the baseline."""
        return {**self.candidates, self.baseline.config_id: self.baseline}

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds; virtual where the executor is."""
        return self.plan.clock

    @property
    def server_start_s(self) -> float:
        """Seconds that a server takes until it can be measured: as the last, or by and large."""
        if self.log.start_s is not None:
            return self.log.start_s
        return _EMBEDDED_START_S if self.request.server == "embedded" else _OTHER_START_S

    def run(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """Runs ``jobs``; yields each result as it comes.

        Raises:
            BudgetEndedError: As :meth:`next_result`.
        """
        for job in jobs:
            self.executor.submit(job)
        waiting = len(jobs)
        while waiting:
            result = self.next_result()
            if result is not None:
                waiting -= 1
                yield result

    def next_result(self) -> JobResult | None:
        """The next job that ended; None where there was none in a short wait.

        Raises:
            BudgetEndedError: The command must end; what ran is cancelled.
        """
        cut_in_s = self.plan.cut_in_s
        result = self.executor.next_result(min(WAIT_S, max(cut_in_s, 0.0)))
        if result is None and cut_in_s <= 0.0:
            self.executor.cancel_all()
            raise self.plan.ended()
        return result

    def tell_notes(self, measurement: Measurement) -> None:
        """Tells what qualifies a measurement; the name of a listed configuration does not."""
        label = self.labels.get(measurement.configuration.config_id)
        for note in measurement.notes:
            if note != label:
                self.log.warn(note)

    def measure_task(
        self,
        configuration: Configuration,
        *,
        accuracy: Accuracy | None,
        predicted_rps: float | None,
        edge_plan: EdgePlan | None,
        certify: CertifyPlan | None = None,
        target_seconds: float | None = None,
    ) -> MeasureTask:
        """The task that measures ``configuration``; see :class:`MeasureTask`."""
        return MeasureTask(
            assets=self.assets,
            configuration=configuration,
            load=self.load,
            server=self.request.server,
            edge_plan=edge_plan,
            certify=certify,
            target_seconds=target_seconds,
            predicted=Prediction(edge_rps=predicted_rps),
            accuracy=accuracy,
            hardware=self.hardware,
            seconds_max=max(self.plan.left_s, 0.0),
            label=self.labels.get(configuration.config_id, ""),
        )


def make_context(
    request: SearchRequest,
    *,
    executor: Executor,
    store: TrialStore,
    progress: Progress,
    plan: TimePlan,
    stored: Sequence[StoredOutcome] = (),
    baseline: Configuration | None = None,
    hardware: str = "",
    hardware_key: str = "",
    runtimes: str | None = None,
    cores: int = 1,
    constants: MachineConstants = FALLBACK,
    settle: Callable[[float], bool] = lambda timeout_s: True,
    watch: StudyWatch | None = None,
) -> SearchContext:
    """The context of one search.

    Args:
        plan: Of the request's budget.
        stored: Outcomes of an interrupted run of this study, of whichever instance types; none of
            them is measured again.
        baseline: The configuration to compare with; None for Triton's automatic one.
        hardware_key: Equal for machines whose probes and speeds can be shared, and ``runtimes``
            what runs models there (None: what does here).
        settle: As of :class:`SearchContext`, for what the caller has begun beside the search.
        watch: Watches the machine that is measured; None for nobody.
    """
    watch = watch or StudyWatch()
    speeds = SpeedMemory(store.get_cache, store.put_cache, hardware_key)
    largest = int(request.batch_sizes.max())
    if baseline is None:
        baseline = baseline_configuration(
            batchable=request.model.batchable, device=request.device, request_batch_size=largest
        )
    elif 0 < baseline.max_batch_size < largest:  # its server would refuse them
        baseline = replace(baseline, max_batch_size=largest)
    baseline = baseline.canonical()
    if baseline.backend == "onnxruntime":
        baseline = replace(baseline, backend=request.space.onnx_backend)
    baseline = replace(baseline, instance_type=request.space.instance_type)
    kind = request.space.instance_type
    stored = [known for known in stored if known.outcome.configuration.instance_type == kind]
    candidates = {
        config_id: configuration
        for config_id, (configuration, _) in request.space.candidates().items()
    }
    sizes = {c.max_batch_size for c in (*candidates.values(), baseline)}
    sizes.add(largest)
    return SearchContext(
        request=request,
        executor=executor,
        store=store,
        progress=progress,
        log=OutcomeLog(
            request,
            store,
            progress,
            stored=stored,
            watch=watch,
            earlier_us=speeds.work_us(request.part),
        ),
        speeds=speeds,
        probe_cache=ProbeCache(
            store.get_cache,
            store.put_cache,
            hardware_key,
            inputs=request.model.inputs,
            installed=runtimes,
        ),
        candidates=candidates,
        labels=request.space.labels(),
        baseline=baseline,
        assets=Assets(
            model=request.model,
            calibration_path=str(request.calibration_path) if request.calibration_path else None,
            confidence=request.sla.confidence,
            accuracy_drop_max=request.sla.max_accuracy_drop,
            faster_only=not request.precisions_named and request.sla.objective != "memory",
            batch_sizes=tuple(sorted(size for size in sizes if size > 0)),
            owner=identity(request.study, request.provenance),
        ),
        load=LoadPlan(
            sla=request.sla,
            arrivals=request.arrivals,
            request_batch_size=request.request_batch_size,
            seed=request.seed,
            least_s=min(_LEAST_SHARE * request.budget_s, _LEAST_S),
        ),
        hardware=hardware,
        cores=cores,
        constants=constants,
        plan=plan,
        watch=watch,
        settle=settle,
    )
