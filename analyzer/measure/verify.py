"""Measures a claim again: fresh arrivals, a restart of the server, one certificate over all."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import LoadTest, RequestLog
from analyzer.domain.measurement import (
    Certificate,
    Edge,
    Measurement,
)
from analyzer.hardware.gpu_memory import telling_gpu_memory
from analyzer.hardware.gpus import GpuIdentity
from analyzer.hardware.sampler import gpu_used_bytes
from analyzer.measure.correlation import inflation_at, miss_rate_at
from analyzer.measure.judge import judge_runs, merge_tests
from analyzer.measure.live_session import LiveSession
from analyzer.measure.plan import STREAM_VERIFY, LoadPlan
from analyzer.measure.session import combine
from analyzer.measure.warm_up import warm_up
from analyzer.targets.target import Target
from analyzer.twin.server_model import ServerModel

# Starts of the server: one restart shows what a fresh start changes.
STARTS = 2
_BLOCK_S_MIN = 1.0  # a run: below that the start of the arrivals is most of it
# And above this, with so many requests, it decides later than it might (a choice).
_BLOCK_S_MAX, _BLOCK_REQUESTS = 20.0, 300
# What a verdict lacks is spent beyond the time where it is at most this part of it; the requests of
# further runs are expected to depend on each other as those so far, by and large.
_BEYOND_SHARE = 0.25
_BEYOND_CAUTION = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """What is measured again.

    Args:
        rate_rps: The claimed rate.
        seconds: Wall time at most, the servers' starts included, half of it before the restart; it
            ends earlier where the claim is decided, and a quarter later where a PASS lacks no more
            than that. Each start makes one run in any case.
        twin: For the requests' correlation, unless it expects the claim to fail; None where it is
            unknown.
        gpu: The GPU whose memory, power and clocks are sampled; None for none.
        hardware: What is measured, for people; empty where it is elsewhere.
    """

    load: LoadPlan
    rate_rps: float
    seconds: float
    twin: ServerModel | None = None
    gpu: GpuIdentity | None = None
    hardware: str = ""


def _expected_inflation(plan: VerifyPlan) -> float | None:
    """The twin's variance inflation at the claimed rate; None where it is no witness of it.

    A twin that expects the claim to fail is wrong about this server, or the runs will show it: then
    what they show of their own correlation counts, and its upper estimate.
    """
    late = miss_rate_at(plan.twin, plan.load)(plan.rate_rps)
    if late is None or late > plan.load.sla.miss_rate_max:
        return None
    return inflation_at(plan.twin, plan.load)(plan.rate_rps)


def _beyond_s(plan: VerifyPlan, certificate: Certificate, spent_s: float) -> float | None:
    """Seconds that what a PASS lacks takes; None where that is unknown, too much, or in vain."""
    missing = certificate.requests_missing
    late = certificate.is_late(plan.load.sla.miss_rate_max)
    if not missing or late or certificate.void_reasons:
        return None
    seconds = max(_BEYOND_CAUTION * missing / plan.rate_rps, _BLOCK_S_MIN)
    return seconds if spent_s + seconds <= (1.0 + _BEYOND_SHARE) * plan.seconds else None


def verify_claim(
    configuration: Configuration,
    plan: VerifyPlan,
    open_target: Callable[[], AbstractContextManager[Target]],
    *,
    on_block: Callable[[LoadTest, Certificate], None] = lambda test, certificate: None,
    on_beyond: Callable[[float], None] = lambda seconds: None,
    clock: Callable[[], float] = time.monotonic,
) -> Measurement:
    """The claim's measurement: its certificate rests on runs before and after a restart.

    A failure may be certain before the restart. A PASS is given only after it, once as many
    requests were sent as before it or the time has ended.

    Args:
        open_target: Starts the server anew each time.
        on_block: Told after each run.
        on_beyond: Told how many seconds are spent beyond ``plan.seconds``, before they are.
        clock: Seconds, monotonic.

    Raises:
        TargetError: The server failed.
    """
    sla, begun = plan.load.sla, clock()
    inflation = _expected_inflation(plan)
    tests: list[LoadTest] = []
    logs: list[RequestLog] = []
    seconds = 0.0
    notes: tuple[str, ...] = ()
    certificate: Certificate | None = None
    longest_s = max(_BLOCK_S_MAX, _BLOCK_REQUESTS / plan.rate_rps)
    block_s = max(min(plan.seconds / (4 * STARTS), longest_s), _BLOCK_S_MIN)
    sent = 0
    for start in range(STARTS):
        gpu_base = gpu_used_bytes(plan.gpu) if plan.gpu is not None else None
        with telling_gpu_memory(plan.gpu, gpu_base), open_target() as target:
            # Each start draws from its own stream of arrivals.
            load = replace(plan.load, seed=plan.load.seed + start)
            until = begun + plan.seconds * (start + 1) / STARTS
            with LiveSession(target, load, gpu=plan.gpu, gpu_base_bytes=gpu_base) as session:
                warm_up(session, configuration, load, saturating=True)
                first, sent_before, sent = len(tests), sent, 0
                while len(tests) == first or until - clock() > _BLOCK_S_MIN / 2:
                    length_s = max(min(block_s, until - clock()), _BLOCK_S_MIN)
                    test = session.run(
                        plan.rate_rps, length_s, kind="verify", stream=STREAM_VERIFY, abort=False
                    )
                    tests.append(test)
                    logs.append(session.logs[-1])
                    certificate = judge_runs(tests, logs, plan.load, inflation)
                    on_block(test, certificate)
                    sent += test.requests
                    last = start == STARTS - 1
                    passed = certificate.verdict == "PASS" and sent >= sent_before
                    if passed or certificate.verdict == "FAIL":
                        break
                    if not last or until - clock() > _BLOCK_S_MIN / 2:
                        continue
                    if beyond_s := _beyond_s(plan, certificate, clock() - begun):
                        on_beyond(beyond_s)
                        until, block_s = clock() + beyond_s, beyond_s
            seconds += session.seconds
        # Once it has ended: a model may still be loaded on a server elsewhere.
        notes = tuple(dict.fromkeys((*notes, *session.notes)))
        if certificate is not None and certificate.verdict == "FAIL":
            break
    assert certificate is not None and tests
    return Measurement(
        configuration=configuration.canonical(),
        edge=Edge(rate_rps=None, interval_rps=(None, None)),
        capacity_rps=plan.rate_rps if certificate.verdict == "PASS" else None,
        certificate=certificate,
        headline=merge_tests(tests, logs, percentile=sla.percentile),
        load_tests=tuple(tests),
        load_test_seconds=seconds,
        resources=combine([test.resources for test in tests]),
        hardware=plan.hardware,
        notes=notes,
    )
