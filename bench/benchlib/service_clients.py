"""Many clients of a service in one process: plain HTTP/1.1 over asyncio, cheap beside the service.

    python -m benchlib.service_clients PORT SECONDS CLIENTS LIST_EVERY_S NICE JOB,JOB,… < nothing

Each client watches one job's events and lists the project's jobs now and then, both from a moment
of its own. NICE lowers their process and its session, which should then be its own: clients that
are elsewhere take no core of the service. Ends after so many seconds, or with SIGTERM. Prints one
JSON document: when each list began, in seconds, and how many it took (status 200 alone), other
answers, events, and the processor's seconds that the clients took.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field

import uvloop

from analyzer.hardware.priority import lower_session

_PATHS = (
    "/api/v1/jobs",
    "/api/v1/jobs",
    "/api/v1/jobs?state=RUNNING",
    "/api/v1/jobs?state=FAILED&limit=20",
    "/",
)
_LINE_MAX = 1 << 20


@dataclass(slots=True)
class Seen:
    """What all clients have seen together.

    Args:
        lists: By path: when it began, and the seconds that it took.
        late_s: How long after an event was stored it was read, for each event.
    """

    began: float = field(default_factory=time.perf_counter)
    lists: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    events: int = 0
    late_s: list[float] = field(default_factory=list)


async def _get(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str
) -> tuple[int, bytes]:
    """Status and body of an answer with a length."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    status, length = await _head(reader)
    return status, await reader.readexactly(length)


async def _head(reader: asyncio.StreamReader) -> tuple[int, int]:
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    length = 0
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return int(lines[0].split()[1]), length


async def _lister(port: int, every_s: float, seen: Seen, rng: random.Random) -> None:
    """Lists at moments of its own, on one connection."""
    await asyncio.sleep(rng.uniform(0.0, every_s))
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LINE_MAX)
        with contextlib.closing(writer):
            try:
                while True:
                    path = rng.choice(_PATHS)
                    started = time.perf_counter()
                    status, _ = await _get(reader, writer, path)
                    if status == 200:
                        taken = time.perf_counter() - started
                        seen.lists.setdefault(path, []).append((started - seen.began, taken))
                    else:
                        seen.others[f"{path} {status}"] += 1
                    await asyncio.sleep(rng.uniform(0.5, 1.5) * every_s)
            except (OSError, asyncio.IncompleteReadError) as error:
                seen.others[type(error).__name__] += 1


async def _watcher(port: int, job: str, seen: Seen, wait_s: float) -> None:
    """Watches a job's events."""
    await asyncio.sleep(wait_s)
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LINE_MAX)
        with contextlib.closing(writer):
            # From behind every event that is there: a watcher wants news.
            writer.write(
                f"GET /api/v1/jobs/{job}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                "Last-Event-ID: 1\r\n\r\n".encode()
            )
            status, _ = await _head(reader)
            if status != 200:
                seen.others[f"events {status}"] += 1
                await asyncio.sleep(1.0)
                continue
            began = time.time()
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    seen.events += 1
                    at = json.loads(line[6:])["at"]
                    if at > began:
                        seen.late_s.append(time.time() - at)


async def _all(port: int, seconds: float, clients: int, every_s: float, jobs: list[str]) -> Seen:
    seen = Seen()
    tasks = []
    for number in range(clients):
        rng = random.Random(number)
        if jobs:
            wait_s = rng.uniform(0.0, every_s)
            tasks.append(_watcher(port, jobs[number % len(jobs)], seen, wait_s))
        if every_s > 0:
            tasks.append(_lister(port, every_s, seen, rng))
    running = [asyncio.create_task(task) for task in tasks]
    told_to_end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_end.set)
    ending = asyncio.create_task(told_to_end.wait())
    # Each runs for ever: the first to end has failed, or is the ending.
    await asyncio.wait([*running, ending], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    for task in running:
        if task.done() and (error := task.exception()) is not None:
            raise error
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return seen


def main() -> int:
    """Runs the clients, and prints what they saw."""
    port, seconds, clients, every_s, nice, jobs = sys.argv[1:]
    os.nice(int(nice))
    lower_session(int(nice))
    ids = [job for job in jobs.split(",") if job]
    gc.disable()  # its pauses would be taken for the service's
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(_all(int(port), float(seconds), int(clients), float(every_s), ids))
    print(json.dumps(asdict(seen) | {"cpu_s": time.process_time()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
