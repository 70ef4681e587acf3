"""Compares the sampler ``twin`` with others on tables of our own models.

    python bench/search.py [--seeds 30] [--evaluations 100] [--processes 2]
    python bench/search.py --table FILE.csv …            on a table measured on a real server
    python bench/search.py measure --table FILE.csv --model encoder --raw DIR [--until 200]
    python bench/search.py components --table FILE.csv …

Two kinds of tables. **Virtual** ones start from probes of real models (``twin_live.json``): the
twin predicts the edge of each configuration of a space, and the truth is that prediction times an
error drawn from those that ``twin_live.py`` measured on both servers: a part is common to a
variant, one to a deployment (instances and threads too), one to the batches of a deployment, and
one is the configuration's own (``search_tables.COMPONENTS``; ``--own`` sets the last one's share).
Each seed has its own truth. **Measured** ones are read from a CSV file that ``measure`` wrote:
every configuration of a space on the embedded server, beside the twin's prediction.
``components`` estimates from such files how errors divide into those parts. A table of a **random
model** (``search_drawn.py``) has its own for each seed, and errors of another making: wrong service
times, interference and overhead.

Everything a sampler reads is the truth with 1.5 % of noise. Its recommendation after n evaluations
is the best that it read; it is judged by the truth. Seconds are those of the load tests that the
search for the edge of each configuration takes, which starts at the twin's corrected prediction
for ``twin``, and at 0.8 times the saturation throughput for the others, who have no twin.
``known_components`` is no sampler that a user can have: expected improvement with the very
covariance that the errors of a virtual table were drawn with, for what is attainable.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.hardware.machine import usable_cores
from benchlib.command import RESULTS, Command, single_threaded_pool, table_of
from benchlib.search_components import estimate
from benchlib.search_drawn import drawn_table
from benchlib.search_measure import measure_table
from benchlib.search_samplers import NOISE, SAMPLERS, Replay
from benchlib.search_tables import SPACES, Table, bases_of, read_table, virtual_tables
from benchlib.subjects import SUBJECTS

COLUMNS = {
    "evaluations to 1 %, median": ("evaluations_median", "g"),
    "p90": ("evaluations_p90", "g"),
    "load-test seconds, median": ("seconds_median", ".1f"),
    "seconds, p90": ("seconds_p90", ".1f"),
    "regret after 8, mean": ("regret_after_8_mean", ".1%"),
    "after 15": ("regret_after_15_mean", ".1%"),
    "success": ("success", ".0%"),
}
# The bound is asked for after as many evaluations, and where the search stops.
BOUNDS_AT = (3, 5, 8, 12)
# A choice within 1 % of the best is as good as the best.
NEAR = 0.99


Run = dict[str, Any]


def replay_one(tables: list[Table], name: str, seed: int, evaluations: int) -> list[Run | None]:
    """One sampler with one seed on each table; None where it has nothing to go by."""
    return [_replay(table, name, seed, evaluations) for table in tables]


def _replay(table: Table, name: str, seed: int, evaluations: int) -> Run | None:
    replay = Replay(table=table, rng=np.random.default_rng([seed, 7]))
    found: dict[str, Any] = {
        "evaluations": None,
        "seconds": None,
        "stopped_at": None,
        "stop_seconds": None,
        "stop_regret": None,
        "bounds": {},
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
        stops = message == "stop" and found["stopped_at"] == count
        if stops or (name == "twin" and count in BOUNDS_AT):
            found["bounds"][count] = _bound_holds(replay, chosen)
        if count in (5, 8, 15):
            regret_at[str(count)] = regret
        over = found["evaluations"] is not None and (
            name != "twin" or found["stopped_at"] is not None
        )
        if count >= evaluations or (over and count >= 15):
            break
    return found | {"regret_at": regret_at} if replay.read else None


def _bound_holds(replay: Replay, chosen: str | None) -> tuple[float, bool] | None:
    """The bound's fraction and whether the truth keeps it; None where none is given."""
    assert replay.designer is not None
    bound = replay.designer.bound(0.95)
    if bound is None or chosen is None:
        return None
    better = replay.table.best / replay.table.true[chosen] - 1.0
    return bound.fraction, better <= bound.fraction


