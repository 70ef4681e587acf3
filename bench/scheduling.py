"""The same arrivals on a real Triton, on the embedded server and on the scheduler in virtual time.

    python bench/scheduling.py [run|table] [--share 1/4] [--only TEXT] [--repeats 2]

A model whose execution takes 8 ms + 0.8 ms per inference is served under 45 combinations of
batching, delay, instances, client batches and load. The virtual time gets its service times from
the real server's ``batch_stats`` and adds the wire's overhead, which is measured at idle. Runs
whose generator was invalid are repeated and counted. ``--share 2/4`` runs a quarter (of the
models) and puts its results beside those of the others, so that the machine need not be kept
for all of it at once. Writes ``bench/results/scheduling.json`` and the table in
``docs/scheduling.md``; ``table`` writes only the table. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.policy import BatchingPolicy
from analyzer.hardware.machine import inspect_machine
from analyzer.load.generator import LoadRun, run_open_loop
from analyzer.load.summarize import summarize
from analyzer.stats.percentiles import nearest_rank
from analyzer.targets.embedded import EmbeddedTarget
from analyzer.targets.embedded_spec import EmbeddedSpec, ScriptedModel
from analyzer.targets.target import Target
from analyzer.targets.triton_install import require_triton
from analyzer.targets.triton_server import TritonServer
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import OpenWorkload, SimulationResult, simulate
from benchlib.command import ROOT, Command, put_into_page, say, write_json
from benchlib.scheduling_cases import CASES, Case, Load
from benchlib.scheduling_page import PAIRS, page_table, summary_lines
from benchlib.scripted_triton import (
    Executions,
    Script,
    batch_stats,
    service_from,
    triton_target,
)

SCRIPT = Script(fixed_ms=8.0, item_ms=0.8)
TRIES = 3
_TIMEOUT_S = 60.0
#: Triton counts a request after its reply was sent.
_COUNTED_S = 0.1
#: Share of a figure, and milliseconds where the figure is a time: the larger of the two.
BOUNDS = {
    "throughput_ips": (0.03, 0.0),
    "batch_size_mean": (0.05, 0.0),
    "latency_ms_p50": (0.10, 1.0),
    "latency_ms_p99": (0.15, 2.0),
}


@dataclass(slots=True)
class Count:
    """Runs in all, and those that were left out because their generator was invalid."""

    runs: int = 0
    invalid: list[str] = field(default_factory=list)


class Combination:
    """One load on one model: what it is, and the figures of each place that served it."""

    def __init__(self, case: Case, load: Load) -> None:
        self.case, self.load = case, load
        self.arrivals_s, self.sizes = load.draw()

    @property
    def name(self) -> str:
        """Unlike any other's."""
        return f"{self.case.label} | {self.load.label}"

    def run(
        self, target: Target, executions: Callable[[], Executions], count: Count
    ) -> tuple[LoadRun, Executions] | None:
        """A valid run and what was executed in it, or None if :data:`TRIES` were not valid."""
        for _ in range(TRIES):
            before = executions()
            with target.connect() as connection:
                run = run_open_loop(
                    connection,
                    self.arrivals_s,
                    self.sizes,
                    timeout_s=_TIMEOUT_S,
                    drain_s=_TIMEOUT_S,
                )
            time.sleep(_COUNTED_S)
            count.runs += 1
            test = summarize(run, kind="measure", warmup=0)
            if test.validity.valid and not test.errors:
                return run, executions() - before
            count.invalid.append("; ".join(test.validity.reasons) or f"{test.errors} errors")
        return None

    def figures(
        self, latency_s: NDArray[np.float64], batch_size_mean: float, shift_ms: float = 0.0
    ) -> dict[str, float]:
        """Throughput from the first arrival to the last reply, and latencies from arrival."""
        done_s = float((self.arrivals_s + latency_s).max()) - float(self.arrivals_s[0])
        p50, p99 = (nearest_rank(latency_s, p) for p in (50, 99))
        assert p50 is not None and p99 is not None
        return {
            "throughput_ips": float(self.sizes.sum()) / done_s,
            "batch_size_mean": batch_size_mean,
            "latency_ms_p50": p50 * 1e3 + shift_ms,
            "latency_ms_p99": p99 * 1e3 + shift_ms,
        }


