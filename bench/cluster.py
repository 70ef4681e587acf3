"""Many workers on a Ray cluster of made-up machines: efficiency, the driver's cost, faults.

    python bench/cluster.py [efficiency|faults|table] [--sizes 8,64,512] [--json]

``ray.cluster_utils.Cluster`` starts machines with made-up GPUs on this one; scripted trials sleep
for 20 to 40 s, as a load test takes. The driver is the program's own, with Optuna's trials and our
outcomes in an SQLite file (``benchlib/cluster_driver.py``). Up to 64 workers are processes of their
own; at 512 the eight workers of a machine share one (``benchlib/shared_workers.py``), for want of
memory. ``faults`` loses and adds machines, stops one's raylet (SIGSTOP) for a moment and for good,
kills the driver (SIGKILL) and resumes it. Writes ``bench/results/cluster.json`` and the tables in
``docs/cluster.md``; ``table`` writes only these.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from analyzer.domain.measurement import Failure
from analyzer.store.results import open_store
from benchlib.cluster_driver import COMMAND, STUDY
from benchlib.command import ROOT, Command, put_into_page, say
from benchlib.made_up_cluster import MadeUpCluster, made_up_cluster

SECONDS = (20.0, 40.0)
TRIALS_PER_WORKER = 6
BOUNDS = {8: 0.95, 512: 0.90}
#: Machines and GPUs of each for a number of workers, and whether workers share a process.
SHAPES = {8: (8, 1, False), 64: (64, 1, False), 512: (64, 8, True)}
# So many trials that most of them are still to come after the long pause.
FAULT_MACHINES, FAULT_GPUS, FAULT_TRIALS = 8, 2, 360
FAULT_SECONDS = (4.0, 8.0)
#: A raylet that is silent for so long is alive again; Ray gives a machine up after five health
#: checks of 3 s each that fail (``health_check_failure_threshold``, ``health_check_period_ms``).
SHORT_PAUSE_S = 6.0
LONG_PAUSE_S = 45.0
FREE_WITHIN_S = 120.0
PAGE = ROOT / "docs" / "cluster.md"
MIB = 2**20


def main() -> int:
    command = Command("cluster", __doc__, timing=True, offline=("table",))
    command.argument("step", nargs="?", choices=("all", "efficiency", "faults", "table"),
                     default="all")  # fmt: skip
    command.argument("--sizes", default="8,64,512")
    options = command.start()
    known = json.loads(options.out.read_text()) if options.out.is_file() else {}
    document = {key: known[key] for key in ("efficiency", "faults") if key in known}
    if options.step in ("all", "efficiency"):
        rows = {row["workers"]: row for row in document.get("efficiency", ())}
        for workers in map(int, options.sizes.split(",")):
            rows[workers] = efficiency(workers)
            say(json.dumps(rows[workers]))
        document["efficiency"] = [rows[workers] for workers in sorted(rows)]
    if options.step in ("all", "faults"):
        document["faults"] = faults()
    put_into_page(PAGE, "cluster", page_table(document))
    return command.finish(options, document, summary)


def efficiency(workers: int) -> dict[str, Any]:
    """Trials on so many workers: how busy they were, and what driver and cluster took."""
    machines, gpus, shared = SHAPES[workers]
    node = {"num_cpus": gpus, "num_gpus": gpus}
    before = time.monotonic()
    with made_up_cluster([node] * machines, light=True) as cluster, folder() as own:
        up_s = time.monotonic() - before
        plan = plan_of(workers, workers * TRIALS_PER_WORKER, SECONDS, shared=shared)
        with driver(cluster, own, plan) as process:
            wait_for(process, "up")
            memory = tree_memory(cluster.process.pid)
            done = wait_for(process, "done")
        runs = journal(own)
        stored = outcomes(own)
        free_s = seconds_until_free(cluster)
    busy_s = sum(run["ended"] - run["began"] for run in runs)
    # Up to here there was work for every worker; what is left is the tail of the last trials.
    supplied_s = done["last_submit"] - done["started"]
    supplied_busy_s = sum(
        max(min(run["ended"], done["last_submit"]) - run["began"], 0.0) for run in runs
    )
    whole_s = done["ended"] - done["started"]
    return {
        "workers": workers,
        "machines": machines,
        "gpus_per_machine": gpus,
        "processes_shared": shared,
        "trials": len(runs),
        "stored": len(stored),
        "efficiency": supplied_busy_s / (workers * supplied_s),
        "efficiency_with_tail": busy_s / (workers * whole_s),
        "cluster_start_seconds": up_s,
        "workers_start_seconds": done["start_seconds"],
        "driver_cpu_ms_per_trial": 1e3 * done["cpu_seconds"] / done["steps"],
        "driver_memory_bytes_peak": done["memory_bytes_peak"],
        "driver_threads": done["threads"],
        "cluster_memory_bytes": memory,
        "seconds_until_free": free_s,
    }


def faults() -> dict[str, Any]:
    """One study through every fault; what is stored and what ran at its end."""
    node = {"num_cpus": FAULT_GPUS, "num_gpus": FAULT_GPUS}
    workers = FAULT_MACHINES * FAULT_GPUS
    plan = plan_of(workers, FAULT_TRIALS, FAULT_SECONDS, shared=False)
    events: list[dict[str, Any]] = []
    with made_up_cluster([node] * FAULT_MACHINES, light=True) as cluster, folder() as own:

        def told(what: str, since: float) -> None:
            events.append({"at_stored": len(outcomes(own)), "event": what,
                           "seconds": time.monotonic() - since})  # fmt: skip
            say(json.dumps(events[-1]))

        with driver(cluster, own, plan) as process:
            wait_for(process, "up")
            wait_for(process, "stored", 20)
            since = time.monotonic()
            cluster.remove(0)
            told("a machine is killed", since)
            wait_for(process, "stored", 40)
            since = time.monotonic()
            cluster.add(node, node)
            wait_for(process, "workers", workers + FAULT_GPUS)
            told("two machines join, and have workers", since)
            wait_for(process, "stored", 60)
            since = time.monotonic()
            cluster.pause(1)
            time.sleep(SHORT_PAUSE_S)
            cluster.resume(1)
            told("a raylet is silent for a moment", since)
            wait_for(process, "stored", 80)
            since = time.monotonic()
            cluster.pause(2)
            time.sleep(LONG_PAUSE_S)
            cluster.resume(2)
            told("a raylet is silent until Ray gives its machine up", since)
            wait_for(process, "stored", 240)
            since = time.monotonic()
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed_at = len(outcomes(own))
            freed_s = seconds_until_free(cluster)
            told("the driver is killed; every lease is free", since)
        now = int(total_gpus(cluster))
        with driver(cluster, own, {**plan, "workers": now}) as process:
            wait_for(process, "up")
            done = wait_for(process, "done")
        free_s = seconds_until_free(cluster)
        stored, runs = outcomes(own), journal(own)
    executed = Counter(run["id"] for run in runs)
    ids = Counter(one.outcome.configuration.config_id for one in stored)
    return {
        "workers": workers,
        "trials": FAULT_TRIALS,
        "events": events,
        "stored": len(stored),
        "stored_twice": sum(count > 1 for count in ids.values()),
        "stored_failures": sum(isinstance(one.outcome, Failure) for one in stored),
        "stored_when_killed": killed_at,
        "resumed_with": done["resumed"],
        "finished_but_not_stored": len(executed.keys() - ids.keys()),
        "finished_twice": sum(count > 1 for count in executed.values()),
        "seconds_until_free_after_kill": freed_s,
        "seconds_until_free": free_s,
    }


def plan_of(
    workers: int, trials: int, seconds: tuple[float, float], *, shared: bool
) -> dict[str, Any]:
    """What the driver is told."""
    return {"workers": workers, "trials": trials, "seconds": seconds, "seed": 0, "shared": shared}


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for the study and the trials' journal."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@contextmanager
def driver(
    cluster: MadeUpCluster, own: Path, plan: Mapping[str, Any]
) -> Iterator[subprocess.Popen[str]]:
    """The driver's process; killed at the end where it still runs."""
    process = subprocess.Popen(
        [*COMMAND, cluster.address, str(own), json.dumps(plan)],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"}, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], key: str, least: float = 0) -> dict[str, Any]:
    """The first line of the driver that has ``key`` with at least that."""
    assert process.stdout is not None
    for line in process.stdout:
        told = json.loads(line)
        if key in told and float(told[key]) >= least:
            found: dict[str, Any] = told
            return found
    raise AssertionError(f"the driver ended (exit code {process.wait()}) without {key} >= {least}")


def journal(own: Path) -> list[dict[str, Any]]:
    """Every execution of a trial that came to its end."""
    path = own / "journal"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def outcomes(own: Path) -> list[Any]:
    """What is stored."""
    with open_store(f"sqlite:///{own / 'results.db'}") as store:
        return list(store.outcomes(STUDY))


def tree_memory(pid: int) -> dict[str, int]:
    """Proportional set size of a process's descendants by their name, bytes."""
    found: Counter[str] = Counter()
    for process in psutil.Process(pid).children(recursive=True):
        try:
            found[process.name().split(":")[0]] += process.memory_full_info().pss
        except psutil.Error:
            continue
    return dict(found)


_RESOURCES = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=50)
print(json.dumps([ray.cluster_resources().get("GPU", 0), ray.available_resources().get("GPU", 0)]))
"""


def resources(cluster: MadeUpCluster) -> tuple[float, float]:
    """GPUs in all, and those that are free."""
    done = subprocess.run(
        [sys.executable, "-c", _RESOURCES, cluster.address],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    total, free = json.loads(done.stdout.splitlines()[-1])
    return total, free


def total_gpus(cluster: MadeUpCluster) -> float:
    """GPUs of the machines that are there."""
    return resources(cluster)[0]


def seconds_until_free(cluster: MadeUpCluster) -> float:
    """Seconds until every GPU is free; fails after :data:`FREE_WITHIN_S`."""
    since = time.monotonic()
    while True:
        total, free = resources(cluster)
        took_s = time.monotonic() - since
        if total == free > 0:
            return took_s
        assert took_s < FREE_WITHIN_S, f"{total - free} of {total} GPUs are still leased"
        time.sleep(0.5)


def page_table(document: Mapping[str, Any]) -> str:
    """Both tables of ``docs/cluster.md``."""
    found = document.get("faults", {})
    return "\n\n".join(
        filter(None, (efficiency_table(document.get("efficiency", ())), faults_table(found)))
    )


def efficiency_table(rows: Any) -> str:
    """The lines of the table in ``docs/cluster.md``."""
    head = (
        "| workers | machines | efficiency | with the tail | driver: CPU a trial | memory | "
        "Ray's machines | workers' processes |"
    )
    lines = [
        head,
        "|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        memory = row["cluster_memory_bytes"]
        ours = sum(value for name, value in memory.items() if name.startswith("ray"))
        raylets = memory.get("raylet", 0) + memory.get("gcs_server", 0)
        workers = ours - memory.get("raylet", 0)
        kind = "one a machine" if row["processes_shared"] else "one each"
        lines.append(
            f"| {row['workers']} | {row['machines']} × {row['gpus_per_machine']} GPUs | "
            f"{row['efficiency']:.3f} | {row['efficiency_with_tail']:.3f} | "
            f"{row['driver_cpu_ms_per_trial']:.0f} ms | "
            f"{row['driver_memory_bytes_peak'] / MIB:.0f} MiB | {raylets / MIB:,.0f} MiB | "
            f"{kind}, {workers / MIB:,.0f} MiB |"
        )
    return "\n".join(lines)


def faults_table(found: Mapping[str, Any]) -> str:
    """What happened when, and what it came to."""
    if not found:
        return ""
    lines = ["| after … trials | what | seconds |", "|--:|---|--:|"]
    lines += [
        f"| {event['at_stored']} | {event['event']} | {event['seconds']:.0f} |"
        for event in found.get("events", ())
    ]
    return "\n".join(lines)


def summary(document: dict[str, Any]) -> str:
    """The figures for people."""
    parts = [
        f"{row['workers']} workers: efficiency {row['efficiency']:.3f}"
        + (f" (bound {BOUNDS[row['workers']]:g})" if row["workers"] in BOUNDS else "")
        for row in document.get("efficiency", ())
    ]
    if found := document.get("faults"):
        parts.append(
            f"faults: {found['stored']} of {found['trials']} trials stored, "
            f"{found['stored_twice']} twice, {found['stored_failures']} failures; "
            f"leases free after {found['seconds_until_free']:.0f} s"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
