"""How far the twin is off: its edges and latencies against what a real server does.

    python bench/twin_live.py measure --model digits --raw DIR [--server embedded|triton]
    python bench/twin_live.py report --raw DIR

``measure`` probes the variants of one model exactly as the search does and then measures, for a
spread of configurations, the edge and p99 at 0.3, 0.5 and 0.8 of it, each rate twice with the same
arrivals on servers of their own (the repeatability). It takes about four minutes a model and wants
the machine for itself; ``probe`` repeats its probes alone. ``report`` asks the twin for the same
figures, prints the errors, and writes
``bench/results/twin_live.json``. No load test of a configuration ever calibrates what is predicted
of it: the first error is that of probes alone, the second that of a search which has measured three
other configurations.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Backend, Configuration, VariantKey
from analyzer.domain.measurement import Edge
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson, draw_arrivals_s
from analyzer.hardware.machine import usable_cores
from analyzer.measure.jobs import WorkerContext
from analyzer.measure.measure import long_run_edge, measure_edge
from analyzer.measure.plan import STREAM_EDGE, EdgePlan, LoadPlan
from analyzer.measure.session import LoadSession
from analyzer.measure.tasks import Assets, ProbeTask
from analyzer.search.guide import features
from analyzer.search.residual import ResidualModel
from analyzer.targets.open import open_target
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.probes import plan_probes
from analyzer.twin.server_model import ServerModel
from analyzer.twin.twin import Twin

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "twin_live.json"
SHARES = (0.3, 0.5, 0.8)
# Live trials of other configurations that a prediction may have learned from.
LIVE_TRIALS = 3
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
}

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
    if name == "digits":
        return ROOT / "examples" / "digits.onnx"
    path = folder / f"{name}.onnx"
    if path.is_file():
        return path
    if name == "encoder":
        location = ROOT / "examples" / "make_text_encoder.py"
        spec = importlib.util.spec_from_file_location("make_text_encoder", location)
        assert spec is not None and spec.loader is not None
        maker = importlib.util.module_from_spec(spec)
        import sys

        sys.modules["make_text_encoder"] = maker
        spec.loader.exec_module(maker)
        maker.write_encoder(path, maker.Shape(tokens=32, vocab=8000))
        return path
    _write_perceptron(path)
    return path


def _write_perceptron(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    widths = (1024, 4096, 4096, 1024)
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for layer in range(len(widths) - 1):
        matrix = rng.standard_normal(widths[layer : layer + 2], np.float32) / np.float32(
            np.sqrt(widths[layer])
        )
        weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        last = layer == len(widths) - 2
        name = "y" if last else f"h{layer}"
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [name]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{layer}"], [f"r{layer}"]))
        value = f"r{layer}"
    shape = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", widths[0]])]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", widths[-1]])]
    graph = helper.make_graph(nodes, "perceptron", shape, out, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One model on one server."""

    name: str
    server: str
    model: ModelInfo
    assets: Assets
    context: WorkerContext
    load: LoadPlan

    @classmethod
    def of(cls, name: str, server: str, folder: Path) -> Bench:
        """Inspects the model; ``folder`` keeps variants and inputs."""
        from analyzer.cli.search_run import inspect_path

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
                gpu_index=None,
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
        found = {}
        for key in (FP32, INT8):
            probes = plan_probes(deployments=[(1, 1), (1, 2), (2, 1)], batch_max=32, seconds=0.4)
            task = ProbeTask(
                assets=self.assets,
                key=key,
                device="cpu",
                probes=tuple(probes),
                batch_ms_max=self.load.sla.latency_budget_ms,
                timeout_s=120.0,
            )
            found[key] = VariantCalibration(variant=key, results=tuple(task(self.context)))
        return found

    def oracle(self, calibrations: dict[VariantKey, VariantCalibration]) -> Twin:
        """The twin as the search asks it."""
        return Twin(
            calibrations, self.load.sla, self.load.arrivals, seed=SEED, cores=usable_cores()
        )

    def open(self, configuration: Configuration) -> Any:
        """A server of its own for ``configuration``."""
        variant = self.assets.variant(configuration.variant, self.context)
        return open_target(
            self.server,
            model=self.model,
            model_path=Path(variant.path),
            inputs_path=self.assets.request_inputs(self.context.cache_dir),
            configuration=configuration,
        )

    def measure(
        self, configuration: Configuration, start_rps: float | None, twin: ServerModel | None
    ) -> dict[str, Any]:
        """The edge, and p99 at shares of it, twice.

        The edge is the search's: without the optimism of short runs, as far as ``twin`` knows it.
        """
        with self.open(configuration) as target:
            session = LoadSession(target, self.load)
            saturation = session.warm_up(concurrency=32)
            plan = EdgePlan(
                seconds=8.0,
                start_rps=start_rps,
                trusted=start_rps is not None,
                run_seconds=(2.0, 3.0),
                twin=twin,
                twin_edge_rps=start_rps,
            )
            found = measure_edge(session, plan, self.load, saturation)
            edge = long_run_edge(found, plan, self.load)
            first = self._at_shares(session, edge.rate_rps)
        with self.open(configuration) as target:
            session = LoadSession(target, self.load)
            session.warm_up(concurrency=32)
            again = self._at_shares(session, edge.rate_rps)
        return {
            "configuration": configuration.to_dict(),
            "edge_rps": edge.rate_rps,
            "short_run_edge_rps": found.rate_rps,
            "edge_interval_rps": list(edge.interval_rps),
            "points": [a | {"again": b} for a, b in zip(first, again, strict=True)],
        }

    def edge(self, configuration: Configuration, start_rps: float | None) -> tuple[Edge, float]:
        """The edge alone, and the seconds under load that it took."""
        with self.open(configuration) as target:
            session = LoadSession(target, self.load)
            saturation = session.warm_up(concurrency=32)
            plan = EdgePlan(
                seconds=5.0,
                start_rps=start_rps,
                trusted=start_rps is not None,
                run_seconds=(1.0, 2.0),
            )
            return measure_edge(session, plan, self.load, saturation), session.seconds

    def _at_shares(self, session: LoadSession, edge_rps: float | None) -> list[dict[str, Any]]:
        points = []
        for share in SHARES if edge_rps else ():
            assert edge_rps is not None
            rate = share * edge_rps
            seconds = float(np.clip(800 / rate, 0.8, 1.5))
            test = session.run(rate, seconds, kind="bench", stream=STREAM_EDGE, abort=False)
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


