"""A key's creation when its process is killed in the middle of it, stopped, or slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from analyzer.service.schema import AUDIT
from analyzer.store.database import Database

ROOT = Path(__file__).parents[2]
STUCK_API = ROOT / "tests/service/stuck_api.py"
IDLE_S = 4.0  # after which PostgreSQL ends the transaction of the process that is stuck
KEY = {"Idempotency-Key": "a-key"}


@pytest.fixture
def body(upload: Callable[..., str]) -> dict[str, Any]:
    """Of a job."""
    return {"kind": "search", "model": upload(), "options": {"latency_budget": "50ms"}}


@pytest.fixture
def stuck(store_url: str, tmp_path: Path, body: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """An API's process that has made the job under the key, and not yet committed it."""
    with subprocess.Popen(
        [sys.executable, str(STUCK_API), store_url, str(tmp_path / "data"), f"{IDLE_S}"],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}/api/v1/jobs"

        def send() -> None:
            with pytest.raises(httpx.HTTPError):
                httpx.post(url, json=body, headers=KEY, timeout=60)

        sender = threading.Thread(target=send)
        sender.start()
        assert process.stdout.readline().strip() == "stuck"
        try:
            yield process
        finally:
            process.kill()
            sender.join()


def try_again(client: httpx.Client, body: dict[str, Any], within_s: float) -> dict[str, Any]:
    """The job that a client gets who tries again until there is one."""
    ends_at = time.monotonic() + within_s
    while True:
        done = client.post("/api/v1/jobs", json=body, headers=KEY)
        if done.status_code == 201:
            made: dict[str, Any] = done.json()
            return made
        assert done.status_code == 409 and done.json()["type"].endswith("in_flight"), done.text
        assert time.monotonic() < ends_at, "the key is still said to be in flight"
        time.sleep(0.1)


def test_the_key_of_a_killed_process_is_free_at_once(
    client: httpx.Client, body: dict[str, Any], stuck: subprocess.Popen[str], database: Database
) -> None:
    if not database.sqlite:
        # On SQLite it would wait: nobody else writes meanwhile.
        again = client.post("/api/v1/jobs", json=body, headers=KEY)
        assert again.status_code == 409 and again.json()["type"].endswith("in_flight")
        other = client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "other"})
        assert other.status_code == 201, "another key waits for it"
        client.post(f"/api/v1/jobs/{other.json()['id']}/cancel")
        client.delete(f"/api/v1/jobs/{other.json()['id']}")
    stuck.kill()
    stuck.wait()
    made = try_again(client, body, within_s=5)
    assert client.post("/api/v1/jobs", json=body, headers=KEY).json() == made
    assert [job["id"] for job in client.get("/api/v1/jobs").json()["items"]] == [made["id"]]
    with database.reading() as connection:
        noted = connection.execute(select(AUDIT.c.object).where(AUDIT.c.action == "job.create"))
        assert list(noted.scalars())[-1] == made["id"]


def test_a_process_that_is_stopped_holds_its_key_for_seconds(
    client: httpx.Client, body: dict[str, Any], database: Database, request: pytest.FixtureRequest
) -> None:
    if database.sqlite:
        pytest.skip("SQLite's one writer waits for a stopped one, whatever it writes")
    stuck: subprocess.Popen[str] = request.getfixturevalue("stuck")
    stuck.send_signal(signal.SIGSTOP)
    made = try_again(client, body, within_s=IDLE_S + 5)
    stuck.send_signal(signal.SIGCONT)
    assert client.post("/api/v1/jobs", json=body, headers=KEY).json() == made
