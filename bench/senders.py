"""Processor time of the client per request, ours and perf_analyzer's, on the same real Triton.

    python bench/senders.py [--rate 1000] [--seconds 8] [--rounds 3] [--edges]

On a machine that the client shares with the server, what the client takes is missing from what is
measured. A small perceptron is loaded by Poisson arrivals at one rate, by both clients over gRPC
and HTTP, in turns. The time (user and system) of the client's process is read twice during the run
and divided by the requests that the server answered in between, so that neither client's start
counts. Goal: ours at most 1.2 times perf_analyzer's. With ``--edges`` both also look for the
highest rate at which p99 keeps a latency budget, by the same rule on three models; goal: within
5 %. Where ours takes less processor time, the server has more: a third side is ours beside a
process that takes the difference, so that the rest is how the clients send. Writes
``bench/results/senders.json`` and tables in ``docs/generators.md``. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from analyzer.domain.configuration import Configuration
from analyzer.errors import TargetTimeoutError
from analyzer.load.generator import run_closed_loop
from analyzer.load.perf_analyzer import PerfAnalyzerInstall, require_perf_analyzer
from analyzer.load.summarize import summarize
from analyzer.modelconfig.files import model_files
from analyzer.targets.endpoint_target import EndpointTarget, local_target
from analyzer.targets.triton_install import require_triton
from analyzer.targets.triton_server import TritonServer
from analyzer.variants.inspect import inspect_model
from benchlib.clients import Client, Sent, as_busy, ours, theirs
from benchlib.command import ROOT, WORK, Command, alternate, cell, median, put_into_page, say, table
from benchlib.models import write_encoder, write_perceptron
from benchlib.real_triton import request_rows

PROTOCOLS = ("grpc", "http")
CPU_RATIO_MAX = 1.2
EDGE_DIFFERENCE_MAX = 0.05
#: How close the two rates around an edge are in the end, and what may fall short of a rate.
EDGE_PRECISION = 1.02
CARRIED_SHARE_MIN = 0.9
_RATES_MAX = 14
_EDGE_REQUESTS_MIN = 600
_OURS, _THEIRS, _AS_BUSY = "ours", "perf_analyzer", "ours, as busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model, how it is served, and what is asked of it.

    Args:
        write: Writes its ONNX file.
        configuration: On the real Triton.
        budget_ms: p99 of the edge.
    """

    name: str
    write: Callable[[Path], Path]
    configuration: Configuration
    budget_ms: float


_BATCHED = Configuration(
    max_batch_size=32, dynamic_batching=True, instance_count=1, intra_op_threads=1
)
#: Whose requests are counted: so quick that the clients' own time shows.
COUNTED = Served(
    name="perceptron, 64-512-512-512-10",
    write=partial(write_perceptron, widths=(64, 512, 512, 512, 10)),
    configuration=_BATCHED,
    budget_ms=20.0,
)
#: Whose edges are compared. The first takes both of two cores, so that the client's time is missing
#: there; the others leave one to the client.
COMPARED = (
    Served(
        name="perceptron, 1024-2048-2048-10, two instances",
        write=partial(write_perceptron, widths=(1024, 2048, 2048, 10)),
        configuration=replace(_BATCHED, instance_count=2),
        budget_ms=50.0,
    ),
    Served(
        name="perceptron, 1024-4096-4096-1024",
        write=partial(write_perceptron, widths=(1024, 4096, 4096, 1024)),
        configuration=_BATCHED,
        budget_ms=80.0,
    ),
    Served(
        name="text encoder, 16 tokens",
        write=partial(write_encoder, tokens=16),
        configuration=_BATCHED,
        budget_ms=100.0,
    ),
)


@contextmanager
def served(server: TritonServer, model: Served, protocol: str) -> Iterator[EndpointTarget]:
    """The model on the server, for the ``with`` block."""
    number = (COUNTED, *COMPARED).index(model)
    path = model.write(WORK / "senders" / f"model{number}.onnx")
    info = inspect_model(path)
    name = f"sent{number}_{protocol}"
    backend = server.install.backend_for(model.configuration.backend)
    files = model_files(info, path, model.configuration, backend=backend, name=name)
    with local_target(server, files, request_rows(path), model=info, protocol=protocol) as target:
        yield target


