"""The options of ``analyze simulate`` as the objects that the simulator takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analyzer.domain import units
from analyzer.errors import DataError, UsageError

if TYPE_CHECKING:
    from analyzer.domain.workload import ArrivalProcess, Trace
    from analyzer.engine.policy import BatchingPolicy
    from analyzer.twin.service import ServiceTime
    from analyzer.twin.simulator import Workload

# So many leave 200 above a p99, and are simulated in well under a second.
REQUESTS_DEFAULT = 20_000
#: Virtual time is counted in nanoseconds in 64 bits; half of that leaves room for every sum.
_TIME_NS_MAX = 2.0**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """``--arrivals``: a process with its rate (None: a trace's own times), or closed clients."""

    process: ArrivalProcess | None = None
    rate_rps: float | None = None
    concurrency: int = 0


def check_range(option: str, value: int, low: int, high: int | None) -> None:
    if value < low or (high is not None and value > high):
        raise UsageError(
            f"{option}: {value} is out of range.",
            hint=f"It is a whole number of at least {low}"
            + (f" and at most {high}." if high is not None else "."),
        )


def parse_policy(
    *,
    max_batch_size: int,
    dynamic_batching: bool,
    preferred_text: str | None,
    delay_ms: float,
    instances: int,
    max_queue_size: int,
) -> BatchingPolicy:
    from analyzer.engine.policy import BatchingPolicy, QueuePolicy

    if not dynamic_batching:
        for option, given in (
            ("--preferred-batch-size", preferred_text is not None),
            ("--max-queue-delay", delay_ms > 0),
            ("--max-queue-size", max_queue_size > 0),
        ):
            if given:
                raise UsageError(
                    f"{option} has no effect with --no-dynamic-batching.",
                    hint="Leave one of the two out.",
                )
    preferred: list[int] = []
    for text in preferred_text.split(",") if preferred_text is not None else ():
        try:
            preferred.append(int(text))
        except ValueError:
            raise UsageError(
                f"--preferred-batch-size: {text!r} is no whole number.", hint="Write it like 4,8."
            ) from None
        if not 1 <= preferred[-1] <= max(max_batch_size, 1):
            raise UsageError(
                f"--preferred-batch-size: {preferred[-1]} is not between 1 and the maximum "
                f"batch size of {max_batch_size}.",
                hint="Triton refuses such a configuration too.",
            )
    delay_us = round(delay_ms * 1e3)
    if abs(delay_us - delay_ms * 1e3) > 1e-6:
        raise UsageError(
            f"--max-queue-delay: {delay_ms * 1e3:g} us is no whole number of microseconds.",
            hint="Triton's setting is one.",
        )
    return BatchingPolicy(
        max_batch_size=max_batch_size,
        dynamic_batching=dynamic_batching,
        preferred_batch_size=tuple(sorted(set(preferred))),
        max_queue_delay_us=delay_us,
        instance_count=instances,
        default_queue_policy=QueuePolicy(max_queue_size=max_queue_size),
    )


def parse_service(text: str, distribution: str, batch_limit: int) -> ServiceTime:
    """``--service-time``: linear between its points, with the nearest slope beyond them.

    The ends are given as points of their own: by itself a ``ServiceTime`` holds that a batch of
    more inferences takes no less, which probes may be corrected by, and what a user says may not.
    """
    from analyzer.twin.service import ServiceTime

    sizes: list[int] = []
    times_ms: list[float] = []
    for part in text.split(","):
        size_text, equals, duration = part.partition("=")
        try:
            if not equals:
                raise ValueError
            size = int(size_text)
        except ValueError:
            raise UsageError(
                f"--service-time: {part!r} is no batch size with a duration.",
                hint="Write it like 1=10ms,8=16ms.",
            ) from None
        if size < 1 or (sizes and size <= sizes[-1]):
            raise UsageError(
                f"--service-time: the batch size {size} "
                + ("is below 1." if size < 1 else f"does not come after {sizes[-1]}."),
                hint="List each batch size once, in ascending order.",
            )
        try:
            times_ms.append(units.parse_duration_ms(duration))
        except UsageError as error:
            raise UsageError(f"--service-time: {error.message}", hint=error.hint) from error
        sizes.append(size)
    points = list(zip(sizes, times_ms, strict=True))
    if len(points) > 1:
        below = _carried_on(points[1], points[0], 1)
        beyond = _carried_on(points[-2], points[-1], batch_limit)
        points = [*reversed(below), *points, *beyond]
    return ServiceTime(
        batch_sizes=tuple(size for size, _ in points),
        service_ms=tuple(time_ms for _, time_ms in points),
        distribution="exponential" if distribution == "exponential" else "deterministic",
    )


def _carried_on(
    inner: tuple[int, float], last: tuple[int, float], to: int
) -> list[tuple[int, float]]:
    """Points (batch size, milliseconds) that carry a line on from ``last`` to the size ``to``.

    Exact at whole sizes, and never below 0; none where ``to`` does not lie beyond ``last``.
    """
    (inner_size, inner_ms), (last_size, last_ms) = inner, last
    away = 1 if last_size > inner_size else -1
    span, distance = away * (last_size - inner_size), away * (to - last_size)
    rise_ms = last_ms - inner_ms
    if distance <= 0:
        return []
    # As many sizes as it stays above 0 for; the next is the first that is held there.
    kept = distance if rise_ms >= 0 else min(distance, int(last_ms * span / -rise_ms))
    points = [(last_size + away * kept, max(last_ms + rise_ms * kept / span, 0.0))] if kept else []
    if kept + 1 < distance:
        points.append((last_size + away * (kept + 1), 0.0))
    return [*points, (to, 0.0)] if kept < distance else points


def parse_arrivals_option(text: str, *, rate_wanted: bool) -> Arrivals:
    from analyzer.domain.workload import Trace, parse_arrivals_with_rate

    kind, _, argument = text.strip().partition(":")
    if kind == "closed":
        if not rate_wanted:
            raise UsageError(
                "--arrivals closed: a closed loop has no rate to find.",
                hint="With --find-capacity use poisson, constant, gamma:CV or trace:FILE.",
            )
        if not (argument.isascii() and argument.isdigit() and 1 <= int(argument) <= 10**9):
            raise UsageError(
                f"--arrivals: {text!r} names no number of requests in flight.",
                hint="Write closed:16.",
            )
        return Arrivals(concurrency=int(argument))
    process, rate_text = parse_arrivals_with_rate(text.strip())
    if rate_text and not rate_wanted:
        raise UsageError(
            f"--arrivals: a rate ({rate_text}) has no meaning with --find-capacity.",
            hint=f"Write --arrivals {process.name}.",
        )
    if isinstance(process, Trace) or not rate_wanted:
        return Arrivals(process=process)
    if not rate_text:
        raise UsageError(
            f"--arrivals {process.name} needs a rate.", hint=f"Write {process.name}:80/s."
        )
    try:
        return Arrivals(process=process, rate_rps=units.parse_rate_rps(rate_text))
    except UsageError as error:
        raise UsageError(f"--arrivals: {error.message}", hint=error.hint) from error


def checked_request_batch_size(process: ArrivalProcess | None, option: int, limit: int) -> int:
    """The size of requests that bring none of their own, after a check of all against ``limit``."""
    from analyzer.domain.workload import Trace, check_request_batch_size

    if option > limit:
        raise UsageError(
            f"--request-batch-size: {option} is larger than the maximum batch size of {limit}.",
            hint="Triton never splits a request: it refuses one that is too large.",
        )
    if isinstance(process, Trace) and process.batch_size.max() > 1:
        check_request_batch_size(process, option)
        too_large = (process.batch_size > limit).nonzero()[0]
        if len(too_large):
            # The first in the file, which need not be the first in time.
            rows = process.row if process.row is not None else too_large + 1
            row = int(min(rows[index] for index in too_large))
            size = int(process.batch_size[list(rows).index(row)])
            raise DataError(
                f"{process.path}, row {row} (line {row + 1}): a batch_size of {size} is larger "
                f"than the maximum batch size of {limit}.",
                hint="Triton never splits a request: raise --max-batch-size or change the row.",
            )
    return option


def random_stream(seed: int, index: int) -> Any:
    """One of the independent random streams of a run: 0 for arrivals, 1 for service times."""
    import numpy as np

    return np.random.SeedSequence([seed, index])


def make_workload(arrivals: Arrivals, requests: int | None, batch_size: int, seed: int) -> Workload:
    import numpy as np

    from analyzer.domain.workload import Constant, Trace
    from analyzer.twin.simulator import ClosedWorkload, OpenWorkload

    count = requests or REQUESTS_DEFAULT
    process = arrivals.process
    if process is None:
        return ClosedWorkload(
            concurrency=arrivals.concurrency, requests=count, batch_size=batch_size
        )
    sizes = np.array([batch_size], dtype=np.int64)
    if isinstance(process, Trace):
        return _trace_workload(process, requests, sizes)
    assert arrivals.rate_rps is not None
    if isinstance(process, Constant):
        # From the index, not summed up, so that ties with completions are exact.
        times_s = np.arange(count) / arrivals.rate_rps
    else:
        rng = np.random.default_rng(random_stream(seed, 0))
        times_s = np.cumsum(process.interarrival_s(count, arrivals.rate_rps, rng))
    if times_s[-1] * 1e9 > _TIME_NS_MAX:
        raise UsageError("--arrivals: the run would last for centuries.", hint="Raise the rate.")
    return OpenWorkload(arrival_ns=np.rint(times_s * 1e9).astype(np.int64), batch_size=sizes)


def _trace_workload(trace: Trace, requests: int | None, sizes: Any) -> Workload:
    import numpy as np

    from analyzer.twin.simulator import OpenWorkload

    if requests is not None and requests > len(trace.arrival_s):
        raise UsageError(
            f"--requests: the trace {trace.path} has only {len(trace.arrival_s)} rows.",
            hint="Leave the option out to run the whole trace.",
        )
    if np.abs(trace.arrival_s).max() * 1e9 > _TIME_NS_MAX:
        raise DataError(f"{trace.path}: its times lie centuries apart.")
    if trace.batch_size.max() > 1:
        sizes = trace.batch_size[:requests]
    arrival_ns = np.rint(trace.arrival_s[:requests] * 1e9).astype(np.int64)
    return OpenWorkload(arrival_ns=arrival_ns, batch_size=sizes)


def check_time(
    workload: Workload, service: ServiceTime, policy: BatchingPolicy, overhead_ms: float
) -> None:
    """Refuses runs whose virtual time could leave 64 bits."""
    import numpy as np

    from analyzer.twin.simulator import OpenWorkload

    slowest_ms = float(service.curve_ms(np.arange(policy.batch_limit + 1)).max()) + overhead_ms
    # An exponential time is hardly ever fifty times its mean.
    longest_ns = 50 * (slowest_ms + policy.max_queue_delay_us / 1e3) * 1e6 * workload.requests
    last_ns = float(workload.arrival_ns[-1]) if isinstance(workload, OpenWorkload) else 0.0
    if last_ns + longest_ns > _TIME_NS_MAX:
        raise UsageError(
            "The run would last for centuries of virtual time.",
            hint="Lower the service times or the number of requests.",
        )
