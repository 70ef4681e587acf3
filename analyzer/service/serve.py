"""``analyze service``: the API's process, and the workers beside it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread
import uvloop

from analyzer.errors import UsageError
from analyzer.resources import child_environment
from analyzer.server.http_server import listen
from analyzer.service.api import service_server
from analyzer.service.auth import DEFAULT_PROJECT, ensure_project
from analyzer.service.content import ContentStore, is_of
from analyzer.service.context import ServiceContext
from analyzer.service.database import open_service_database
from analyzer.service.event_stream import EventHub
from analyzer.service.inspection import Inspector
from analyzer.service.limits import ServiceLimits
from analyzer.service.oidc import OidcOptions
from analyzer.service.pages.render import load_templates
from analyzer.service.provider import Provider
from analyzer.service.sandbox import probe
from analyzer.service.sweeper import sweeping
from analyzer.service.temporary import remove_abandoned
from analyzer.store.database import Database
from analyzer.targets.address import is_loopback

_LOG = logging.getLogger(__name__)
STORE_VARIABLE = "TRITUNE_SERVICE_STORE"
"""Where a worker finds the database's URL: a command line is seen by every user of a machine."""
# A worker that is told to end lets its load test end and stores the study.
_DRAIN_S = 75.0
_REQUEST_THREADS = 9
# How long a thread keeps the interpreter's lock while the event loop waits for it; 5 ms by default.
_SWITCH_S = 0.0005
# Python's defaults are (700, 10, 10): a full collection every few seconds, of 0.1 s.
_GC_THRESHOLDS = (10_000, 20, 20)
_RESTART_S = 2.0  # between the end of a worker and the start of the next
# Seconds that requests have to end after SIGTERM; event streams never do by themselves.
_REQUESTS_DRAIN_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The command's options.

    Args:
        port: 0 for a free one.
        workers: Workers beside this process.
        tokens: Whether a token is needed.
        oidc: Who may log in otherwise; None for nobody.
        worker_arguments: Further arguments of the workers beside this process.
    """

    host: str = "127.0.0.1"
    port: int = 8040
    store_url: str
    data: Path
    workers: int = 1
    tokens: bool = False
    oidc: OidcOptions | None = None
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    worker_arguments: tuple[str, ...] = ()


def serve(options: ServiceOptions, *, say: Callable[[str], None]) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Args:
        say: Tells the operator a sentence.

    Raises:
        UsageError: The address may not or cannot be listened on.
        StoreError: The database or the folder cannot be used.
    """
    if not is_loopback(options.host) and not options.tokens:
        raise UsageError(
            f"--host {options.host} is reached from elsewhere, and no token would be needed.",
            hint="Add --auth tokens, or leave --host out.",
        )
    content = ContentStore(options.data)
    with open_service_database(options.store_url) as database:
        with database.writing() as connection:
            ensure_project(connection, DEFAULT_PROJECT)
            if not is_of(connection, options.data):
                _LOG.warning(
                    "The folder %s has none of the files of the database %s: jobs that need one "
                    "fail. Look at --data, or restore the folder from its backup.",
                    options.data, database.place,
                )  # fmt: skip
        with listen(options.host, options.port) as listener:
            # Before its address is said: who reads that may connect at once.
            listener.listen()
            host, port = listener.getsockname()[:2]
            say(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            with (
                sweeping(database, beside=remove_abandoned),
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                runner.run(_serve(options, database, content, listener))


async def _serve(
    options: ServiceOptions, database: Database, content: ContentStore, listener: object
) -> None:
    isolation = probe()
    if missing := isolation.missing():
        _LOG.warning("Uploads and jobs on this machine are not kept from %s.", missing)
    context = ServiceContext(
        database=database,
        content=content,
        limits=options.limits,
        hub=EventHub(database, options.limits.event_streams_max),
        inspector=Inspector(isolation),
        tokens=options.tokens,
        provider=Provider(options.oidc) if options.oidc is not None else None,
    )
    server = service_server(context, drain_timeout_s=_REQUESTS_DRAIN_S)
    # Each may hold a connection of the database; its pool has 15, and the event streams want some.
    anyio.to_thread.current_default_thread_limiter().total_tokens = _REQUEST_THREADS
    # The loop lets the lock go with each of its many short writes, and gets it back only then.
    sys.setswitchinterval(_SWITCH_S)
    load_templates()
    # What is loaded by now stays; looking through it again and again costs every request.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, setattr, server, "should_exit", True)
    workers = asyncio.create_task(_keep_workers(options))
    try:
        await server.serve(sockets=[listener])  # type: ignore[list-item]
    finally:
        workers.cancel()
        await asyncio.gather(workers, return_exceptions=True)


async def _keep_workers(options: ServiceOptions) -> None:
    """Starts the workers, and those again that end."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            ended = [worker for worker in running if worker.poll() is not None]
            for worker in ended:
                _LOG.warning("A worker ended with code %s; another one starts.", worker.returncode)
                running.remove(worker)
            try:
                while len(running) < options.workers:
                    running.append(_start_worker(options))
            except OSError as error:
                _LOG.error("A worker could not be started: %s. Trying again.", error)
            await asyncio.sleep(_RESTART_S)
    finally:
        await asyncio.to_thread(_end, running)


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    """Lets workers end their load tests, and waits for them."""
    for worker in running:
        worker.terminate()
    ends_at = time.monotonic() + _DRAIN_S
    for worker in running:
        try:
            worker.wait(max(ends_at - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _start_worker(options: ServiceOptions) -> subprocess.Popen[bytes]:
    """A worker that ends with this process; a Ctrl-C on the terminal is for us to pass on."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "analyzer.cli.main", "worker",
            f"--data={options.data}", f"--parent={os.getpid()}", *options.worker_arguments,
        ],
        env=child_environment() | {STORE_VARIABLE: options.store_url},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