def find_edge(client: Client, budget_ms: float, start_rps: float, seconds: float) -> dict[str, Any]:
    """What was achieved at the highest rate that keeps the budget at p99.

    The next higher rate tried is within ``EDGE_PRECISION``. What was offered is no measure:
    perf_analyzer sends 2 % less than it is asked for.
    """
    good, bad, rate = 0.0, math.inf, start_rps
    edge_rps: float | None = None
    tried: list[dict[str, Any]] = []
    while len(tried) < _RATES_MAX and bad > EDGE_PRECISION * good:
        try:
            sent = client(rate, max(seconds, _EDGE_REQUESTS_MIN / rate), len(tried))
        except TargetTimeoutError:  # perf_analyzer under a load that it cannot send
            sent = Sent(achieved_rps=0.0, latency_ms_p50=None, latency_ms_p99=None)
        carried = sent.achieved_rps >= CARRIED_SHARE_MIN * rate
        kept = carried and sent.latency_ms_p99 is not None and sent.latency_ms_p99 <= budget_ms
        tried.append({"rate_rps": rate, "kept": kept, **asdict(sent)})
        if kept:
            good, edge_rps = rate, sent.achieved_rps
        else:
            bad = rate
        if bad == math.inf:
            rate = 1.25 * good
        else:
            rate = math.sqrt(good * bad) if good else 0.75 * bad
    return {"edge_rps": edge_rps, "tried": tried}


