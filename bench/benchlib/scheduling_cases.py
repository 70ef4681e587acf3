"""The 17 configurations and 45 loads that ``scheduling.py`` serves in three places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration
from analyzer.domain.workload import Gamma, Poisson

# Long enough for some 100 executions; an overload's queue grows with its length.
SECONDS, OVERLOAD_SECONDS = 3.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Arrivals: Poisson, or with another coefficient of variation; sizes are drawn uniformly."""

    rate_rps: float
    sizes: tuple[int, ...] = (1,)
    cv: float = 1.0
    overload: bool = False

    @property
    def label(self) -> str:
        sizes = "" if self.sizes == (1,) else "×" + "/".join(map(str, self.sizes))
        bursty = f" cv {self.cv:g}" if self.cv != 1.0 else ""
        return f"{self.rate_rps:g}/s{sizes}{bursty}{' overload' if self.overload else ''}"

    def draw(self, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Arrival times in seconds and batch sizes."""
        rng = np.random.default_rng(seed)
        count = round(self.rate_rps * (OVERLOAD_SECONDS if self.overload else SECONDS))
        process = Poisson() if self.cv == 1.0 else Gamma(cv=self.cv)
        arrivals_s = np.cumsum(process.interarrival_s(count, self.rate_rps, rng))
        return arrivals_s, rng.choice(np.array(self.sizes, np.int64), count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A configuration and what it is loaded with."""

    configuration: Configuration
    loads: tuple[Load, ...]
    protocol: str = "grpc"

    @property
    def label(self) -> str:
        c = self.configuration.canonical()
        if not c.dynamic_batching:
            return f"off, max {c.max_batch_size}, {c.instance_count} inst"
        preferred = ",".join(map(str, c.preferred_batch_size or ()))
        delay_ms = (c.max_queue_delay_us or 0) / 1e3
        return f"[{preferred}], {delay_ms:g} ms, max {c.max_batch_size}, {c.instance_count} inst"


def case(
    max_batch_size: int,
    instances: int,
    *loads: Load,
    dynamic: bool = True,
    preferred: tuple[int, ...] | None = None,
    delay_ms: float = 0.0,
    protocol: str = "grpc",
) -> Case:
    """A case in short."""
    configuration = Configuration(
        backend="python",
        max_batch_size=max_batch_size,
        dynamic_batching=dynamic,
        preferred_batch_size=preferred,
        max_queue_delay_us=round(delay_ms * 1000),
        instance_count=instances,
    )
    return Case(configuration=configuration.canonical(), loads=loads, protocol=protocol)


def load(rate_rps: float, *sizes: int, cv: float = 1.0, over: bool = False) -> Load:
    """A load in short."""
    return Load(rate_rps=rate_rps, sizes=sizes or (1,), cv=cv, overload=over)


CASES = (
    case(8, 1, load(40), load(80), load(250, over=True), dynamic=False),
    case(8, 2, load(150), load(60, 1, 2, 4), dynamic=False, protocol="http"),
    case(8, 4, load(120), load(350), load(750, over=True), dynamic=False),
    case(8, 1, load(60), load(250), load(450), load(900, over=True)),
    case(8, 2, load(200), load(600), load(300, cv=2), load(1500, over=True)),
    case(8, 4, load(300), load(900), protocol="http"),
    case(16, 1, load(300), load(1200, over=True), preferred=(4, 8)),
    case(8, 1, load(200), load(800, over=True), preferred=(4,)),
    case(8, 1, load(100), load(300), load(60, 3), delay_ms=5),
    case(16, 2, load(100), load(400), load(150, 1, 2, 3), preferred=(4, 8), delay_ms=20),
    case(32, 1, load(50), load(200), load(500), preferred=(16,), delay_ms=50),
    case(16, 4, load(100), load(500), load(200, cv=2), delay_ms=50),
    case(16, 2, load(300), load(700), delay_ms=1, protocol="http"),
    case(8, 1, load(150), load(800, over=True), preferred=(4,), delay_ms=10),
    case(16, 3, load(300), load(900), load(150, 4), delay_ms=10),
    case(8, 1, load(80, 3), load(300, 3, over=True)),
    case(16, 1, load(40, 1, 2, 4), load(60, 4), preferred=(8,), delay_ms=30, protocol="http"),
)
