"""What must hold of a service while its parts fail, and once a round is over."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Row, func, select

from analyzer.errors import StoreError
from analyzer.service import jobs, states
from analyzer.service.database import open_service_database
from analyzer.service.schema import DEVICES, JOBS, TRIALS, WORKERS, DatabaseTime
from analyzer.store.database import Database
from analyzer.store.results import open_store
from benchlib.service_site import Site
from benchlib.service_users import TERMINAL, Client, Follower, User

_LOOK_S, _SCAN_S = 0.5, 0.1
# A process that was killed is gone, and a folder removed, within this time.
_SETTLE_S = 15.0
_THERE = re.compile(r"Note: (\d+) were there")


class Watcher(threading.Thread):
    """Looks at the processes and at the stored trials all the time.

    What must not be is in ``findings``.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._ending = threading.Event()
        #: The most trials that were ever stored, by the job's number.
        self.trials: dict[int, int] = {}
        self.findings: list[str] = []
        #: How often commands and database were looked at.
        self.looks = [0, 0]

    def run(self) -> None:
        """Looks until :meth:`end`."""
        database: Database | None = None
        looked = 0.0
        while not self._ending.wait(_SCAN_S):
            self._scan()
            if time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                with contextlib.suppress(StoreError):
                    if database is None:
                        database = open_service_database(self._site.url, upgrade=False)
                    self._look(database)
        if database is not None:
            database.close()

    def end(self) -> None:
        """Ends it, and waits."""
        self._ending.set()
        self.join(60)

    def _scan(self) -> None:
        self.looks[0] += 1
        for study, pids in self._site.commands().items():
            if len(pids) > 1:
                time.sleep(0.05)  # one may have ended while the other processes were looked at
                pids = self._site.commands().get(study, [])
            if len(pids) > 1:
                parents = [_ancestry(pid) for pid in pids]
                self.findings.append(f"{study} runs twice: {parents}")

    def _look(self, database: Database) -> None:
        with database.reading() as connection:
            counts = connection.execute(
                select(TRIALS.c.job, func.count()).group_by(TRIALS.c.job)
            ).all()
            devices = connection.execute(
                select(DEVICES.c.id, func.count())
                .join(WORKERS, WORKERS.c.device == DEVICES.c.id)
                .join(JOBS, JOBS.c.worker == WORKERS.c.id)
                .where(JOBS.c.lease_until > DatabaseTime())
                .group_by(DEVICES.c.id)
            ).all()
        self.looks[1] += 1
        for device, held in devices:
            if held > 1:
                self.findings.append(f"{held} jobs are measured on {device} at once")
        now: dict[int, int] = {row[0]: row[1] for row in counts}
        for job, most in self.trials.items():
            if now.get(job, 0) < most:
                self.findings.append(f"job {job} had {most} trials, and has {now.get(job, 0)}")
        self.trials |= now