def virtual(
    case: Case,
    service: ServiceTime,
    arrivals_s: NDArray[np.float64],
    sizes: NDArray[np.int64],
    overhead_ms: float = 0.0,
) -> SimulationResult:
    """The scheduler in virtual time."""
    return simulate(
        BatchingPolicy.from_configuration(case.configuration),
        service,
        OpenWorkload(arrival_ns=np.round(arrivals_s * 1e9).astype(np.int64), batch_size=sizes),
        overhead_ms=overhead_ms,
        engine="scheduler",
    )


def idle_schedule(case: Case) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Requests that never meet, of every power of two that fits."""
    limit = max(case.configuration.max_batch_size, 1)
    sizes = np.array([1 << k for k in range(limit.bit_length())] * 4, np.int64)
    delay_ms = (case.configuration.max_queue_delay_us or 0) / 1e3
    gap_s = (SCRIPT.at(limit) + delay_ms + 6.0) / 1e3
    return 0.01 + np.arange(len(sizes), dtype=np.float64) * gap_s, sizes


def warm(target: Target, case: Case) -> None:
    """Runs every instance: a python backend's first execution takes three times as long."""
    instances = case.configuration.instance_count
    limit = max(case.configuration.max_batch_size, 1)
    arrivals_s = np.repeat(np.arange(8) * 0.03, 2 * instances)
    with target.connect() as connection:
        run_open_loop(connection, arrivals_s, limit, timeout_s=_TIMEOUT_S, drain_s=_TIMEOUT_S)
    time.sleep(_COUNTED_S)


def idle_latency_ms(target: Target, case: Case) -> NDArray[np.float64]:
    """Latencies of :func:`idle_schedule`."""
    arrivals_s, sizes = idle_schedule(case)
    with target.connect() as connection:
        run = run_open_loop(connection, arrivals_s, sizes, timeout_s=_TIMEOUT_S, drain_s=_TIMEOUT_S)
    time.sleep(_COUNTED_S)
    return run.log.latency_s * 1e3


def overhead_ms(case: Case, service: ServiceTime, idle_ms: NDArray[np.float64]) -> float:
    """What a lone request takes beyond what the scheduler in virtual time says, median."""
    simulated = virtual(case, service, *idle_schedule(case)).latency_ms()
    return max(float(np.median(idle_ms - simulated)), 0.0)


def run_case(server: TritonServer, number: int, case: Case, repeats: int) -> list[dict[str, Any]]:
    """All of a case's combinations, first on the real server, then on the others."""
    combinations = [Combination(case, load) for load in case.loads]
    counts = {combination.name: Count() for combination in combinations}
    real: dict[str, list[dict[str, float]]] = {}
    services: dict[str, ServiceTime] = {}
    executed: dict[str, dict[int, int]] = {}
    name = f"scripted_{number}"
    with triton_target(server, name, case.configuration, SCRIPT, protocol=case.protocol) as target:
        warm(target, case)
        before = batch_stats(server.http_address, name)
        idle_ms = idle_latency_ms(target, case)
        idle = batch_stats(server.http_address, name) - before
        wire_ms = overhead_ms(case, service_from(idle, idle), idle_ms)
        for one in combinations:
            pooled = Executions(count={}, busy_ms={})
            for _ in range(repeats):
                found = one.run(
                    target, lambda: batch_stats(server.http_address, name), counts[one.name]
                )
                if found is not None:
                    run, delta = found
                    real.setdefault(one.name, []).append(
                        one.figures(run.log.latency_s, delta.batch_size_mean)
                    )
                    pooled = pooled + delta
            if pooled.count:
                services[one.name] = service_from(pooled, idle)
                executed[one.name] = pooled.count
    return [
        finish(one, real[one.name], services[one.name], executed[one.name], wire_ms,
               counts[one.name])
        for one in combinations
        if one.name in real
    ] + [
        {"name": one.name, "left_out": counts[one.name].invalid}
        for one in combinations
        if one.name not in real
    ]  # fmt: skip


