"""Coverage of the certificate on simulated servers whose true miss rate is known.

    python bench/certificate.py [--runs 400] [--load 0.95] [--processes 2] [--json]

One instance, 4 ms + 0.4 ms per item, batches up to 32, ``dynamic_batching {}``, Poisson arrivals.
The load is the arrival rate over the largest throughput, 32 items per 4 + 0.4 · 32 ms. The budget
is the latency that a long simulation exceeds at exactly the wanted miss rate. Every run starts
from a queue that has forgotten its beginning (100,000 requests are thrown away), the looks stop at
the first verdict. Writes ``bench/results/certificate.json``. It is no timing: any machine will do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.policy import BatchingPolicy
from analyzer.hardware.machine import inspect_machine
from analyzer.stats import mlperf
from analyzer.stats.batchmeans import variance_inflation
from analyzer.stats.certificate import decide, used_inflation
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import OpenWorkload, simulate
from benchlib.command import Command, cell, say, table, write_json

LOADS = (0.5, 0.7, 0.8, 0.9, 0.95)
# Requests per run at a miss rate of 1.1 % (and 0.9 %), and the most at 0.3 % by load.
REQUESTS = 60_000
REQUESTS_MAX = {0.5: 60_000, 0.7: 120_000, 0.8: 200_000, 0.9: 600_000, 0.95: 2_500_000}
BURN_IN = 100_000
PERCENTILE, CONFIDENCE = 99.0, 0.95
SERVICE = ServiceTime(batch_sizes=(1, 32), service_ms=(4.4, 16.8))
POLICY = BatchingPolicy(max_batch_size=32, dynamic_batching=True)
LIMIT_RPS = 32 / 16.8e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A load with the budgets of the wanted miss rates and the twin's inflation at each."""

    load: float
    budget_ms: dict[str, float]
    inflation: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one run ended: the verdict and after how many requests."""

    verdict: str
    requests: int


def latency_ms(load: float, requests: int, seed: int) -> NDArray[np.float64]:
    """Latencies of a stationary run, shape (requests,), in the order of arrival."""
    rng = np.random.default_rng(seed)
    gaps_s = rng.exponential(1.0 / (load * LIMIT_RPS), requests + BURN_IN)
    arrival_ns = np.cumsum(gaps_s * 1e9).astype(np.int64)
    workload = OpenWorkload(arrival_ns=arrival_ns, batch_size=np.array([1], dtype=np.int64))
    return simulate(POLICY, SERVICE, workload, engine="kernel").latency_ms()[BURN_IN:]


def truth(load: float, *, seed: int = 10**6, simulations: int = 12) -> Truth:
    """Budgets and inflations from ``simulations`` runs of five million requests each."""
    parts = [latency_ms(load, 5_000_000, seed + index) for index in range(simulations)]
    ordered = np.sort(np.concatenate(parts))

    def threshold(share: float) -> float:
        return float(ordered[int(len(ordered) * (1.0 - share))])

    def inflation(share: float) -> float:
        limit = threshold(share)
        # Batches of 300,000 requests are long against any overload here.
        found = variance_inflation([part > limit for part in parts], batches=(200,))
        assert found is not None
        return found.point

    at_limit = inflation(mlperf.tail_share(PERCENTILE))
    return Truth(
        load=load,
        budget_ms={key: threshold(float(key) / 100) for key in ("1.1", "0.9", "0.3")},
        # Below the limit the twin's inflation is the one at the limit, as ``certify`` asks.
        inflation={"1.1": inflation(0.011), "0.9": at_limit, "0.3": at_limit},
    )


def looks_until(requests: int, *, dense: bool) -> list[int]:
    """Numbers of requests after which one looks: every 100, or above 20,000 every 3 % more."""
    looks = list(range(100, (requests if dense else min(requests, 20_000)) + 1, 100))
    while looks[-1] < requests:
        looks.append(min(requests, looks[-1] + looks[-1] * 3 // 100))
    return looks


def judge_run(
    latency: NDArray[np.float64],
    budget_ms: float,
    twin: float | None,
    looks: list[int],
    *,
    steady: bool = True,
) -> Ending:
    """The first verdict of the certificate, looking as told; one unit for all times will do.

    Args:
        steady: The machine's speed is known to have stayed the same, as it did here.
    """
    over = latency > budget_ms
    counts = np.cumsum(over)
    least = known = twin or 1.0
    for requests in looks:
        misses = int(counts[requests - 1])
        # A larger inflation never decides, so the run's own need only be found where the twin's
        # (or none) would decide. Nor does it halve from one look to the next in a long run.
        if verdict(requests, misses, max(least, known / 2.0)) == "UNDECIDED":
            continue
        used = used_inflation(
            [over[:requests]],
            twin_inflation=twin,
            latency_s=[latency[:requests]],
            budget_s=budget_ms,
            steady=steady,
            late_share=mlperf.tail_share(PERCENTILE),
        )
        if used is None:
            continue
        known = used.value if requests >= 2_000 else least
        found = verdict(requests, misses, used.value)
        if found != "UNDECIDED":
            return Ending(verdict=found, requests=requests)
    return Ending(verdict="UNDECIDED", requests=looks[-1])


def verdict(requests: int, misses: int, inflation: float) -> str:
    """The certificate's verdict at a known inflation."""
    return decide(requests, misses, inflation, percentile=PERCENTILE, confidence=CONFIDENCE)


def judge_mlperf(latency: NDArray[np.float64], budget_ms: float, looks: list[int]) -> Ending:
    """The first verdict of MLPerf's early stopping."""
    counts = np.cumsum(latency > budget_ms)
    for requests in looks:
        misses = int(counts[requests - 1])
        found = mlperf.verdict(requests, misses, percentile=PERCENTILE, confidence=CONFIDENCE)
        if found != "UNDECIDED":
            return Ending(verdict=found, requests=requests)
    return Ending(verdict="UNDECIDED", requests=looks[-1])


