"""Objects of every shape that the store must give back; without pytest, for other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    Breakdown,
    ExecutionTimes,
    LatencySummary,
    LoadTest,
    RequestLog,
    ResourceUse,
    Validity,
)
from analyzer.domain.measurement import (
    Accuracy,
    Certificate,
    Edge,
    Failure,
    Measurement,
    Prediction,
)
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.domain.sla import Sla
from analyzer.domain.study import (
    Explanation,
    Pricing,
    SearchSummary,
    Step,
    StudyResult,
    WhatIf,
)
from analyzer.store.records import StudyRecord


def make_record(name: str = "", *, model: str = "digits") -> StudyRecord:
    tensor = TensorSpec(name="x", datatype="INT64", shape=(3, -1), value_range=(0, 9))
    info = ModelInfo(
        name=model, path="/m/digits.onnx", sha256="ab" * 32, batchable=True, inputs=(tensor,),
        outputs=(), opset=17, external_files=("w.bin",),
    )  # fmt: skip
    return StudyRecord(
        name=name, model=info, sla=Sla(latency_budget_ms=50.0, max_memory_bytes=1 << 40),
        options={"sampler": "tpe", "budget_s": 60.0, "nested": {"list": [1, None, "ü"]}},
        seed=2**70 + 1, provenance={"seeds": {"root": 1}},
    )  # fmt: skip


def make_load_test(rate_rps: float = 100.0, *, failing: bool = False) -> LoadTest:
    p99 = None if failing else 20.0 + rate_rps / 100
    return LoadTest(
        kind="edge", offered_rps=rate_rps, achieved_rps=rate_rps * 0.999,
        throughput_ips=rate_rps * 4, requests=1000, over_budget=3, errors=20 if failing else 0,
        duration_s=10.0,
        latency_ms=LatencySummary(mean=9.5, p50=8.0, p90=12.0, p95=15.0, p99=p99, sla=p99),
        breakdown_ms=Breakdown(queue=1.5, compute_infer=6.25),
        send_lag_ms_p99=0.125, batch_size_mean=2.5,
        executions=(ExecutionTimes(batch_size=2, count=100, mean_ms=3.5),),
        resources=ResourceUse(memory_bytes_peak=1 << 33, cpu_utilization=0.75),
        validity=Validity(valid=not failing, reasons=("Little's law: 12 % off",) * failing),
        seed=2**40, started_at=1.7e9,
    )  # fmt: skip


def make_measurement(edge_rps: float | None = 320.5, **changes: object) -> Measurement:
    configuration = Configuration(
        precision="int8", quantization="dynamic", max_batch_size=8, dynamic_batching=True,
        preferred_batch_size=(4, 8), max_queue_delay_us=500, instance_count=2, intra_op_threads=1,
    )  # fmt: skip
    fields: dict[str, object] = {
        "configuration": configuration.canonical(),
        "edge": Edge(rate_rps=edge_rps, interval_rps=(300.25, None)),
        "capacity_rps": 300.0,
        "certificate": Certificate(
            verdict="PASS", requests=9000, over_budget=40, effective_requests=1234.5,
            confidence=0.95, mlperf="PASS", inflation=7.3, inflation_source="batch_means",
        ),
        "headline": make_load_test(300.0),
        "load_tests": (make_load_test(100.0), make_load_test(400.0, failing=True)),
        "load_test_seconds": 32.5,
        "resources": ResourceUse(memory_bytes_peak=1 << 34),
        "accuracy": Accuracy(
            metric="label_accuracy", value=0.97, drop=0.004, interval=(0.001, 0.0075), samples=900
        ),
        "predicted": Prediction(edge_rps=333.0, error=0.04),
        "hardware": "2 × some CPU",
        "notes": ("a note",),
    }  # fmt: skip
    return Measurement(**(fields | changes))  # type: ignore[arg-type]


def make_wordy() -> Measurement:
    """Of a variant with settings enough that its label has more than 64 characters."""
    configuration = Configuration(
        precision="int8", quantization="dynamic", accelerator="openvino", graph_level=-1,
        execution_mode="parallel", inter_op_threads=16,
    ).canonical()  # fmt: skip
    assert len(configuration.variant.label) > 64
    return make_measurement(configuration=configuration)


def make_failure() -> Failure:
    return Failure(
        configuration=Configuration(max_batch_size=4).canonical(),
        stage="load", reason="out_of_memory", message="It needed 9 GiB.", hint="Fewer instances.",
        load_test_seconds=1.5,
    )  # fmt: skip


def make_result(name: str, **changes: object) -> StudyResult:
    record = make_record(name)
    fields: dict[str, object] = {
        "name": name, "verdict": "found", "model": record.model, "sla": record.sla,
        "arrivals": "gamma:2", "request_batch_size": 2, "server": "embedded", "outcomes": (),
        "recommended_id": "0123456789ab", "baseline_id": "ba9876543210",
        "pricing": Pricing(price_per_hour=0.7364, source="--price"),
        "search": SearchSummary(sampler="twin", space_size=720, wall_seconds=float("inf")),
        "explanation": Explanation(
            trusted=True, importance=(("precision", 0.5),),
            contributions=(Step(setting="fp32", config_id="a", edge_rps=None, measured=False),),
            what_if=(
                WhatIf(setting="instances", from_value="1", to_value="2", predicted_edge_rps=9.5),
            ),
        ),
        "provenance": record.provenance,
        "warnings": ("a warning",),
    }  # fmt: skip
    return StudyResult(**(fields | changes))  # type: ignore[arg-type]


def make_log(count: int = 500) -> RequestLog:
    rng = np.random.default_rng(1)
    latency_s = rng.exponential(0.01, count)
    latency_s[-1:] = np.inf
    unknown = np.full(count, np.nan, dtype=np.float32)
    return RequestLog(
        intended_s=np.cumsum(rng.exponential(0.01, count)),
        send_lag_s=rng.exponential(1e-4, count),
        latency_s=latency_s,
        batch_size=rng.integers(1, 5, count, dtype=np.int32),
        status=np.zeros(count, dtype=np.uint8),
        queue_s=(latency_s / 2).astype(np.float32),
        compute_input_s=unknown,
        compute_infer_s=unknown,
        compute_output_s=unknown,
        warmup=7,
    )


def run_python(code: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    """A process of its own that runs ``code`` with our package and this folder on its path."""
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(here.parent), str(here.parents[2])])
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, **options,  # type: ignore[call-overload]
    )  # fmt: skip
