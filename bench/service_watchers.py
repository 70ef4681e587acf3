"""Do watchers disturb what a service measures? The same search with and without 50 of them.

    python bench/service_watchers.py [--pairs 4] [--budget 45]

One service with one worker on SQLite. In turns: a search that nobody watches, and the same search
(same model, seed and budget) while 50 clients watch its events and list jobs every three seconds,
from this machine, at the lowest priority: elsewhere they would take no core of it. Compared are the
certified rate and how late the load generator sent (p99 of each load test). Writes
``bench/results/service_watchers.json``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from analyzer.domain.measurement import LoadTest, Measurement
from analyzer.store.results import open_store
from benchlib.command import ROOT, Command, alternate, cell, median, say, table

_WATCHERS, _LIST_EVERY_S = 50, 3.0
_MODEL, _DATA = ROOT / "examples" / "digits.onnx", ROOT / "examples" / "digits.npz"
_ENDS_S = 300.0


@contextlib.contextmanager
def service(folder: Path) -> Iterator[httpx.Client]:
    """A client of a service with one worker."""
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "analyzer.cli.main", "service", "--port=0",
                f"--data={folder / 'data'}",
            ],
            env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=stream,
        )  # fmt: skip
    try:
        while not (said := [line for line in log.read_text().splitlines() if "http://" in line]):
            if process.poll() is not None:
                raise SystemExit(f"The service did not start: {log.read_text()}")
            time.sleep(0.1)
        with httpx.Client(base_url=said[0].strip(), timeout=60) as client:
            yield client
    finally:
        process.terminate()
        process.wait(100)


@contextlib.contextmanager
def watched(client: httpx.Client, job: str) -> Iterator[None]:
    """Clients that watch the job for as long as the context lasts."""
    watchers = subprocess.Popen(
        [
            "nice", "-n", "19", sys.executable, "-m", "benchlib.service_clients",
            str(client.base_url.port), str(_ENDS_S), str(_WATCHERS), str(_LIST_EVERY_S), job,
        ],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'bench'}"}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
        if watchers.poll() not in (None, 0):
            raise SystemExit("The watchers ended.")
    finally:
        watchers.kill()
        watchers.wait()


def watchers_of(client: httpx.Client) -> float:
    """How many clients watch now, as the service tells."""
    name = "tritune_service_event_streams "
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def search(
    client: httpx.Client, model: str, data: str, *, budget_s: float, seed: int, watching: bool
) -> dict[str, Any]:
    """One search; its certified rate and its generator's lag."""
    options = {
        "latency_budget": "50ms", "budget": f"{budget_s:g}s", "calibration_data": data,
        "precisions": "fp32", "max_trials": 1, "seed": seed, "accept": "estimated",
    }  # fmt: skip
    body = {"kind": "search", "model": model, "options": options}
    job = client.post("/api/v1/jobs", json=body).raise_for_status().json()["id"]
    streams: float | None = None
    with contextlib.ExitStack() as ends:
        if watching:
            ends.enter_context(watched(client, job))
        until = time.monotonic() + _ENDS_S
        while (now := client.get(f"/api/v1/jobs/{job}").json())["finished_at"] is None:
            if time.monotonic() > until:
                raise SystemExit(f"The job did not end: {now}")
            time.sleep(1.0)
            if streams is None and time.monotonic() > until - _ENDS_S + budget_s / 2:
                streams = watchers_of(client)
    if now["state"] != "SUCCEEDED":
        raise SystemExit(f"{now['reason']}: {now['message']}\n{now['log_tail']}")
    result = client.get(f"/api/v1/jobs/{job}/result").json()
    study = client.get(f"/api/v1/jobs/{job}/artifacts/study.db").content
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.db"
        path.write_bytes(study)
        with open_store(f"sqlite:///{path}", create=False) as store:
            outcomes = [stored.outcome for stored in store.outcomes(now["study"])]
    tests: list[LoadTest] = []
    for one in outcomes:
        if isinstance(one, Measurement):
            # Of a trial that was measured in several steps each outcome has those before.
            tests += [test for test in one.load_tests if test not in tests]
    chosen = result["recommendation"] or (result["closest"] or {}).get("entry") or {}
    found = {
        "seed": seed, "verdict": result["verdict"], "certified_rps": chosen.get("capacity_rps"),
        "edge_rps": chosen.get("edge_rps"),
        "lag_ms_p99": [round(test.send_lag_ms_p99, 3) for test in tests if test.send_lag_ms_p99],
        "invalid_tests": sum(not test.validity.valid for test in tests), "tests": len(tests),
        "watchers": streams,
    }  # fmt: skip
    say(f"  {found}")
    return found


def shown(document: dict[str, Any]) -> str:
    """Both sides as a table."""
    rows = []
    for name, runs in document["sides"].items():
        lags = [lag for run in runs for lag in run["lag_ms_p99"]]
        rows.append([
            name, str(len(runs)),
            ", ".join(cell(run["certified_rps"], ".0f") for run in runs),
            cell(median(run["certified_rps"] for run in runs), ".0f"),
            cell(median(run["edge_rps"] for run in runs), ".0f"),
            cell(median(lags), ".2f"), cell(max(lags, default=None), ".2f"),
            f"{sum(run['invalid_tests'] for run in runs)} of {sum(run['tests'] for run in runs)}",
        ])  # fmt: skip
    return table(
        [
            "", "searches", "certified/s", "median", "edge/s, median", "lag p99 ms, median",
            "largest", "invalid load tests",
        ],
        rows,
    )  # fmt: skip


def main() -> int:
    """Measures."""
    command = Command("service_watchers", __doc__, timing=True)
    command.argument("--pairs", type=int, default=4, help="searches of each side (default: 4)")
    command.argument("--budget", type=float, default=45.0, help="of a search, seconds")
    options = command.start()
    with tempfile.TemporaryDirectory(prefix="tw-") as folder, service(Path(folder)) as client:
        model, data = (
            client.post(f"/api/v1/{kind}?name=digits", content=path.read_bytes())
            .raise_for_status()
            .json()["id"]
            for kind, path in (("models", _MODEL), ("calibration", _DATA))
        )

        def run(number: int, *, watching: bool) -> dict[str, Any]:
            return search(
                client, model, data, budget_s=options.budget, seed=100 + number, watching=watching
            )

        sides = alternate(
            {
                "nobody": lambda number: run(number, watching=False),
                f"{_WATCHERS} watchers": lambda number: run(number, watching=True),
            },
            options.pairs,
        )
    return command.finish(options, {"budget_s": options.budget, "sides": sides}, shown)


if __name__ == "__main__":
    raise SystemExit(main())
