"""The models of ``twin_live.py`` and ``search.py``, probed and measured as a search does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Edge
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.domain.speeds import EVIDENCE_MIN
from analyzer.domain.workload import Poisson
from analyzer.errors import AnalyzerError
from analyzer.hardware.machine import inspect_machine, usable_cores
from analyzer.measure.jobs import WorkerContext
from analyzer.measure.live_session import LiveSession
from analyzer.measure.measure import long_run_edge, measure_edge
from analyzer.measure.plan import STREAM_EDGE, EdgePlan, LoadPlan
from analyzer.measure.tasks import Assets, ProbeTask
from analyzer.targets.open import open_target
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.probes import plan_probes
from analyzer.twin.server_model import ServerModel
from analyzer.twin.twin import Twin
from benchlib.command import ROOT
from benchlib.models import write_encoder, write_perceptron

SHARES = (0.3, 0.5, 0.8)
SEED = 11
FP32 = VariantKey(precision="fp32")
INT8 = VariantKey(precision="int8", quantization="dynamic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model of the bench, what it promises, and where its requests come from.

    Args:
        batch_share: Of the spread's batch sizes; small where larger ones would ask for more
            requests a second than a generator on the same two cores can send.
    """

    budget_ms: float
    kind: str
    calibration: Path | None = None
    batch_share: float = 1.0


SUBJECTS = {
    "digits": Subject(
        budget_ms=50.0,
        kind="convolutional network (examples/digits.onnx)",
        calibration=ROOT / "examples" / "digits.npz",
    ),
    "encoder": Subject(budget_ms=80.0, kind="text encoder, 4 layers of 256, 32 tokens"),
    "mlp": Subject(budget_ms=40.0, kind="perceptron, 1024-4096-4096-1024", batch_share=0.25),
    "tiny": Subject(budget_ms=10.0, kind="perceptron, 64-256-256-16"),
}
#: Widths of those that are perceptrons.
_WIDTHS = {"mlp": (1024, 4096, 4096, 1024), "tiny": (64, 256, 256, 16)}

# Instances, threads, largest batch (0: no batching), delay in milliseconds.
SHAPES = (
    (FP32, 1, 1, 0, 0),
    (FP32, 2, 1, 0, 0),
    (FP32, 1, 2, 8, 0),
    (FP32, 2, 1, 16, 0),
    (FP32, 1, 1, 32, 2),
    (FP32, 2, 1, 8, 5),
    (INT8, 2, 1, 16, 0),
    (INT8, 1, 2, 8, 2),
)


def configurations(batch_share: float) -> list[Configuration]:
    """The spread that is measured."""
    return [
        Configuration(
            precision=variant.precision,
            quantization=variant.quantization,
            max_batch_size=max(round(batch * batch_share), 1) if batch else 32,
            dynamic_batching=batch > 0,
            max_queue_delay_us=delay * 1000 if batch else None,
            instance_count=instances,
            intra_op_threads=threads,
        ).canonical()
        for variant, instances, threads, batch, delay in SHAPES
    ]


