"""A whole search in virtual time: the workers' tasks answered by the simulator.

Ships with the package as the fake of the executor's seam: tests plant faults in it (a twin that is
wrong on purpose, a variant that cannot be built, a noisy machine) and benches replay searches on it
in a fraction of the time. Seconds under load are counted as if they had passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Accuracy, Measurement
from analyzer.errors import AnalyzerError, BuildError, TargetCrashError
from analyzer.measure.failures import as_failure
from analyzer.measure.jobs import Job, JobResult
from analyzer.measure.tasks import BuildTask, MeasureResult, MeasureTask, ProbeTask
from analyzer.measure.virtual_session import VirtualSession
from analyzer.twin.probes import Probe, ProbeResult
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath

if TYPE_CHECKING:
    from analyzer.variants.tensorrt_build import EngineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualVariant:
    """What stands for a built variant."""

    key: VariantKey
    accuracy: Accuracy
    path: str = "model.onnx"
    size_bytes: int = 1 << 20
    build_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    entry: str = "virtual"
    engine: EngineFacts | None = None

    @property
    def sha256(self) -> str:
        """A made-up hash."""
        return f"virtual-{self.key.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualWorld:
    """The truth of a virtual machine, and what is wrong with it.

    Args:
        service: True service times of a variant by threads and instances; None if that variant
            cannot be built.
        accuracy_drop: Loss of accuracy by variant label; measured on real data.
        probe_factor: What probes show over the truth (2: the twin believes everything twice as
            slow).
        probe_interference: Whether probes see that busy instances slow each other down.
        under_load: What service times are on a configuration's server, if not what probes show.
        overhead_ms: Time outside the model.
        crash: Configurations whose server crashes.
        drift: How much slower a server gets with each run.
        speed: How fast the machine is by the virtual clock; None for always the same.
        neighbour: That speed is what another program leaves of the cores, and tells as theirs; the
            canary, which comes first on its core, does not see it.
        witness_power: How the canary's work answers to the speed: as executions do, or more (2.4
            was seen where it took 1.7 times as long and they 1.25 times).
        at_rate: What service times are at an offered rate (requests per second): an idle processor
            is slower than a busy one; None for the same at every rate.
        engine: What TensorRT engines belong to here.
    """

    service: Callable[[VariantKey, int, int], ServiceTime | None]
    accuracy_drop: Mapping[str, float] = field(default_factory=dict)
    probe_factor: float = 1.0
    probe_interference: bool = True
    under_load: Callable[[Configuration, ServiceTime], ServiceTime] = lambda _, service: service
    overhead_ms: float = 0.2
    memory_bytes: Callable[[Configuration], int] = lambda configuration: 100 << 20
    crash: Callable[[Configuration], bool] = lambda configuration: False
    drift: float = 1.0
    speed: SpeedPath | None = None
    neighbour: bool = False
    witness_power: float = 1.0
    at_rate: Callable[[float, ServiceTime], ServiceTime] | None = None
    engine: EngineFacts | None = None
    seed: int = 0


class VirtualExecutor:
    """One worker in a virtual world; jobs are answered in order, at once.

    Args:
        world: The truth.
    """

    workers = 1
    local = None

    def __init__(self, world: VirtualWorld) -> None:
        self._world = world
        self._results: deque[JobResult] = deque()
        self._rng = np.random.default_rng(world.seed)
        self.load_test_seconds = 0.0
        self._overhead_s = 0.0
        self.measured: list[str] = []
        self.tasks: list[object] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel_all()

    def now(self) -> float:
        """The virtual clock, seconds: time under load, and a second for each job's start."""
        return self.load_test_seconds + self._overhead_s

    def ready(self, timeout_s: float) -> bool:
        """The one worker is always there."""
        return True

    def submit(self, job: Job) -> None:
        """Answers the job."""
        self._overhead_s += 1.0
        value: object | None = None
        error: AnalyzerError | None = None
        try:
            value = self._answer(job.run)
        except AnalyzerError as raised:
            error = raised
        self._results.append(
            JobResult(
                job_id=job.job_id,
                value=value,
                error=error,
                lost=False,
                seconds=0.0,
                worker_id="virtual",
            )
        )

    def next_result(self, timeout_s: float) -> JobResult | None:
        """The next answer."""
        return self._results.popleft() if self._results else None

    def cancel_all(self) -> None:
        """Forgets what waits."""
        self._results.clear()

    def _answer(self, task: object) -> object:
        self.tasks.append(task)
        if isinstance(task, BuildTask):
            return {key: self._build(key) for key in task.keys}
        if isinstance(task, ProbeTask):
            return {key: [self._probe(key, probe) for probe in plan] for key, plan in task.plans}
        assert isinstance(task, MeasureTask), task
        return self._measure(task)

    def _build(self, key: VariantKey) -> VirtualVariant | AnalyzerError:
        if self._world.service(key, 1, 1) is None:
            return BuildError(f"{key.label} cannot be built in this world.")
        drop = self._world.accuracy_drop.get(key.label, 0.0)
        return VirtualVariant(
            key=key,
            engine=self._world.engine if key.backend == "tensorrt" else None,
            accuracy=Accuracy(
                metric="label_accuracy",
                value=0.98 - drop,
                drop=drop,
                interval=(drop - 0.002, drop + 0.002),
                samples=1000,
            ),
        )

    def _probe(self, key: VariantKey, probe: Probe) -> ProbeResult:
        service = self._world.service(key, probe.threads, probe.busy)
        assert service is not None
        mean = float(service.curve_ms(np.array([probe.batch]))[0]) * self._world.probe_factor
        if self._world.probe_interference:
            mean *= float(service.interference_at(probe.busy, np.array([probe.batch]))[-1, 0])
        count = int(np.clip(probe.seconds * 1e3 / max(mean, 1e-3), 4, 200))
        noise = service.draw_noise(count, self._rng)
        samples = mean * np.resize(noise, count) * self._rng.normal(1.0, 0.005, count)
        return ProbeResult(probe=probe, samples_ms=tuple(float(ms) for ms in samples))

    def _measure(self, task: MeasureTask) -> MeasureResult:
        configuration = task.configuration
        self.measured.append(configuration.config_id)
        if self._world.crash(configuration):
            error = TargetCrashError("The virtual server crashed.")
            return MeasureResult(outcome=as_failure(configuration, error, stage="load"))
        service = self._world.service(
            configuration.variant,
            configuration.intra_op_threads or 0,
            configuration.instance_count,
        )
        assert service is not None
        service = self._world.under_load(configuration, service)
        session = VirtualSession(
            ServerModel.of(configuration, service, overhead_ms=self._world.overhead_ms),
            task.load,
            memory_bytes=self._world.memory_bytes(configuration),
            drift=self._world.drift,
            speed=self._world.speed,
            neighbour=self._world.neighbour,
            witness_power=self._world.witness_power,
            at_rate=self._world.at_rate,
            start_s=self.now(),
            first=task.certify.runs_before if task.certify is not None else 0,
            seconds_max=task.seconds_max,
        )
        try:
            outcome: Measurement = task.measure(session)
        except AnalyzerError as error:
            spent_s = session.seconds
            failure = as_failure(configuration, error, stage="load", load_test_seconds=spent_s)
            return MeasureResult(outcome=failure)
        finally:
            self.load_test_seconds += session.seconds
        return MeasureResult(outcome=outcome, logs=tuple(session.logs))
