"""Compares the guided search with others on tables of our own models.

    python bench/search.py [--seeds 30] [--evaluations 100] [--processes 2]
    python bench/search.py --table FILE.csv …            on a table measured on a real server
    python bench/search.py --measure FILE.csv --model encoder --raw DIR [--until 200]

Two kinds of tables. **Virtual** ones start from probes of real models (``twin_live.json``): the
twin predicts the edge of each configuration of a space, and the truth is that prediction times an
error drawn from those that ``twin_live.py`` measured on both servers, 70 % of its variance
common to a deployment (variant, instances, threads, batching) and 30 % the configuration's own.
Each seed has its own truth. **Measured** ones are read from a CSV file that ``--measure`` wrote:
every configuration of a small space on the embedded server, beside the twin's prediction.

Everything a sampler reads is the truth with 1.5 % of noise. Its recommendation after n evaluations
is the best that it read; it is judged by the truth. Seconds are those of the load tests that the
search for the edge of each configuration takes, which starts at the twin's corrected prediction
for the guided search, and at 0.8 times the saturation throughput for the others, who have no twin.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from analyzer.domain.configuration import Configuration, VariantKey  # noqa: E402
from analyzer.domain.measurement import Edge, Measurement  # noqa: E402
from analyzer.domain.sla import Sla  # noqa: E402
from analyzer.domain.space import Parameter, Params, SearchSpace  # noqa: E402
from analyzer.domain.workload import Poisson  # noqa: E402
from analyzer.measure.edge import EdgeGoal, EdgeSearch, RateOutcome  # noqa: E402
from analyzer.search.guide import Guide  # noqa: E402
from analyzer.search.proposals import Proposals, guided_value, make_sampler  # noqa: E402
from analyzer.twin.calibration import VariantCalibration  # noqa: E402
from analyzer.twin.twin import Twin  # noqa: E402
from twin_live import FP32, INT8, RESULTS, SEED, SUBJECTS, Bench  # noqa: E402

OUT = RESULTS.parent / "search.json"
NEAR = 0.99
NOISE = 0.015
COMMON = 0.7
RUN_SECONDS = (0.7, 1.5)
WARM_SECONDS = 0.3


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


@dataclass(slots=True, kw_only=True, eq=False)
class Replay:
    """One search in progress."""

    table: Table
    rng: np.random.Generator
    read: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def measure(self, config_id: str, start_rps: float | None, *, trusted: bool = False) -> float:
        """Reads a configuration; counts the load tests that its edge takes."""
        value = self.table.true[config_id] * float(np.exp(self.rng.normal(0.0, NOISE)))
        self.seconds += WARM_SECONDS + _edge_seconds(
            value, start_rps or 0.8 * self.table.saturation[config_id], trusted
        )
        self.read[config_id] = value
        return value

    @property
    def recommended(self) -> str | None:
        known = {config_id: value for config_id, value in self.read.items() if value > 0}
        return max(known, key=lambda config_id: known[config_id]) if known else None


def _edge_seconds(edge_rps: float, start_rps: float, trusted: bool) -> float:
    """Seconds under load until the edge search has pinned ``edge_rps``, at most 4."""
    search = EdgeSearch(
        EdgeGoal(
            budget_ms=1.0,
            miss_rate_max=0.01,
            start_rps=start_rps,
            step=1.07 if trusted else 1.2,
            precision=1.04,
            floor_rps=20 / RUN_SECONDS[1],
        )
    )
    spent = 0.0
    while (rate := search.next_rate_rps()) is not None and spent < 4.0:
        kept = rate <= edge_rps
        # A hopeless rate is given up half way.
        aborted = rate > 1.1 * edge_rps
        spent += float(np.clip(500 / rate, *RUN_SECONDS)) * (0.5 if aborted else 1.0)
        search.record(
            RateOutcome(
                rate_rps=rate,
                requests=1000,
                over_budget=0 if kept else 100,
                latency_ms=None,
                aborted=aborted,
            )
        )
    return spent


Ids = Iterator[str]
Sampler = Callable[[Replay, int], Ids]


def _outcome(configuration: Configuration, value: float) -> Measurement:
    return Measurement(
        configuration=configuration,
        edge=Edge(rate_rps=value or None, interval_rps=(value, value)),
    )


def twin(replay: Replay, seed: int) -> Ids:
    """The guided search."""
    table = replay.table
    candidates = table.space.candidates()
    guide = Guide(
        candidates,
        {config_id: table.predicted[config_id] or None for config_id in candidates},
        measured_value=lambda outcome: guided_value(outcome, Sla(latency_budget_ms=50.0)),
        seed=seed,
    )
    while (config_id := guide.ask(())) is not None:
        trusted = guide.measured >= 2 and guide.trusted
        value = replay.measure(config_id, guide.expected(config_id), trusted=trusted)
        guide.tell(config_id, _outcome(candidates[config_id][0], value))
        yield "stop" if guide.finished(0.95) else ""


def optuna_sampler(name: str, *, feasible_first: bool = False) -> Sampler:
    """One of Optuna's, as the study runs it."""

    def run(replay: Replay, seed: int) -> Ids:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        table, rng = replay.table, np.random.default_rng(seed)
        candidates = table.space.candidates()
        none = Guide({}, {}, measured_value=lambda outcome: None, seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = make_sampler(
                name,  # type: ignore[arg-type]
                seed=seed,
                space=table.space,
                parallel=False,
                guide=none,
            )
            study = optuna.create_study(direction="maximize", sampler=sampler)
            proposals = Proposals(
                study, table.space, Sla(latency_budget_ms=50.0), frozenset(candidates)
            )
            done: dict[str, Any] = {}
            while True:
                if feasible_first and not any(value > 0 for value in replay.read.values()):
                    unread = sorted(candidates.keys() - done.keys())
                    study.enqueue_trial(candidates[str(rng.choice(unread))][1])
                proposal = proposals.ask(done, frozenset())
                if proposal is None:
                    return
                config_id = proposal.configuration.config_id
                value = replay.measure(config_id, None)
                done[config_id] = _outcome(proposal.configuration, value)
                proposals.tell(proposal.trial_number, done[config_id])
                yield ""

    return run


def twin_best_k(replay: Replay, seed: int) -> Ids:
    """The twin's best, the second best and so on; nothing is learned."""
    table = replay.table
    for config_id in sorted(table.predicted, key=lambda key: -table.predicted[key]):
        replay.measure(config_id, table.predicted[config_id] or None)
        yield ""


def hill_climb(replay: Replay, seed: int) -> Ids:
    """Model Analyzer's quick search: from the smallest setting step by step while it gains."""
    table, rng = replay.table, np.random.default_rng(seed)
    parameters = table.space.parameters
    places = {
        config_id: tuple(
            p.choices.index(params[p.name]) if p.name in params else 0 for p in parameters
        )
        for config_id, (_, params) in table.space.candidates().items()
    }
    ids = list(places)
    axes = np.array([places[config_id] for config_id in ids])
    at = int(np.argmin(axes.sum(axis=1)))
    replay.measure(ids[at], None)
    yield ""
    while True:
        near = np.flatnonzero(np.abs(axes - axes[at]).sum(axis=1) == 1)
        for index in rng.permutation(near):
            if ids[int(index)] not in replay.read:
                replay.measure(ids[int(index)], None)
                yield ""
        best = max([at, *(int(i) for i in near)], key=lambda i: replay.read[ids[i]])
        if best != at and replay.read[ids[best]] > replay.read[ids[at]]:
            at = best
            continue
        unread = [i for i, config_id in enumerate(ids) if config_id not in replay.read]
        if not unread:
            return
        at = int(rng.choice(unread))
        replay.measure(ids[at], None)
        yield ""


SAMPLERS: dict[str, Sampler] = {
    "twin": twin,
    "twin_best_k": twin_best_k,
    "random": optuna_sampler("random"),
    "tpe": optuna_sampler("tpe"),
    "feasible_first_tpe": optuna_sampler("tpe", feasible_first=True),
    "nsga2": optuna_sampler("nsga2"),
    "gp": optuna_sampler("gp"),
    "hillclimb": hill_climb,
}


def replay_one(tables: list[Table], name: str, seed: int, evaluations: int) -> list[dict[str, Any]]:
    """One sampler with one seed on each table."""
    return [_replay(table, name, seed, evaluations) for table in tables]


def _replay(table: Table, name: str, seed: int, evaluations: int) -> dict[str, Any]:
    replay = Replay(table=table, rng=np.random.default_rng([seed, 7]))
    found: dict[str, Any] = {
        "evaluations": None,
        "seconds": None,
        "stopped_at": None,
        "stop_seconds": None,
        "stop_regret": None,
    }
    regret_at: dict[str, float] = {}
    for message in SAMPLERS[name](replay, seed):
        count = len(replay.read)
        chosen = replay.recommended
        regret = 1.0 - (table.true[chosen] if chosen else 0.0) / table.best
        if found["evaluations"] is None and regret <= 1.0 - NEAR:
            found |= {"evaluations": count, "seconds": replay.seconds}
        if message == "stop" and found["stopped_at"] is None:
            found |= {
                "stopped_at": count,
                "stop_seconds": replay.seconds,
                "stop_regret": regret,
            }
        if count in (5, 8, 15):
            regret_at[str(count)] = regret
        over = found["evaluations"] is not None and (
            name != "twin" or found["stopped_at"] is not None
        )
        if count >= evaluations or (over and count >= 15):
            break
    return found | {"regret_at": regret_at}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and 90th percentiles (nearest rank; a seed that never got there is infinite)."""

    def rank(name: str, share: float) -> float | None:
        values = sorted(math.inf if run[name] is None else run[name] for run in runs)
        value = values[max(math.ceil(share * len(values)) - 1, 0)]
        return value if math.isfinite(value) else None

    stopped = [run["stop_regret"] for run in runs if run["stop_regret"] is not None]
    return {
        "runs": len(runs),
        "success": float(np.mean([run["evaluations"] is not None for run in runs])),
        "evaluations_median": rank("evaluations", 0.5),
        "evaluations_p90": rank("evaluations", 0.9),
        "seconds_median": rank("seconds", 0.5),
        "seconds_p90": rank("seconds", 0.9),
        "regret_after_8_mean": _mean([run["regret_at"].get("8") for run in runs]),
        "regret_after_15_mean": _mean([run["regret_at"].get("15") for run in runs]),
        "stopped_at_median": rank("stopped_at", 0.5) if stopped else None,
        "stop_seconds_median": rank("stop_seconds", 0.5) if stopped else None,
        "stop_regret_mean": _mean(stopped),
        "stop_regret_p90": float(np.quantile(stopped, 0.9)) if stopped else None,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


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


def predictions(chosen: SearchSpace, oracle: Twin) -> tuple[dict[str, float], dict[str, float]]:
    """The twin's edge and saturation throughput of every configuration."""
    configurations = [configuration for configuration, _ in _candidates(chosen).values()]
    edges = oracle.edges(configurations)
    saturation = {}
    for configuration in configurations:
        candidate = oracle.server_model(configuration)
        assert candidate is not None
        saturation[configuration.config_id] = candidate.saturation_rps()
    predicted = {
        configuration.config_id: edge or 0.0
        for configuration, edge in zip(configurations, edges, strict=True)
    }
    return predicted, saturation


def virtual_tables(seed: int, bases: list[Table], errors: list[float]) -> list[Table]:
    """Tables whose truth differs from the twin as reality did."""
    tables = []
    for number, base in enumerate(bases):
        rng = np.random.default_rng([seed, number])
        groups: dict[tuple[Any, ...], float] = {}
        true = {}
        for config_id, (configuration, _) in _candidates(base.space).items():
            group = (
                configuration.variant,
                configuration.instance_count,
                configuration.intra_op_threads,
                configuration.dynamic_batching,
            )
            common = groups.setdefault(group, math.sqrt(COMMON) * float(rng.choice(errors)))
            own = math.sqrt(1 - COMMON) * float(rng.choice(errors))
            true[config_id] = base.predicted[config_id] * math.exp(common + own)
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
        oracle = Twin(calibrations, sla, Poisson(), seed=SEED, cores=2)
        predicted, saturation = predictions(LARGE, oracle)
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


def measure_table(options: argparse.Namespace) -> None:
    """Measures every configuration of the small space that the file lacks."""
    bench = Bench.of(options.model, "embedded", options.raw)
    source = options.raw / f"embedded-{options.model}.json"
    document = json.loads(source.read_text())
    calibrations: dict[VariantKey, VariantCalibration] = {
        key: VariantCalibration.from_dict(key, document["calibrations"][key.label])
        for key in (FP32, INT8)
    }
    predicted, saturation = predictions(SMALL, bench.oracle(calibrations))
    began = time.perf_counter()
    known = set()
    fresh = not options.measure.is_file()
    if not fresh:
        with options.measure.open(newline="") as file:
            known = {row["config_id"] for row in csv.DictReader(file)}
    with options.measure.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(
                ["model", "config_id", "predicted_rps", "saturation_rps", "edge_rps", "from_rps",
                 "to_rps", "load_test_seconds", "configuration"]
            )  # fmt: skip
        for config_id, (configuration, _) in _candidates(SMALL).items():
            if config_id in known:
                continue
            if time.perf_counter() - began > options.until:
                break
            edge, seconds = bench.edge(configuration, predicted[config_id] or None)
            low, high = edge.interval_rps
            writer.writerow(
                [options.model, config_id, f"{predicted[config_id]:.2f}",
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


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The whole comparison."""
    names = list(SAMPLERS)
    left_out = {}
    if importlib.util.find_spec("torch") is None:
        names.remove("gp")
        left_out["gp"] = "Optuna's GP sampler needs PyTorch, which is not installed here"
    probing: dict[str, float] = {}
    errors: list[float] = []
    if options.table:
        fixed = [read_table(path) for path in options.table]
        worlds = [fixed] * options.seeds
    else:
        bases, errors, probing = bases_of(json.loads(RESULTS.read_text()))
        worlds = [virtual_tables(seed, bases, errors) for seed in range(options.seeds)]
    jobs = [(seed, name) for seed in range(options.seeds) for name in names]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        outcomes = list(
            pool.map(
                replay_one,
                [worlds[seed] for seed, _ in jobs],
                [name for _, name in jobs],
                [seed for seed, _ in jobs],
                [options.evaluations] * len(jobs),
                chunksize=2,
            )
        )
    by_name: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in names}
    for (_, name), outcome in zip(jobs, outcomes, strict=True):
        by_name[name].append(outcome)
    tables = {
        table.name: {
            "configurations": len(table.predicted),
            "samplers": {
                name: summarize([outcome[number] for outcome in by_name[name]]) for name in names
            },
        }
        for number, table in enumerate(worlds[0])
    }
    return {
        "kind": "measured" if options.table else "virtual",
        "seeds": options.seeds,
        "evaluations_max": options.evaluations,
        "noise": NOISE,
        "errors_drawn_from": [round(error, 4) for error in errors],
        "probe_seconds": probing,
        "left_out": left_out,
        "tables": tables,
        "all": {
            name: summarize([one for outcome in by_name[name] for one in outcome]) for name in names
        },
    }


def shown(title: str, samplers: dict[str, dict[str, Any]]) -> str:
    """A Markdown table."""
    head = ("evaluations to 1 %, median", "p90", "load-test seconds, median", "p90")
    lines = [
        f"\n{title}\n",
        f"| sampler | {' | '.join(head)} | regret after 8, mean | after 15 | success |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in samplers.items():
        cells = [
            "–" if row[key] is None else format(row[key], spec)
            for key, spec in (
                ("evaluations_median", "g"),
                ("evaluations_p90", "g"),
                ("seconds_median", ".1f"),
                ("seconds_p90", ".1f"),
                ("regret_after_8_mean", ".1%"),
                ("regret_after_15_mean", ".1%"),
                ("success", ".0%"),
            )
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    stop = samplers["twin"]
    if stop["stopped_at_median"] is not None:
        lines.append(
            f"\nThe guided search stops by itself after {stop['stopped_at_median']:g} evaluations "
            f"({stop['stop_seconds_median']:.1f} s, medians) with a regret of "
            f"{stop['stop_regret_mean']:.2%} (mean), {stop['stop_regret_p90']:.2%} (p90)."
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", type=Path, action="append", default=[], metavar="FILE.csv")
    parser.add_argument("--measure", type=Path, metavar="FILE.csv")
    parser.add_argument("--model", choices=tuple(SUBJECTS), default="encoder")
    parser.add_argument("--raw", type=Path, help="what twin_live.py measured")
    parser.add_argument("--until", type=float, default=200.0)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.measure is not None:
        measure_table(options)
        return
    document = run(options)
    known = json.loads(options.out.read_text()) if options.out.is_file() else {}
    options.out.write_text(json.dumps(known | {document["kind"]: document}, indent=1) + "\n")
    for name, table in document["tables"].items():
        print(shown(f"{name}, {table['configurations']} configurations", table["samplers"]))
    if len(document["tables"]) > 1:
        print(shown("all tables", document["all"]))
    for name, reason in document["left_out"].items():
        print(f"\n{name} is left out: {reason}.")


if __name__ == "__main__":
    main()
