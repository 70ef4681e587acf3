"""Whether no rate keeps the latency budget, and whether what was measured shows it.

A run at a rate that queues says nothing of lower ones, and one at a low rate nothing of higher
ones: an idle processor is slower than a busy one. What does is a walk over several rates that was
made for it (:mod:`analyzer.measure.refute`), or executions that take longer than the budget by
themselves. Of a baseline, beside which another configuration is proven, a FAIL at a rate without
queues is enough.
"""

from __future__ import annotations

from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import Measurement
from analyzer.domain.sla import Sla

# A rate without queues keeps a server busy for this share of the time; at most so many requests a
# second.
_QUIET_UTILIZATION = 0.3
_QUIET_RPS_MAX = 50.0
# A longer FAIL at the one rate of the SLA stands: a neighbour's burst is shorter, or no exception.
_FIXED_S_MIN = 10.0
# The same rate, but for what the shortest time, and so the rate, varied by since.
_SAME_RATE = 1.5


def quiet_rps(measurement: Measurement, sla: Sla) -> float:
    """The target rate where there is one, else a rate at which nearly no request waits."""
    # The median of an overloaded run is queueing; its executions are not.
    tests = measurement.load_tests
    times_ms = [test.latency_ms.p50 for test in tests if test.latency_ms.p50]
    times_ms += [times.mean_ms for test in tests for times in test.executions]
    return low_rps(min(times_ms, default=None), sla)


def low_rps(alone_ms: float | None, sla: Sla) -> float:
    """:func:`quiet_rps` of what answers a request alone in so many milliseconds, if known."""
    if fixed := sla.fixed_rps:
        return fixed
    alone_s = max(alone_ms or 1.0, 1.0) / 1e3
    return min(_QUIET_UTILIZATION / alone_s, _QUIET_RPS_MAX)


def shown(measurement: Measurement, sla: Sla) -> bool:
    """Whether runs that were made for it show that no rate (or not the target) keeps the SLA."""
    certificate, test = measurement.certificate, measurement.headline
    if certificate is None or certificate.verdict != "FAIL" or test is None:
        return False
    if sla.fixed_rps is not None and test.duration_s >= _FIXED_S_MIN:
        return True
    return walked(measurement)


def walked(measurement: Measurement) -> bool:
    """Whether its certificate comes from runs that were to show that no rate keeps the SLA."""
    return measurement.headline is not None and measurement.headline.kind == "refute"


def failed_where_quiet(measurement: Measurement, sla: Sla) -> bool:
    """Whether it failed where it is easiest; that it failed at a higher rate says nothing."""
    certificate, test = measurement.certificate, measurement.headline
    if certificate is None or certificate.verdict != "FAIL" or test is None:
        return False
    return (test.offered_rps or 0.0) <= _SAME_RATE * quiet_rps(measurement, sla)


def too_slow_alone(measurement: Measurement, sla: Sla) -> bool:
    """Whether one inference by itself takes longer than the budget, whatever the rate.

    A bound from the executions of the load tests: each inference of a batch takes no more than one
    alone, and instances that share the cores slow one another down by their number at most.
    """
    instances = measurement.configuration.instance_count
    at_least_ms = [
        times.mean_ms / (times.batch_size * instances)
        for test in measurement.load_tests
        for times in test.executions
    ]
    return bool(at_least_ms) and min(at_least_ms) > sla.latency_budget_ms


def refuted(measurement: Measurement, sla: Sla) -> bool:
    """Whether what was measured shows that no rate keeps the latency budget."""
    return failed_where_quiet(measurement, sla) or too_slow_alone(measurement, sla)


def lowest_late(measurement: Measurement) -> LoadTest | None:
    """The load test at the lowest rate, where none of the rates tried kept the budget.

    None where one was kept, or none was tried in a valid open loop.
    """
    if measurement.edge.at_least_rps:
        return None
    tests = [
        test
        for test in measurement.load_tests
        if test.validity.valid and test.concurrency is None and test.requests and test.over_budget
    ]
    return min(tests, key=lambda test: test.offered_rps, default=None)
