"""A landscape on this machine's GPU: instances × batch × precision under closed loops, as a table.

It has the columns of Model Analyzer's server-side results, so that ``landscape.py`` and
``replay.py`` read it. Rows that are there already are not measured again.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration, Precision, VariantKey
from analyzer.domain.load_test import STATUS_OK
from analyzer.domain.model import ModelInfo
from analyzer.engine.tensor_file import write_tensors
from analyzer.errors import AnalyzerError
from analyzer.hardware.gpus import first_gpu
from analyzer.hardware.sampler import ResourceSampler, gpu_used_bytes
from analyzer.load.generator import run_closed_loop
from analyzer.targets.open import open_target
from analyzer.variants.build import build_variant
from analyzer.variants.inputs import synthetic_inputs
from analyzer.variants.inspect import inspect_model
from benchlib import closed_loop as twin
from benchlib.command import WORK
from benchlib.gpu_provider import models
from benchlib.recorded import read

COLUMNS = (
    "model", "variant", "max_batch_size", "instance_count", "dynamic_batching", "concurrency",
    "throughput_ips", "latency_ms_mean", "latency_ms_p90", "latency_ms_p95", "latency_ms_p99",
    "server_queue_ms", "server_compute_input_ms", "server_compute_infer_ms",
    "server_compute_output_ms", "gpu_used_memory_mb", "gpu_utilization_percent",
)  # fmt: skip
# Precision outermost: a table that ends early has whole precisions.
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
INSTANCES = (1, 2, 4)
BATCHES = (1, 8, 32)
_ROWS = 64
_SECONDS = 1.0  # of one row, after half of it to settle


def concurrencies(instances: int, batch: int) -> tuple[int, ...]:
    """One client, and one and two full batches for each instance."""
    return tuple(dict.fromkeys((1, instances * batch, 2 * instances * batch)))


def configurations() -> Iterator[Configuration]:
    """Every deployment of the table, in the order in which they are measured."""
    for precision in PRECISIONS:
        for batch in BATCHES:
            for instances in INSTANCES:
                yield Configuration(
                    precision=precision,
                    device="gpu",
                    instance_count=instances,
                    max_batch_size=batch,
                    dynamic_batching=batch > 1,
                )


def landscape(
    path: Path, *, model_name: str = "convnet", until_s: float, seconds: float = _SECONDS
) -> dict[str, Any]:
    """Measures rows that the table at ``path`` lacks, for ``until_s`` at most; what it has then.

    A deployment is begun only if the slowest one so far would still fit.

    Raises:
        AnalyzerError: A variant cannot be built, or a server does not come up.
    """
    began = time.perf_counter()
    model = inspect_model(models()[model_name], name=model_name)
    inputs = WORK / "gpu" / f"{model_name}.npz"
    write_tensors(inputs, synthetic_inputs(model, _ROWS, 0))
    known = _known(path)
    slowest = 0.0
    for configuration in configurations():
        left = [
            clients
            for clients in concurrencies(configuration.instance_count, configuration.max_batch_size)
            if _key(configuration, clients) not in known
        ]
        if not left:
            continue
        start = time.perf_counter()
        if start - began + slowest > until_s:
            break
        _append(path, _measured(model, configuration, inputs, left, seconds))
        slowest = max(slowest, time.perf_counter() - start)
    return summary(path)


def summary(path: Path) -> dict[str, Any]:
    """What the table at ``path`` has, and how well the closed-loop twin fits its valid rows."""
    wanted = sum(len(concurrencies(each.instance_count, each.max_batch_size))
                 for each in configurations())  # fmt: skip
    found: dict[str, Any] = {"table": path.name, "rows": len(_known(path)), "of": wanted}
    try:
        table = read(path, "99")
    except AnalyzerError as error:
        return found | {"said": error.message}
    fitted = twin.fit(list(table.points), table.throughput_ips)
    misfit = np.abs(fitted.throughput_ips(table.points) / table.throughput_ips - 1.0)
    return found | {
        "left_out": table.left_out,
        "throughput_ips_max": float(table.throughput_ips.max()),
        "twin_error_median": float(np.median(misfit)),
    }


def _key(configuration: Configuration, clients: int) -> tuple[str, ...]:
    found = (configuration.precision, configuration.max_batch_size, configuration.instance_count)
    return tuple(map(str, (*found, clients)))


def _known(path: Path) -> set[tuple[str, ...]]:
    if not path.is_file():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        names = ("variant", "max_batch_size", "instance_count", "concurrency")
        return {tuple(row[name] for name in names) for row in csv.DictReader(file)}


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def _measured(
    model: ModelInfo,
    configuration: Configuration,
    inputs: Path,
    concurrency: list[int],
    seconds: float,
) -> list[dict[str, Any]]:
    """A row for each number of clients of one deployment."""
    key = VariantKey(precision=configuration.precision)
    variant = build_variant(model, key, cache_dir=WORK / "gpu" / "variants", device="gpu")
    gpu = first_gpu()
    base = gpu_used_bytes(gpu)
    rows = []
    with (
        open_target(
            "embedded",
            model=model,
            model_path=Path(variant.path),
            inputs_path=inputs,
            configuration=configuration,
        ) as target,
        target.connect() as connection,
    ):
        for clients in concurrency:
            run_closed_loop(connection, clients, duration_s=seconds / 2)
            with ResourceSampler(target.pids, gpu=gpu, gpu_base_bytes=base) as sampler:
                done = run_closed_loop(connection, clients, duration_s=seconds)
            good = done.log.status == STATUS_OK
            latency_ms = done.log.latency_s[good] * 1e3
            if not len(latency_ms):
                raise AnalyzerError(f"{configuration.config_id} answered no request of its load.")
            use = sampler.result()
            p90, p95, p99 = np.percentile(latency_ms, (90, 95, 99))
            memory, busy = use.gpu_memory_bytes_peak, use.gpu_utilization
            rows.append(
                {
                    "model": model.name,
                    "variant": configuration.precision,
                    "max_batch_size": configuration.max_batch_size,
                    "instance_count": configuration.instance_count,
                    "dynamic_batching": int(configuration.dynamic_batching),
                    "concurrency": clients,
                    "throughput_ips": f"{good.sum() / done.wall_s:.2f}",
                    "latency_ms_mean": f"{latency_ms.mean():.4f}",
                    "latency_ms_p90": f"{p90:.4f}",
                    "latency_ms_p95": f"{p95:.4f}",
                    "latency_ms_p99": f"{p99:.4f}",
                    "gpu_used_memory_mb": "" if memory is None else f"{memory / 1e6:.1f}",
                    "gpu_utilization_percent": "" if busy is None else f"{100 * busy:.1f}",
                }
            )
    return rows