def summarize(runs: list[Run]) -> dict[str, Any]:
    """Medians and 90th percentiles (nearest rank; a seed that never got there is infinite)."""

    def rank(name: str, share: float) -> float | None:
        values = sorted(math.inf if run[name] is None else run[name] for run in runs)
        value = values[max(math.ceil(share * len(values)) - 1, 0)]
        return value if math.isfinite(value) else None

    bounds = [bound for run in runs for bound in run["bounds"].values() if bound is not None]
    # What a search says where it stops.
    last = [bound for run in runs if (bound := run["bounds"].get(run["stopped_at"]))]
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
        "searches_bounded": len(last),
        "searches_kept": _mean([float(kept) for _, kept in last]),
        "bounds": len(bounds),
        "bounds_kept": _mean([float(kept) for _, kept in bounds]),
        "bound_median": float(np.median([fraction for fraction, _ in bounds])) if bounds else None,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The whole comparison."""
    names = list(options.sampler or SAMPLERS)
    left_out = {}
    if "gp" in names and importlib.util.find_spec("torch") is None:
        names.remove("gp")
        left_out["gp"] = "Optuna's GP sampler needs PyTorch, which is not installed here"
    probing: dict[str, float] = {}
    errors: list[float] = []
    if options.table:
        fixed = [read_table(path) for path in options.table]
        worlds = [fixed] * options.seeds
    else:
        live = json.loads((RESULTS / "twin_live.json").read_text())
        bases, errors, probing = bases_of(live)
        worlds = [
            [*virtual_tables(seed, bases, errors, own=options.own), drawn_table(seed)]
            for seed in range(options.seeds)
        ]
    jobs = [(seed, name) for seed in range(options.seeds) for name in names]
    with single_threaded_pool(options.processes) as pool:
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
    runs: dict[str, dict[str, list[Run]]] = {}
    for (seed, name), outcome in zip(jobs, outcomes, strict=True):
        for one, replayed in zip(worlds[seed], outcome, strict=True):
            if replayed is not None:
                runs.setdefault(one.name, {}).setdefault(name, []).append(replayed)
    tables = {
        one.name: {
            "configurations": len(one.predicted),
            "samplers": {name: summarize(found) for name, found in runs[one.name].items()},
        }
        for one in worlds[0]
    }
    if len(tables) > 1:
        everywhere = [name for name in names if all(name in found for found in runs.values())]
        tables["all"] = {
            "configurations": sum(len(one.predicted) for one in worlds[0]),
            "samplers": {
                name: summarize([one for found in runs.values() for one in found[name]])
                for name in everywhere
            },
        }
    return {
        "seeds": options.seeds,
        "evaluations_max": options.evaluations,
        "noise": NOISE,
        "errors_drawn_from": [round(error, 4) for error in errors],
        "probe_seconds": probing,
        "left_out": left_out,
        "tables": tables,
    }


def shown(document: dict[str, Any]) -> str:
    """Markdown tables: one for each kind and table."""
    lines = []
    kinds = sorted(kind for kind in document if kind.startswith(("virtual", "measured")))
    for kind in kinds:
        found = document[kind]
        for name, entry in found["tables"].items():
            samplers = entry["samplers"]
            lines.append(f"\n{kind}, {name}, {entry['configurations']} configurations\n")
            lines.append(table_of("sampler", COLUMNS, samplers))
            stop = samplers.get("twin")
            if stop is None:
                continue
            if stop["bounds"]:
                lines.append(
                    f"\n{stop['bounds_kept']:.1%} of {stop['bounds']} bounds at 95 % confidence "
                    f"hold; their median is {stop['bound_median']:.1%}."
                )
            if stop["stopped_at_median"] is not None:
                lines.append(
                    f"\nThe search stops by itself after {stop['stopped_at_median']:g} "
                    f"evaluations ({stop['stop_seconds_median']:.1f} s, medians) with a regret of "
                    f"{stop['stop_regret_mean']:.2%} (mean), {stop['stop_regret_p90']:.2%} (p90); "
                    f"{stop['searches_kept'] or 0.0:.1%} of {stop['searches_bounded']} bounds hold "
                    "there."
                )
        lines += [f"\n{name} is left out: {why}." for name, why in found["left_out"].items()]
    return "\n".join(lines)


def main() -> int:
    command = Command("search", __doc__, timing=True, offline=("replay", "components"))
    command.argument(
        "step", choices=("replay", "measure", "components"), nargs="?", default="replay"
    )
    command.argument("--sampler", choices=tuple(SAMPLERS), action="append", help="only these")
    command.argument("--seeds", type=int, default=30)
    command.argument("--evaluations", type=int, default=100)
    command.argument("--processes", type=int, default=usable_cores())
    command.argument("--table", type=Path, action="append", default=[], metavar="FILE.csv")
    command.argument("--model", choices=tuple(SUBJECTS), default="encoder")
    command.argument("--raw", type=Path, help="what twin_live.py measured")
    command.argument("--own", type=float, help="share of a virtual table's variance")
    command.argument("--space", choices=tuple(SPACES), default="large")
    command.argument("--again", type=int, default=48, help="configurations to measure twice more")
    command.argument("--until", type=float, default=200.0, help="start no more after so long, s")
    options = command.start()
    if options.step == "measure":
        measure_table(
            options.table[0],
            options.model,
            SPACES[options.space],
            raw=options.raw,
            again=options.again,
            until_s=options.until,
        )
        return 0
    if options.step == "components":
        document = {"tables": {path.stem: estimate(path) for path in options.table}}
        return command.finish(options, document, json.dumps)
    known = json.loads(options.out.read_text()) if options.out.is_file() else {}
    kind = "measured" if options.table else "virtual"
    if options.own is not None:
        kind += f", own {options.own:g}"
    return command.finish(options, known | {kind: run(options)}, shown)


if __name__ == "__main__":
    raise SystemExit(main())
