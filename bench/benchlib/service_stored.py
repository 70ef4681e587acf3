"""A service's database with many jobs in it, and jobs that run and say something all the time."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
import uuid
from typing import Any

from sqlalchemy import insert, text

from analyzer.service.jobs import create_job
from analyzer.service.queue import Claim, Device, Queue
from analyzer.service.schema import EVENTS, JOBS, OBJECTS, UPLOADS
from analyzer.store.database import Database

_AT_A_TIME = 1000
_STATES = ("SUCCEEDED",) * 17 + ("FAILED", "FAILED", "CANCELLED")
_EVENTS = 4  # of each stored job; a real one has hundreds, which no list reads
_TAIL = "[ 12.3s] certifying (about 20 s)\n" * 60  # as long as the end of a real log


def store_jobs(database: Database, count: int, seed: int = 1) -> None:
    """Adds so many jobs that have ended, as large as real ones."""
    rng = random.Random(seed)
    now = time.time()
    model = hashlib.sha256(b"any").hexdigest()
    with database.writing() as connection:
        connection.execute(insert(OBJECTS).values(sha256=model, size_bytes=1, created_at=now))
        connection.execute(
            insert(UPLOADS).values(
                project="default", kind="model", sha256=model, name="digits", size_bytes=1,
                details="{}", created_at=now, created_by="bench",
            )
        )  # fmt: skip
    for first in range(0, count, _AT_A_TIME):
        numbers = range(first + 1, min(first + _AT_A_TIME, count) + 1)
        with database.writing() as connection:
            connection.execute(insert(JOBS), [_job(number, model, now, rng) for number in numbers])
            connection.execute(
                insert(EVENTS),
                [
                    {
                        "job": number, "number": event, "attempt": 1, "kind": "state",
                        "body": '{"state": "RUNNING"}', "at": now,
                    }
                    for number in numbers
                    for event in range(1, _EVENTS + 1)
                ],
            )  # fmt: skip
    with database.writing() as connection:
        if not database.sqlite:
            connection.execute(
                text("SELECT setval(pg_get_serial_sequence('service_jobs', 'number'), :n)"),
                {"n": count},
            )
            # As its autovacuum does within a minute: without statistics the first plans are poor.
            connection.execute(text("ANALYZE"))


def _job(number: int, model: str, now: float, rng: random.Random) -> dict[str, Any]:
    own = uuid.UUID(int=rng.getrandbits(128)).hex
    state = rng.choice(_STATES)
    at = now - 60.0 * (200_000 - number)
    return {
        "number": number, "id": own, "project": "default", "kind": "search", "model": model,
        "model_name": rng.choice(("digits", "resnet50", "encoder", "whisper")),
        "options": json.dumps({"latency_budget": "50ms", "budget": "60s", "seed": number}),
        "study": f"digits-{own[:8]}", "device": "auto", "state": state, "attempt": 1, "losses": 0,
        "phase": state.lower(), "log_tail": _TAIL, "events": _EVENTS, "log_bytes": len(_TAIL),
        "reason": "model" if state == "FAILED" else None,
        "message": "It is no ONNX file." if state == "FAILED" else None,
        "verdict": "found" if state == "SUCCEEDED" else None, "exit_code": 0,
        "created_at": at, "created_by": "ci", "started_at": at + 1, "finished_at": at + 70,
    }  # fmt: skip


class RunningJobs(threading.Thread):
    """Jobs that run, each with a worker, and tell a phase and a detail every moment.

    Args:
        every_s: Between two writes of one job: a real run writes every half a second at most.
    """

    def __init__(self, database: Database, count: int, *, every_s: float) -> None:
        super().__init__(daemon=True)
        self._every_s = every_s
        self._ending = threading.Event()
        self._held: list[tuple[Queue, Claim]] = []
        for number in range(count):
            with database.writing() as connection:
                create_job(
                    connection, project="default", actor="bench", kind="search",
                    model=hashlib.sha256(b"any").hexdigest(), model_name="digits",
                    options={"latency_budget": "50ms"}, study=None, source_job=None, device="auto",
                )  # fmt: skip
            device = Device(id=f"load/{number}", kind="cpu", host="load", name="a CPU")
            queue = Queue(database, f"load-{uuid.uuid4().hex[:12]}", device, lease_s=3600.0)
            queue.enrol(pid=1, version="0", isolation={})
            claim = queue.claim()
            assert claim is not None
            self._held.append((queue, claim))
        #: Events written.
        self.events = 0

    @property
    def ids(self) -> list[str]:
        """Of the jobs."""
        return [claim.id for _, claim in self._held]

    def run(self) -> None:
        """Writes until :meth:`end`."""
        pause_s = self._every_s / len(self._held)
        turn = 0
        while not self._ending.wait(pause_s):
            queue, claim = self._held[turn % len(self._held)]
            turn += 1
            queue.say(
                claim,
                [
                    ("log", {"text": f"[ {turn}.0s] measuring (about 9 s)\n"}),
                    ("phase", {"phase": f"measuring {turn}", "expected_s": 9.0}),
                ],
            )
            self.events += 2

    def end(self) -> None:
        """Ends it, and waits."""
        self._ending.set()
        self.join(60)
