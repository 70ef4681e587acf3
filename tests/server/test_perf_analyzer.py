"""The real perf_analyzer against our server: its server-side breakdown adds up."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / ".tools" / "perf_analyzer"
SCRIPTED = """
backend: "scripted"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }]
instance_group [{ count: 1 kind: KIND_CPU }]
dynamic_batching { preferred_batch_size: [4] }
parameters { key: "service_time_ms" value { string_value: "1=4.4,8=7.2" } }
"""

pytestmark = [pytest.mark.triton, pytest.mark.slow]


@pytest.mark.parametrize(
    ("protocol", "load"),
    [
        ("grpc", ["--concurrency-range", "8"]),
        ("http", ["--concurrency-range", "8"]),
        ("http", ["--request-rate-range", "100"]),
        ("grpc", ["--concurrency-range", "4", "--shared-memory", "system"]),
        ("grpc", ["--concurrency-range", "4", "--streaming"]),
    ],
)
def test_breakdown(
    repository: Path, start: Any, tmp_path: Path, protocol: str, load: list[str]
) -> None:
    program = TOOLS / "bin" / "perf_analyzer"
    if not program.is_file():
        pytest.skip("there is no perf_analyzer here (make tools fetches one)")
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(SCRIPTED)
    addresses, _ = start(allow_shared_memory=True)
    table = tmp_path / "out.csv"
    run = subprocess.run(
        [
            program,
            *("-m", "m", "-i", protocol, "-f", table, "--output-shared-memory-size", "1024"),
            *("-u", addresses.grpc if protocol == "grpc" else addresses.http),
            # Three windows, stable or not: sums are compared.
            *("-p", "1000", "-r", "3", "-s", "999999", *load),
        ],
        env={**os.environ, "LD_LIBRARY_PATH": str(TOOLS / "lib")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert table.is_file(), run.stdout[-2000:] + run.stderr[-2000:]
    with table.open() as lines:
        (row,) = csv.DictReader(lines)
    throughput = float(row["Inferences/Second"])
    assert throughput > 20
    queue = float(row["Server Queue"])
    compute = sum(float(row[f"Server Compute {part}"]) for part in ("Input", "Infer", "Output"))
    assert compute > 4000  # the script's 4.4 ms for one row, in microseconds
    # What the client saw is what the server says plus the wire.
    seen = float(row.get("Avg latency", 0) or 0)
    if seen:
        assert queue + compute <= seen
