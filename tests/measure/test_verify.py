"""A claim measured again: over a restart, and a PASS only after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import Certificate, Measurement
from analyzer.engine.policy import BatchingPolicy
from analyzer.hardware.gpus import GpuIdentity
from analyzer.measure import verify
from analyzer.measure.plan import LoadPlan
from analyzer.measure.virtual_session import VirtualSession
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime

CONFIGURATION = Configuration(max_batch_size=8, dynamic_batching=True)


class Machine:
    """Counts the starts; the server of start ``slow_from`` and later is slower."""

    def __init__(
        self,
        policy: BatchingPolicy,
        service: ServiceTime,
        slower: ServiceTime,
        slow_from: int,
    ) -> None:
        self.policy, self.service, self.slower = policy, service, slower
        self.expected = service
        self.slow_from = slow_from
        self.starts = 0
        self.running = 0
        self.seeds: list[int] = []
        self.watched: list[tuple[object, int | None]] = []
        self.told: list[tuple[int, str]] = []
        self.beyond: list[float] = []
        self.sessions: list[VirtualSession] = []

    @contextmanager
    def open(self) -> Iterator[Any]:
        self.starts += 1
        self.running += 1
        assert self.running == 1, "the first server must be gone before the second starts"
        yield self
        self.running -= 1

    def session(
        self, target: Any, load: LoadPlan, *, gpu: object, gpu_base_bytes: int | None
    ) -> VirtualSession:
        self.watched.append((gpu, gpu_base_bytes))
        self.seeds.append(load.seed)
        slow = self.starts > self.slow_from
        service = self.slower if slow else self.service
        self.sessions.append(VirtualSession(ServerModel(policy=self.policy, service=service), load))
        return self.sessions[-1]

    def clock(self) -> float:
        """A start takes two seconds."""
        return 2.0 * self.starts + sum(session.seconds for session in self.sessions)

    def on_block(self, test: LoadTest, certificate: Certificate) -> None:
        self.told.append((self.starts, certificate.verdict))

    def verify(
        self, load: LoadPlan, rate_rps: float, seconds: float, gpu: GpuIdentity | None = None
    ) -> Measurement:
        plan = verify.VerifyPlan(
            load=load,
            rate_rps=rate_rps,
            seconds=seconds,
            twin=ServerModel(policy=self.policy, service=self.expected, overhead_ms=0.0),
            gpu=gpu,
        )
        return verify.verify_claim(
            CONFIGURATION,
            plan,
            self.open,
            on_block=self.on_block,
            on_beyond=self.beyond.append,
            clock=self.clock,
        )


@pytest.fixture
def make(policy: BatchingPolicy, service: ServiceTime, monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(slow_from: int = 99, factor: float = 5.0) -> Machine:
        slower = ServiceTime(
            batch_sizes=service.batch_sizes,
            service_ms=tuple(factor * ms for ms in service.service_ms),
        )
        machine = Machine(policy, service, slower, slow_from)
        monkeypatch.setattr(verify, "LiveSession", machine.session)
        return machine

    return made


def test_a_true_claim_holds_after_a_restart(make: Any, load: LoadPlan) -> None:
    machine = make()
    found = machine.verify(load, 200.0, 120.0)
    assert found.certificate is not None and found.certificate.verdict == "PASS"
    assert found.capacity_rps == 200.0
    assert machine.starts == 2
    assert len(set(machine.seeds)) == 2, "each start draws its own arrivals"
    assert {start for start, _ in machine.told} == {1, 2}
    assert found.headline is not None
    assert found.headline.requests == found.certificate.requests
    assert found.certificate.requests == sum(test.requests for test in found.load_tests)


def test_it_ends_once_both_starts_have_sent_as_much(make: Any, load: LoadPlan) -> None:
    """The first start took half of the time, however soon the claim was certain."""
    machine = make()
    found = machine.verify(load, 400.0, 240.0)
    assert found.capacity_rps == 400.0
    seeds = [test.seed for test in found.load_tests]
    before, after = (
        sum(test.requests for test in found.load_tests if test.seed == seed)
        for seed in sorted(set(seeds))
    )
    assert before <= after < 1.1 * before
    assert machine.clock() < 120.0


def test_the_gpu_is_watched_and_its_memory_read_before_each_start(
    make: Any, load: LoadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make()
    gpu = GpuIdentity(uuid="GPU-1")
    # What is in use while no server runs belongs to others.
    monkeypatch.setattr(
        verify, "gpu_used_bytes", lambda asked: asked is gpu and (1 + machine.starts) << 30
    )
    machine.verify(load, 200.0, 120.0, gpu)
    assert machine.watched == [(gpu, 1 << 30), (gpu, 2 << 30)]


def test_what_qualifies_either_start_is_told(
    make: Any, load: LoadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That requests failed before the restart was left out of the notes."""
    machine = make()
    monkeypatch.setattr(
        VirtualSession, "notes", property(lambda self: ("both", f"start {machine.starts}"))
    )
    assert machine.verify(load, 200.0, 120.0).notes == ("both", "start 1", "start 2")


