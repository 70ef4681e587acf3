"""Tables of random models for ``search.py``: a twin whose service times are wrong, as probes are.

Nothing here is drawn the way that the designer supposes errors to be. Machine, model and budget are
drawn (1 to 4 cores, 0.3 to 200 ms for one inference, concave to linear in the batch, two variants);
the twin's predictions are edges of the server models, and the truth those of other server models,
whose service times, batch curves, interference and overhead differ from the twin's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.space import Parameter, SearchSpace
from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.screen import screen
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from benchlib.search_tables import Table

SIZES = (1, 2, 4, 8, 16, 32, 64)
# Rounds of simulations that a screen makes.
_ROUNDS = 30.0
# How far service times are off: median and spread of the logarithm over the models.
_SCALE, _SCALE_SPREAD = 0.08, 0.6
# How far single edges are off besides, as a share of that.
_OWN = 0.25


@dataclass(slots=True, kw_only=True)
class _Errors:
    """Factors, one for each thing that probes can get wrong; the same for the same thing."""

    rng: np.random.Generator
    scale: float
    drawn: dict[tuple[object, ...], float] = field(default_factory=dict)

    def __call__(self, *what: object, size: float = 1.0) -> float:
        normal = self.drawn.setdefault(what, float(self.rng.normal()))
        return math.exp(self.scale * size * normal)


def _right(*what: object, size: float = 1.0) -> float:
    return 1.0


def _space(cores: int) -> SearchSpace:
    batching = (("dynamic_batching", (True,)),)
    return SearchSpace(
        name="drawn",
        device="cpu",
        parameters=(
            Parameter(name="precision", choices=("fp32", "int8")),
            Parameter(name="quantization", choices=("dynamic",), when=(("precision", ("int8",)),)),
            Parameter(
                name="instance_count", choices=tuple(n for n in (1, 2, 3, 4, 8) if n <= 2 * cores)
            ),
            Parameter(name="intra_op_threads", choices=tuple(t for t in (1, 2, 4) if t <= cores)),
            Parameter(name="dynamic_batching", choices=(False, True)),
            Parameter(name="max_batch_size", choices=SIZES[1:], when=batching),
            Parameter(name="max_queue_delay_us", choices=(0, 5000), when=batching),
        ),
        threads_max=2 * cores,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A model on a machine."""

    cores: int
    first_ms: float
    slope: float
    power: float
    crowding: float
    int8_speed: float
    threads_power: float

    def server(
        self, configuration: Configuration, error: _Errors | Callable[..., float]
    ) -> ServerModel:
        """The server of a configuration, with what ``error`` multiplies its times by."""
        variant, threads = configuration.precision, configuration.intra_op_threads or 1
        instances = configuration.instance_count
        speed = 1.0 if variant == "fp32" else self.int8_speed
        speed *= error("variant", variant, size=0.5) * error("threads", variant, threads, size=0.7)
        slope = self.slope * error("slope", variant, threads, size=2.0)
        times = [
            speed
            * self.first_ms
            / threads**self.threads_power
            * (1.0 + slope * (size**self.power - 1.0))
            * error("batch", variant, threads, size, size=0.4)
            for size in SIZES
        ]
        crowded = error("crowding", variant, instances, threads)
        factors = [
            max(1.0, busy * threads / self.cores)
            * (1.0 + self.crowding * (busy - 1))
            * crowded ** ((busy - 1) / max(instances - 1, 1))
            for busy in range(1, instances + 1)
        ]
        batch = configuration.max_batch_size if configuration.dynamic_batching else 0
        return ServerModel(
            policy=BatchingPolicy(
                max_batch_size=batch,
                dynamic_batching=batch > 0,
                instance_count=instances,
                max_queue_delay_us=configuration.max_queue_delay_us or 0,
            ),
            service=ServiceTime(
                batch_sizes=SIZES,
                service_ms=tuple(float(t) for t in np.maximum.accumulate(times)),
                interference=tuple(float(f) for f in np.maximum.accumulate([1.0, *factors])[1:]),
                distribution="lognormal",
                cv=0.1,
            ),
            overhead_ms=0.3 * min(1.0, self.first_ms) * error("overhead", size=2.0),
        )


def drawn_table(seed: int) -> Table:
    """The table of one random model."""
    rng = np.random.default_rng([seed, 99])
    cores = int(rng.choice([1, 2, 4]))
    first_ms = _log_uniform(rng, 0.3, 200.0)
    budget_ms = first_ms * _log_uniform(rng, 5.0, 200.0)
    model = _Model(
        cores=cores,
        first_ms=first_ms,
        slope=float(rng.uniform(0.02, 1.0)),
        power=float(rng.uniform(0.6, 1.0)),
        crowding=float(rng.uniform(0.0, 0.1)),
        int8_speed=float(rng.uniform(0.35, 1.0)),
        threads_power=float(rng.uniform(0.3, 0.9)),
    )
    errors = _Errors(rng=rng, scale=_SCALE * math.exp(rng.normal(0.0, _SCALE_SPREAD)))
    space = _space(cores)
    configurations = {key: configuration for key, (configuration, _) in space.candidates().items()}
    keys = sorted(configurations)
    expected = [model.server(configurations[key], _right) for key in keys]
    real = [model.server(configurations[key], errors) for key in keys]
    own = errors.scale * _OWN
    truth = np.array(_edges(real, budget_ms)) * np.exp(rng.normal(0.0, own, len(keys)))
    return Table(
        name="random models",
        space=space,
        budget_ms=budget_ms,
        predicted=dict(zip(keys, _edges(expected, budget_ms), strict=True)),
        saturation={
            key: server.saturation_rps() for key, server in zip(keys, expected, strict=True)
        },
        true=dict(zip(keys, map(float, truth), strict=True)),
    )


def _edges(models: Sequence[ServerModel], budget_ms: float) -> list[float]:
    # A clock that counts calls: the same edges on a machine of any speed.
    ticks = itertools.count()
    arrivals = UnitArrivals.draw(Poisson(), seed=1, count=200_000)
    found = screen(
        models,
        arrivals,
        budget_ms=budget_ms,
        percentile=99.0,
        cores=1,
        clock=lambda: float(next(ticks)),
        seconds_max=_ROUNDS,
    )
    return [edge.rate_rps for edge in found]


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))
