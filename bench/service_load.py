"""The service under load: 100,000 stored jobs, 200 clients, 50 uploads of 100 MB at once.

    python bench/service_load.py [--database sqlite|postgresql] [--jobs 100000] [--seconds 60]

Starts `analyze service --workers 0` on a database with that many jobs that have ended and 20 that
run and tell two events every half a second each (written by this process, as workers do). Then, in
turns: 200 clients, each of which watches a running job's events and lists jobs every three seconds,
as the page does (the newest fifty, running ones, failed ones, the page itself), and which all come
within the first three seconds (the lists of the first five are told apart); the same beside 50
uploads of 100 MB at once (distinct ONNX files, each inspected); and the page in a real Chromium on
loopback. Clients, database and service share the machine's cores; the programs that upload have the
lowest priority: elsewhere they would take no core of it.

Goals: p99 of a list below 50 ms on two cores, without uploads and beside them; memory of the
service's process bounded (shown: at rest, under clients, under uploads), first paint below 0.3 s.
What each part took of the cores beside uploads is in the results, too. Writes
``bench/results/service_load.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from onnx import TensorProto, helper

from analyzer.service import auth
from analyzer.service.database import open_service_database
from benchlib.command import (
    RESULTS,
    ROOT,
    Command,
    cell,
    median,
    put_into_page,
    say,
    table,
)
from benchlib.postgres import postgres_server
from benchlib.service_stored import RunningJobs, store_jobs

_CLIENTS, _LIST_EVERY_S = 200, 3.0
_RUNNING, _SAY_EVERY_S = 20, 0.5
_UPLOADS, _UPLOAD_BYTES = 50, 100_000_000
_UPLOAD_TIMEOUT_S = 400.0
_WARM_S = 5.0
# In which the clients come, each with all that its job has said so far; told apart from then on.
_CONNECT_S = 5.0
_PAINTS = 7
_CREATIONS = 50
_MIB = 1 << 20


class Memory(threading.Thread):
    """The largest resident memory of a process, and of all below it together."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._ending = threading.Event()
        self.own = self.below = 0

    def run(self) -> None:
        """Looks until :meth:`end`."""
        while not self._ending.wait(0.5):
            self.own = max(self.own, self._process.memory_info().rss)
            below = 0
            for child in self._process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    below += child.memory_info().rss
            self.below = max(self.below, below)

    def end(self) -> dict[str, float]:
        """Ends it; MiB."""
        self._ending.set()
        self.join()
        return {"own_mib_peak": self.own / _MIB, "children_mib_peak": self.below / _MIB}


@contextlib.contextmanager
def service(url: str, data: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A service without workers: its port and its process."""
    with (data.parent / "service.log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "analyzer.cli.main", "service", "--port=0", "--workers=0",
                f"--data={data}",
            ],
            env=os.environ | {"TRITUNE_SERVICE_STORE": url, "PYTHONPATH": str(ROOT)},
            stderr=log, text=True,
        )  # fmt: skip
    try:
        while not (lines := (data.parent / "service.log").read_text().splitlines()):
            if process.poll() is not None:
                raise SystemExit("The service did not start.")
            time.sleep(0.1)
        yield int(lines[0].rpartition(":")[2]), process
    finally:
        process.terminate()
        process.wait(60)


def clients(
    port: int,
    seconds: float,
    jobs: list[str],
    count: int = _CLIENTS,
    beside: threading.Thread | None = None,
) -> dict[str, Any]:
    """What the clients saw in so many seconds, or until the thread ``beside`` has ended."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "benchlib.service_clients", str(port), str(seconds), str(count),
            str(_LIST_EVERY_S), "0", ",".join(jobs),
        ],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'bench'}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if beside is not None:
        beside.join()
        process.terminate()
    told, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(errors[-3000:])
    seen = json.loads(told)
    steady = {
        path: [taken for began, taken in all_ if began > _CONNECT_S]
        for path, all_ in sorted(seen["lists"].items())
    }
    lists = [one for all_ in seen["lists"].values() for one in all_]
    return {
        "lists": len(lists),
        "list_ms": _percentiles([one for all_ in steady.values() for one in all_]),
        "connecting_list_ms": _percentiles([taken for at, taken in lists if at <= _CONNECT_S]),
        "by_path": {path: _percentiles(all_) for path, all_ in steady.items()},
        "events_read": seen["events"],
        "event_late_ms": _percentiles(seen["late_s"]),
        "other_answers": seen["others"],
        "clients_cpu_s": seen["cpu_s"],
    }


