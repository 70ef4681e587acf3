"""Coverage of a whole study's claim: the real search, in virtual time, on servers that change.

    python bench/study_coverage.py [--studies 40] [--more] [--seconds 400] [--only right] [--json]

A study is one claim. Each is a whole search (`run_search`, its plans, walks, blocks, climbs and the
product's own inflation) of a small space on a simulated machine: stationary, with stalls (0.5 s
every 22 s), at two speeds (1 and 0.55, each for 0.1 to 30 s), drifting slowly, at two speeds and
with executions that take other times under load than probes show, or beside a neighbour, which
slows executions for 0.1 to 10 s at a time and which the canary does not see; at a target rate of
0.5 to 0.95 of the edge at full speed, for the highest rate, or the latter interrupted half way and
resumed. The truth is the miss rate of the recommended configuration at the claimed rate, by
simulations of at least 200,000 requests over the time that the study took: the states that it met.
A PASS above the allowed miss rate is wrong. "Right" cells have a budget that the server at 0.7 of
its edge exceeds in exactly 0.3 % of the requests, so that a PASS is right; "just wrong" ones 1.2 %.
It is no timing, and may be run in parts: ``--more`` goes on with what is recorded.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.space import Parameter, SearchSpace
from analyzer.domain.workload import Poisson
from analyzer.measure.plan import STREAM_VERIFY, LoadPlan
from analyzer.measure.virtual import VirtualExecutor, VirtualWorld
from analyzer.measure.virtual_session import VirtualSession
from analyzer.search.request import SearchRequest
from analyzer.search.virtual import VIRTUAL_MODEL, MemoryStore, search_virtually
from analyzer.stats.percentiles import nearest_rank
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath
from benchlib.command import Command, say, table_of, write_json
from benchlib.under_load import under_load

NEIGHBOURS = ("neighbour", "neighbour and wrong probes")
WRONG_PROBES = ("wrong probes", "neighbour and wrong probes")
WORLDS = ("stationary", "stalls", "two speeds", "drift", "wrong probes", *NEIGHBOURS)
LOADS = (0.5, 0.7, 0.85, 0.95)
MODES = (*(str(load) for load in LOADS), "free", "resumed")
# Servers whose miss rate is a given one, by what a PASS then is.
SHARES = {"right": 0.003, "just wrong": 0.012}
SHARED = ("stationary", "two speeds")
BUDGET_S = 90.0
BUDGET_MS = 40.0
MISS_RATE_MAX = 0.01
PATH_S = 8_000.0
TRUTH_REQUESTS = 200_000
SLOW = 0.55
# Those cells: load of the (slow) server, the study's time.
SHARED_LOAD = 0.7
SHARED_BUDGET_S = {"stationary": 300.0, "two speeds": 2_000.0}
OVERHEAD_MS = 0.2
SPACE = SearchSpace(
    name="coverage",
    device="cpu",
    parameters=(
        Parameter(name="precision", choices=("fp32",)),
        Parameter(name="instance_count", choices=(1,)),
        Parameter(name="intra_op_threads", choices=(1,)),
        Parameter(name="dynamic_batching", choices=(True,)),
        Parameter(name="max_batch_size", choices=(4, 16)),
        Parameter(name="max_queue_delay_us", choices=(0,)),
    ),
    threads_max=1,
)
REFERENCE = Configuration(dynamic_batching=True, max_batch_size=16, intra_op_threads=1)
# Worse than those of the space, which the claims shall be of; Triton's own has two instances.
BASELINE = Configuration(dynamic_batching=True, max_batch_size=2, intra_op_threads=1)


def service(key: VariantKey, threads: int, instances: int) -> ServiceTime:
    """2 ms and 0.8 ms an inference."""
    sizes = (1, 2, 4, 8, 16)
    return ServiceTime(
        batch_sizes=sizes,
        service_ms=tuple(2.0 + 0.8 * size for size in sizes),
        distribution="lognormal",
        cv=0.05,
    )


def server(configuration: Configuration, world: str) -> ServerModel:
    """The true server of a configuration at speed 1."""
    probed = service(configuration.variant, 1, 1)
    true = under_load(configuration, probed) if world in WRONG_PROBES else probed
    return ServerModel.of(configuration, true, overhead_ms=OVERHEAD_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of study: a load, "free", "resumed", or one of ``SHARES``."""

    world: str
    mode: str

    @property
    def name(self) -> str:
        return f"{self.world}, {self.mode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one study ended: its claim's rate and true miss rate, and the evidence behind it."""

    verdict: str
    rate_rps: float | None = None
    true_miss_rate: float | None = None
    requests: int | None = None
    claims: int = 0
    share_of_edge: float | None = None

    @property
    def wrong(self) -> bool:
        return self.true_miss_rate is not None and self.true_miss_rate > MISS_RATE_MAX


