"""Tables that ``search.py`` replays: made of probes and measured errors, or measured throughout."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.sla import Sla
from analyzer.domain.space import Parameter, Params, SearchSpace
from analyzer.domain.workload import Poisson
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.twin import Twin
from benchlib.subjects import FP32, INT8, SEED, SUBJECTS

# Shares of the variance of a table's errors that are common to a variant, to a deployment (variant,
# instances, threads), to the batches of a deployment (its largest batch), and the configuration's
# own. The last three are in the ratio of the variances that ``search.py components`` estimates from
# ``encoder_large.csv`` (docs/twin.md); the variant's share is assumed: that table has none, the
# small one of the encoder more.
COMPONENTS = {"variant": 0.1, "deployment": 0.615, "batching": 0.17, "own": 0.115}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """A space with the truth about it.

    Args:
        predicted, saturation, true: Requests per second by configuration id; 0 where there is none.
        error_variances: Of the parts of log(true / predicted), as of :func:`groups_of`, where the
            truth was drawn with them.
    """

    name: str
    space: SearchSpace
    budget_ms: float
    predicted: dict[str, float]
    saturation: dict[str, float]
    true: dict[str, float]
    error_variances: dict[str, float] = field(default_factory=dict)

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
SPACES = {"large": LARGE, "small": SMALL}


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


def groups_of(configuration: Configuration) -> dict[str, tuple[Any, ...]]:
    """Which configurations share each component of the error."""
    variant = configuration.variant
    deployment = (variant, configuration.instance_count, configuration.intra_op_threads)
    return {
        "variant": (variant,),
        "deployment": deployment,
        "batching": (*deployment, configuration.dynamic_batching, configuration.max_batch_size),
        "own": (configuration.config_id,),
    }


def virtual_tables(
    seed: int, bases: list[Table], errors: list[float], *, own: float | None = None
) -> list[Table]:
    """Tables whose truth differs from the twin as reality did.

    Args:
        own: The share of the variance that is the configuration's own, in place of the estimate.
    """
    shares = COMPONENTS
    if own is not None:
        rest = 1.0 - COMPONENTS["own"]
        shares = {part: share * (1.0 - own) / rest for part, share in COMPONENTS.items()}
        shares["own"] = own
    variance = float(np.mean(np.square(errors)))
    tables = []
    for number, base in enumerate(bases):
        rng = np.random.default_rng([seed, number])
        drawn: dict[tuple[Any, ...], float] = {}
        true = {}
        for config_id, (configuration, _) in _candidates(base.space).items():
            error = sum(
                math.sqrt(shares[part])
                * drawn.setdefault((part, *group), float(rng.choice(errors)))
                for part, group in groups_of(configuration).items()
            )
            true[config_id] = base.predicted[config_id] * math.exp(error)
        variances = {part: share * variance for part, share in shares.items()}
        tables.append(replace(base, true=true, error_variances=variances))
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


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a measured table's file, in the order of measuring."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_table(path: Path) -> Table:
    """A measured table; what was measured several times counts by the mean of the logarithms."""
    edges: dict[str, list[float]] = {}
    rows = read_rows(path)
    for row in rows:
        edges.setdefault(row["config_id"], []).append(float(row["edge_rps"]))
    chosen = LARGE if edges.keys() > _candidates(SMALL).keys() else SMALL
    missing = _candidates(chosen).keys() - edges.keys()
    if missing:
        raise SystemExit(f"{path.name} lacks {len(missing)} configurations; measure them first")
    return Table(
        name=path.stem,
        space=chosen,
        budget_ms=0.0,
        predicted={row["config_id"]: float(row["predicted_rps"]) for row in rows},
        saturation={row["config_id"]: float(row["saturation_rps"]) for row in rows},
        true={
            key: math.exp(float(np.mean(np.log(values)))) if min(values) > 0 else 0.0
            for key, values in edges.items()
        },
    )
