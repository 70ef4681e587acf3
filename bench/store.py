"""A study of 100,000 stored measurements: how long it takes to list it and to read it for a report.

    python bench/store.py [--measurements 100000] [--load-tests 6] [--url URL] [--json]

Goals: listed in less than 1 s (the studies, and the study trial by trial), its rows read for a
report in less than 10 s in all. Writes ``bench/results/store.json``. It is a timing: nothing else
may run on the machine.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    Breakdown,
    LatencySummary,
    LoadTest,
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
from analyzer.store.records import StudyRecord
from analyzer.store.results import open_store
from benchlib.command import Command

GOALS = {"list_seconds_max": 1.0, "report_seconds_max": 10.0}
# A report shows the load tests of the Pareto front and the baseline.
FRONT = 30
FAILED_EVERY = 20
SEED = 1


def main() -> int:
    command = Command("store", __doc__, timing=True)
    command.argument("--measurements", type=int, default=100_000)
    command.argument("--load-tests", type=int, default=6)
    command.argument("--url", help="an empty database; a SQLite file of its own by default")
    options = command.start()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{folder}/results.db"
        figures = measure(url, options.measurements, options.load_tests)
        files = sum(path.stat().st_size for path in Path(folder).iterdir())
    document = {
        "database": url.partition(":")[0],
        "measurements": options.measurements,
        "load_tests_each": options.load_tests,
        "seed": SEED,
        "database_bytes": files or None,
        "goals": GOALS,
        **figures,
    }
    return command.finish(options, document, summary)


def measure(url: str, measurements: int, load_tests: int) -> dict[str, Any]:
    """Seconds of each way to read; everything is opened afresh, as a command would."""
    tensor = TensorSpec(name="x", datatype="FP32", shape=(3, 224, 224))
    model = ModelInfo(
        name="bench", path="bench.onnx", sha256="0" * 64, batchable=True, inputs=(tensor,),
        outputs=(),
    )  # fmt: skip
    figures: dict[str, Any] = {}

    def timed(name: str, action: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = action()
        figures[name] = round(time.perf_counter() - start, 3)
        return value

    with open_store(url) as store:
        study = store.create_study(StudyRecord(model=model, sla=Sla(latency_budget_ms=50.0))).name
        made = made_up(measurements, load_tests)
        timed("write_seconds", lambda: store.add_outcomes(study, made))
    with timed("open_seconds", lambda: open_store(url, create=False)) as store:
        summaries = timed("list_studies_seconds", store.list_studies)
        assert summaries[0].trials == measurements
        rows = timed("list_trials_seconds", lambda: store.trial_rows(study))
        assert len(rows) == measurements
        best = sorted((row for row in rows if row.edge_rps), key=lambda row: -(row.edge_rps or 0))
        front = {row.config_id for row in best[:FRONT]}
        report = timed("report_seconds", lambda: store.outcomes(study, load_tests_of=front))
        assert len(report) == measurements
        del report
        whole = timed("all_load_tests_seconds", lambda: store.outcomes(study))
        assert len(whole[0].outcome.load_tests) == load_tests
    return figures


def made_up(
    count: int, load_tests: int
) -> Iterator[tuple[int, dict[str, Any], Measurement | Failure]]:
    """Measurements of many different configurations, and now and then a failure."""
    rng = random.Random(SEED)
    for number in range(count):
        configuration = Configuration(
            precision="fp32",
            max_batch_size=64,
            dynamic_batching=True,
            preferred_batch_size=(1 + number % 64,),
            max_queue_delay_us=number // 64,
            instance_count=1 + number % 4,
            intra_op_threads=1 + number % 2,
        ).canonical()
        params = {"precision": "fp32", "instance_count": configuration.instance_count}
        if number % FAILED_EVERY == FAILED_EVERY - 1:
            failure = Failure(
                configuration=configuration, stage="load", reason="timeout", message="It hung."
            )
            yield number, params, failure
            continue
        tests = tuple(load_test(rng, 100.0 * (1 + index)) for index in range(load_tests))
        edge_rps = rng.uniform(100.0, 900.0)
        yield (
            number,
            params,
            Measurement(
                configuration=configuration,
                edge=Edge(rate_rps=edge_rps, interval_rps=(edge_rps * 0.9, edge_rps * 1.1)),
                capacity_rps=edge_rps * 0.9,
                certificate=Certificate(
                    verdict="PASS",
                    requests=9000,
                    over_budget=40,
                    effective_requests=rng.uniform(500.0, 5000.0),
                    confidence=0.95,
                    mlperf="PASS",
                ),
                headline=tests[-1] if tests else None,
                load_tests=tests,
                load_test_seconds=30.0,
                resources=tests[-1].resources if tests else ResourceUse(),
                accuracy=Accuracy(
                    metric="label_accuracy", value=0.97, drop=0.001, interval=(-0.001, 0.003)
                ),
                predicted=Prediction(edge_rps=edge_rps * rng.uniform(0.9, 1.1)),
                hardware="made up",
            ),
        )


def load_test(rng: random.Random, rate_rps: float) -> LoadTest:
    """One load test with numbers of realistic length."""
    mean = rng.uniform(5.0, 20.0)
    return LoadTest(
        kind="edge",
        offered_rps=rate_rps,
        achieved_rps=rate_rps * rng.uniform(0.98, 1.0),
        throughput_ips=rate_rps * rng.uniform(0.98, 1.0),
        requests=1000,
        over_budget=3,
        errors=0,
        duration_s=rng.uniform(4.0, 6.0),
        latency_ms=LatencySummary(
            mean=mean, p50=mean * 0.9, p90=mean * 2, p95=mean * 2.5, p99=mean * 4, sla=mean * 4
        ),
        breakdown_ms=Breakdown(
            queue=mean * 0.3,
            compute_input=mean * 0.05,
            compute_infer=mean * 0.5,
            compute_output=mean * 0.05,
            overhead=mean * 0.1,
        ),
        send_lag_ms_p99=rng.uniform(0.05, 0.5),
        batch_size_mean=rng.uniform(1.0, 8.0),
        resources=ResourceUse(
            memory_bytes_peak=rng.randrange(10**8, 10**9), cpu_utilization=rng.random()
        ),
        validity=Validity(valid=True),
        seed=rng.getrandbits(32),
        started_at=1.7e9 + rng.random() * 1e6,
    )


def summary(document: dict[str, Any]) -> str:
    """The figures for people."""
    names = [name for name in document if name.endswith("_seconds")]
    lines = [f"{name.removesuffix('_seconds'):>16} {document[name]:8.2f} s" for name in names]
    title = f"{document['measurements']} measurements of {document['load_tests_each']} load tests"
    return "\n".join([title, *lines])


if __name__ == "__main__":
    raise SystemExit(main())
