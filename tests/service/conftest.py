"""A database, a content store, a service over them, and workers whose command is scripted."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from analyzer.server.http_server import listen
from analyzer.service import auth
from analyzer.service.api import service_server
from analyzer.service.content import ContentStore
from analyzer.service.context import ServiceContext
from analyzer.service.database import open_service_database
from analyzer.service.event_stream import EventHub
from analyzer.service.folder import Program
from analyzer.service.inspection import Inspector
from analyzer.service.limits import ServiceLimits
from analyzer.service.queue import Device
from analyzer.service.sandbox import Isolation, probe
from analyzer.service.worker import Worker
from analyzer.store.database import Database
from analyzer.store.engine import parse_url

SCRIPTED = Program(
    (sys.executable, str(Path(__file__).parent / "scripted.py")),
    reading=(str(Path(__file__).parents[1]),),
)


@pytest.fixture(scope="session")
def isolation_here() -> Isolation:
    """What this machine can; to find out takes a process."""
    return probe()


@pytest.fixture(scope="session")
def sqlite_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of SQLite's with the service's tables: a copy takes less than making them."""
    path = tmp_path_factory.mktemp("tables") / "tables.db"
    open_service_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def database(store_url: str, sqlite_tables: Path) -> Iterator[Database]:
    """An empty database of each kind, with the service's tables."""
    url = parse_url(store_url)
    if url.get_backend_name() == "sqlite":
        shutil.copyfile(sqlite_tables, str(url.database))
    found = open_service_database(store_url)
    with found.writing() as connection:
        auth.ensure_project(connection, auth.DEFAULT_PROJECT)
    yield found
    found.close()


@pytest.fixture
def content(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path / "data")


class Service:
    """APIs over one database, each on a port of its own."""

    def __init__(self, context: ServiceContext, ends: ExitStack) -> None:
        self.context = context
        self._ends = ends

    def token(self, project: str, scope: auth.Scope = "write", **more: Any) -> str:
        """A new token of a project."""
        with self.context.database.writing() as connection:
            return auth.create_token(
                connection, project=project, name=f"{project}'s", scope=scope, **more
            ).secret

    def serve(self, **changes: Any) -> str:
        """A new API whose context is changed like this; its URL."""
        return self._ends.enter_context(serving(replace(self.context, **changes)))

    def client(
        self,
        token: str | None = None,
        *,
        tokens: bool = False,
        inspector: Inspector | None = None,
        **limits: Any,
    ) -> httpx.Client:
        """A client of a new API that has these limits, and needs tokens or not."""
        url = self.serve(
            limits=replace(self.context.limits, **limits),
            tokens=tokens or bool(token),
            inspector=inspector or self.context.inspector,
        )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self._ends.enter_context(httpx.Client(base_url=url, headers=headers, timeout=30))


class AnyFile(Inspector):
    """Takes every upload: those of the scripted command are no models."""

    def __init__(self) -> None:
        super().__init__(Isolation())

    async def inspect(self, kind: str, path: Path, size_bytes: int, name: str) -> dict[str, Any]:
        return {}

    async def check_job(self, model: Path, shapes: Any, data: Path | None) -> None:
        return None


@contextmanager
def serving(context: ServiceContext) -> Iterator[str]:
    """An API in a thread; its URL."""
    listener = listen("127.0.0.1", 0)
    server = service_server(context, drain_timeout_s=1)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@pytest.fixture
def service(database: Database, content: ContentStore) -> Iterator[Service]:
    limits = ServiceLimits()
    with ExitStack() as ends:
        yield Service(
            ServiceContext(
                database=database,
                content=content,
                limits=limits,
                hub=EventHub(database, limits.event_streams_max),
                inspector=AnyFile(),
                tokens=False,
            ),
            ends,
        )


@pytest.fixture
def client(service: Service) -> httpx.Client:
    return service.client()


@pytest.fixture
def upload(client: httpx.Client) -> Callable[..., str]:
    """Uploads a "model" that says what the scripted command shall do; its id."""

    def do(name: str = "m", **script: Any) -> str:
        done = client.post(f"/api/v1/models?name={name}", content=json.dumps(script))
        assert done.status_code == 201, done.text
        return str(done.json()["id"])

    return do


@pytest.fixture
def submit(client: httpx.Client, upload: Callable[..., str]) -> Callable[..., str]:
    """Hands in a search whose command does as it is told; the job's id."""

    def do(**script: Any) -> str:
        body = {"kind": "search", "model": upload(**script), "options": {"latency_budget": "50ms"}}
        done = client.post("/api/v1/jobs", json=body)
        assert done.status_code == 201, done.text
        return str(done.json()["id"])

    return do


@pytest.fixture
def working(
    database: Database, content: ContentStore, isolation_here: Isolation,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:  # fmt: skip
    """A worker in a thread, for as long as the context lasts; it looks for jobs often."""
    monkeypatch.setattr("analyzer.service.worker._LOOK_S", 0.05)

    @contextmanager
    def do(
        device: str = "here/cpu",
        lease_s: float = 30.0,
        *,
        isolation: Isolation | None = None,
        constants: Path | None = None,
        elsewhere: tuple[Database, ContentStore] | None = None,
        **limits: Any,
    ) -> Iterator[Worker]:
        stop = threading.Event()
        worker = Worker(
            *(elsewhere or (database, content)),
            Device(id=device, kind="cpu", host="here", name="a CPU"),
            ServiceLimits(**limits),
            stopping=stop.is_set,
            lease_s=lease_s,
            isolation=isolation or isolation_here,
            analyze=replace(SCRIPTED, constants=constants),
        )
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield worker
        finally:
            stop.set()
            thread.join(60)
            assert not thread.is_alive()

    return do


@pytest.fixture
def wait_for(client: httpx.Client) -> Callable[..., dict[str, Any]]:
    """Waits until a job is in one of the states; the job."""

    def do(job: str, *states: str, timeout_s: float = 90.0) -> dict[str, Any]:
        ends_at = time.monotonic() + timeout_s
        while True:
            found: dict[str, Any] = client.get(f"/api/v1/jobs/{job}").json()
            if found["state"] in states:
                return found
            assert time.monotonic() < ends_at, found
            time.sleep(0.1)

    return do