def model_file(name: str, folder: Path) -> Path:
    """The ONNX file of a subject, made where the repository has none."""
    path = folder / f"{name}.onnx"
    if name == "digits":
        return ROOT / "examples" / "digits.onnx"
    if name == "encoder":
        return write_encoder(path, tokens=32, vocabulary=8000)
    return write_perceptron(path, _WIDTHS[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSubject:
    """One model on one server."""

    name: str
    server: str
    model: ModelInfo
    assets: Assets
    context: WorkerContext
    load: LoadPlan

    @classmethod
    def of(cls, name: str, server: str, folder: Path) -> ServedSubject:
        """Inspects the model; ``folder`` keeps variants and inputs."""
        from analyzer.cli.models import inspect_path

        subject = SUBJECTS[name]
        model, _ = inspect_path(model_file(name, folder), {})
        return cls(
            name=name,
            server=server,
            model=model,
            assets=Assets(
                model=model,
                calibration_path=str(subject.calibration) if subject.calibration else None,
                batch_sizes=(1, 8, 32),
            ),
            context=WorkerContext(
                worker_id="bench",
                device="cpu",
                gpu=None,
                cores=usable_cores(),
                cache_dir=folder,
                node="bench",
            ),
            load=LoadPlan(
                sla=Sla(latency_budget_ms=subject.budget_ms), arrivals=Poisson(), seed=SEED
            ),
        )

    def probe(self) -> dict[VariantKey, VariantCalibration]:
        """The probes of each variant, as a search with the default budget runs them."""
        probes = plan_probes(deployments=[(1, 1), (1, 2), (2, 1)], batch_max=32, seconds=0.4)
        task = ProbeTask(
            assets=self.assets,
            plans=tuple((key, tuple(probes)) for key in (FP32, INT8)),
            device="cpu",
            batch_ms_max=self.load.sla.latency_budget_ms,
            seconds_max=120.0,
        )
        found = {}
        for key, results in task(self.context).items():
            if isinstance(results, AnalyzerError):
                raise results
            found[key] = VariantCalibration(variant=key, results=tuple(results))
        return found

    def twin(self, calibrations: dict[VariantKey, VariantCalibration]) -> Twin:
        """The twin as the search asks it."""
        from analyzer.cli.machine import constants_of

        constants = constants_of(inspect_machine(), server=self.server)
        return Twin(
            calibrations,
            self.load.sla,
            self.load.arrivals,
            seed=SEED,
            cores=usable_cores(),
            constants=constants,
        )

    @contextmanager
    def session(self, configuration: Configuration) -> Iterator[tuple[LiveSession, float]]:
        """A warmed-up session on a server of its own, and its saturation throughput, 1/s."""
        variant = self.assets.variant(configuration.variant, self.context)
        opened = open_target(
            self.server,
            model=self.model,
            model_path=Path(variant.path),
            inputs_path=self.assets.request_inputs(self.context.cache_dir),
            configuration=configuration,
        )
        with opened as target, LiveSession(target, self.load) as session:
            yield session, session.warm_up(concurrency=32)

    def measure(
        self, configuration: Configuration, start_rps: float | None, twin: ServerModel | None
    ) -> dict[str, Any]:
        """The edge, and p99 at shares of it, twice.

        The edge is the search's: without the optimism of short runs, as far as ``twin`` knows it.
        """
        # A side with fewer requests leaves the edge open; below the start it takes longer.
        run_s = max(2.0, 1.3 * EVIDENCE_MIN / start_rps if start_rps else 2.0)
        plan = EdgePlan(
            seconds=4.0 * run_s,
            start_rps=start_rps,
            trusted=start_rps is not None,
            run_seconds=(run_s, 1.5 * run_s),
            twin=twin,
            twin_edge_rps=start_rps,
        )
        with self.session(configuration) as (session, saturation):
            found = measure_edge(session, plan, self.load, saturation)
            edge = long_run_edge(found, plan, self.load)
            first = self._at_shares(session, edge.rate_rps)
        with self.session(configuration) as (session, _):
            again = self._at_shares(session, edge.rate_rps)
        return {
            "configuration": configuration.to_dict(),
            "edge_rps": edge.rate_rps,
            "short_run_edge_rps": found.rate_rps,
            "edge_interval_rps": list(edge.interval_rps),
            "work_us": found.work_us,
            "points": [a | {"again": b} for a, b in zip(first, again, strict=True)],
        }

    def edge(self, configuration: Configuration, start_rps: float | None) -> tuple[Edge, float]:
        """The edge alone, and the seconds under load that it took."""
        trusted = start_rps is not None
        plan = EdgePlan(seconds=5.0, start_rps=start_rps, trusted=trusted, run_seconds=(1.0, 2.0))
        with self.session(configuration) as (session, saturation):
            return measure_edge(session, plan, self.load, saturation), session.seconds

    def _at_shares(self, session: LiveSession, edge_rps: float | None) -> list[dict[str, Any]]:
        points = []
        for share in SHARES if edge_rps else ():
            assert edge_rps is not None
            rate = share * edge_rps
            seconds = float(np.clip(800 / rate, 0.8, 1.5))
            test = session.run(rate, seconds, kind="measure", stream=STREAM_EDGE, abort=False)
            log = session.logs[-1]
            points.append(
                {
                    "share": share,
                    "rate_rps": rate,
                    "requests": test.requests,
                    "p50_ms": test.latency_ms.p50,
                    "p99_ms": test.latency_ms.sla,
                    "batch_size_mean": test.batch_size_mean,
                    "compute_infer_ms": float(np.nanmean(log.compute_infer_s)) * 1e3,
                    "stages_ms": {
                        stage: getattr(test.breakdown_ms, stage)
                        for stage in ("queue", "compute_input", "compute_output", "overhead")
                    },
                    "cpu_utilization": test.resources.cpu_utilization,
                    "valid": test.validity.valid,
                }
            )
        return points
