"""Do watchers disturb what a service measures? Load tests and searches with and without 50 of them.

    python bench/service_watchers.py [--rounds 10] [--rate 50/s] [--pairs 1] [--budget 60]

First what can decide it: the same load test (``analyze measure``, one rate, in each round the same
arrivals on both sides) in turns beside a service that nobody watches, and beside one whose running
job is watched by 50 clients, who also list jobs every three seconds. The job says four things a
second, as a real one does. Told are the pairs' differences: their median, and the interval between
two of them that holds the true median with 95 % confidence or more, whatever the distribution.

Then whole searches as the service's jobs (same model, seed and budget on both sides) for the
certified rate and the generator's lag; equal searches differ by more than watchers do, so a pair
shows what users see and decides nothing.

The watchers are on this machine at the lowest priority, in a session of their own: elsewhere they
would take no core of it. Writes ``bench/results/service_watchers.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy.stats import binom

from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import Measurement
from analyzer.service import auth
from analyzer.service.database import open_service_database
from analyzer.store.results import open_store
from benchlib.command import ROOT, Command, alternate, cell, median, say, table
from benchlib.service_stored import RunningJobs, store_jobs

_WATCHERS, _LIST_EVERY_S = 50, 3.0
# Those that the list's page shows, and of which one is watched.
_STORED, _SAY_EVERY_S = 1000, 0.5
_TEST_S, _CONNECT_S = 12.0, 4.0
_LOWEST = 19
_SIDES = {"nobody": False, f"{_WATCHERS} watchers": True}
_MODEL, _DATA = ROOT / "examples" / "digits.onnx", ROOT / "examples" / "digits.npz"
_ENDS_S = 300.0


@contextlib.contextmanager
def service(folder: Path, url: str, workers: int) -> Iterator[httpx.Client]:
    """A client of a service with so many workers."""
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "analyzer.cli.main", "service", "--port=0",
                f"--workers={workers}", f"--data={folder / 'data'}",
            ],
            env=os.environ | {"PYTHONPATH": str(ROOT), "TRITUNE_SERVICE_STORE": url}, stderr=stream,
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
            sys.executable, "-m", "benchlib.service_clients", str(client.base_url.port),
            str(_ENDS_S), str(_WATCHERS), str(_LIST_EVERY_S), str(_LOWEST), job,
        ],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'bench'}"}, stdout=subprocess.DEVNULL,
        start_new_session=True,
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


def load_test(
    client: httpx.Client, job: str, *, rate: str, seed: int, watching: bool
) -> dict[str, Any]:
    """One load test at a fixed rate, in a session of its own, as a worker's commands are."""
    command = [
        sys.executable, "-m", "analyzer.cli.main", "measure", str(_MODEL), f"--rate={rate}",
        f"--duration={_TEST_S:g}s", "--latency-budget=50ms", f"--seed={seed}", "--json",
    ]  # fmt: skip
    with watched(client, job) if watching else contextlib.nullcontext():
        time.sleep(_CONNECT_S)
        streams = watchers_of(client)
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
            start_new_session=True, check=True,
        )  # fmt: skip
    told = json.loads(done.stdout)
    found = {
        "seed": seed, "watchers": streams, "requests": told["requests"],
        "over_budget": told["over_budget"], "p50_ms": told["latency_ms"]["p50"],
        "p99_ms": told["latency_ms"]["p99"], "lag_ms_p99": told["send_lag_ms_p99"],
        "valid": told["validity"]["valid"],
    }  # fmt: skip
    say(f"  {found}")
    return found


