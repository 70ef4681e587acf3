"""Replays every sampler on a recorded landscape, without measuring anything.

    python bench/replay.py --table FILE.csv --latency-budget 10ms [--percentile 99]
        [--evaluations 40] [--seeds 30] [--processes N] --json

The objective is the throughput of a (configuration, load) whose latency at the percentile keeps
the budget. Every row read is one evaluation, those that calibrate included; a row that a sampler
proposes again is not read again. The choice is the best row read that keeps the budget.

    regret            (best - chosen) / best of the table; 1 if no row read keeps the budget;
                      null if no row of the table does
    evaluations_to_99 median over the seeds of the evaluations until 99 % of the best is known;
                      null where most never get there
    feasible_share    share of the rows read that keep the budget
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.units import parse_duration_ms
from analyzer.errors import AnalyzerError, UsageError
from analyzer.hardware.machine import usable_cores
from benchlib.command import say, single_threaded_pool, table_of, write_json
from benchlib.recorded import Landscape, merged, read
from benchlib.replay_samplers import SAMPLERS, Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one sampler found with one seed."""

    regret: float | None
    evaluations_to_99: int | None
    feasible_share: float


def replay_one(
    table: Landscape, budget_ms: float, evaluations: int, name: str, seed: int
) -> Outcome:
    """Runs one sampler with one seed until its evaluations are used up."""
    replay = Replay(table=table, budget_ms=budget_ms)
    for index in dict(SAMPLERS)[name](replay, seed):
        if index not in replay.read:
            replay.read.append(index)
        if len(replay.read) >= min(evaluations, len(replay)):
            break
    return judge(replay)


def judge(replay: Replay) -> Outcome:
    """What the rows read amount to against the whole table."""
    kept = replay.table.latency_ms_sla <= replay.budget_ms
    values = np.where(kept, replay.table.throughput_ips, 0.0)
    best = float(values.max())
    found = np.maximum.accumulate(values[replay.read])
    near = np.flatnonzero(found >= 0.99 * best) if best > 0 else np.zeros(0)
    return Outcome(
        regret=(best - float(found[-1])) / best if best > 0 else None,
        evaluations_to_99=int(near[0]) + 1 if len(near) else None,
        feasible_share=float(np.mean(kept[replay.read])),
    )


def summarize(outcomes: list[Outcome]) -> dict[str, float | None]:
    """The contract's figures over all seeds."""
    regrets = [outcome.regret for outcome in outcomes if outcome.regret is not None]
    counts = sorted(
        float("inf") if outcome.evaluations_to_99 is None else outcome.evaluations_to_99
        for outcome in outcomes
    )
    median = float(np.median(counts)) if np.isfinite(counts[len(counts) // 2]) else None
    return {
        "regret_mean": float(np.mean(regrets)) if regrets else None,
        # Nearest rank: the value that nine of ten seeds do not exceed.
        "regret_p90": sorted(regrets)[-(-9 * len(regrets) // 10) - 1] if regrets else None,
        "evaluations_to_99": median,
        "feasible_share": float(np.mean([outcome.feasible_share for outcome in outcomes])),
    }


def usable_samplers(wanted: list[str]) -> list[str]:
    """Those of the samplers that can run here; says on stderr what cannot, and why."""
    names = [name for name, _ in SAMPLERS]
    for name in wanted:
        if name not in names:
            raise UsageError(f"No sampler is called {name!r}.", hint=f"There are {names}.")
    chosen = wanted or names
    if "gp" in chosen and importlib.util.find_spec("torch") is None:
        say("gp is left out: Optuna's GP sampler needs PyTorch, which is not here")
        chosen = [name for name in chosen if name != "gp"]
    return chosen


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The whole comparison as the contract's document."""
    budget_ms = parse_duration_ms(options.latency_budget)
    if options.seeds < 1 or options.evaluations < 1 or options.processes < 1:
        raise UsageError("--seeds, --evaluations and --processes are at least 1.")
    landscape = merged(read(options.table, f"{options.percentile:g}"))
    names = usable_samplers(options.sampler)
    jobs = [(name, seed) for name in names for seed in range(options.seeds)]
    arguments = (
        [landscape] * len(jobs),
        [budget_ms] * len(jobs),
        [options.evaluations] * len(jobs),
        [name for name, _ in jobs],
        [seed for _, seed in jobs],
    )
    if options.processes == 1:
        outcomes = list(map(replay_one, *arguments))
    else:
        with single_threaded_pool(options.processes) as pool:
            outcomes = list(pool.map(replay_one, *arguments, chunksize=3))
    found: dict[str, list[Outcome]] = {name: [] for name in names}
    for (name, _), outcome in zip(jobs, outcomes, strict=True):
        found[name].append(outcome)
    return {
        "samplers": {name: summarize(outcomes) for name, outcomes in found.items()},
        "rows": landscape.rows,
        "left_out": landscape.left_out,
    }


def shown(document: dict[str, Any]) -> str:
    """The document as a Markdown table."""
    columns = {
        "regret, mean": ("regret_mean", ".2%"),
        "regret, p90": ("regret_p90", ".2%"),
        "evaluations to 99 %": ("evaluations_to_99", "g"),
        "feasible": ("feasible_share", ".0%"),
    }
    title = f"{document['rows']} rows, {document['left_out']} left out"
    return f"{title}\n\n{table_of('sampler', columns, document['samplers'])}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--latency-budget", required=True, metavar="DUR")
    parser.add_argument("--percentile", type=float, default=99)
    parser.add_argument("--evaluations", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=30, help="seeds 0 to this minus 1")
    parser.add_argument("--processes", type=int, default=usable_cores())
    parser.add_argument("--sampler", action="append", default=[], help="only this one; repeatable")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.json", help="also write the results there"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        document = run(options)
    except AnalyzerError as error:
        print(f"{error.message} {error.hint}".strip(), file=sys.stderr)
        if options.json:
            fault = {"code": error.code, "message": error.message, "hint": error.hint}
            print(json.dumps({"schema": 1, "error": fault}))
        return error.exit_code
    if options.out is not None:
        told = {
            "table": options.table.name,
            "latency_budget": options.latency_budget,
            "percentile": options.percentile,
            "evaluations": options.evaluations,
            "seeds": options.seeds,
        }
        write_json(options.out, told | document)
    print(json.dumps(document) if options.json else shown(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
