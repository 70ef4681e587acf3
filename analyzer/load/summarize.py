"""From a run to the facts of a load test."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import (
    STATUS_OK,
    Breakdown,
    ExecutionTimes,
    LoadTest,
    LoadTestKind,
    RequestLog,
    ResourceUse,
    Validity,
)
from analyzer.engine.counters import ServerStatistics
from analyzer.load.growth import outgrows
from analyzer.load.record import LoadRun
from analyzer.load.slowness import slowness_of
from analyzer.load.stalls import late_by_stalls
from analyzer.load.warmup import detect_warmup
from analyzer.stats.percentiles import nearest_rank, summarize_latency
from analyzer.stats.validity import judge, lag_limit_ms


def summarize(
    run: LoadRun,
    *,
    kind: LoadTestKind,
    offered_rps: float | None = None,
    budget_ms: float | None = None,
    percentile: float = 99.0,
    warmup: int | None = None,
    resources: ResourceUse | None = None,
    statistics: tuple[ServerStatistics | None, ServerStatistics | None] = (None, None),
    seed: int = 0,
) -> LoadTest:
    """Returns the run's facts, its warm-up set apart, and whether it is valid.

    Args:
        run: Of either generator.
        kind: Why it was run.
        offered_rps: Rate of the arrival schedule; None for a closed loop.
        budget_ms: Latency budget; None without one.
        percentile: The SLA's.
        warmup: Leading requests that do not count; None to find them (``detect_warmup``).
        resources: What was sampled meanwhile.
        statistics: The server's counters before and after.
        seed: Seed of the schedule.
    """
    log = run.log
    skip = detect_warmup(log.latency_s) if warmup is None else warmup
    counted = statistics_between(*statistics)
    assert 0 <= skip < max(len(log), 1), (skip, len(log))
    latency_s = log.latency_s[skip:]
    succeeded = log.status[skip:] == STATUS_OK
    duration_s = _duration_s(log, skip, run)
    achieved_rps = int(succeeded.sum()) / duration_s
    lag_s = nearest_rank(log.send_lag_s[skip:][~np.isnan(log.send_lag_s[skip:])], 99.0)
    lag_ms = lag_s * 1e3 if lag_s is not None else None
    offered = offered_rps if offered_rps is not None else achieved_rps
    over, stalled, growing = None, 0, False
    if budget_ms is not None:
        over = int(np.count_nonzero(~(latency_s * 1e3 <= budget_ms)))
        stalled = late_by_stalls(set_warmup_apart(log, skip), budget_ms / 1e3)
        open_loop = run.concurrency is None
        growing = open_loop and outgrows(log.intended_s[skip:], latency_s, budget_ms / 1e3)
    latency_ms = summarize_latency(latency_s, percentile)
    resources = _with_energy(resources if resources is not None else ResourceUse(), log)
    return LoadTest(
        kind=kind,
        offered_rps=offered,
        achieved_rps=achieved_rps,
        throughput_ips=float(log.batch_size[skip:][succeeded].sum()) / duration_s,
        concurrency=run.concurrency,
        requests=len(latency_s),
        over_budget=over,
        stalled_over=stalled,
        errors=int(np.count_nonzero(~succeeded)),
        duration_s=duration_s,
        latency_ms=latency_ms,
        breakdown_ms=_breakdown(log, skip, counted),
        send_lag_ms_p99=lag_ms,
        sent_late=int(np.count_nonzero(log.send_lag_s[skip:] * 1e3 > lag_limit_ms(budget_ms))),
        batch_size_mean=(
            counted.inference_count / counted.execution_count
            if counted is not None and counted.execution_count
            else None
        ),
        executions=_executions(counted),
        slowness=slowness_of(log),
        resources=resources,
        validity=_validity(run, budget_ms, lag_ms, resources),
        aborted=run.aborted,
        growing=growing,
        seed=seed,
        started_at=run.started_at,
    )


def _with_energy(resources: ResourceUse, log: RequestLog) -> ResourceUse:
    """With the energy of an inference; those of the warm-up and the lead-in took theirs too."""
    answered = int(log.batch_size[log.status == STATUS_OK].sum())
    if resources.energy_joules is None or not answered:
        return resources
    per_inference = resources.energy_joules / answered
    return replace(resources, energy_joules_per_inference=per_inference)


def set_warmup_apart(log: RequestLog, warmup: int) -> RequestLog:
    """Returns the log with its number of warm-up requests, for the store."""
    return replace(log, warmup=warmup)


def statistics_between(
    before: ServerStatistics | None, after: ServerStatistics | None
) -> ServerStatistics | None:
    """Returns what was counted from ``before`` to ``after``; None if either is not known.

    None as well where a counter fell: the model was loaded anew meanwhile, or another replica told.
    """
    if before is None or after is None:
        return None
    counts = {
        field.name: getattr(after, field.name) - getattr(before, field.name)
        for field in fields(ServerStatistics)
        if not field.name.startswith("batches")
    }
    batches = _between(before.batches, after.batches)
    batches_ns = _between(before.batches_ns, after.batches_ns)
    by_size = (number for _, number in (*batches, *batches_ns))
    if any(number < 0 for number in (*counts.values(), *by_size)):
        return None
    return ServerStatistics(**counts, batches=batches, batches_ns=batches_ns)


def _between(
    before: tuple[tuple[int, int], ...], after: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    """By batch size, without those that did not change."""
    earlier, later = dict(before), dict(after)
    sizes = sorted(earlier.keys() | later.keys())
    grown = ((size, later.get(size, 0) - earlier.get(size, 0)) for size in sizes)
    return tuple(pair for pair in grown if pair[1])


def _executions(counted: ServerStatistics | None) -> tuple[ExecutionTimes, ...]:
    """Mean execution times by batch size; empty where the server does not tell."""
    if counted is None:
        return ()
    counts = dict(counted.batches)
    return tuple(
        ExecutionTimes(batch_size=size, count=counts[size], mean_ms=ns / counts[size] / 1e6)
        for size, ns in counted.batches_ns
        if counts.get(size)
    )


def _duration_s(log: RequestLog, skip: int, run: LoadRun) -> float:
    """From the first counted send to the last counted reply, or to the end of sending if later.

    What nothing came back for was waited for longer: that time says nothing of the server's rate.
    """
    if len(log) == skip:
        return max(run.wall_s, 1e-9)
    done_s = log.intended_s[skip:] + log.latency_s[skip:]
    last_s = float(np.max(done_s, where=np.isfinite(done_s), initial=run.sending_s))
    return max(last_s - float(log.intended_s[skip]), 1e-9)


def _breakdown(log: RequestLog, skip: int, counted: ServerStatistics | None) -> Breakdown:
    """Mean stages of the requests that were answered.

    Where replies do not tell them, as a Triton's do not, they are those of its counters, which
    count the whole run; the overhead is of the same requests.
    """
    answered = log.status == STATUS_OK
    answered[:skip] = False
    stages: list[float | None] = []
    for column in (log.queue_s, log.compute_input_s, log.compute_infer_s, log.compute_output_s):
        values = column[answered]
        values = values[~np.isnan(values)]
        stages.append(float(values.mean(dtype=np.float64)) * 1e3 if len(values) else None)
    if counted is not None and counted.success_count and stages == [None] * 4:
        answered = log.status == STATUS_OK
        totals_ns = (
            counted.queue_ns,
            counted.compute_input_ns,
            counted.compute_infer_ns,
            counted.compute_output_ns,
        )
        stages = [total_ns / counted.success_count / 1e6 for total_ns in totals_ns]
    told = [stage for stage in stages if stage is not None]
    overhead = None
    if answered.any() and len(told) == len(stages):
        mean_ms = float(log.latency_s[answered].mean(dtype=np.float64)) * 1e3
        overhead = max(mean_ms - sum(told), 0.0)
    return Breakdown(
        queue=stages[0],
        compute_input=stages[1],
        compute_infer=stages[2],
        compute_output=stages[3],
        overhead=overhead,
    )


def _validity(
    run: LoadRun, budget_ms: float | None, lag_ms: float | None, resources: ResourceUse
) -> Validity:
    """Judges the whole run, warm-up included: Little's law knows no warm-up.

    The rate sent is held against the rate of this very schedule. The nominal rate would blame the
    generator for the chance that is in a schedule, of which bursty arrivals have a lot.
    """
    log = run.log
    sent_s = log.intended_s + log.send_lag_s
    window_s = run.wall_s - float(log.intended_s[0]) if len(log) else 0.0
    return judge(
        send_lag_ms_p99=lag_ms,
        budget_ms=budget_ms,
        offered_rps=_rate_rps(log.intended_s),
        achieved_offered_rps=_rate_rps(sent_s[np.isfinite(sent_s)]),
        in_flight_mean=run.in_flight_mean if run.in_flight_s_mean is not None else None,
        throughput_rps=len(log) / window_s if window_s > 0 else 0.0,
        latency_s_mean=run.in_flight_s_mean,
        closed_loop=run.concurrency is not None,
        requests=len(log),
        throttled=resources.gpu_throttled,
        clock_limits=resources.gpu_clock_limits,
    )


def _rate_rps(times_s: NDArray[np.float64]) -> float:
    """Events per second from the first to the last; 0 with fewer than two."""
    span_s = float(times_s[-1] - times_s[0]) if len(times_s) > 1 else 0.0
    return (len(times_s) - 1) / span_s if span_s > 0 else 0.0
