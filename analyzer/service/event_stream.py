"""Server-sent events: a job's events as they come, from wherever a client left off.

One thread of the process asks the database for all jobs that are watched, so that watchers cost
one query a moment together, and only a job with something new is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import Row, select

from analyzer.errors import StoreError
from analyzer.service import states
from analyzer.service.jobs import events_after
from analyzer.service.schema import JOBS
from analyzer.store.database import Database

_POLL_S = 0.3  # how late an event may be: live enough for people
# Of silence, after which a comment is sent: proxies cut what is silent for longer, mostly at 60.
_KEEP_ALIVE_S = 15.0


class EventHub:
    """Tells the watchers of jobs when there is something new.

    Args:
        streams_max: Watchers at a time.
    """

    def __init__(self, database: Database, streams_max: int) -> None:
        self._database = database
        self._streams_max = streams_max
        self._watched: dict[int, set[asyncio.Event]] = {}
        self._newest: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def streams(self) -> int:
        """How many watchers there are."""
        return sum(map(len, self._watched.values()))

    @property
    def full(self) -> bool:
        """Whether no further watcher is taken."""
        return self.streams >= self._streams_max

    async def follow(self, job: int, after: int) -> AsyncIterator[bytes]:
        """The job's events behind number ``after``, as ``text/event-stream``.

        Ends once the job's last event was sent.
        """
        news = asyncio.Event()
        self._watched.setdefault(job, set()).add(news)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield b"retry: 2000\n\n"
            while True:
                news.clear()
                found = await asyncio.to_thread(self._read, job, after)
                for row in found:
                    yield _frame(row)
                    after = row.number
                    if row.kind == "state" and _ends(row):
                        return
                if found:
                    continue
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), _KEEP_ALIVE_S)
                if not news.is_set():
                    yield b": still here\n\n"
        finally:
            watchers = self._watched[job]
            watchers.discard(news)
            if not watchers:
                del self._watched[job]
                self._newest.pop(job, None)

    def _read(self, job: int, after: int) -> list[Row[Any]]:
        with self._database.reading() as connection:
            return list(events_after(connection, job, after))

    async def _poll(self) -> None:
        while self._watched:
            await asyncio.sleep(_POLL_S)
            with contextlib.suppress(StoreError):
                for job, newest in await asyncio.to_thread(self._look, list(self._watched)):
                    if self._newest.get(job) != newest:
                        self._newest[job] = newest
                        for news in self._watched.get(job, ()):
                            news.set()

    def _look(self, jobs: list[int]) -> list[tuple[int, int]]:
        with self._database.reading() as connection:
            rows = connection.execute(
                select(JOBS.c.number, JOBS.c.events).where(JOBS.c.number.in_(jobs))
            )
            return [(row.number, row.events) for row in rows]


def _frame(row: Row[Any]) -> bytes:
    body = json.loads(row.body) | {"attempt": row.attempt, "at": row.at}
    return f"id: {row.number}\nevent: {row.kind}\ndata: {json.dumps(body)}\n\n".encode()


def _ends(row: Row[Any]) -> bool:
    return states.State(json.loads(row.body)["state"]) in states.TERMINAL