def load_tests(folder: Path, rate: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Both sides' load tests, beside a service whose one running job says something."""
    url = f"sqlite:///{folder / 'service.db'}"
    database = open_service_database(url)
    with database.writing() as connection:
        auth.ensure_project(connection, auth.DEFAULT_PROJECT)
    store_jobs(database, _STORED)
    running = RunningJobs(database, 1, every_s=_SAY_EVERY_S)
    try:
        with service(folder, url, 0) as client:
            running.start()

            def side(watching: bool) -> Callable[[int], dict[str, Any]]:
                return lambda number: load_test(
                    client, running.ids[0], rate=rate, seed=number, watching=watching
                )

            load_test(client, running.ids[0], rate=rate, seed=999, watching=False)  # warms up
            return alternate({name: side(on) for name, on in _SIDES.items()}, rounds)
    finally:
        running.end()
        database.close()


def difference(sides: dict[str, list[dict[str, Any]]], key: str) -> dict[str, Any]:
    """What the watchers add in each pair: the median, and an interval that holds the true one."""
    pairs = zip(*(sides[name] for name in _SIDES), strict=True)
    found = sorted(
        watched[key] - alone[key]
        for alone, watched in pairs
        if watched[key] is not None and alone[key] is not None
    )
    count = len(found)
    # Of n pairs each is above the true median with one half: the k-th smallest and largest hold it
    # unless fewer than k lie on one side.
    out = max((k for k in range(count // 2) if 2 * binom.cdf(k, count, 0.5) <= 0.05), default=None)
    return {
        "pairs": count, "median": median(found),
        "interval": None if out is None else [found[out], found[-1 - out]],
        "confidence": None if out is None else 1 - 2 * float(binom.cdf(out, count, 0.5)),
    }  # fmt: skip


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
    """Both comparisons as tables."""
    tests, told = document["load_tests"], document["differences"]
    rows = []
    for name, key in (("p50 ms", "p50_ms"), ("p99 ms", "p99_ms"), ("lag p99 ms", "lag_ms_p99")):
        interval = told[key]["interval"]
        rows.append([
            name,
            *(_spread([run[key] for run in runs]) for runs in tests.values()),
            cell(told[key]["median"], "+.2f"),
            "–" if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}",
        ])  # fmt: skip
    rows.append(
        [
            "over budget",
            *(
                f"{sum(run['over_budget'] for run in runs)} of "
                f"{sum(run['requests'] for run in runs)}"
                for runs in tests.values()
            ),
            "", "",
        ]
    )  # fmt: skip
    rows.append(
        [
            "valid",
            *(f"{sum(run['valid'] for run in r)} of {len(r)}" for r in tests.values()),
            "",
            "",
        ]
    )
    first = table(["", *tests, "the watchers add, median", "interval"], rows)
    rows = []
    for name, runs in document["searches"].items():
        lags = [lag for run in runs for lag in run["lag_ms_p99"]]
        rows.append([
            name, ", ".join(cell(run["certified_rps"], ".0f") for run in runs),
            ", ".join(cell(run["edge_rps"], ".0f") for run in runs),
            cell(median(lags), ".2f"), cell(max(lags, default=None), ".2f"),
            f"{sum(run['invalid_tests'] for run in runs)} of {sum(run['tests'] for run in runs)}",
        ])  # fmt: skip
    titles = ["searches", "certified/s", "edge/s", "lag p99 ms, median", "largest", "invalid tests"]
    return f"{first}\n\n{table(titles, rows)}"


def _spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    low, high = np.quantile(known, [0.25, 0.75])
    return f"{float(np.median(known)):.2f} ({low:.2f} to {high:.2f})"


def searches(folder: Path, pairs: int, budget_s: float) -> dict[str, list[dict[str, Any]]]:
    """Both sides' searches, as jobs of one service with a worker."""
    with service(folder, f"sqlite:///{folder / 'service.db'}", 1) as client:
        model, data = (
            client.post(f"/api/v1/{kind}?name=digits", content=path.read_bytes())
            .raise_for_status()
            .json()["id"]
            for kind, path in (("models", _MODEL), ("calibration", _DATA))
        )

        def side(watching: bool) -> Callable[[int], dict[str, Any]]:
            return lambda number: search(
                client, model, data, budget_s=budget_s, seed=100 + number, watching=watching
            )

        return alternate({name: side(on) for name, on in _SIDES.items()}, pairs)


def main() -> int:
    """Measures."""
    command = Command("service_watchers", __doc__, timing=True)
    command.argument("--rounds", type=int, default=10, help="load tests of each side (default: 10)")
    command.argument("--rate", default="50/s", help="of the load tests (default: 50/s)")
    command.argument("--pairs", type=int, default=1, help="searches of each side (default: 1)")
    command.argument("--budget", type=float, default=60.0, help="of a search, seconds")
    options = command.start()
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        tests = load_tests(Path(folder), options.rate, options.rounds)
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        found = searches(Path(folder), options.pairs, options.budget)
    document = {
        "rate": options.rate, "seconds": _TEST_S, "load_tests": tests,
        "differences": {key: difference(tests, key) for key in ("p50_ms", "p99_ms", "lag_ms_p99")},
        "budget_s": options.budget, "searches": found,
    }  # fmt: skip
    return command.finish(options, document, shown)


if __name__ == "__main__":
    raise SystemExit(main())
