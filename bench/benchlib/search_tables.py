"""Tables that ``search.py`` replays: made of probes and measured errors, or measured throughout."""

from __future__ import annotations

import csv
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.sla import Sla
from analyzer.domain.space import Parameter, Params, SearchSpace
from analyzer.domain.workload import Poisson
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.twin import Twin
from benchlib.subjects import FP32, INT8, SEED, SUBJECTS, ServedSubject

# Shares of the variance of a table's errors that are common to a variant, to a deployment (variant,
# instances, threads), to a way of batching (variant, batching, largest batch), and the
# configuration's own. Assumed: the live rows are too few to tell them apart.
COMPONENTS = {"variant": 0.25, "deployment": 0.35, "batching": 0.2, "own": 0.2}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """A space with the truth about it.

    Args:
        predicted, saturation, true: Requests per second by configuration id; 0 where there is none.
    """

    name: str
    space: SearchSpace
    budget_ms: float
    predicted: dict[str, float]
    saturation: dict[str, float]
    true: dict[str, float]

    @property
    def best(self) -> float:
        return max(self.true.values())


def space(batches: tuple[int, ...], delays_us: tuple[int, ...], name: str) -> SearchSpace:
    """The CPU space of the search for two cores, with the variants that ``twin_live`` probes."""
    return SearchSpace(
        name=name,
        device="cpu",
        parameters=(
            Parameter(name="precision", choices=("fp32", "int8")),
            Parameter(name="quantization", choices=("dynamic",), when=(("precision", ("int8",)),)),
            Parameter(name="instance_count", choices=(1, 2)),
            Parameter(name="intra_op_threads", choices=(1, 2)),
            Parameter(name="dynamic_batching", choices=(False, True)),
            Parameter(
                name="max_batch_size", choices=batches, when=(("dynamic_batching", (True,)),)
            ),
            Parameter(
                name="max_queue_delay_us",
                choices=delays_us,
                when=(("dynamic_batching", (True,)),),
            ),
        ),
        threads_max=2,
    )


LARGE = space((2, 4, 8, 16, 32), (0, 500, 2000, 5000, 10000, 20000), "large")
SMALL = space((4, 16), (0, 5000), "small")


def _candidates(chosen: SearchSpace) -> dict[str, tuple[Configuration, Params]]:
    return chosen.candidates()


def predictions(chosen: SearchSpace, twin: Twin) -> tuple[dict[str, float], dict[str, float]]:
    """The twin's edge and saturation throughput of every configuration."""
    configurations = [configuration for configuration, _ in _candidates(chosen).values()]
    edges = twin.edges(configurations)
    saturation = {}
    for configuration in configurations:
        candidate = twin.server_model(configuration)
        assert candidate is not None
        saturation[configuration.config_id] = candidate.saturation_rps()
    predicted = {
        configuration.config_id: edge or 0.0
        for configuration, edge in zip(configurations, edges, strict=True)
    }
    return predicted, saturation


def _groups(configuration: Configuration) -> dict[str, tuple[Any, ...]]:
    """Which configurations share each component of the error."""
    variant = configuration.variant
    deployment = (variant, configuration.instance_count, configuration.intra_op_threads)
    return {
        "variant": (variant,),
        "deployment": deployment,
        "batching": (variant, configuration.dynamic_batching, configuration.max_batch_size),
        "own": (configuration.config_id,),
    }


def virtual_tables(seed: int, bases: list[Table], errors: list[float]) -> list[Table]:
    """Tables whose truth differs from the twin as reality did."""
    tables = []
    for number, base in enumerate(bases):
        rng = np.random.default_rng([seed, number])
        drawn: dict[tuple[Any, ...], float] = {}
        true = {}
        for config_id, (configuration, _) in _candidates(base.space).items():
            error = sum(
                math.sqrt(COMPONENTS[component])
                * drawn.setdefault((component, *group), float(rng.choice(errors)))
                for component, group in _groups(configuration).items()
            )
            true[config_id] = base.predicted[config_id] * math.exp(error)
        tables.append(
            Table(
                name=base.name,
                space=base.space,
                budget_ms=base.budget_ms,
                predicted=base.predicted,
                saturation=base.saturation,
                true=true,
            )
        )
    return tables


def bases_of(document: dict[str, Any]) -> tuple[list[Table], list[float], dict[str, float]]:
    """The twin's tables of each model, the measured errors, and seconds of probing."""
    tables, errors, probing = [], [], {}
    for title, run in document["runs"].items():
        server, name = title.split()
        errors += [
            -math.log1p(row["edge_error"]) for row in run["rows"] if row["edge_error"] is not None
        ]
        if server != "embedded":
            continue
        calibrations = {
            key: VariantCalibration.from_dict(key, run["calibrations"][key.label])
            for key in (FP32, INT8)
        }
        sla = Sla(latency_budget_ms=SUBJECTS[name].budget_ms)
        twin = Twin(calibrations, sla, Poisson(), seed=SEED, cores=2)
        predicted, saturation = predictions(LARGE, twin)
        probing[name] = run["probe_seconds"]
        tables.append(
            Table(
                name=name,
                space=LARGE,
                budget_ms=sla.latency_budget_ms,
                predicted=predicted,
                saturation=saturation,
                true={},
            )
        )
    return tables, errors, probing


def measure_table(path: Path, model: str, *, raw: Path, until_s: float) -> None:
    """Measures every configuration of the small space that the file lacks."""
    subject = ServedSubject.of(model, "embedded", raw)
    source = raw / f"embedded-{model}.json"
    document = json.loads(source.read_text())
    calibrations: dict[VariantKey, VariantCalibration] = {
        key: VariantCalibration.from_dict(key, document["calibrations"][key.label])
        for key in (FP32, INT8)
    }
    predicted, saturation = predictions(SMALL, subject.twin(calibrations))
    began = time.perf_counter()
    known = set()
    fresh = not path.is_file()
    if not fresh:
        with path.open(newline="") as file:
            known = {row["config_id"] for row in csv.DictReader(file)}
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(
                ["model", "config_id", "predicted_rps", "saturation_rps", "edge_rps", "from_rps",
                 "to_rps", "load_test_seconds", "configuration"]
            )  # fmt: skip
        for config_id, (configuration, _) in _candidates(SMALL).items():
            if config_id in known:
                continue
            if time.perf_counter() - began > until_s:
                break
            edge, seconds = subject.edge(configuration, predicted[config_id] or None)
            low, high = edge.interval_rps
            writer.writerow(
                [model, config_id, f"{predicted[config_id]:.2f}",
                 f"{saturation[config_id]:.2f}", f"{edge.rate_rps or 0.0:.2f}",
                 f"{low or 0.0:.2f}", f"{high or 0.0:.2f}", f"{seconds:.2f}",
                 json.dumps(configuration.to_dict())]
            )  # fmt: skip
            file.flush()


def read_table(path: Path) -> Table:
    """A measured table."""
    with path.open(newline="") as file:
        rows = {row["config_id"]: row for row in csv.DictReader(file)}
    missing = _candidates(SMALL).keys() - rows.keys()
    if missing:
        raise SystemExit(f"{path.name} lacks {len(missing)} configurations; measure them first")
    return Table(
        name=path.stem,
        space=SMALL,
        budget_ms=0.0,
        predicted={key: float(row["predicted_rps"]) for key, row in rows.items()},
        saturation={key: float(row["saturation_rps"]) for key, row in rows.items()},
        true={key: float(row["edge_rps"]) for key, row in rows.items()},
    )
