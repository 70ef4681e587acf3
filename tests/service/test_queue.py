"""Claims, leases and the fence, on SQLite and a real PostgreSQL."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from analyzer.errors import StoreError
from analyzer.service import auth, jobs
from analyzer.service.content import ContentStore
from analyzer.service.database import open_service_database
from analyzer.service.limits import ServiceLimits
from analyzer.service.queue import _FORGET_S, Claim, Device, LeaseLostError, Queue, sweep
from analyzer.service.sandbox import Isolation
from analyzer.service.schema import (
    DEVICES,
    JOBS,
    TRIALS,
    WORKER_ID_MAX,
    WORKERS,
    DatabaseTime,
)
from analyzer.service.states import Change
from analyzer.service.worker import Worker
from analyzer.store.database import Database

MakeJob = Callable[..., str]


def queued(database: Database, device: str = "auto") -> str:
    """A new job; its id."""
    with database.writing() as connection:
        auth.ensure_project(connection, auth.DEFAULT_PROJECT)
        row = jobs.create_job(
            connection, project=auth.DEFAULT_PROJECT, actor="test", kind="search",
            model="0" * 64, model_name="m", options={}, study=None, source_job=None,
            device=device,
        )  # fmt: skip
    return str(row.id)


@pytest.fixture
def make_job(database: Database) -> MakeJob:
    return partial(queued, database)


def a_queue(database: Database, name: str, kind: str = "cpu", lease_s: float = 30.0) -> Queue:
    """The queue of a worker with a device of its own."""
    queue = Queue(
        database, name, Device(id=f"{name}/{kind}", kind=kind, host="here", name=kind),
        lease_s=lease_s,
    )  # fmt: skip
    queue.enrol(pid=1, version="0", isolation={})
    return queue


def row_of(database: Database, job: str) -> Any:
    with database.reading() as connection:
        return jobs.get_job(connection, auth.DEFAULT_PROJECT, job)


def run_out(database: Database, claim: Claim, *, left_s: float = -1.0) -> None:
    """Lets the lease of a claim end now, or in so many seconds."""
    with database.writing() as connection:
        for table, which in ((JOBS, JOBS.c.number), (DEVICES, DEVICES.c.job)):
            connection.execute(
                update(table)
                .where(which == claim.number)
                .values(lease_until=DatabaseTime() + left_s)
            )


def test_many_workers_at_once_share_the_jobs_and_none_is_done_twice(
    database: Database, make_job: MakeJob
) -> None:
    made = [make_job() for _ in range(12)]
    queues = [a_queue(database, f"w{number}") for number in range(6)]
    taken: list[str] = []
    start = threading.Barrier(len(queues))

    def work(queue: Queue) -> None:
        start.wait()
        while len(taken) < len(made):
            if (claim := queue.claim()) is None:
                continue
            taken.append(claim.id)
            with queue.writing(claim) as connection:
                queue.finish(connection, claim, Change.SUCCEED, {"verdict": "found"})

    threads = [threading.Thread(target=work, args=(queue,), daemon=True) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(taken) == sorted(made)


def test_jobs_are_taken_in_the_order_in_which_they_came(
    database: Database, make_job: MakeJob
) -> None:
    made = [make_job() for _ in range(3)]
    claims = [a_queue(database, f"w{number}").claim() for number in range(3)]
    assert [claim.id for claim in claims if claim] == made


def test_a_device_measures_for_one_job_at_a_time(database: Database, make_job: MakeJob) -> None:
    make_job(), make_job()
    device = Device(id="shared/cpu", kind="cpu", host="here", name="a CPU")
    one, other = (Queue(database, name, device, lease_s=30) for name in ("one", "other"))
    for queue in (one, other):
        queue.enrol(pid=1, version="0", isolation={})
    claim = one.claim()
    assert claim is not None and other.claim() is None
    with one.writing(claim) as connection:
        one.finish(connection, claim, Change.FAIL, {})
    assert other.claim() is not None


def test_a_job_waits_for_its_kind_of_device(database: Database, make_job: MakeJob) -> None:
    job = make_job(device="gpu")
    assert a_queue(database, "small").claim() is None
    claim = a_queue(database, "large", kind="gpu").claim()
    assert claim is not None and claim.id == job


def test_a_lost_lease_queues_the_job_again_and_shuts_its_worker_out(
    database: Database, make_job: MakeJob
) -> None:
    job = make_job()
    slow, fresh = a_queue(database, "slow"), a_queue(database, "fresh")
    late = slow.claim()
    assert late is not None
    assert sweep(database) == 0, "the lease is good"
    run_out(database, late)
    assert sweep(database) == 1
    assert (row_of(database, job).state, row_of(database, job).attempt) == ("QUEUED", 2)
    claim = fresh.claim()
    assert claim is not None and claim.attempt == 2
    events = row_of(database, job).events
    # Awake again, it can write nothing.
    for write in (
        lambda: slow.beat(late),
        lambda: slow.state(late),
        lambda: slow.say(late, [("log", {"text": "I measured this"})]),
        lambda: slow.writing(late).__enter__(),
    ):
        with pytest.raises(LeaseLostError):
            write()
    row = row_of(database, job)
    assert (row.worker, row.state, row.events) == ("fresh", "RUNNING", events)
    with fresh.writing(claim) as connection:
        fresh.finish(connection, claim, Change.SUCCEED, {"verdict": "found"})
    assert row_of(database, job).state == "SUCCEEDED"


def test_a_beat_keeps_the_lease(database: Database, make_job: MakeJob) -> None:
    make_job()
    queue = a_queue(database, "w")
    claim = queue.claim()
    assert claim is not None
    run_out(database, claim, left_s=5.0)
    assert queue.beat(claim) <= time.monotonic() + 30.0
    assert sweep(database) == 0
    with database.reading() as connection:
        left = connection.execute(select(DEVICES.c.lease_until - DatabaseTime())).scalar_one()
    assert 20 < left <= 30


def test_a_lease_that_ran_out_is_not_taken_up_again_though_nobody_has_swept(
    database: Database, make_job: MakeJob
) -> None:
    jobs_ = [make_job(), make_job()]
    device = Device(id="here/cpu", kind="cpu", host="here", name="a CPU")
    slow, fresh = (Queue(database, name, device, lease_s=30.0) for name in ("slow", "fresh"))
    slow.enrol(pid=1, version="0", isolation={})
    fresh.enrol(pid=2, version="0", isolation={})
    late = slow.claim()
    assert late is not None
    run_out(database, late)
    claim = fresh.claim()
    assert claim is not None, "the device is free again"
    for write in (
        lambda: slow.beat(late),
        lambda: slow.say(late, [("log", {"text": "I measured this"})]),
        lambda: slow.writing(late).__enter__(),
    ):
        with pytest.raises(LeaseLostError):
            write()
    assert sweep(database) == 1
    states_ = [row_of(database, job).state for job in jobs_]
    assert sorted(states_) == ["QUEUED", "RUNNING"], "one measures on a device at a time"


def test_a_queued_job_is_never_swept(database: Database, make_job: MakeJob) -> None:
    job = make_job()
    with database.writing() as connection:
        # What no code of ours writes: even so.
        connection.execute(update(JOBS).values(lease_until=DatabaseTime() - 1e6))
    assert sweep(database) == 0
    assert row_of(database, job).attempt == 1


def test_a_job_that_ends_its_worker_each_time_fails_and_says_so(
    database: Database, make_job: MakeJob
) -> None:
    job = make_job()
    for number in range(3):
        queue = a_queue(database, f"w{number}")
        claim = queue.claim()
        assert claim is not None
        queue.say(claim, [("log", {"text": f"attempt {number}\n"})])
        with queue.writing(claim) as connection:
            for state in ("failed", "measured"):
                trial = {"state": state, "message": f"attempt {number}"}
                values = {"job": claim.number, "body": json.dumps(trial)}
                number_of = 2 * number + (state == "measured")
                connection.execute(insert(TRIALS).values(**values, number=number_of))
        run_out(database, claim)
        sweep(database)
    row = row_of(database, job)
    assert (row.state, row.reason) == ("FAILED", "lost")
    assert "3 times" in row.message
    # What its workers could tell no more.
    assert row.log_tail == "attempt 0\nattempt 1\nattempt 2\n"
    assert json.loads(row.failing_trial) == {"state": "failed", "message": "attempt 2"}


def test_a_cancelled_job_whose_worker_is_gone_ends(database: Database, make_job: MakeJob) -> None:
    job = make_job()
    claim = a_queue(database, "w").claim()
    assert claim is not None
    with database.writing() as connection:
        jobs.ask(connection, auth.DEFAULT_PROJECT, job, Change.CANCEL, actor="test")
    run_out(database, claim)
    sweep(database)
    assert row_of(database, job).state == "CANCELLED"


def test_events_are_numbered_without_gaps_whoever_writes(
    database: Database, make_job: MakeJob
) -> None:
    job = make_job()
    queue = a_queue(database, "w")
    claim = queue.claim()
    assert claim is not None

    def say(name: int) -> None:
        for number in range(10):
            queue.say(claim, [("log", {"text": f"{name}.{number}"}), ("detail", {"detail": "x"})])

    threads = [threading.Thread(target=say, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    row = row_of(database, job)
    with database.reading() as connection:
        found = [event.number for event in jobs.events_after(connection, row.number, 0)]
    assert found == list(range(1, row.events + 1)) and row.events == 2 + 80


def test_a_worker_that_slept_for_longer_than_it_is_listed_is_listed_again(
    database: Database,
) -> None:
    """It went on measuring, and was seen by nobody: a beat changed a row that was gone."""
    queue = a_queue(database, "w")

    def listed() -> Any:
        with database.reading() as connection:
            return connection.execute(select(WORKERS)).one_or_none()

    before = listed()
    with database.writing() as connection:
        connection.execute(update(WORKERS).values(lease_until=DatabaseTime() - 2 * _FORGET_S))
    sweep(database)
    assert listed() is None
    queue.beat()
    after = listed()
    assert after[:-2] == before[:-2], "it is the same, and began when it did"
    assert after.seen_at >= before.seen_at and after.lease_until >= before.lease_until


def test_a_worker_of_a_host_with_a_long_name_can_be_enrolled(
    database: Database, content: ContentStore, isolation_here: Isolation
) -> None:
    """PostgreSQL refused its id: a name of Linux may have 64 characters, and as many has the id."""
    device = Device(id="boot/cpu", kind="cpu", host="h" * 64, name="a CPU")
    one, other = (
        Worker(
            database, content, device, ServiceLimits(), stopping=lambda: True,
            isolation=isolation_here,
        )
        for _ in range(2)
    )  # fmt: skip
    one.run()
    assert max(len(worker.id) for worker in (one, other)) <= WORKER_ID_MAX
    assert one.id != other.id and one.id.startswith("h" * 40)


@pytest.mark.postgres
def test_rows_that_a_stopped_worker_holds_are_free_when_its_lease_has_ended(
    postgres_url: str,
) -> None:
    with (
        open_service_database(postgres_url) as database,
        open_service_database(postgres_url, idle_s=1.0) as its_own,
    ):
        job = queued(database)
        gone = a_queue(its_own, "gone", lease_s=1.0)
        claim = gone.claim()
        assert claim is not None and claim.id == job
        with pytest.raises(StoreError), gone.writing(claim) as connection:
            # To the server a process that was stopped here looks just like this.
            ends_at = time.monotonic() + 10
            while not sweep(database):
                assert time.monotonic() < ends_at, "nobody gets at its job"
                time.sleep(0.1)
            connection.execute(update(JOBS).values(phase="written by nobody"))
        row = row_of(database, job)
        assert (row.state, row.attempt, row.phase) == ("QUEUED", 2, "waiting for a worker")
        with pytest.raises(LeaseLostError), gone.writing(claim):
            raise AssertionError("it writes about a job that it has lost")