def test_a_false_claim_is_refuted_before_any_restart(make: Any, load: LoadPlan) -> None:
    machine = make()
    found = machine.verify(load, 2000.0, 120.0)
    assert found.certificate is not None and found.certificate.verdict == "FAIL"
    assert found.capacity_rps is None
    assert machine.starts == 1


def test_a_server_that_is_slow_only_after_the_restart_is_not_let_through(
    make: Any, load: LoadPlan
) -> None:
    machine = make(slow_from=1)
    found = machine.verify(load, 200.0, 60.0)
    assert found.certificate is not None and found.certificate.verdict == "FAIL"
    assert machine.starts == 2


@pytest.mark.parametrize(("seconds", "rate_rps"), [(15.0, 20.0), (60.0, 5.0)])
def test_the_time_is_wall_time(make: Any, load: LoadPlan, seconds: float, rate_rps: float) -> None:
    """The servers' starts came on top: 15 s took 17 to 18.7."""
    machine = make()
    machine.verify(load, rate_rps, seconds)  # too few requests for a verdict
    assert seconds - 1.5 <= machine.clock() <= seconds + 1.0


def test_what_a_claim_lacks_is_spent_beyond_the_time_where_it_is_little(
    make: Any, load: LoadPlan
) -> None:
    """Of 303 claims 30 were undecided when their time ended, and two refuted."""
    machine = make()
    found = machine.verify(load, 19.0, 233.0)
    assert [verdict for _, verdict in machine.told[-2:]] == ["UNDECIDED", "PASS"]
    assert found.capacity_rps == 19.0
    assert len(machine.beyond) == 1 and machine.beyond[0] <= 60.0
    assert 233.0 < machine.clock() <= 233.0 + machine.beyond[0] + 1.0
    short = make()
    assert short.verify(load, 19.0, 100.0).capacity_rps is None
    assert not short.beyond, "it lacks as much again"


@pytest.mark.parametrize(
    ("lacks", "over", "void", "spent_s", "beyond_s"),
    [
        (100, 0, (), 60.0, 1.0),  # 0.11 s would be no run
        (10_000, 0, (), 60.0, 11.0),
        (10_000, 0, (), 68.0, None),  # the second start was late
        (20_000, 0, (), 60.0, None),
        (None, 0, (), 60.0, None),
        (10_000, 500, (), 60.0, None),  # missing to a FAIL
        (10_000, 0, ("a run was throttled",), 60.0, None),
    ],
)
def test_what_is_spent_beyond_the_time(
    load: LoadPlan,
    lacks: int | None,
    over: int,
    void: tuple[str, ...],
    spent_s: float,
    beyond_s: float | None,
) -> None:
    certificate = Certificate(
        verdict="UNDECIDED",
        requests=20_000,
        over_budget=over,
        effective_requests=200.0,
        confidence=0.95,
        mlperf="PASS",
        requests_missing=lacks,
        void_reasons=void,
    )
    plan = verify.VerifyPlan(load=load, rate_rps=1000.0, seconds=60.0)
    assert verify._beyond_s(plan, certificate, spent_s) == beyond_s


def test_too_little_time_is_undecided(make: Any, load: LoadPlan) -> None:
    machine = make()
    found = machine.verify(load, 20.0, 2.0)
    assert found.certificate is not None and found.certificate.verdict == "UNDECIDED"
    assert found.capacity_rps is None and machine.starts == 2


def test_a_twin_that_expects_the_claim_to_fail_is_no_witness(make: Any, load: LoadPlan) -> None:
    """Of another server, for one: 1 of 16,042 requests late, and an inflation of 1,332 from it."""
    machine = make(factor=4.0)
    machine.expected = machine.slower
    found = machine.verify(load, 200.0, 120.0)
    assert found.certificate is not None and found.certificate.verdict == "PASS"
    assert found.certificate.inflation_source != "twin"


def test_more_time_than_a_claim_takes_makes_no_run_longer(make: Any, load: LoadPlan) -> None:
    """Which decides no sooner. Of a slow model a run is as long as 300 requests take."""
    machine = make()
    found = machine.verify(load, 200.0, 3600.0)
    assert found.capacity_rps == 200.0
    assert max(test.duration_s for test in found.load_tests) == pytest.approx(20.0, abs=1.0)
    assert found.load_test_seconds < 90.0
    slow = make()
    slow.verify(load, 3.0, 3600.0)
    assert max(test.duration_s for test in slow.sessions[0].tests) == pytest.approx(100.0, abs=5.0)
