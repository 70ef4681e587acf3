"""Server-sent events: a job's events as they come, from wherever a client left off; and that
something of a project has changed, for its pages.

One thread of the process asks the database for all that is watched, so that watchers cost one query
a moment together, and only a job with something new is read. Who may no longer watch is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, select

from analyzer.errors import StoreError
from analyzer.service import states
from analyzer.service.auth import LOCAL, Principal
from analyzer.service.jobs import events_after
from analyzer.service.schema import DEVICES, JOBS
from analyzer.service.sessions import still_good
from analyzer.store.database import Database

_POLL_S = 0.3  # how late an event may be: live enough for people
# Topics take turns within that time: what all watchers are sent at once makes other requests wait.
_TURNS = 10
# Of silence, after which a comment is sent: proxies cut what is silent for longer, mostly at 60.
_KEEP_ALIVE_S = 15.0
#: Jobs on a page of the list; changes of the first page's are told.
PAGE_JOBS = 50
_AT_A_TIME = 500  # events of one look
_RETRY, _SILENCE, _NEWS = b"retry: 2000\n\n", b": still here\n\n", b"event: news\ndata: {}\n\n"
_Topic = int | str  # a job's number, a project's name
_Event = tuple[int, bytes, bool]  # its number, as it is sent, whether it is the last


@dataclass(eq=False, slots=True)
class _Watcher:
    """Somebody who watches: ``news`` is set when there is something to send, or to end for.

    Args:
        may: Whether the token and the session are still good.
    """

    principal: Principal
    news: asyncio.Event = field(default_factory=asyncio.Event)
    may: bool = True


class EventHub:
    """Tells watchers when there is something new.

    Args:
        streams_max: Watchers at a time.
    """

    def __init__(self, database: Database, streams_max: int) -> None:
        self._database = database
        self._streams_max = streams_max
        self._watched: dict[_Topic, set[_Watcher]] = {}
        self._newest: dict[_Topic, object] = {}
        self._looks: dict[tuple[int, int, object], asyncio.Task[list[_Event]]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def streams(self) -> int:
        """How many watchers there are."""
        return sum(map(len, self._watched.values()))

    @property
    def full(self) -> bool:
        """Whether no further watcher is taken."""
        return self.streams >= self._streams_max

    async def follow(
        self, job: int, after: int, principal: Principal = LOCAL
    ) -> AsyncIterator[bytes]:
        """The job's events behind number ``after``, as ``text/event-stream``.

        Ends once the job's last event was sent, or the principal's token or session has ended.
        """
        with self._watching(job, principal) as watcher:
            yield _RETRY
            while watcher.may:
                watcher.news.clear()
                found = await self._events(job, after)
                if found:
                    after = found[-1][0]
                    yield b"".join(frame for _, frame, _ in found)
                if any(ends for _, _, ends in found):
                    return
                if len(found) < _AT_A_TIME and not await _come(watcher.news):
                    yield _SILENCE

    async def follow_project(self, principal: Principal) -> AsyncIterator[bytes]:
        """An event ``news`` whenever the newest jobs of the project, or who works, have changed.

        Ends with the principal's token or session.
        """
        with self._watching(principal.project, principal) as watcher:
            if principal.project in self._newest:  # else the first look tells what is there
                watcher.news.set()
            yield _RETRY
            while watcher.may:
                yield _NEWS if await _come(watcher.news) else _SILENCE
                watcher.news.clear()

    @contextlib.contextmanager
    def _watching(self, topic: _Topic, principal: Principal) -> Iterator[_Watcher]:
        watcher = _Watcher(principal)
        self._watched.setdefault(topic, set()).add(watcher)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield watcher
        finally:
            watchers = self._watched[topic]
            watchers.discard(watcher)
            if not watchers:
                del self._watched[topic]
                self._newest.pop(topic, None)

    async def _events(self, job: int, after: int) -> list[_Event]:
        """The job's events behind number ``after``: one look for all who ask for them now."""
        # Not a look that began before the newest news: it may have missed them.
        key = (job, after, self._newest.get(job))
        look = self._looks.get(key)
        if look is None:
            look = asyncio.create_task(asyncio.to_thread(self._read, job, after))
            self._looks[key] = look
            look.add_done_callback(lambda _: self._looks.pop(key, None))
        return await asyncio.shield(look)

    def _read(self, job: int, after: int) -> list[_Event]:
        with self._database.reading() as connection:
            return [
                (row.number, _frame(row), row.kind == "state" and _ends(row))
                for row in events_after(connection, job, after, _AT_A_TIME)
            ]

    async def _poll(self) -> None:
        turn = 0
        while self._watched:
            await asyncio.sleep(_POLL_S / _TURNS)
            turn = (turn + 1) % _TURNS
            topics = [topic for topic in self._watched if hash(topic) % _TURNS == turn]
            if not topics:
                continue
            asked = {one.principal for topic in topics for one in self._watched[topic]}
            with contextlib.suppress(StoreError):
                found, good = await asyncio.to_thread(self._look, topics, asked)
                for topic, newest in found.items():
                    if self._newest.get(topic) != newest:
                        self._newest[topic] = newest
                        for watcher in self._watched.get(topic, ()):
                            watcher.news.set()
                    for watcher in self._watched.get(topic, ()):
                        if watcher.principal in asked - good:
                            watcher.may = False
                            watcher.news.set()

    def _look(
        self, topics: list[_Topic], principals: Collection[Principal]
    ) -> tuple[dict[_Topic, object], set[Principal]]:
        """What is newest of each topic, and who may still watch."""
        numbers = [topic for topic in topics if isinstance(topic, int)]
        projects = [topic for topic in topics if isinstance(topic, str)]
        found: dict[_Topic, object] = {}
        with self._database.reading() as connection:
            if numbers:
                rows = connection.execute(
                    select(JOBS.c.number, JOBS.c.events).where(JOBS.c.number.in_(numbers))
                )
                found.update((row.number, row.events) for row in rows)
            if projects:
                working = connection.execute(select(DEVICES.c.id, DEVICES.c.job)).all()
                for project in projects:
                    found[project] = (_shown(connection, project), working)
            return found, still_good(connection, principals)


def _shown(connection: Connection, project: str) -> list[tuple[Any, ...]]:
    """What changes when the first page of the project's jobs does."""
    rows = connection.execute(
        select(JOBS.c.number, JOBS.c.state, JOBS.c.events)
        .where(JOBS.c.project == project)
        .order_by(JOBS.c.number.desc())
        .limit(PAGE_JOBS)
    )
    return [tuple(row) for row in rows]


async def _come(news: asyncio.Event) -> bool:
    """Waits for news as long as a silence may last; whether it came."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(news.wait(), _KEEP_ALIVE_S)
    return news.is_set()


def _frame(row: Row[Any]) -> bytes:
    body = json.loads(row.body) | {"attempt": row.attempt, "at": row.at}
    return f"id: {row.number}\nevent: {row.kind}\ndata: {json.dumps(body)}\n\n".encode()


def _ends(row: Row[Any]) -> bool:
    return states.State(json.loads(row.body)["state"]) in states.TERMINAL