def _percentiles(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    found = np.percentile(seconds, [50, 99, 100], method="inverted_cdf") * 1e3
    return {
        name: round(float(value), 2)
        for name, value in zip(("p50", "p99", "max"), found, strict=True)
    }


def cpu_seconds(pid: int) -> dict[str, float]:
    """Processor time so far: of the service, of its children that inspect, of this process (which
    uploads and writes events)."""
    service, own = psutil.Process(pid).cpu_times(), psutil.Process().cpu_times()
    return {
        "service": service.user + service.system,
        "inspecting": service.children_user + service.children_system,
        "uploading": own.user + own.system,
    }


def large_model() -> bytes:
    """An ONNX file of 100 MB; behind it another ``doc_string`` may be appended."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])
    weights = helper.make_tensor(
        "w", TensorProto.UINT8, [_UPLOAD_BYTES], bytes(_UPLOAD_BYTES), raw=True
    )
    node = helper.make_node("Identity", ["x"], ["y"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    graph = helper.make_graph([node], "g", [value], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())


def upload_at_once(port: int) -> dict[str, Any]:
    """Sends all uploads at once; how long they took, and their statuses."""
    content = large_model()
    statuses: list[int | str] = []

    def one(number: int) -> None:
        # Of this thread alone.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        name = f"large{number:02}".encode()
        # Protobuf's field 6 of a model, the second time: its doc_string.
        pieces = [content, b"\x32" + bytes([len(name)]) + name]

        def stream() -> Iterator[bytes]:
            for piece in pieces:
                for at in range(0, len(piece), 1 << 18):
                    yield piece[at : at + (1 << 18)]

        try:
            answer = httpx.post(
                f"http://127.0.0.1:{port}/api/v1/models", params={"name": name.decode()},
                content=stream(), timeout=_UPLOAD_TIMEOUT_S,
                headers={"Content-Length": str(sum(map(len, pieces)))},
            )  # fmt: skip
            statuses.append(answer.status_code)
        except httpx.HTTPError as error:
            statuses.append(repr(error))

    started = time.monotonic()
    threads = [threading.Thread(target=one, args=(number,)) for number in range(_UPLOADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "seconds": round(time.monotonic() - started, 1),
        "bytes": _UPLOADS * len(content),
        "statuses": {str(status): statuses.count(status) for status in set(statuses)},
    }


def first_paints(port: int) -> tuple[list[float], list[float]]:
    """Milliseconds from the navigation to the first paint of the list, by Chromium's own clock;
    and to the end of the page's HTML.

    The service has just started; Chromium has shown another address before, and keeps the files.
    """
    sys.path.insert(0, str(ROOT / "tests" / "report"))
    from chromium import chromium_page, find_chromium  # type: ignore[import-not-found]

    program = find_chromium()
    if program is None:
        return [], []
    painted, served = [], []
    with chromium_page(program) as page:
        page.open(f"http://127.0.0.1:{port}/healthz", width=1280)
        for _ in range(_PAINTS):
            page.open(f"http://127.0.0.1:{port}/", width=1280)
            page.settle(0.3)
            paint, end = page.evaluate(
                "[performance.getEntriesByName('first-contentful-paint')[0].startTime,"
                " performance.getEntriesByType('navigation')[0].responseEnd]"
            )
            painted.append(round(float(paint), 1))
            served.append(round(float(end), 1))
    return painted, served


def creations(port: int) -> list[float]:
    """Seconds that handing a job in takes, one after the other."""
    found = []
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60) as client:
        model = client.get("/models").json()["items"][-1]["id"]
        body = {"kind": "search", "model": model, "options": {"latency_budget": "50ms"}}
        for _ in range(_CREATIONS):
            started = time.perf_counter()
            job = client.post("/jobs", json=body).raise_for_status().json()["id"]
            found.append(time.perf_counter() - started)
            client.post(f"/jobs/{job}/cancel").raise_for_status()
    return found


def measure(url: str, folder: Path, jobs: int, seconds: float) -> dict[str, Any]:
    """All figures of one database."""
    data = folder / "data"
    database = open_service_database(url)
    with database.writing() as connection:
        auth.ensure_project(connection, auth.DEFAULT_PROJECT)
    started = time.monotonic()
    store_jobs(database, jobs)
    say(f"  stored {jobs:,} jobs in {time.monotonic() - started:.0f} s")
    running = RunningJobs(database, _RUNNING, every_s=_SAY_EVERY_S)
    try:
        with service(url, data) as (port, process):
            paints, served = first_paints(port)
            clients(port, _WARM_S, [], 20)
            created = _percentiles(creations(port))
            rest = psutil.Process(process.pid).memory_info().rss / _MIB
            running.start()
            memory = Memory(process.pid)
            memory.start()
            cpu = psutil.Process(process.pid).cpu_times()
            alone = clients(port, seconds, running.ids)
            after = psutil.Process(process.pid).cpu_times()
            alone |= memory.end()
            alone["cores"] = (after.user + after.system - cpu.user - cpu.system) / seconds
            say(f"  clients: {alone}")
            memory = Memory(process.pid)
            memory.start()
            uploads: dict[str, Any] = {}
            sending = threading.Thread(target=lambda: uploads.update(upload_at_once(port)))
            before = cpu_seconds(process.pid)
            began = time.monotonic()
            sending.start()
            beside = clients(port, _UPLOAD_TIMEOUT_S, running.ids, beside=sending)
            uploads |= memory.end()
            took = {"clients": beside["clients_cpu_s"]} | {
                name: now - before[name] for name, now in cpu_seconds(process.pid).items()
            }
            beside["cores"] = {
                name: round(cpu_s / (time.monotonic() - began), 2) for name, cpu_s in took.items()
            }
            say(f"  beside uploads: {beside} {uploads}")
            later = psutil.Process(process.pid).memory_info().rss / _MIB
    finally:
        running.end()
        database.close()
    return {
        "jobs": jobs, "seconds": seconds, "rest_mib": rest, "clients": alone,
        "beside_uploads": beside, "uploads": uploads, "after_mib": later,
        "first_paint_ms": paints, "page_served_ms": served, "create_ms": created,
        "events_written": running.events,
    }  # fmt: skip


def shown(document: dict[str, Any]) -> str:
    """The figures as a table."""
    rows = []
    for name, found in document["databases"].items():
        alone, beside, uploads = found["clients"], found["beside_uploads"], found["uploads"]
        rows.append([
            name, f"{found['jobs']:,}", cell(alone["list_ms"]["p50"], ".1f"),
            cell(alone["list_ms"]["p99"], ".1f"), cell(beside["list_ms"]["p99"], ".1f"),
            cell(beside["connecting_list_ms"]["p99"], ".0f"),
            cell(alone["event_late_ms"]["p99"], ".0f"), cell(alone["cores"], ".2f"),
            " / ".join(
                f"{mib:.0f}"
                for mib in (found["rest_mib"], alone["own_mib_peak"], uploads["own_mib_peak"])
            ),
            f"{uploads['seconds']:.0f}", " / ".join(
                cell(paint, ".0f")
                for paint in (*found["first_paint_ms"][:1], median(found["first_paint_ms"]))
            ),
        ])  # fmt: skip
    return table(
        [
            "database", "jobs", "list p50 ms", "list p99 ms", "p99 beside uploads",
            "in their first 5 s", "event late p99 ms", "cores", "MiB at rest / clients / uploads",
            "50 uploads s", "first paint ms, first / median",
        ],
        rows,
    )  # fmt: skip


def main() -> int:
    """Measures."""
    command = Command("service_load", __doc__, timing=True)
    command.argument("--database", choices=["sqlite", "postgresql"], help="one alone")
    command.argument("--jobs", type=int, default=100_000)
    command.argument("--seconds", type=float, default=60.0, help="of each measurement")
    options = command.start()
    kinds = [options.database] if options.database else ["sqlite", "postgresql"]
    databases: dict[str, Any] = {}
    if options.out.is_file():
        databases = json.loads(options.out.read_text()).get("databases", {})
    for kind in kinds:
        say(kind)
        with contextlib.ExitStack() as ends:
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="tl-")))
            url = f"sqlite:///{folder / 'service.db'}"
            if kind == "postgresql":
                url = ends.enter_context(postgres_server()).create("service")
            databases[kind] = measure(url, folder, options.jobs, options.seconds)
    document = {"clients": _CLIENTS, "databases": databases}
    if options.out == RESULTS / "service_load.json":
        put_into_page(ROOT / "docs" / "service.md", "service_load", shown(document))
    return command.finish(options, document, shown)


if __name__ == "__main__":
    raise SystemExit(main())