def speed_path(world: str, rng: np.random.Generator) -> SpeedPath | None:
    """The machine's speed over virtual time."""
    if world == "stalls":
        return SpeedPath.stalls(every_s=22.0, length_s=0.5, until_s=PATH_S)
    if world in ("two speeds", "wrong probes"):
        return SpeedPath.two_speeds(slow=SLOW, dwell_s=(0.1, 30.0), until_s=PATH_S, rng=rng)
    if world in NEIGHBOURS:
        return SpeedPath.two_speeds(slow=SLOW, dwell_s=(0.1, 10.0), until_s=PATH_S, rng=rng)
    if world == "drift":
        phase = float(rng.uniform())
        return SpeedPath.drift(to=SLOW, every_s=120.0, until_s=PATH_S, phase=phase)
    return None


@cache
def edge_rps(world: str) -> float:
    """The reference configuration's edge at speed 1."""
    found = server(REFERENCE, world).edge(
        UnitArrivals.draw(Poisson(), count=400_000), budget_ms=BUDGET_MS, accuracy=0.003
    )
    assert found is not None
    return found


@cache
def rate_and_budget(world: str, share: float) -> tuple[float, float]:
    """Rate, and the budget in milliseconds that ``share`` of the requests exceed at it.

    At two speeds the rate is one that the slow state carries.
    """
    rate = SHARED_LOAD * edge_rps(world) * (SLOW if world == "two speeds" else 1.0)
    latency_s = []
    for seed in range(4):
        path = speed_path(world, np.random.default_rng(seed))
        plan = LoadPlan(sla=Sla(latency_budget_ms=1e6), arrivals=Poisson(), seed=seed)
        session = VirtualSession(server(REFERENCE, world), plan, speed=path)
        session.run(rate, 1_000.0, kind="verify", stream=STREAM_VERIFY, abort=False)
        latency_s.append(session.logs[0].latency_s)
    return rate, float(np.quantile(np.concatenate(latency_s), 1.0 - share)) * 1e3


def true_miss_rate(
    true: ServerModel, rate_rps: float, budget_ms: float, speed: SpeedPath | None, end_s: float
) -> float:
    """Over the states of the first ``end_s`` seconds."""
    requests = over = 0
    seed = 10**6
    while requests < TRUTH_REQUESTS:
        plan = LoadPlan(sla=Sla(latency_budget_ms=budget_ms), arrivals=Poisson(), seed=seed)
        session = VirtualSession(true, plan, speed=speed)
        test = session.run(rate_rps, end_s, kind="verify", stream=STREAM_VERIFY, abort=False)
        requests, over, seed = requests + test.requests, over + (test.over_budget or 0), seed + 1
    return over / requests


def study(cell_: Cell, seed: int) -> Ending:
    """Runs one study, and finds out whether what it claims is true."""
    rng = np.random.default_rng([seed, WORLDS.index(cell_.world)])
    world = VirtualWorld(
        service=service,
        overhead_ms=OVERHEAD_MS,
        speed=speed_path(cell_.world, rng),
        neighbour=cell_.world in NEIGHBOURS,
        seed=seed,
    )
    if cell_.world in WRONG_PROBES:
        world = replace(world, under_load=under_load)
    target, budget_ms, budget_s = None, BUDGET_MS, BUDGET_S
    if cell_.mode in SHARES:
        target, budget_ms = rate_and_budget(cell_.world, SHARES[cell_.mode])
        budget_s = SHARED_BUDGET_S[cell_.world]
    elif cell_.mode not in ("free", "resumed"):
        target = float(cell_.mode) * edge_rps(cell_.world)
    sla = Sla(
        latency_budget_ms=budget_ms,
        target_rate_rps=target,
        objective="latency" if target else "capacity",
    )
    store = MemoryStore()
    executor = VirtualExecutor(world)
    request = SearchRequest(
        study="coverage",
        model=VIRTUAL_MODEL,
        sla=sla,
        space=SPACE,
        arrivals=Poisson(),
        budget_s=budget_s,
        trials_max=4,
        sampler="twin",
        seed=seed,
        provenance={},
    )
    if cell_.mode == "resumed":
        half = replace(request, budget_s=budget_s / 2)
        search_virtually(half, executor, store, cores=1, baseline=BASELINE)
    result = search_virtually(request, executor, store, cores=1, resume=True, baseline=BASELINE)
    end_s = executor.now()
    best = next(
        (o for o in result.outcomes if o.configuration.config_id == result.recommended_id), None
    )
    if not isinstance(best, Measurement) or best.capacity_rps is None or best.certificate is None:
        return Ending(verdict=result.verdict)
    edge = best.edge.at_least_rps
    return Ending(
        verdict=result.verdict,
        rate_rps=best.capacity_rps,
        true_miss_rate=true_miss_rate(
            server(best.configuration, cell_.world),
            best.capacity_rps,
            budget_ms,
            world.speed,
            end_s,
        ),
        requests=best.certificate.requests,
        claims=max(known.claim for known in best.evidence),
        share_of_edge=best.capacity_rps / edge if edge and target is None else None,
    )


