"""bench/replay.py keeps the contract, on a small made-up table."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADER = [
    "model",
    "variant",
    "max_batch_size",
    "instance_count",
    "dynamic_batching",
    "concurrency",
    "throughput_ips",
    "latency_ms_mean",
    "latency_ms_p90",
    "latency_ms_p95",
    "latency_ms_p99",
]


def write_table(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        number = 0
        for instances in (1, 2, 3, 4):
            for concurrency in (1, 2, 4, 8, 16):
                busy = min(instances, concurrency)
                rate = busy / (0.004 * (1 + 0.3 * (busy - 1)))
                mean = concurrency / rate * 1e3
                for replicate in (0.99, 1.0, 1.02):
                    number += 1
                    row = ["m", f"m_config_{number}", 8, instances, 0, concurrency]
                    tails = [mean * factor for factor in (1.1, 1.15, 1.3)]
                    writer.writerow([*row, rate * replicate, mean, *tails])
        # Breaks Little's law: half the throughput that 64 clients with this latency have.
        writer.writerow(["m", "m_config_default", 8, 1, 0, 64, 100.0, 320.0, 330, 340, 350])


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "replay.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )


def test_contract_and_determinism(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    write_table(table)
    arguments = ["--table", str(table), "--latency-budget", "30ms", "--evaluations", "10"]
    arguments += ["--seeds", "3", "--processes", "1", "--json"]
    first = replay(*arguments)
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert set(document) == {"samplers", "rows", "left_out"}
    assert (document["rows"], document["left_out"]) == (61, 1)
    names = {"twin", "random", "sobol", "grid", "hillclimb", "tpe_scalar", "tpe", "nsga2"}
    assert names | {"feasible_first_tpe", "twin_best_k"} <= set(document["samplers"])
    for row in document["samplers"].values():
        assert set(row) == {"regret_mean", "regret_p90", "evaluations_to_99", "feasible_share"}
        assert 0 <= row["regret_mean"] <= 1 and 0 <= row["feasible_share"] <= 1
    assert document["samplers"]["twin"]["regret_mean"] < 0.01
    assert replay(*arguments).stdout == first.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--latency-budget", "10"], "10ms"),
        (["--latency-budget", "10ms", "--percentile", "97"], "latency_ms_p97"),
        (["--latency-budget", "10ms", "--sampler", "magic"], "magic"),
    ],
)
def test_wrong_usage_says_what_is_right(tmp_path: Path, arguments: list[str], words: str) -> None:
    table = tmp_path / "table.csv"
    write_table(table)
    found = replay("--table", str(table), *arguments)
    assert found.returncode == 2
    assert words in found.stderr and "Traceback" not in found.stderr


def test_a_budget_that_nothing_keeps_has_no_regret(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    write_table(table)
    found = replay(
        *["--table", str(table), "--latency-budget", "1ms", "--seeds", "1", "--evaluations", "8"],
        *["--processes", "1", "--json", "--sampler", "twin", "--sampler", "random"],
    )
    assert found.returncode == 0, found.stderr
    for row in json.loads(found.stdout)["samplers"].values():
        assert row["regret_mean"] is None and row["evaluations_to_99"] is None


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    found = replay("--table", str(tmp_path / "no.csv"), "--latency-budget", "10ms")
    assert found.returncode == 2 and "no.csv" in found.stderr