def one_run(real: Truth, seed: int) -> dict[str, Ending]:
    """Every rule on the runs of one seed."""
    endings = {}
    latency = latency_ms(real.load, REQUESTS, seed)
    often, last = looks_until(REQUESTS, dense=True), [REQUESTS]
    budget, twin = real.budget_ms["1.1"], real.inflation["1.1"]
    for name, looks in (("often", often), ("end", last)):
        endings[f"1.1 twin {name}"] = judge_run(latency, budget, twin, looks)
        endings[f"1.1 alone {name}"] = judge_run(latency, budget, None, looks)
        endings[f"1.1 mlperf {name}"] = judge_mlperf(latency, budget, looks)
    # Twins that are wrong on purpose: by a half, and one that takes the requests for independent.
    half = max(twin / 2.0, 1.0)
    endings["1.1 half often"] = judge_run(latency, budget, half, often)
    # As where the canary does not show that the machine's speed stayed the same.
    endings["1.1 half, not steady often"] = judge_run(latency, budget, half, often, steady=False)
    endings["1.1 wrong often"] = judge_run(latency, budget, 1.0, often)
    budget, twin = real.budget_ms["0.9"], real.inflation["0.9"]
    looks = looks_until(REQUESTS, dense=False)
    endings["0.9 twin often"] = judge_run(latency, budget, twin, looks)
    endings["0.9 alone often"] = judge_run(latency, budget, None, looks)
    endings["0.9 mlperf often"] = judge_mlperf(latency, budget, looks)
    latency = latency_ms(real.load, REQUESTS_MAX[real.load], seed + 500_000)
    looks = looks_until(len(latency), dense=False)
    budget, twin = real.budget_ms["0.3"], real.inflation["0.3"]
    endings["0.3 twin often"] = judge_run(latency, budget, twin, looks)
    endings["0.3 alone often"] = judge_run(latency, budget, None, looks)
    endings["0.3 mlperf often"] = judge_mlperf(latency, budget, looks)
    return endings


def summarize(endings: list[Ending]) -> dict[str, Any]:
    """Shares of the verdicts, and the requests within which half and 90 % of the runs passed."""
    passed = sorted(ending.requests for ending in endings if ending.verdict == "PASS")
    total = len(endings)

    def within(share: float) -> int | None:
        rank = int(np.ceil(share * total))
        return passed[rank - 1] if len(passed) >= rank else None

    return {
        "runs": total,
        "pass_share": len(passed) / total,
        "fail_share": sum(ending.verdict == "FAIL" for ending in endings) / total,
        "requests_to_pass_50": within(0.5),
        "requests_to_pass_90": within(0.9),
    }


def mean_share(cells: Iterable[dict[str, Any]]) -> float:
    """Of the runs that pass, over several loads."""
    return float(np.mean([known["pass_share"] for known in cells]))


def main() -> int:
    command = Command("certificate", __doc__, timing=False)
    command.argument("--runs", type=int, default=400, help="runs per load (seeds 0 to runs - 1)")
    command.argument(
        "--load", type=float, choices=LOADS, help="this load alone; the others stay as recorded"
    )
    command.argument("--processes", type=int, default=inspect_machine().cores)
    options = command.start()
    recorded = json.loads(options.out.read_text()) if options.load else {"cells": {}, "truth": []}
    cells: dict[str, dict[str, Any]] = recorded["cells"]
    document: dict[str, Any] = {
        "percentile": PERCENTILE,
        "confidence": CONFIDENCE,
        "seeds": [0, options.runs - 1],
        "requests_per_run": REQUESTS,
        "truth": [known for known in recorded["truth"] if known["load"] != options.load],
        "cells": cells,
    }
    with ProcessPoolExecutor(options.processes) as pool:
        for load in [options.load] if options.load else LOADS:
            real = pool.submit(truth, load).result()
            document["truth"].append(asdict(real))
            rows = list(pool.map(partial(one_run, real), range(options.runs), chunksize=4))
            cells[str(load)] = {rule: summarize([row[rule] for row in rows]) for rule in rows[0]}
            document["pass_share_over_all_loads"] = {
                rule: mean_share(known[rule] for known in cells.values() if rule in known)
                for rule in rows[0]
            }
            # After every load, since the last one takes the longest by far.
            write_json(options.out, document)
            say(f"load {load} is done")
    return command.finish(options, document, shown)


def shown(document: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    cells, overall = document["cells"], document["pass_share_over_all_loads"]

    def row(rule: str, title: str, key: str, spec: str, last: str = "") -> list[str]:
        known = (cells[str(load)].get(rule, {}).get(key) for load in LOADS)
        return [f"{rule}: {title}", *(cell(value, spec) for value in known), last]

    rows = [
        row(rule, "PASS", "pass_share", ".1%", f"{overall[rule]:.1%}")
        for rule in cells[str(LOADS[0])]
    ]
    failed = ("0.9 twin often", "0.9 alone often", "0.9 mlperf often")
    rows += [row(rule, "FAIL", "fail_share", ".1%") for rule in failed]
    for rule in ("0.3 twin often", "0.3 alone often"):
        for key, name in (("requests_to_pass_50", "half"), ("requests_to_pass_90", "90 %")):
            rows.append(row(rule, f"requests until {name} pass", key, ","))
    return table(("rule", *(f"ρ = {load}" for load in LOADS), "all"), rows)


if __name__ == "__main__":
    raise SystemExit(main())