def summarize(endings: Sequence[Ending]) -> dict[str, Any]:
    """Of one cell: shares of the claims, and what they rest on."""
    claimed = [ending for ending in endings if ending.true_miss_rate is not None]
    shares = [ending.share_of_edge for ending in claimed if ending.share_of_edge]
    requests = np.array([ending.requests or 0 for ending in claimed], dtype=np.float64)
    return {
        "studies": len(endings),
        "pass_share": len(claimed) / len(endings),
        "wrong": sum(ending.wrong for ending in endings),
        "wrong_share": sum(ending.wrong for ending in endings) / len(endings),
        "share_of_edge": float(np.median(shares)) if shares else None,
        "requests_50": int(nearest_rank(requests, 50.0) or 0) or None,
        "requests_90": int(nearest_rank(requests, 90.0) or 0) or None,
        "claims": max((ending.claims for ending in claimed), default=0),
        "endings": [asdict(ending) for ending in endings],
    }


def main() -> int:
    command = Command("study_coverage", __doc__, timing=False)
    command.argument("--studies", type=int, default=40, help="studies per cell (seeds from 0)")
    command.argument(
        "--only", default="", help="cells with this in their name; the others stay as recorded"
    )
    command.argument(
        "--more", action="store_true", help="go on with the seeds after those recorded"
    )
    command.argument("--seconds", type=float, default=math.inf, help="begin no study after so long")
    options = command.start()
    until = time.monotonic() + options.seconds
    names = [(world, mode) for world in WORLDS for mode in MODES]
    names += [(world, mode) for world in SHARED for mode in SHARES]
    cells = [
        each for each in (Cell(world=w, mode=m) for w, m in names) if options.only in each.name
    ]
    document: dict[str, Any] = {"cells": {}}
    if (options.only or options.more) and options.out.exists():
        document = json.loads(options.out.read_text())
    document |= {"budget_s": BUDGET_S, "shared_budget_s": SHARED_BUDGET_S}
    recorded = document["cells"] if options.more else {}
    endings = {
        each.name: [Ending(**known) for known in recorded.get(each.name, {}).get("endings", [])]
        for each in cells
    }
    # A study of every cell at a time, so that what is written is always balanced.
    for seed in range(options.studies):
        for each in cells:
            if seed < len(endings[each.name]) or time.monotonic() > until:
                continue
            endings[each.name].append(study(each, seed))
            document["cells"][each.name] = summarize(endings[each.name])
            known = document["cells"].values()
            studies = sum(of["studies"] for of in known)
            document["wrong_share"] = sum(of["wrong"] for of in known) / studies
            write_json(options.out, document)
            say(f"{each.name}, seed {seed}: {endings[each.name][-1]}")
    return command.finish(options, document, shown)


def shown(document: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    columns = {
        "studies": ("studies", ","),
        "PASS": ("pass_share", ".0%"),
        "wrong PASS": ("wrong_share", ".1%"),
        "certified share": ("share_of_edge", ".2f"),
        "requests, half": ("requests_50", ","),
        "90 %": ("requests_90", ","),
        "claims": ("claims", ","),
    }
    return table_of("machine, load", columns, document["cells"])


if __name__ == "__main__":
    raise SystemExit(main())