def run_measure(options: argparse.Namespace) -> None:
    """Measures one model and keeps what it gave."""
    folder = options.raw
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench.of(options.model, options.server, folder)
    part = f".{options.first}" if options.first else ""
    path = folder / f"{options.server}-{options.model}{part}.json"
    for key in (FP32, INT8):
        bench.assets.variant(key, bench.context)
    began = time.perf_counter()
    calibrations = bench.probe()
    probe_s = time.perf_counter() - began
    chosen = configurations(SUBJECTS[options.model].batch_share)[options.first :]
    oracle = bench.oracle(calibrations)
    starts = oracle.edges(chosen)
    document: dict[str, Any] = {
        "probe_seconds": probe_s,
        "calibrations": {key.label: value.to_dict() for key, value in calibrations.items()},
        "measured": [],
    }
    for configuration, start in zip(chosen, starts, strict=True):
        if options.until and time.perf_counter() - began > options.until:
            break
        record = bench.measure(configuration, start, oracle.server_model(configuration))
        document["measured"].append(record)
        print(f"{_title(configuration)}: twin {start}, measured {record['edge_rps']}", flush=True)
    path.write_text(json.dumps(document))


def run_probe(options: argparse.Namespace) -> None:
    """Probes again what was measured, after the probes themselves were changed."""
    bench = Bench.of(options.model, options.server, options.raw)
    path = options.raw / f"{options.server}-{options.model}.json"
    document = json.loads(path.read_text())
    began = time.perf_counter()
    calibrations = bench.probe()
    document["probe_seconds"] = time.perf_counter() - began
    document["calibrations"] = {key.label: value.to_dict() for key, value in calibrations.items()}
    path.write_text(json.dumps(document))


def _title(configuration: Configuration) -> str:
    batching = "no batching"
    if configuration.dynamic_batching:
        delay_ms = (configuration.max_queue_delay_us or 0) / 1000
        batching = f"batch ≤ {configuration.max_batch_size}, {delay_ms:g} ms"
    return (
        f"{configuration.variant.label}, {configuration.instance_count} × "
        f"{configuration.intra_op_threads} threads, {batching}"
    )


