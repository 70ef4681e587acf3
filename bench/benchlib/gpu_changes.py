"""The twin beside load tests recorded on a GPU, where another batch size than the last costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration, Precision
from analyzer.domain.workload import Poisson
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.server_model import ServerModel
from analyzer.twin.simulator import OpenWorkload
from benchlib.command import ROOT

TABLE = ROOT / "bench" / "tables" / "gpu_digits.json"
# Of the machine that the table was recorded on, and what a request took there outside queue and
# model, milliseconds.
_CORES, _OVERHEAD_MS = 16, 0.3
_REQUESTS = (3_000, 20_000)
_BUDGET_MS = 20.0
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
INSTANCES = (1, 2, 4)
BATCHES = (1, 8, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One recorded load test and what the twin makes of it.

    Args:
        recorded: The row of the table.
        label: Of the configuration.
        with_changes, without_changes: Mean time of an execution, milliseconds, and mean batch.
    """

    recorded: dict[str, Any]
    label: str
    with_changes: tuple[float, float]
    without_changes: tuple[float, float]


def models(path: Path = TABLE) -> Iterator[tuple[dict[str, Any], ServerModel]]:
    """Each recorded load test with the twin's model of its configuration, which knows no run."""
    document = json.loads(path.read_text(encoding="utf-8"))
    for run in document["runs"]:
        known = dict(run["configuration"])
        if known.get("preferred_batch_size") is not None:
            known["preferred_batch_size"] = tuple(known["preferred_batch_size"])
        yield run, _model(document, Configuration(**known))


def _model(document: dict[str, Any], configuration: Configuration) -> ServerModel:
    probes = document["probes"][configuration.precision]
    calibration = VariantCalibration.from_dict(configuration.variant, probes)
    service = calibration.service_of(configuration, cores=_CORES)
    assert service is not None
    return ServerModel.of(configuration, service, overhead_ms=_OVERHEAD_MS)


def compare(path: Path = TABLE) -> list[Compared]:
    """All load tests of the table."""
    arrivals = UnitArrivals.draw(Poisson(), count=_REQUESTS[1], seed=5)
    found = []
    for run, model in models(path):
        plain = replace(model, service=replace(model.service, change_ms=()))
        policy = model.policy
        found.append(
            Compared(
                recorded=run,
                label=f"{run['configuration']['precision']}, {policy.instance_count} × batch"
                f" ≤{policy.max_batch_size}, {policy.max_queue_delay_us / 1e3:g} ms",
                with_changes=_simulated(model, arrivals, run),
                without_changes=_simulated(plain, arrivals, run),
            )
        )
    return found


def expected_edges(path: Path = TABLE) -> dict[str, float]:
    """The twin's edge of some configurations from the table's probes, 1/s, best first."""
    document = json.loads(path.read_text(encoding="utf-8"))
    arrivals = UnitArrivals.draw(Poisson(), seed=5)
    found = {}
    for precision, instances, batch in product(PRECISIONS, INSTANCES, BATCHES):
        configuration = Configuration(
            precision=precision,
            device="gpu",
            instance_count=instances,
            max_batch_size=batch,
            dynamic_batching=batch > 1,
        )
        edge_rps = _model(document, configuration).edge(arrivals, budget_ms=_BUDGET_MS)
        found[f"{precision}, {instances} × batch ≤{batch}"] = edge_rps or 0.0
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _simulated(
    model: ServerModel, arrivals: UnitArrivals, run: dict[str, Any]
) -> tuple[float, float]:
    count = int(np.clip(run["requests"], *_REQUESTS))
    workload = OpenWorkload(
        arrival_ns=(arrivals.time_s[:count] * (1e9 / run["offered_rps"])).astype(np.int64),
        batch_size=np.array([1]),
    )
    result = model.simulate(workload)
    spent_ms = (result.execution_end_ns - result.execution_start_ns) / 1e6
    return float(spent_ms.mean()), float(result.execution_batch_size.mean())
