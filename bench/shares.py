"""What a search proves in its time: the real search, in virtual time, on machines drawn at random.

    python bench/shares.py [--studies 20] [--budgets 60,300] [--processes 1] [--worlds "two speeds"]
    python bench/shares.py --slow [...]      # slow models with short latency budgets alone
    python bench/shares.py --slow --times 30 --budgets 3600 [...]   # of half a second to seconds

Each study is a whole search (`run_search`) of a small space on a simulated machine of two cores: a
model of 0.3 to 100 ms with a cheap or a dear batch, a latency budget of 5 to 200 of its service
times; at one speed, at two (0.7 of the first half of the time), or at two with executions that take
other times under load than probes show, by a factor for each configuration, and three times as long
once in a hundred; or beside a neighbour that leaves 0.6 of the speed half of the time, for 0.1 to
10 s at once, which the canary does not see; or at two (0.8, 1 to 20 s at once) of which the canary
makes 0.6. ``--slow`` keeps the models of 15 to 80 ms with budgets of at most 30 service times,
whose proofs take most of a minute; ``--times`` makes models and budgets so many times as long. Told
are the verdicts, the certified share of the recommended configuration's reported edge, that of the
best configuration's true edge at full speed, whether the gain over the baseline was told, with a
lower end (more than what is gained at most) or as a loss, and which of the two edges have both
ends. It is no timing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.gain import gain
from analyzer.domain.measurement import Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.space import Parameter, SearchSpace
from analyzer.domain.workload import Poisson
from analyzer.measure.virtual import VirtualExecutor, VirtualWorld
from analyzer.search.request import SearchRequest
from analyzer.search.virtual import VIRTUAL_MODEL, MemoryStore, search_virtually
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath
from benchlib.command import Command, table_of, write_json
from benchlib.under_load import under_load

WORLDS = ("one speed", "two speeds", "wrong probes", "neighbour", "sensitive canary")
# Of the full speed: a slow state, what a neighbour leaves, and a slow state that the canary's work
# takes for this power of.
SLOW = 0.7
LEFT = 0.6
SENSITIVE, SENSITIVE_POWER = 0.8, 2.4
START_S = 3.0
# What ``--slow`` keeps: milliseconds of one inference, and the latency budget in service times.
SLOW_MS = (15.0, 80.0)
SLOW_BUDGET_MAX = 30.0
OVERHEAD_MS = 0.2
SPACE = SearchSpace(
    name="shares",
    device="cpu",
    parameters=(
        Parameter(name="precision", choices=("fp32", "int8")),
        Parameter(name="instance_count", choices=(1, 2)),
        Parameter(name="intra_op_threads", choices=(1,)),
        Parameter(name="dynamic_batching", choices=(True,)),
        Parameter(name="max_batch_size", choices=(1, 4, 16)),
        Parameter(name="max_queue_delay_us", choices=(0, 2000)),
    ),
    threads_max=2,
)
SPEED = {"fp32": 1.0, "int8-static": 0.5, "int8-dynamic": 0.7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model drawn at random: ``fixed_ms + each_ms * batch`` at fp32, and its latency budget."""

    fixed_ms: float
    each_ms: float
    budget_ms: float

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Model:
        """0.3 to 100 ms for one inference, 5 to 200 times that as the budget."""
        one_ms = float(np.exp(rng.uniform(np.log(0.3), np.log(100.0))))
        fixed = float(rng.uniform(0.05, 0.8))
        budget_ms = one_ms * float(np.exp(rng.uniform(np.log(5.0), np.log(200.0))))
        return cls(
            fixed_ms=fixed * one_ms, each_ms=(1.0 - fixed) * one_ms, budget_ms=max(budget_ms, 5.0)
        )

    def times(self, factor: float) -> Model:
        """A model whose executions and latency budget are so many times as long."""
        return Model(
            fixed_ms=factor * self.fixed_ms,
            each_ms=factor * self.each_ms,
            budget_ms=factor * self.budget_ms,
        )

    @property
    def slow(self) -> bool:
        """Whether ``--slow`` keeps it."""
        one_ms = self.fixed_ms + self.each_ms
        return SLOW_MS[0] <= one_ms <= SLOW_MS[1] and self.budget_ms <= SLOW_BUDGET_MAX * one_ms

    def service(self, key: VariantKey, threads: int, instances: int) -> ServiceTime | None:
        """Two cores; busy neighbours cost a little."""
        sizes = (1, 2, 4, 8, 16)
        speed = SPEED.get(key.label)
        if speed is None:
            return None
        return ServiceTime(
            batch_sizes=sizes,
            service_ms=tuple(speed * (self.fixed_ms + self.each_ms * size) for size in sizes),
            distribution="lognormal",
            cv=0.05,
            interference=(1.0, 1.06),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one study ended; rates in requests per second."""

    verdict: str
    one_ms: float
    budget_ms: float
    certified_rps: float | None = None
    edge_rps: float | None = None
    true_edge_rps: float | None = None
    gain_told: bool = False
    gain_least: bool = False
    gain: float | None = None
    edge_closed: bool = False
    baseline_closed: bool = False
    wall_s: float = 0.0

    @property
    def share(self) -> float | None:
        """Of the reported edge."""
        return self.certified_rps / self.edge_rps if self.certified_rps and self.edge_rps else None

    @property
    def true_share(self) -> float | None:
        """Of the best configuration's true edge at full speed."""
        if not self.certified_rps or not self.true_edge_rps:
            return None
        return self.certified_rps / self.true_edge_rps


def true_edge(model: Model, live: Callable[[Configuration, ServiceTime], ServiceTime]) -> float:
    """The highest edge of the space at full speed."""
    arrivals = UnitArrivals.draw(Poisson(), count=100_000)
    key = VariantKey(precision="int8", quantization="static")
    service = model.service(key, 1, 2)
    assert service is not None
    edges = []
    for size in (1, 4, 16):
        for delay_us in (0, 2000):
            configuration = Configuration(
                precision=key.precision,
                quantization=key.quantization,
                dynamic_batching=True,
                max_batch_size=size,
                max_queue_delay_us=delay_us,
                instance_count=2,
                intra_op_threads=1,
            )
            loaded = live(configuration, service)
            server = ServerModel.of(configuration, loaded, overhead_ms=OVERHEAD_MS)
            edges.append(server.edge(arrivals, budget_ms=model.budget_ms, accuracy=0.01) or 0.0)
    return max(edges)


def model_of(seed: int) -> Model:
    """The model of a study."""
    return Model.drawn(np.random.default_rng([seed, 77]))


def seeds(count: int, *, slow: bool) -> list[int]:
    """Of ``count`` studies, from 0 on; those whose models are slow alone."""
    drawn = (seed for seed in itertools.count() if not slow or model_of(seed).slow)
    return list(itertools.islice(drawn, count))


def study(seed: int, *, world: str, budget_s: float, factor: float = 1.0) -> Ending:
    """Runs one search of a model that takes ``factor`` times as long as it was drawn."""
    model = model_of(seed).times(factor)
    neighbour = world == "neighbour"
    sensitive = world == "sensitive canary"
    slow, dwell_s = (LEFT, (0.1, 10.0)) if neighbour else (SLOW, (0.1, 3.0))
    if sensitive:
        slow, dwell_s = SENSITIVE, (1.0, 20.0)
    path = None
    if world != "one speed":
        path = SpeedPath.two_speeds(
            slow=slow,
            dwell_s=dwell_s,
            until_s=5.0 * budget_s,
            rng=np.random.default_rng(seed),
        )
    request = SearchRequest(
        study="shares",
        model=VIRTUAL_MODEL,
        sla=Sla(latency_budget_ms=model.budget_ms),
        space=SPACE,
        arrivals=Poisson(),
        budget_s=budget_s,
        sampler="twin",
        seed=seed,
        provenance={},
    )
    machine = VirtualWorld(
        service=model.service,
        overhead_ms=OVERHEAD_MS,
        speed=path,
        neighbour=neighbour,
        witness_power=SENSITIVE_POWER if sensitive else 1.0,
        seed=seed,
    )
    if world == "wrong probes":
        machine = replace(machine, under_load=under_load)
    executor = VirtualExecutor(machine)
    result = search_virtually(request, executor, MemoryStore(), cores=2, start_s=START_S)
    ended = Ending(
        verdict=result.verdict,
        one_ms=model.fixed_ms + model.each_ms,
        budget_ms=model.budget_ms,
        wall_s=result.search.wall_seconds or 0.0,
    )
    measured = {o.configuration.config_id: o for o in result.outcomes}
    best = measured.get(result.recommended_id or "")
    if not isinstance(best, Measurement) or not best.capacity_rps:
        return ended
    baseline = measured.get(result.baseline_id)
    gained = None
    if isinstance(baseline, Measurement):
        gained = gain(result.sla, best, baseline)
    return replace(
        ended,
        certified_rps=best.capacity_rps,
        edge_rps=best.edge.rate_rps or best.edge.at_least_rps,
        true_edge_rps=true_edge(model, machine.under_load),
        gain_told=isinstance(baseline, Measurement) and bool(baseline.edge.at_least_rps),
        gain_least=gained is not None and gained.interval[0] is not None,
        gain=gained.ratio if gained is not None else None,
        edge_closed=best.edge.rate_rps is not None,
        baseline_closed=isinstance(baseline, Measurement) and baseline.edge.rate_rps is not None,
    )


def summarize(endings: Sequence[Ending]) -> dict[str, Any]:
    """Of one cell."""
    shares = [e.share for e in endings if e.share]
    true_shares = [e.true_share for e in endings if e.true_share]
    return {
        "studies": len(endings),
        "found": sum(e.verdict == "found" for e in endings),
        "gain_told": sum(e.gain_told for e in endings),
        "gain_least": sum(e.gain_least for e in endings),
        "gain_below_1": sum(e.gain is not None and e.gain < 1.0 for e in endings),
        "edge_closed": sum(e.edge_closed for e in endings),
        "baseline_closed": sum(e.baseline_closed for e in endings),
        "share": float(np.median(shares)) if shares else None,
        "share_10": float(np.quantile(shares, 0.1)) if shares else None,
        "true_share": float(np.median(true_shares)) if true_shares else None,
        "wall_max_s": max(e.wall_s for e in endings),
        "endings": [asdict(e) for e in endings],
    }


def main() -> int:
    command = Command("shares", __doc__, timing=False)
    command.argument("--studies", type=int, default=20, help="studies per cell (seeds from 0)")
    command.argument("--budgets", default="60,300", help="seconds, with commas")
    command.argument("--worlds", default=",".join(WORLDS), help="with commas")
    command.argument("--slow", action="store_true", help="slow models with short budgets alone")
    command.argument("--times", type=float, default=1.0, metavar="FACTOR", help="as long")
    command.argument("--processes", type=int, default=1)
    options = command.start()
    document: dict[str, Any] = {"cells": {}}
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for budget_s in map(float, options.budgets.split(",")):
            for world in options.worlds.split(","):
                run = partial(study, world=world, budget_s=budget_s, factor=options.times)
                drawn = seeds(options.studies, slow=options.slow)
                name = f"{world}, {budget_s:g} s" + (", slow models" if options.slow else "")
                name += f", {options.times:g} times as slow" if options.times != 1.0 else ""
                document["cells"][name] = summarize(list(pool.map(run, drawn)))
                write_json(options.out, document)
    return command.finish(options, document, shown)


def shown(document: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    columns = {
        "studies": ("studies", ","),
        "found": ("found", ","),
        "gain told": ("gain_told", ","),
        "with a lower end": ("gain_least", ","),
        "told as a loss": ("gain_below_1", ","),
        "edges with both ends": ("edge_closed", ","),
        "the baseline's": ("baseline_closed", ","),
        "of the reported edge": ("share", ".2f"),
        "its 10 % quantile": ("share_10", ".2f"),
        "of the true edge": ("true_share", ".2f"),
        "longest (s)": ("wall_max_s", ".0f"),
    }
    return table_of("machine, budget", columns, document["cells"])


if __name__ == "__main__":
    raise SystemExit(main())
