"""Requests per CPU second over gRPC and HTTP: our server against a real Triton.

    python bench/wire.py [--concurrency 32] [--seconds 6] [--rounds 3] [--json]

Our server has the backend ``identity``, the real one an identity model in its python backend; both
answer 16 floats. The load is perf_analyzer's (``make tools``), where there is one, else a closed
loop of Triton's own clients. CPU time is that of the server with its children, not the client's.
The rounds alternate between the servers. Goal: a ratio of at least 0.5. Without a real Triton the
ratios are null. Writes ``bench/results/wire.json`` and the table in ``docs/wire.md``; run it on a
quiet machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from analyzer.targets.triton_install import find_triton
from analyzer.targets.triton_server import TritonServer
from benchlib.command import ROOT, Command, alternate, cell, median, put_into_page, table
from benchlib.own_server import own_server

PERF = ROOT / ".tools" / "perf_analyzer"
GOAL_RATIO = 0.5
MODEL = "ident"
CONFIG = """
backend: "@BACKEND@"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }]
instance_group [{ count: 1 kind: KIND_CPU }]
dynamic_batching { }
"""
MODEL_PY = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        replies = []
        for request in requests:
            rows = np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "INPUT0"))
            capsule = np.array(rows, copy=True).__dlpack__()
            output = pb_utils.Tensor.from_dlpack("OUTPUT0", capsule)
            replies.append(pb_utils.InferenceResponse([output]))
        return replies
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server and its first process."""

    name: str
    http: str
    grpc: str
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time of the process and its children until now."""
        process = psutil.Process(self.pid)
        family = [process, *process.children(recursive=True)]
        return sum(sum(member.cpu_times()[:2]) for member in family)

    def answered(self) -> int:
        """Requests answered until now."""
        url = f"http://{self.http}/v2/models/{MODEL}/stats"
        with urllib.request.urlopen(url, timeout=10) as answer:
            model = json.load(answer)["model_stats"][0]
        return int(model["inference_stats"]["success"]["count"])


@contextmanager
def our_server(root: Path) -> Iterator[Server]:
    """``analyze serve`` over the identity model, as a process of its own."""
    version = root / MODEL / "1"
    version.mkdir(parents=True)
    (root / MODEL / "config.pbtxt").write_text(CONFIG.replace("@BACKEND@", "identity"))
    with own_server(root) as server:
        yield Server(name="tritune", http=server.http, grpc=server.grpc, pid=server.process.pid)


@contextmanager
def real_server() -> Iterator[Server | None]:
    """A real Triton over the same model; None where there is none."""
    install = find_triton()
    if install is None or "python" not in install.backends:
        yield None
        return
    with TritonServer(install) as server:
        version = server.repository / MODEL / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL_PY)
        (version.parent / "config.pbtxt").write_text(CONFIG.replace("@BACKEND@", "python"))
        url = f"http://{server.http_address}/v2/repository/models/{MODEL}/load"
        urllib.request.urlopen(urllib.request.Request(url, data=b"", method="POST"), timeout=60)
        yield Server(
            name="triton",
            http=server.http_address,
            grpc=server.grpc_address,
            pid=server.pids[0],
        )


def load_with_perf_analyzer(server: Server, protocol: str, concurrency: int, seconds: float) -> str:
    """One closed loop; returns the client's name."""
    subprocess.run(
        [
            str(PERF / "bin" / "perf_analyzer"),
            *("-m", MODEL, "-i", protocol, "-u", getattr(server, protocol)),
            *("--concurrency-range", str(concurrency), "--shape", "INPUT0:16"),
            *("-p", str(int(seconds * 1000 / 3)), "-r", "3", "-s", "99"),
        ],
        env={**os.environ, "LD_LIBRARY_PATH": str(PERF / "lib")},
        capture_output=True,
        timeout=seconds * 5 + 30,
        check=False,  # it fails when the windows are not stable, which does not matter here
    )
    return "perf_analyzer"


def load_with_clients(server: Server, protocol: str, concurrency: int, seconds: float) -> str:
    """The same with Triton's Python clients, one thread for each."""
    if protocol == "grpc":
        import tritonclient.grpc as client
    else:
        import tritonclient.http as client
    deadline = time.monotonic() + seconds

    def run() -> None:
        connection = client.InferenceServerClient(getattr(server, protocol))
        rows = client.InferInput("INPUT0", [1, 16], "FP32")
        rows.set_data_from_numpy(np.zeros((1, 16), np.float32))
        while time.monotonic() < deadline:
            connection.infer(MODEL, [rows])
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "tritonclient"


def measure(
    server: Server, protocol: str, concurrency: int, seconds: float, number: int
) -> dict[str, Any]:
    """Requests per CPU second of the server over one load."""
    load = load_with_perf_analyzer if PERF.is_dir() else load_with_clients
    cpu, answered, start = server.cpu_seconds(), server.answered(), time.monotonic()
    client = load(server, protocol, concurrency, seconds)
    wall = time.monotonic() - start
    requests = server.answered() - answered
    used = server.cpu_seconds() - cpu
    return {
        "client": client,
        "requests": requests,
        "requests_per_s": requests / wall,
        "cpu_seconds": used,
        "requests_per_cpu_s": requests / used,
    }


def page_table(document: dict[str, Any]) -> str:
    """The rounds and their medians as a Markdown table."""
    titles = ("protocol", "server", "requests per CPU second: rounds", "median", "requests/s",
              "ratio")  # fmt: skip
    rows = []
    for protocol, entry in document["protocols"].items():
        for name, runs in entry["runs"].items():
            each = ", ".join(f"{run['requests_per_cpu_s']:,.0f}" for run in runs)
            ratio = cell(entry["ratio"], ".2f") if name == "tritune" else ""
            rows.append(
                (protocol, name, each, cell(entry["requests_per_cpu_s"][name], ",.0f"),
                 cell(median(run["requests_per_s"] for run in runs), ",.0f"), ratio)
            )  # fmt: skip
    return table(titles, rows)


def main() -> int:
    command = Command("wire", __doc__, timing=True)
    command.argument("--concurrency", type=int, default=32)
    command.argument("--seconds", type=float, default=6.0)
    command.argument("--rounds", type=int, default=3)
    command.argument("--page", type=Path, default=ROOT / "docs" / "wire.md", help="for the table")
    options = command.start()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [stack.enter_context(our_server(root)), stack.enter_context(real_server())]
        sides = {
            (protocol, server.name): partial(
                measure, server, protocol, options.concurrency, options.seconds
            )
            for protocol in ("grpc", "http")
            for server in servers
            if server is not None
        }
        found = alternate(sides, options.rounds)
    protocols = {}
    for protocol in ("grpc", "http"):
        runs = {server: runs for (name, server), runs in found.items() if name == protocol}
        medians = {
            server: statistics.median(run["requests_per_cpu_s"] for run in each)
            for server, each in runs.items()
        }
        real = medians.get("triton")
        protocols[protocol] = {
            "requests_per_cpu_s": medians,
            "ratio": medians["tritune"] / real if real else None,
            "runs": runs,
        }
    document = {
        "concurrency": options.concurrency,
        "goal_ratio": GOAL_RATIO,
        "protocols": protocols,
    }
    put_into_page(options.page, "wire", page_table(document))
    return command.finish(options, document, page_table)


if __name__ == "__main__":
    raise SystemExit(main())