def finish(
    one: Combination,
    real: list[dict[str, float]],
    service: ServiceTime,
    executed: dict[int, int],
    wire_ms: float,
    count: Count,
) -> dict[str, Any]:
    """Serves a combination on the embedded server and in virtual time, and compares."""
    triton = {key: float(np.mean([run[key] for run in real])) for key in BOUNDS}
    result = virtual(one.case, service, one.arrivals_s, one.sizes)
    simulated_s = result.latency_ms() / 1e3
    batch_size_mean = float(result.summary()["batch_size_mean"])
    places = {
        "triton": triton,
        "virtual": one.figures(simulated_s, batch_size_mean, wire_ms),
    }
    spec = EmbeddedSpec(
        name="scripted",
        model=ScriptedModel(
            points=tuple(zip(service.batch_sizes, service.service_ms, strict=True))
        ),
        configuration=one.case.configuration,
        batchable=True,
    )
    with EmbeddedTarget(spec) as target:
        warm(target, one.case)
        embedded_ms = overhead_ms(one.case, service, idle_latency_ms(target, one.case))
        found = one.run(target, lambda: counted(target), count)
        if found is not None:
            run, delta = found
            # Without its own overhead and with the other wire's, to be held against the others.
            places["embedded"] = one.figures(
                run.log.latency_s, delta.batch_size_mean, wire_ms - embedded_ms
            )
    comparisons = {
        f"{a}-{b}": compare(places[a], places[b], overload=one.load.overload)
        for a, b in PAIRS
        if a in places and b in places
    }
    return {
        "name": one.name,
        "configuration": one.case.configuration.to_dict(),
        "load": asdict(one.load),
        "protocol": one.case.protocol,
        "requests": len(one.arrivals_s),
        "overhead_ms": {"triton": wire_ms, "embedded": embedded_ms},
        "service_ms": dict(zip(service.batch_sizes, service.service_ms, strict=True)),
        "executions": executed,
        "triton_runs": real,
        "places": places,
        "comparisons": comparisons,
        "runs": count.runs,
        "invalid": count.invalid,
    }


def counted(target: EmbeddedTarget) -> Executions:
    """The embedded server's executions."""
    counters = target.statistics()
    busy_ms = {size: ns / 1e6 for size, ns in counters.batches_ns}
    return Executions(count=dict(counters.batches), busy_ms=busy_ms)


def compare(a: dict[str, float], b: dict[str, float], *, overload: bool) -> dict[str, Any]:
    """Deviation of ``a`` from ``b`` as a share of ``b``, and which bounds it misses."""
    deviations, missed = {}, []
    for key, (share, absolute) in BOUNDS.items():
        if overload and key.startswith("latency"):
            continue
        deviations[key] = a[key] / b[key] - 1.0
        if abs(a[key] - b[key]) > max(share * b[key], absolute):
            missed.append(key)
    return {"deviation": deviations, "missed": missed}


def main() -> int:
    """Runs what was asked for, puts it beside what is there, and writes the page's table."""
    command = Command("scheduling", __doc__, timing=True, offline=("table",))
    command.argument("step", choices=("run", "table"), nargs="?", default="run")
    command.argument("--share", default="1/1", help="I/N: every N-th model from the I-th")
    command.argument("--only", default="", help="models whose label contains this")
    command.argument("--repeats", type=int, default=2, help="runs on the real server")
    page = ROOT / "docs" / "scheduling.md"
    command.argument("--page", type=Path, default=page, help="for the table")
    options = command.start()
    known = json.loads(options.out.read_text()) if options.out.is_file() else {"combinations": {}}
    if options.step == "run":
        measure(options, known)
    put_into_page(options.page, "scheduling", page_table(known))
    print("\n".join(summary_lines(known)))
    return 0


def measure(options: argparse.Namespace, document: dict[str, Any]) -> None:
    """Runs the cases of the share; each one's results are written once it is done."""
    index, shares = map(int, options.share.split("/"))
    install = require_triton()
    document |= {
        "bench": "scheduling",
        "machine": inspect_machine().hardware,
        "triton": install.version,
        "script_ms": asdict(SCRIPT),
        "bounds": {key: list(bound) for key, bound in BOUNDS.items()},
    }
    order = [Combination(case, load).name for case in CASES for load in case.loads]
    with TritonServer(install) as server:
        for number, case in enumerate(CASES):
            if number % shares != index - 1 or options.only not in case.label:
                continue
            for entry in run_case(server, number, case, options.repeats):
                entry["load_average"] = os.getloadavg()[0]
                document["combinations"][entry["name"]] = entry
                missed = {k: c["missed"] for k, c in entry.get("comparisons", {}).items()}
                say(f"{entry['name']}: {({k: v for k, v in missed.items() if v}) or 'ok'}")
            found = document["combinations"]
            document["combinations"] = {name: found[name] for name in order if name in found}
            write_json(options.out, document)


if __name__ == "__main__":
    raise SystemExit(main())
