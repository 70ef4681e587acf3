"""Watchers of one job: each gets everything, and the database is asked for all of them at once."""

from __future__ import annotations

import asyncio
from typing import Any

from analyzer.service import auth, jobs
from analyzer.service.event_stream import EventHub
from analyzer.service.states import Change
from analyzer.store.database import Database


def test_watchers_of_a_job_share_a_look(database: Database, monkeypatch: Any) -> None:
    with database.writing() as connection:
        row = jobs.create_job(
            connection, project=auth.DEFAULT_PROJECT, actor="me", kind="search", model="a" * 64,
            model_name="m", options={}, study=None, source_job=None, device="auto",
        )  # fmt: skip
        jobs.add_events(connection, row.number, 1, [("log", {"text": str(n)}) for n in range(600)])
    hub = EventHub(database, 100)
    looks: list[int] = []
    read = hub._read

    def counted(job: int, after: int) -> Any:
        looks.append(after)
        return read(job, after)

    monkeypatch.setattr(hub, "_read", counted)

    async def watch() -> list[bytes]:
        return [frame async for frame in hub.follow(row.number, 0) if frame.startswith(b"id: ")]

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
