"""How good the screen's first choice is, on models and budgets drawn at random.

    python bench/screen.py [--models 200] [--seconds 3] [--more] [--minutes 7]

Each case draws a machine (1 to 8 cores), a model (0.05 ms to 2 s for one inference, concave to
linear in the batch, two variants of different speed), a budget (3 to 1,000 of those times), and
the space of instances, threads, batch sizes and queue delays, at most 380 configurations. The
screen gets its time limit; the truth is a long simulation of the 60 configurations that it ranks
highest and of 40 others drawn at random. Regret is the share of the best true edge that the first
choice lacks. It may be run in parts: ``--more`` goes on with the cases after those recorded.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.screen import screen
from analyzer.twin.server_model import ServerModel, edges
from analyzer.twin.service import ServiceTime
from benchlib.command import Command, cell, say, table

SPACE_MAX = 380
RANKED, DRAWN = 60, 40
REGRET_MAX = 0.05
SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One machine, model and budget with its space."""

    cores: int
    first_ms: float
    budget_ms: float
    models: list[ServerModel]


def draw_case(rng: np.random.Generator) -> Case:
    """A case; the same for the same state of ``rng``."""
    cores = int(rng.choice([1, 2, 4, 8]))
    first_ms = float(np.exp(rng.uniform(np.log(0.05), np.log(2000))))
    budget_ms = first_ms * float(np.exp(rng.uniform(np.log(3), np.log(1000))))
    slope, power = rng.uniform(0.02, 1.0), rng.uniform(0.6, 1.0)
    crowding = rng.uniform(0.0, 0.1)
    models = []
    for speed in (1.0, float(rng.uniform(0.35, 1.0))):
        for instances in (n for n in (1, 2, 3, 4, 8) if n <= 2 * cores):
            for threads in (t for t in (1, 2, 4, 8) if t <= cores):
                factors = tuple(
                    max(1.0, busy * threads / cores) * (1 + crowding * (busy - 1))
                    for busy in range(1, instances + 1)
                )
                service = ServiceTime(
                    batch_sizes=SIZES,
                    service_ms=tuple(
                        speed * first_ms / threads**0.6 * (1 + slope * (size**power - 1))
                        for size in SIZES
                    ),
                    interference=factors,
                    distribution="lognormal",
                    cv=0.1,
                )
                for batch, delay in [
                    (0, 0.0),
                    *((b, d) for b in SIZES[1:] for d in (0, 0.05, 0.2)),
                ]:
                    policy = BatchingPolicy(
                        max_batch_size=batch,
                        dynamic_batching=batch > 0,
                        instance_count=instances,
                        max_queue_delay_us=int(delay * budget_ms * 1e3),
                    )
                    overhead_ms = 0.3 * min(1.0, first_ms)
                    models.append(
                        ServerModel(policy=policy, service=service, overhead_ms=overhead_ms)
                    )
    if len(models) > SPACE_MAX:
        models = [models[i] for i in rng.choice(len(models), SPACE_MAX, replace=False)]
    return Case(cores=cores, first_ms=first_ms, budget_ms=budget_ms, models=models)


def judge(
    case: Case,
    arrivals: tuple[UnitArrivals, UnitArrivals],
    seconds: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """The screen's first choice against the truth."""
    began = time.perf_counter()
    found = screen(
        case.models,
        arrivals[0],
        budget_ms=case.budget_ms,
        percentile=99.0,
        cores=2,
        clock=time.perf_counter,
        seconds_max=seconds,
    )
    taken = time.perf_counter() - began
    order = np.argsort([-edge.rate_rps for edge in found], kind="stable")
    others = rng.choice(len(found), min(DRAWN, len(found)), replace=False)
    judged = sorted({*order[:RANKED].tolist(), *others.tolist()})
    models = [case.models[index] for index in judged]
    simulated = edges(models, arrivals[1], budget_ms=case.budget_ms, cores=2, accuracy=0.01)
    truth = {
        index: min(rate or 0.0, model.saturation_rps())
        for index, rate, model in zip(judged, simulated, models, strict=True)
    }
    best = max(truth.values())
    return {
        "cores": case.cores,
        "first_ms": case.first_ms,
        "budget_ms": case.budget_ms,
        "configurations": len(found),
        "predicted": len(found),
        "simulated": sum(edge.simulated for edge in found),
        "seconds": taken,
        "best_rps": best,
        "regret": 1.0 - truth[int(order[0])] / best if best else 0.0,
    }


def _shown(document: dict[str, Any]) -> str:
    summary = document["summary"]
    row = [
        str(summary["cases"]),
        cell(summary["regret_max"], ".1%"),
        cell(summary["regret_p95"], ".1%"),
        str(summary["over_5_percent"]),
        cell(summary["seconds_max"], ".2f"),
        cell(summary["simulated_share"], ".0%"),
    ]
    titles = ["cases", "regret max", "p95", "over 5 %", "seconds max", "simulated"]
    return table(titles, [row])


def main() -> int:
    """Runs the bench; returns the exit code: 1 if a first choice lost more than 5 %."""
    command = Command("screen", __doc__, timing=True)
    command.argument("--models", type=int, default=200, metavar="N")
    command.argument("--seconds", type=float, default=3.0, metavar="S", help="for simulations")
    command.argument("--seed", type=int, default=0)
    command.argument("--more", action="store_true", help="go on after the cases recorded")
    command.argument("--minutes", type=float, default=math.inf, help="begin no case after so long")
    options = command.start()
    until = time.monotonic() + 60.0 * options.minutes
    arrivals = (
        UnitArrivals.draw(Poisson(), seed=1, count=400_000),
        UnitArrivals.draw(Poisson(), seed=2, count=1_000_000),
    )
    rows: list[dict[str, Any]] = []
    if options.more:
        rows = json.loads(options.out.read_text())["cases"]
    while len(rows) < options.models and time.monotonic() < until:
        rng = np.random.default_rng([options.seed, len(rows)])
        rows.append(judge(draw_case(rng), arrivals, options.seconds, rng))
        say(f"{len(rows)}/{options.models}: regret {rows[-1]['regret']:.3f}")
    regrets = [row["regret"] for row in rows]
    summary = {
        "cases": len(rows),
        "regret_max": max(regrets),
        "regret_p95": float(np.quantile(regrets, 0.95)),
        "over_5_percent": sum(regret > REGRET_MAX for regret in regrets),
        "seconds_max": max(row["seconds"] for row in rows),
        "simulated_share": sum(r["simulated"] for r in rows)
        / sum(r["configurations"] for r in rows),
    }
    command.finish(options, {"summary": summary, "cases": rows}, _shown)
    return int(summary["over_5_percent"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
