"""Watchers of one job: each gets everything, and the database is asked for all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection

from analyzer.service import auth, jobs
from analyzer.service.event_stream import EventHub
from analyzer.service.sessions import begin_session, end_session, find_session
from analyzer.service.states import Change
from analyzer.store.database import Database


def a_job(connection: Connection) -> jobs.JobRow:
    return jobs.create_job(
        connection, project=auth.DEFAULT_PROJECT, actor="me", kind="search", model="a" * 64,
        model_name="m", options={}, study=None, source_job=None, device="auto",
    )  # fmt: skip


def test_watchers_of_a_job_share_a_look(database: Database, monkeypatch: Any) -> None:
    with database.writing() as connection:
        row = a_job(connection)
        jobs.add_events(connection, row.number, 1, [("log", {"text": str(n)}) for n in range(600)])
    hub = EventHub(database, 100)
    looks: list[int] = []
    read = hub._read

    def counted(job: int, after: int) -> Any:
        looks.append(after)
        return read(job, after)

    monkeypatch.setattr(hub, "_read", counted)

    async def watch() -> list[bytes]:
        sent = b"".join([piece async for piece in hub.follow(row.number, 0)])
        return [frame for frame in sent.split(b"\n\n") if frame.startswith(b"id: ")]

    async def all_watch() -> list[list[bytes]]:
        watching = [asyncio.create_task(watch()) for _ in range(20)]
        while hub.streams < 20:
            await asyncio.sleep(0.01)

        def cancel() -> None:
            with database.writing() as connection:
                jobs.ask(connection, auth.DEFAULT_PROJECT, row.id, Change.CANCEL, actor="me")

        await asyncio.to_thread(cancel)
        return await asyncio.gather(*watching)

    seen = asyncio.run(all_watch())
    assert [len(frames) for frames in seen] == [602] * 20
    numbers = [int(frame.split(b"\n", 1)[0][4:]) for frame in seen[0]]
    assert numbers == list(range(1, 603))
    assert all(frames == seen[0] for frames in seen)
    assert len(looks) < 20, "each watcher asked for itself"


@pytest.mark.parametrize("ending", ["token", "session"])
def test_a_stream_ends_with_its_token_and_its_session(database: Database, ending: str) -> None:
    with database.writing() as connection:
        row = a_job(connection)
        token, other = (
            auth.create_token(connection, project=auth.DEFAULT_PROJECT, name=name, scope="read")
            for name in ("ends", "stays")
        )
        cookie = begin_session(connection, token.id).cookie
        ends = find_session(connection, cookie)
        stays = auth.find_token(connection, other.secret)
    assert ends is not None and stays is not None
    hub = EventHub(database, 100)

    def end() -> None:
        with database.writing() as connection:
            if ending == "token":
                auth.revoke_token(connection, auth.DEFAULT_PROJECT, token.id)
            else:
                end_session(connection, cookie)

    async def watch(stream: AsyncIterator[bytes]) -> None:
        async for _ in stream:
            pass

    async def all_watch() -> None:
        staying, *ending = (
            asyncio.create_task(watch(stream))
            for stream in (
                hub.follow(row.number, 0, stays),
                hub.follow(row.number, 0, ends[0]),
                hub.follow_project(ends[0]),
            )
        )
        while hub.streams < 3:
            await asyncio.sleep(0.01)
        done, _ = await asyncio.wait(ending, timeout=1.0)
        assert not done, "its token is good"
        await asyncio.to_thread(end)
        await asyncio.wait_for(asyncio.gather(*ending), 10.0)
        assert hub.streams == 1 and not staying.done()
        staying.cancel()
        await asyncio.gather(staying, return_exceptions=True)

    asyncio.run(all_watch())