def compare(bench: Bench, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Predicted against measured, configuration by configuration."""
    # The real Triton here has the python backend alone.
    backend: Backend = "python" if bench.server == "triton" else "onnxruntime"
    calibrations = {
        replace(key, backend=backend): VariantCalibration.from_dict(
            key, json.loads(json.dumps(values))
        )
        for key in (FP32, INT8)
        if (values := document["calibrations"].get(key.label))
    }
    oracle = bench.oracle(calibrations)
    rows = []
    measured = document["measured"]
    for record in measured:
        configuration = replace(Configuration.from_dict(record["configuration"]), backend=backend)
        predicted = oracle.edges([configuration])[0]
        edge = record["edge_rps"]
        # Without an upper end the search ran out of time below the edge.
        pinned = bool(edge and record["edge_interval_rps"][1])
        points = []
        for point in record["points"]:
            p99 = _predicted_p99(bench, oracle, configuration, point)
            if p99 is None or point["p99_ms"] is None or point["again"]["p99_ms"] is None:
                continue
            points.append(
                {
                    "share": point["share"],
                    "p99_ms": point["p99_ms"],
                    "again_ms": point["again"]["p99_ms"],
                    "predicted_ms": p99,
                    "error": p99 / np.sqrt(point["p99_ms"] * point["again"]["p99_ms"]) - 1,
                    "repeatability": abs(point["again"]["p99_ms"] / point["p99_ms"] - 1),
                }
            )
        rows.append(
            {
                "configuration": _title(configuration),
                "edge_rps": edge,
                "predicted_rps": predicted,
                "edge_pinned": pinned,
                "edge_error": predicted / edge - 1 if predicted and pinned else None,
                "points": points,
            }
        )
    coordinates = np.array(
        [features(Configuration.from_dict(r["configuration"])) for r in measured]
    )
    for at, row in enumerate(rows):
        row["calibrated_rps"] = _calibrated(coordinates, rows, at)
        if row["calibrated_rps"] and row["edge_pinned"]:
            row["calibrated_error"] = row["calibrated_rps"] / row["edge_rps"] - 1
    return rows


def _calibrated(points: NDArray[np.float64], rows: list[dict[str, Any]], at: int) -> float | None:
    """The prediction as a search has it that has measured ``LIVE_TRIALS`` other configurations.

    What they teach is the residual that the guided search learns; the row itself is never among
    them.
    """
    others = [(at + step) % len(rows) for step in range(1, len(rows))]
    others = [i for i in others if rows[i]["edge_error"] is not None][:LIVE_TRIALS]
    if not rows[at]["predicted_rps"] or len(others) < LIVE_TRIALS:
        return None
    model = ResidualModel(points)
    ratios = [np.log(rows[i]["edge_rps"] / rows[i]["predicted_rps"]) for i in others]
    model.learn(np.array(others), np.array(ratios))
    return float(rows[at]["predicted_rps"] * np.exp(model.predict(np.array([at]))[0][0]))


def _thinned(values: dict[str, Any]) -> dict[str, Any]:
    """Probes with at most 16 samples each: enough for ``bench/search.py``."""
    results = []
    for record in values["results"]:
        samples = np.array(record["samples_ms"])
        if len(samples) > 16:
            samples = np.quantile(samples, (np.arange(16) + 0.5) / 16)
        results.append(record | {"samples_ms": [round(float(value), 4) for value in samples]})
    return {"results": results}


def _predicted_p99(
    bench: Bench, oracle: Twin, configuration: Configuration, point: dict[str, Any]
) -> float | None:
    """The twin's p99 on the very arrivals of the run: what differs is the server alone."""
    from analyzer.twin.simulator import OpenWorkload

    candidate = oracle.server_model(configuration)
    if candidate is None:
        return None
    rng = np.random.default_rng([SEED, STREAM_EDGE, 0])
    arrivals_s = draw_arrivals_s(
        bench.load.arrivals, rate_rps=point["rate_rps"], count=point["requests"], rng=rng
    )
    workload = OpenWorkload(
        arrival_ns=(arrivals_s * 1e9).astype(np.int64), batch_size=np.array([1])
    )
    # Several draws of the service times' noise; their mean is what the twin expects.
    found = [candidate.simulate(workload, seed=seed).percentile_ms(99) for seed in range(8)]
    values = [value for value in found if value is not None]
    return float(np.mean(values)) if values else None


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and 90th percentile of the errors, and how many of p99 keep the goal."""
    edges = [abs(row["edge_error"]) for row in rows if row["edge_error"] is not None]
    calibrated = [abs(row["calibrated_error"]) for row in rows if "calibrated_error" in row]
    points = [point for row in rows for point in row["points"]]
    errors = [abs(point["error"]) for point in points]
    repeat = [point["repeatability"] for point in points]
    limit = max(0.05, 1.5 * float(np.median(repeat))) if repeat else 0.05

    def quantile(values: list[float], share: float) -> float | None:
        return float(np.quantile(values, share)) if values else None

    return {
        "configurations": len(rows),
        "edges_compared": len(edges),
        "edge_error_median": quantile(edges, 0.5),
        "edge_error_p90": quantile(edges, 0.9),
        "edge_error_after_trials_median": quantile(calibrated, 0.5),
        "edge_error_after_trials_p90": quantile(calibrated, 0.9),
        "p99_error_median": quantile(errors, 0.5),
        "p99_error_p90": quantile(errors, 0.9),
        "repeatability_median": quantile(repeat, 0.5),
        "repeatability_p90": quantile(repeat, 0.9),
        "p99_limit": limit,
        "p99_within_limit": float(np.mean([e <= limit for e in errors])) if errors else None,
    }


def run_report(options: argparse.Namespace) -> None:
    """Evaluates everything that was measured."""
    result: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "runs": {},
    }
    everything: list[dict[str, Any]] = []
    for server in ("embedded", "triton"):
        for name, subject in SUBJECTS.items():
            # A model's configurations may have been measured in parts, each with probes of its own.
            paths = sorted(options.raw.glob(f"{server}-{name}*.json"))
            documents = [json.loads(path.read_text()) for path in paths]
            if not documents:
                continue
            document = documents[0]
            bench = Bench.of(name, server, options.raw)
            rows = [row for part in documents for row in compare(bench, part)]
            everything += rows
            result["runs"][f"{server} {name}"] = {
                "model": subject.kind,
                "budget_ms": subject.budget_ms,
                "probe_seconds": document["probe_seconds"],
                "probes": {
                    label: len(values["results"])
                    for label, values in document["calibrations"].items()
                },
                "calibrations": {
                    label: _thinned(values) for label, values in document["calibrations"].items()
                },
                "summary": summary(rows),
                "rows": rows,
            }
            _print(f"{server}, {name}", rows)
    result["all"] = summary(everything)
    print(json.dumps(result["all"], indent=1))
    if options.write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        error = row["edge_error"]
        points = "  ".join(
            f"{p['share']}: {p['p99_ms']:.2f}/{p['again_ms']:.2f} twin {p['predicted_ms']:.2f}"
            for p in row["points"]
        )
        after = row.get("calibrated_error")
        shown = " ".join("–" if e is None else f"{e:+.1%}" for e in (error, after))
        edge, twin = row["edge_rps"] or 0.0, row["predicted_rps"] or 0.0
        print(f"  {row['configuration']:<40} {edge:8.1f} twin {twin:8.1f} {shown:>14}  {points}")
    s = summary(rows)
    print("  " + "  ".join(f"{k} {v:.3g}" for k, v in s.items() if v is not None))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("measure", "probe", "report"))
    parser.add_argument("--model", choices=tuple(SUBJECTS), default="digits")
    parser.add_argument("--server", choices=("embedded", "triton"), default="embedded")
    parser.add_argument(
        "--raw", type=Path, default=Path(tempfile.gettempdir()) / "tritune-twin-live"
    )
    parser.add_argument("--until", type=float, default=0.0, help="start no more after so long, s")
    parser.add_argument("--first", type=int, default=0, help="begin with this configuration")
    parser.add_argument("--no-write", dest="write", action="store_false")
    options = parser.parse_args()
    {"measure": run_measure, "probe": run_probe, "report": run_report}[options.action](options)


if __name__ == "__main__":
    main()
