"""What workers do: build a variant, probe it, measure or certify a configuration.

Each task is plain data with a ``__call__``: it is pickled for a worker, and everything it needs
there (variants, request inputs) is made once and kept in the worker's cache.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.load_test import RequestLog
from analyzer.domain.measurement import (
    Accuracy,
    Failure,
    Measurement,
    Prediction,
)
from analyzer.domain.model import ModelInfo
from analyzer.domain.study import MeasuredEngine
from analyzer.engine.tensor_file import write_tensors
from analyzer.errors import AnalyzerError, MissingPartError
from analyzer.hardware.gpu_lock import measuring_on
from analyzer.hardware.gpu_memory import telling_gpu_memory
from analyzer.hardware.gpus import first_gpu
from analyzer.hardware.machine import machine_id
from analyzer.hardware.sampler import gpu_used_bytes
from analyzer.measure.failures import as_failure
from analyzer.measure.jobs import WorkerContext
from analyzer.measure.live_session import LiveSession
from analyzer.measure.measure import measure_configuration
from analyzer.measure.plan import CertifyPlan, EdgePlan, LoadPlan
from analyzer.measure.probe import ProbedModel, run_probes
from analyzer.measure.session import Session
from analyzer.modelconfig.execution import accelerator_settings
from analyzer.targets.address import is_elsewhere
from analyzer.targets.open import open_target
from analyzer.targets.target import Target
from analyzer.targets.triton_install import require_triton
from analyzer.targets.triton_tensorrt import require_same_tensorrt
from analyzer.twin.precompile import start_compiling
from analyzer.twin.probes import Probe, ProbeResult

if TYPE_CHECKING:
    from analyzer.variants.build import Variant

# Rows that requests are made of: enough that they differ, few enough for every cache.
_POOL_ROWS = 64
_POOL_BYTES_MAX = 256 << 20  # of a server; large inputs are fewer
# An engine of a large model takes many minutes; beyond half an hour it hangs.
BUILD_SECONDS_MAX = 1800.0
# Compiling the simulator's kernel takes seconds; loading it from its cache less than one.
_COMPILING_S = 60.0
# Of the time of all probes: what those take at least that are made once more, each alone.
_AGAIN_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """The model and the data that go with it, by path: the worker sees the same file system.

    Args:
        batch_sizes: Batch sizes that an engine must be built for.
        engines: Those that were built for the study already; no other one is measured.
        confidence: Of the interval of the accuracy.
        accuracy_drop_max: The limit that decides how many rows are scored.
        faster_only: Whether variants that are slower than the model itself are of no use.
        owner: As in :func:`~analyzer.variants.build.build_variants`.
    """

    model: ModelInfo
    calibration_path: str | None = None
    confidence: float = 0.95
    accuracy_drop_max: float = 0.01
    faster_only: bool = False
    seed: int = 0
    batch_sizes: tuple[int, ...] = (1,)
    engines: tuple[MeasuredEngine, ...] = ()
    owner: str = ""

    def build(
        self,
        keys: Sequence[VariantKey],
        context: WorkerContext,
        *,
        begin_seconds_max: float = math.inf,
        seconds_max: float = BUILD_SECONDS_MAX,
    ) -> dict[VariantKey, Variant | AnalyzerError]:
        """The variants ``keys``, from the worker's cache or built now."""
        from analyzer.variants.build import build_variants, stored_variant
        from analyzer.variants.inputs import load_calibration
        from analyzer.variants.tensorrt_build import EngineOptions

        calibration = (
            load_calibration(Path(self.calibration_path), self.model)
            if self.calibration_path
            else None
        )
        known = {engine.label: engine for engine in self.engines}
        found: dict[VariantKey, Variant | AnalyzerError] = {}
        for key in keys:
            if (engine := known.get(key.label)) is None:
                continue
            try:
                found[key] = stored_variant(
                    self.model,
                    key,
                    cache_dir=context.cache_dir,
                    entry=engine.entry,
                    sha256=engine.sha256,
                )
            except AnalyzerError as error:
                found[key] = error
        return found | build_variants(
            self.model,
            [key for key in keys if key not in found],
            calibration=calibration,
            cache_dir=context.cache_dir,
            device=context.device,
            confidence=self.confidence,
            accuracy_drop_max=self.accuracy_drop_max,
            cores=context.cores,
            faster_only=self.faster_only,
            begin_s=begin_seconds_max,
            timeout_s=seconds_max,
            owner=self.owner,
            engine=EngineOptions.for_batches(self.batch_sizes),
        )

    def variant(self, key: VariantKey, context: WorkerContext) -> Variant:
        """One variant.

        Raises:
            AnalyzerError: It cannot be built.
        """
        built = self.build([key], context)[key]
        if isinstance(built, AnalyzerError):
            raise built
        return built

    def request_inputs(self, cache_dir: Path) -> Path:
        """A file with the rows that requests are made of: real ones where there are any.

        It is kept by what it is made from, so that all who ask for the same rows share one.
        """
        from analyzer.variants.cache import data_sha256
        from analyzer.variants.inputs import load_calibration, synthetic_inputs

        # By content: jobs copy the same data to places of their own.
        source = data_sha256(Path(self.calibration_path)) if self.calibration_path else self.seed
        text = f"{self.model.sha256}|{self.model.inputs}|{source}"
        path = cache_dir / f"requests-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"
        if path.is_file():
            return path
        if self.calibration_path:
            real = load_calibration(Path(self.calibration_path), self.model)
            rows = {
                name: array[: self._pool_rows(real.inputs)] for name, array in real.inputs.items()
            }
        else:
            one = synthetic_inputs(self.model, 1, self.seed)
            rows = synthetic_inputs(self.model, self._pool_rows(one), self.seed)
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache_dir, suffix=".npz", delete=False) as file:
            write_tensors(Path(file.name), rows)
        os.replace(file.name, path)  # noqa: PTH105 - one atomic step for several workers
        return path

    def _pool_rows(self, arrays: Mapping[str, NDArray[np.generic]]) -> int:
        row_bytes = sum(int(array[:1].nbytes) for array in arrays.values())
        return max(1, min(_POOL_ROWS, _POOL_BYTES_MAX // max(row_bytes, 1)))


def _nothing_built(context: WorkerContext) -> AbstractContextManager[None]:
    """Keeps every program of this machine from building engines on the GPU of the lease."""
    if context.device == "gpu":
        with suppress(MissingPartError):  # NVML does not tell which one it is
            return measuring_on(first_gpu())
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTask:
    """Builds variants.

    Args:
        begin_seconds_max: What is not begun by then is left out, the model itself excepted.
        seconds_max: What is not built by then is ended, and its error takes its place.
    """

    assets: Assets
    keys: tuple[VariantKey, ...]
    begin_seconds_max: float
    seconds_max: float

    def __call__(self, context: WorkerContext) -> dict[VariantKey, Variant | AnalyzerError]:
        return self.assets.build(
            self.keys,
            context,
            begin_seconds_max=self.begin_seconds_max,
            seconds_max=self.seconds_max,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTask:
    """Probes variants, which take turns in one process.

    Args:
        plans: Each variant with its probes.
        batch_ms_max: Larger batches are skipped once a batch takes longer than this.
        seconds_max: What is not probed by then has no result.
    """

    assets: Assets
    plans: tuple[tuple[VariantKey, tuple[Probe, ...]], ...]
    device: str
    batch_ms_max: float
    seconds_max: float

    def __call__(
        self, context: WorkerContext
    ) -> dict[VariantKey, list[ProbeResult] | AnalyzerError]:
        """The results of each variant, or why there are none."""
        built = self.assets.build([key for key, _ in self.plans], context)
        found: dict[VariantKey, list[ProbeResult] | AnalyzerError] = {}
        models = {}
        for key, probes in self.plans:
            variant = built[key]
            if isinstance(variant, AnalyzerError):
                found[key] = variant
                continue
            models[key] = ProbedModel(
                path=Path(variant.path),
                backend=key.backend,
                execution=key.execution,
                accelerator_options=accelerator_settings(
                    self.assets.model, key, self.assets.batch_sizes[-1]
                ),
                size_bytes=variant.size_bytes,
                probes=probes,
            )
        deadline = time.monotonic() + self.seconds_max
        try:
            found |= self._run(models, context, self.seconds_max)
        except AnalyzerError:
            # One of them fails: each in a process of its own, in what time is left.
            least_s = _AGAIN_SHARE * self.seconds_max / len(models)
            for number, (key, model) in enumerate(models.items()):
                left_s = (deadline - time.monotonic()) / (len(models) - number)
                try:
                    found |= self._run({key: model}, context, max(left_s, least_s))
                except AnalyzerError as error:
                    found[key] = error
        return found

    def _run(
        self, models: Mapping[VariantKey, ProbedModel], context: WorkerContext, seconds_max: float
    ) -> dict[VariantKey, list[ProbeResult]]:
        inputs = self.assets.request_inputs(context.cache_dir)
        with _nothing_built(context):
            results = run_probes(
                list(models.values()),
                device=self.device,
                batchable=self.assets.model.batchable,
                inputs_path=inputs,
                batch_ms_max=self.batch_ms_max,
                seconds_max=seconds_max,
            )
        return dict(zip(models, results, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureTask:
    """Measures one configuration on a server of its own.

    Args:
        edge_plan: How the edge is searched; None to leave it out.
        certify: What is proven; None for nothing.
        target_seconds: How long to run at the SLA's target rate (objectives latency and memory);
            None for not at all.
        seconds_max: Wall time from ``asked`` on; what is not measured by then is left out.
        label: A name that people know the configuration by.
        asked: The machine and its monotonic clock when the task was made: a worker may still have
            been starting.
        token: Of the model's name on a server that runs: whoever kills the task knows it.
    """

    assets: Assets
    configuration: Configuration
    load: LoadPlan
    server: str = "embedded"
    edge_plan: EdgePlan | None = None
    certify: CertifyPlan | None = None
    target_seconds: float | None = None
    predicted: Prediction = Prediction()
    accuracy: Accuracy | None = None
    hardware: str = ""
    seconds_max: float = math.inf
    label: str = ""
    asked: tuple[str, float] = field(default_factory=lambda: (machine_id(), time.monotonic()))
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    def __call__(self, context: WorkerContext) -> MeasureResult:
        # Other machines have other clocks.
        started = self.asked[1] if self.asked[0] == machine_id() else time.monotonic()
        stage = "build"
        session: LiveSession | None = None
        try:
            # Where NVML cannot match the process, its memory is what the device gained by it.
            gpu_base = gpu_used_bytes(context.gpu) if context.gpu is not None else None
            with telling_gpu_memory(context.gpu, gpu_base):  # a variant is scored on the GPU
                variant = self.assets.variant(self.configuration.variant, context)
            inputs = self.assets.request_inputs(context.cache_dir)
            stage = "start"
            # The server takes its time to start; between load tests that of the kernel would show.
            compiled = start_compiling() if self._simulates else None
            gpu = None if is_elsewhere(self.server) else context.gpu
            with (
                telling_gpu_memory(gpu, gpu_base),
                _nothing_built(context),
                self._open(variant, inputs) as target,
            ):
                stage = "load"
                if compiled is not None:
                    left_s = self.seconds_max - (time.monotonic() - started)
                    compiled(min(left_s, _COMPILING_S))
                session = LiveSession(
                    target,
                    self.load,
                    gpu=gpu,
                    gpu_base_bytes=gpu_base,
                    first=self.certify.runs_before if self.certify is not None else 0,
                    seconds_max=self.seconds_max - (time.monotonic() - started),
                )
                with session:
                    outcome = self.measure(session)
            # Of the end: a model that could not be unloaded.
            notes = dict.fromkeys((*outcome.notes, *target.notes))
            outcome = replace(outcome, notes=tuple(notes))
            if session.tests:
                since_s = time.time() - session.tests[0].started_at
                outcome = replace(outcome, start_s=time.monotonic() - started - since_s)
            return MeasureResult(outcome=outcome, logs=tuple(session.logs))
        except AnalyzerError as error:
            failure = as_failure(
                self.configuration,
                error,
                stage=stage,
                load_test_seconds=session.seconds if session is not None else 0.0,
            )
            return MeasureResult(outcome=failure, logs=())

    @property
    def _simulates(self) -> bool:
        """Whether its plans are made with a twin."""
        plans = (self.edge_plan, self.certify)
        return any(plan is not None and plan.twin is not None for plan in plans)

    def _open(self, variant: Variant, inputs: Path) -> AbstractContextManager[Target]:
        if self.server == "triton" and variant.engine is not None:
            # Of this machine, which need not be the one where the search was started.
            require_same_tensorrt(require_triton(), variant.engine.tensorrt)
        return open_target(
            self.server,
            model=self.assets.model,
            model_path=Path(variant.path),
            inputs_path=inputs,
            configuration=self.configuration,
            token=self.token,
        )

    def unload_left(self) -> str:
        """Unloads what the task has left on a server that runs, if it was killed meanwhile.

        Returns:
            Why it may still be loaded there, as a sentence; empty where it is not.
        """
        if "://" not in self.server:
            return ""
        from analyzer.targets.endpoint_target import temporary_name, unload_left

        name = temporary_name(self.assets.model.name, self.configuration, self.token)
        return unload_left(self.server, name)

    def renamed(self) -> MeasureTask:
        """The same task, whose model has another name on a server that runs."""
        return replace(self, token=secrets.token_hex(4))

    def measure(self, session: Session) -> Measurement:
        """The measurement on a session that is ready, with what the task knows of it."""
        measurement = measure_configuration(
            session,
            self.configuration,
            self.load,
            edge_plan=self.edge_plan,
            certify=self.certify,
            target_seconds=self.target_seconds,
        )
        return replace(
            measurement,
            predicted=self.predicted,
            accuracy=self.accuracy,
            hardware=self.hardware,
            notes=(*((self.label,) if self.label else ()), *measurement.notes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureResult:
    """What a measurement came to, with the raw requests of its load tests in their order."""

    outcome: Measurement | Failure
    logs: Sequence[RequestLog] = ()