def cpu_rows(server: TritonServer, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both clients over both protocols at one rate."""
    perf = require_perf_analyzer()
    found: list[dict[str, Any]] = []
    for protocol in PROTOCOLS:
        with served(server, COUNTED, protocol) as target:
            sides = _sides(perf, target)
            runs = alternate(
                {
                    name: partial(_run, client, options.rate, options.seconds)
                    for name, client in sides.items()
                },
                options.rounds,
            )
        cpu_ms = {name: median(run.cpu_ms for run in of) for name, of in runs.items()}
        mine, other = cpu_ms[_OURS], cpu_ms[_THEIRS]
        found.append(
            {
                "protocol": protocol,
                "cpu_ms": cpu_ms,
                "ratio": mine / other if mine and other else None,
                "runs": {name: [asdict(run) for run in of] for name, of in runs.items()},
            }
        )
        say(f"{protocol}: {cpu_ms}")
    return found


def edges_in_turns(
    sides: Mapping[str, Client],
    busy: Callable[..., Sent],
    search: Callable[[Client], dict[str, Any]],
    rounds: int,
) -> dict[str, list[dict[str, Any]]]:
    """Each round both sides' edges, then ours with the processor time that it lacked in them."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(rounds):
        for name, client in sides.items():
            found[name].append(search(client))
        extra_ms = max(_cpu_ms(found[_THEIRS][-1]) - _cpu_ms(found[_OURS][-1]), 0.0)
        edge = search(partial(busy, extra_ms))
        found[_AS_BUSY].append(edge | {"extra_cpu_ms": extra_ms})
    return dict(found)


def edge_rows(server: TritonServer, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both clients' edges of three models over both protocols."""
    perf = require_perf_analyzer()
    found: list[dict[str, Any]] = []
    for model, protocol in product(COMPARED, PROTOCOLS):
        with served(server, model, protocol) as target:
            with target.connect() as connection:
                peak = summarize(
                    run_closed_loop(connection, 64, duration_s=2.0), kind="measure", warmup=0
                )
            search = partial(
                find_edge,
                budget_ms=model.budget_ms,
                start_rps=0.5 * peak.throughput_ips,
                seconds=options.edge_seconds,
            )
            busy = partial(as_busy, target)
            edges = edges_in_turns(_sides(perf, target), busy, search, options.rounds)
        medians = {name: median(one["edge_rps"] for one in of) for name, of in edges.items()}
        found.append(
            {
                "model": model.name,
                "configuration": model.configuration.to_dict(),
                "budget_ms": model.budget_ms,
                "protocol": protocol,
                "extra_cpu_ms": median(one["extra_cpu_ms"] for one in edges[_AS_BUSY]),
                "edge_rps": medians,
                "difference": _difference(medians, _OURS),
                "difference_as_busy": _difference(medians, _AS_BUSY),
                "runs": edges,
            }
        )
        say(f"{model.name}, {protocol}: {medians}")
    return found


def _cpu_ms(edge: Mapping[str, Any]) -> float:
    """Processor time per request where the budget was kept, ms; 0 where it was not seen."""
    return median(run["cpu_ms"] for run in edge["tried"] if run["kept"]) or 0.0


def _difference(edges_rps: Mapping[str, float | None], name: str) -> float | None:
    mine, other = edges_rps[name], edges_rps[_THEIRS]
    return mine / other - 1 if mine and other else None


def _sides(perf: PerfAnalyzerInstall, target: EndpointTarget) -> dict[str, Client]:
    return {
        _THEIRS: partial(theirs, perf, target, target.pool.inputs),
        _OURS: partial(ours, target),
    }


def _run(client: Client, rate_rps: float, seconds: float, number: int) -> Sent:
    return client(rate_rps, seconds, number)


def page_table(document: dict[str, Any]) -> str:
    """Both tables as Markdown."""
    lines = []
    for row in document["cpu"]:
        for name, runs in row["runs"].items():
            cpu_ms = [run["cpu_ms"] for run in runs if run["cpu_ms"] is not None]
            spread = f"{min(cpu_ms):.3f} to {max(cpu_ms):.3f}" if cpu_ms else "–"
            lines.append(
                (
                    row["protocol"],
                    name,
                    cell(row["cpu_ms"][name], ".3f"),
                    spread,
                    cell(row["ratio"], ".2f") if name == _OURS else "",
                    cell(median(run["achieved_rps"] for run in runs), ".0f"),
                    cell(median(run["send_lag_ms_p99"] for run in runs), ".2f"),
                )
            )
    titles = ("protocol", "client", "CPU ms per request", "lowest to highest", "ratio",
              "achieved/s", "send lag ms p99")  # fmt: skip
    told = table(titles, lines)
    if document["edges"]:
        edges = [
            (
                row["model"],
                row["protocol"],
                f"{row['budget_ms']:g}",
                cell(row["edge_rps"][_THEIRS], ".0f"),
                cell(row["edge_rps"][_OURS], ".0f"),
                cell(row["difference"], "+.1%"),
                cell(row["extra_cpu_ms"], ".3f"),
                cell(row["edge_rps"][_AS_BUSY], ".0f"),
                cell(row["difference_as_busy"], "+.1%"),
            )
            for row in document["edges"]
        ]
        edge_titles = ("model", "protocol", "p99 ms", "edge/s, perf_analyzer", "ours",
                       "difference", "CPU ms per request that ours lacks", "ours, as busy",
                       "difference")  # fmt: skip
        told += "\n\n" + table(edge_titles, edges)
    return told


def main() -> int:
    command = Command("senders", __doc__, timing=True)
    command.argument("--rate", type=float, default=1000.0, help="requests per second")
    command.argument("--seconds", type=float, default=8.0, help="of each run at that rate")
    command.argument("--rounds", type=int, default=3)
    command.argument("--edges", action="store_true", help="compare edges too (an hour)")
    command.argument("--edge-seconds", type=float, default=6.0, help="of each run for an edge")
    page = ROOT / "docs" / "generators.md"
    command.argument("--page", type=Path, default=page, help="for the tables")
    options = command.start()
    install = require_triton()
    with TritonServer(install) as server:
        document = {
            "triton": install.version,
            "rate_rps": options.rate,
            "seconds": options.seconds,
            "goals": {"cpu_ratio": CPU_RATIO_MAX, "edge_difference": EDGE_DIFFERENCE_MAX},
            "cpu": cpu_rows(server, options),
            "edges": edge_rows(server, options) if options.edges else [],
        }
    put_into_page(options.page, "senders", page_table(document))
    return command.finish(options, document, page_table)


if __name__ == "__main__":
    raise SystemExit(main())