def _ancestry(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return " < ".join(str(one.pid) for one in [process, *process.parents()][:4])
    return str(pid)


def wait_for_ends(client: Client, ids: list[str], timeout_s: float) -> list[str]:
    """Waits until every job has ended; those that have not, as text."""
    ends_at = time.monotonic() + timeout_s
    waiting = list(ids)
    while waiting and time.monotonic() < ends_at:
        waiting = [
            job
            for job in waiting
            if client.ask("GET", f"/api/v1/jobs/{job}").json()["state"] not in TERMINAL
        ]
        time.sleep(0.3)
    return [f"{job} has not ended" for job in waiting]


def check_jobs(
    site: Site, users: list[User], watcher: Watcher, *, disk_was_full: bool
) -> Iterator[str]:
    """What is wrong with the round's jobs, which have ended."""
    client = Client(site.ports)
    database = open_service_database(site.url, upgrade=False)
    try:
        for user in users:
            with database.reading() as connection:
                row = connection.execute(select(JOBS).where(JOBS.c.id == user.job)).one_or_none()
                if row is None:
                    yield f"the job {user.job} is lost"
                    continue
                trials = jobs.trials_of(connection, row.number)
                events = jobs.events_after(connection, row.number, 0, limit=100_000)
            for finding in (
                *_check_state(row, user, disk_was_full=disk_was_full),
                *_check_events(row, list(events)),
                *_check_trials(row, user, trials, watcher),
                *(_check_files(client, row, len(trials)) if row.state == "SUCCEEDED" else ()),
            ):
                yield f"job {row.number} ({row.id[:8]}, {row.state}): {finding}"
    finally:
        database.close()


def _check_state(row: Row[Any], user: User, *, disk_was_full: bool) -> Iterator[str]:
    if row.state == "CANCELLED" and user.wish != "cancel":
        yield "nobody has cancelled it"
    if row.state == "FAILED" and not disk_was_full:
        lost = row.reason == "lost" and row.losses > states.LOSSES_MAX
        if not lost:
            yield f"failed: {row.reason}: {row.message} [{(row.log_tail or '')[-600:]}]"
    if row.worker is not None or row.lease_until is not None:
        yield f"is still held by {row.worker}"


def _check_events(row: Row[Any], events: list[Row[Any]]) -> Iterator[str]:
    if [event.number for event in events] != list(range(1, row.events + 1)):
        yield "its events have gaps"
    states_ = [(event, json.loads(event.body)) for event in events if event.kind == "state"]
    ends = [event.number for event, body in states_ if body["state"] in TERMINAL]
    if len(ends) != 1 or ends[0] != events[-1].number:
        yield f"it ended at the events {ends} of {len(events)}"
    claims = [body["attempt"] for _, body in states_ if body["state"] == "RUNNING"]
    if len(claims) != len(set(claims)):
        yield f"it was claimed twice in one attempt: {claims}"
    # What an attempt found there, against what was stored before it began.
    started: set[int] = set()
    for event in events:
        there = _THERE.search(json.loads(event.body)["text"]) if event.kind == "log" else None
        if there and event.attempt not in started:
            started.add(event.attempt)
            stored = sum(
                other.kind == "trial" and other.attempt < event.attempt for other in events
            )
            if int(there[1]) < stored:
                yield f"attempt {event.attempt} began at {there[1]} of {stored} stored outcomes"


def _check_trials(
    row: Row[Any], user: User, trials: list[dict[str, Any]], watcher: Watcher
) -> Iterator[str]:
    numbers = [trial["trial_number"] for trial in trials]
    if numbers != list(range(len(numbers))):
        yield f"its trials are {numbers}"
    if row.state == "SUCCEEDED" and len(numbers) != user.script["outcomes"]:
        yield f"it has {len(numbers)} of {user.script['outcomes']} trials"
    if len(numbers) < watcher.trials.get(row.number, 0):
        yield f"it had {watcher.trials[row.number]} trials, and has {len(numbers)}"


def _check_files(client: Client, row: Row[Any], trials: int) -> Iterator[str]:
    path = f"/api/v1/jobs/{row.id}"
    result = client.ask("GET", f"{path}/result")
    if result.status_code != 200 or "verdict" not in result.json():
        yield f"its result is {result.status_code} {result.text[:200]}"
    for name in ("report.html", "repository.tar", "manifest.json"):
        if client.ask("GET", f"{path}/artifacts/{name}").status_code != 200:
            yield f"its {name} is not there"
    study = client.ask("GET", f"{path}/artifacts/study.db")
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "study.db"
        own.write_bytes(study.content)
        try:
            with open_store(f"sqlite:///{own}", create=False) as store:
                there = len(store.outcomes(row.study))
        except StoreError as error:
            yield f"its study.db: {error.message}"
            return
    if there != trials:
        yield f"its study.db holds {there} of {trials} outcomes"


def check_site(site: Site, known: set[str], incoming_max: int) -> Iterator[str]:
    """What is wrong with the site while no job runs.

    Args:
        known: Ids of all jobs that users were told of.
        incoming_max: Half-written uploads that killed APIs may have left.
    """
    ends_at = time.monotonic() + _SETTLE_S
    while (strays := site.strays()) and time.monotonic() < ends_at:
        time.sleep(0.2)
    yield from (f"orphan process: {stray}" for stray in strays)
    while (folders := site.left_folders()) and time.monotonic() < ends_at:
        time.sleep(0.2)
    if folders:
        yield f"{folders} folders of jobs are left"
    half = sum(1 for _ in (site.data / "incoming").iterdir())
    if half > incoming_max:
        yield f"{half} half-written uploads are left, {incoming_max} expected"
    database = open_service_database(site.url, upgrade=False)
    try:
        with database.reading() as connection:
            ids = set(connection.execute(select(JOBS.c.id)).scalars())
            held = connection.execute(select(DEVICES).where(DEVICES.c.job.is_not(None))).all()
            ended = [str(state) for state in states.TERMINAL]
            open_ = connection.execute(
                select(func.count()).where(JOBS.c.state.not_in(ended))
            ).scalar_one()
    finally:
        database.close()
    if ids - known:
        yield f"{len(ids - known)} jobs were made twice, or nobody was told of them"
    if known - ids:
        yield f"{len(known - ids)} jobs are lost"
    if held:
        yield f"{len(held)} devices are still held"
    if open_:
        yield f"{open_} jobs have not ended"
    if dead := site.start_dead():
        yield f"ended by themselves: {', '.join(dead)}"


def check_follower(follower: Follower) -> Iterator[str]:
    """What is wrong with the events as a watcher has seen them."""
    follower.join(30)
    if not follower.ended:
        yield "a watcher's stream did not end"
    if follower.seen != list(range(1, len(follower.seen) + 1)):
        yield f"a watcher has seen the events {follower.seen}"
