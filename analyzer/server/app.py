"""The whole server: a repository behind HTTP, gRPC and metrics, from start to a drained end."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyzer.engine.loader import LoadSettings
from analyzer.engine.response_cache import ResponseCache
from analyzer.errors import RepositoryError, UsageError
from analyzer.server.bridge import ReplyBridge
from analyzer.server.grpc_service import grpc_server
from analyzer.server.http_app import HttpApp
from analyzer.server.http_server import HttpServer, http_server, listen
from analyzer.server.inference_service import InferenceService
from analyzer.server.limits import Limits
from analyzer.server.metrics import MetricsApp, TritonMetrics
from analyzer.server.repository import ControlMode, Repository
from analyzer.server.settings import Settings
from analyzer.server.shared_memory import SharedMemory

# Python's defaults are (700, 10, 10); requests leave hardly any cycles to collect.
_GC_THRESHOLDS = (20_000, 20, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of ``analyze serve``; a port of 0 is a free one.

    Args:
        repository: The repository's folder.
        load_models: Models to load at the start in the mode ``explicit``; ``*`` for all.
        auto_complete: Whether configurations are completed from the models.
        cache_bytes: Size of the response cache; 0 turns it off.
        allow_shared_memory: Whether clients may register system shared memory.
        exit_on_error: Whether a model that cannot be loaded ends the start.
        drain_timeout_s: For requests under way when the server is ended.
    """

    repository: Path
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    mode: ControlMode = "none"
    load_models: tuple[str, ...] = ()
    poll_interval_s: float = 15.0
    auto_complete: bool = True
    config_name: str | None = None
    cache_bytes: int = 0
    allow_shared_memory: bool = False
    exit_on_error: bool = False
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    drain_timeout_s: int = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a running server listens."""

    http: str
    grpc: str
    metrics: str


def _to_stderr(line: str) -> None:
    # One write, so that lines of several threads do not mix.
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class ServerApp:
    """A running server on the current event loop.

    Args:
        log: Takes lines for people.
    """

    def __init__(self, options: ServeOptions, *, log: Callable[[str], None] = _to_stderr) -> None:
        self._options = options
        self._log = log
        cache = ResponseCache(options.cache_bytes) if options.cache_bytes else None
        self.repository = Repository(
            options.repository,
            mode=options.mode,
            poll_interval_s=options.poll_interval_s,
            settings=LoadSettings(
                auto_complete=options.auto_complete,
                config_name=options.config_name,
                gpus=options.gpus,
                cache=cache,
            ),
            log=log,
        )
        self._memory = SharedMemory(allowed=options.allow_shared_memory)
        self._http: list[tuple[HttpServer, asyncio.Task[None]]] = []
        self._grpc: Any = None
        self._sockets: list[socket.socket] = []

    async def start(self) -> Addresses:
        """Takes the ports, loads the models, then answers.

        Raises:
            UsageError: A port is taken.
            RepositoryError: The repository cannot be read, or a model in it with
                ``exit_on_error``.
        """
        options = self._options
        loop = asyncio.get_running_loop()
        service = InferenceService(
            self.repository, self._memory, Settings(), options.limits, ReplyBridge(loop), self._log
        )
        http_socket = self._listen(options.http_port)
        metrics_socket = self._listen(options.metrics_port)
        self._grpc = grpc_server(service)
        host = f"[{options.host}]" if ":" in options.host else options.host
        grpc_port = self._bind_grpc(host)
        failures = await loop.run_in_executor(None, self.repository.start, options.load_models)
        if failures and options.exit_on_error:
            raise RepositoryError(
                f"A model cannot be loaded: {failures[0]}",
                hint="Without --exit-on-error the others are served.",
            )
        await self._grpc.start()
        caching = options.cache_bytes > 0
        for app, listener in (
            (HttpApp(service), http_socket),
            (MetricsApp(TritonMetrics(self.repository, caching=caching)), metrics_socket),
        ):
            server = http_server(app, options.limits, drain_timeout_s=options.drain_timeout_s)
            task = loop.create_task(server.serve(sockets=[listener]))
            self._http.append((server, task))
        while not all(server.started for server, _ in self._http):
            await asyncio.sleep(0.005)  # uvicorn has no event for it
        addresses = Addresses(
            http=f"{host}:{http_socket.getsockname()[1]}",
            grpc=f"{host}:{grpc_port}",
            metrics=f"{host}:{metrics_socket.getsockname()[1]}",
        )
        self._log(f"Started GRPCInferenceService at {addresses.grpc}")
        self._log(f"Started HTTPService at {addresses.http}")
        self._log(f"Started Metrics Service at {addresses.metrics}")
        return addresses

    def _listen(self, port: int) -> socket.socket:
        listener = listen(self._options.host, port)
        self._sockets.append(listener)
        return listener

    def _bind_grpc(self, host: str) -> int:
        port = self._options.grpc_port
        try:
            return int(self._grpc.add_insecure_port(f"{host}:{port}"))
        except RuntimeError as error:
            raise UsageError(
                f"Cannot listen on {host}:{port}.",
                hint="Choose another --grpc-port (0 is a free one) or end what uses it.",
            ) from error

    async def stop(self) -> None:
        """Takes no more connections, answers what is under way, unloads the models."""
        stopping = []
        if self._grpc is not None:
            stopping.append(self._grpc.stop(self._options.drain_timeout_s))
        for server, task in self._http:
            server.should_exit = True
            stopping.append(task)
        await asyncio.gather(*stopping)
        for listener in self._sockets:
            listener.close()
        await asyncio.get_running_loop().run_in_executor(None, self.repository.close)
        self._memory.close()


@contextmanager
def serving(
    options: ServeOptions, *, log: Callable[[str], None] = _to_stderr
) -> Iterator[tuple[Addresses, ServerApp]]:
    """A server on a thread of this process, for tests and benchmarks.

    Raises:
        AnalyzerError: It cannot be started.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="serving", daemon=True)
    thread.start()
    app = ServerApp(options, log=log)

    def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    try:
        try:
            addresses = wait(app.start())
            yield addresses, app
        finally:
            wait(app.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def serve(options: ServeOptions) -> None:
    """Serves until SIGINT or SIGTERM, then drains.

    Raises:
        UsageError: A port is taken.
        RepositoryError: The repository cannot be served.
    """
    if not options.repository.is_dir():
        raise RepositoryError(
            f"There is no model repository {options.repository}.",
            hint="A repository is a folder with one folder per model.",
        )
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options))


async def _serve(options: ServeOptions) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    app = ServerApp(options)
    try:
        await app.start()
        # What is loaded by now stays; looking through it again and again costs every request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        await stop.wait()
        _to_stderr("Draining and stopping (a second signal does not hurry it).")
    finally:
        await app.stop()
