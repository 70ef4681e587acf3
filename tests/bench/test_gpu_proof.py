"""``make gpu-proof`` over fakes: its steps, what is left of a failure, and going on afterwards."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchlib import gpu_landscape, gpu_page
from benchlib.recorded import read

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

ROOT = Path(__file__).parents[2]
PAGE = "# A page\n\n<!-- table: bench/gpu.py -->\nnothing yet\n<!-- end -->\n\nThe rest.\n"
Machine = Callable[..., None]


@pytest.fixture
def proof(tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Runs steps; exit code, the records by step, and the page."""
    page = tmp_path / "page"
    page.write_text(PAGE)

    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        folder = tmp_path / "records"
        done = subprocess.run(
            [sys.executable, str(ROOT / "bench" / "gpu.py"), *words, "--anyway",
             "--folder", str(folder), "--page", str(page), "--out", str(tmp_path / "gpu.json"),
             "--table", str(tmp_path / "table.csv")],
            capture_output=True, text=True, timeout=110, check=False,
            env=os.environ | {"TRITUNE_CACHE": str(tmp_path / "cache")},
        )  # fmt: skip
        records = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
        return done.returncode, records, page.read_text() + done.stderr

    return run


def test_without_a_gpu_each_step_says_why_and_the_next_goes_on(
    made_up_machine: Machine, proof: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    made_up_machine(nvml={"faults": {"nvmlInit": "NVML_ERROR_DRIVER_NOT_LOADED"}})
    code, records, page = proof("machine", "copies", "lost", "nvml")
    assert code == 0
    assert {name: record["state"] for name, record in records.items()} == dict.fromkeys(
        ("machine", "copies", "lost", "nvml"), "missing"
    )
    assert "the NVIDIA driver is not loaded" in records["machine"]["said"]
    assert "CuPy cannot be imported" in records["copies"]["said"]
    assert "| machine | missing |" in page and "The rest." in page


def test_copies_and_errors_on_a_device_behind_cupy(
    made_up_machine: Machine, proof: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    made_up_machine(cupy={}, cuda={"memory_bytes": 1 << 30})
    _, records, page = proof("machine", "copies", "lost", "--quick")
    assert [record["state"] for record in records.values()] == ["done"] * 3
    for module in ("cuda-bindings", "cupy"):
        found = records["copies"]["results"][module]
        timed = [*found["page-locked"].values(), *found["pageable"].values()]
        assert all(each["correct"] and each["ms"] > 0 for each in timed) and len(timed) == 14
        assert found["two_instances_correct"]
        assert found["bytes_not_given_back"] == 0
        said = "GPU 0 is out of memory (cudaMalloc: cudaErrorMemoryAllocation)."
        assert found["out_of_memory"] == {"said": said, "runs_on": True}
    first, second = records["lost"]["results"]["said"]
    assert "cudaStreamSynchronize: cudaErrorIllegalAddress" in first
    assert "cudaSetDevice: cudaErrorIllegalAddress" in second
    assert "| copies | done |" in page and "answers right" in page


def test_steps_that_are_done_are_left_out_and_others_tried_again(
    made_up_machine: Machine, proof: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    made_up_machine()
    _, before, _ = proof("machine", "lost")
    assert (before["machine"]["state"], before["lost"]["state"]) == ("done", "missing")
    made_up_machine(cupy={}, cuda={"memory_bytes": 1 << 30})
    _, after, said = proof("machine", "lost")
    assert "machine: done before" in said
    assert after["machine"] == before["machine"]
    assert after["lost"]["state"] == "done"


def test_a_step_without_time_is_left_for_the_next_call(
    made_up_machine: Machine, proof: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    made_up_machine()
    code, records, said = proof("machine", "--seconds", "3")
    assert (code, records) == (0, {})
    assert "machine: left for the next call" in said


@pytest.mark.long
def test_a_whole_search_and_the_tests_marked_gpu(
    made_up_machine: Machine, proof: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    """Their code, over a CUDA that is the CPU; the figures mean nothing."""
    made_up_machine()
    _, records, page = proof("search", "--seconds", "150")
    assert records["search"]["state"] == "done", records["search"]
    found = records["search"]["results"]
    for device in ("gpu", "cpu"):
        assert found[device]["verdict"] in ("found", "undecided")
        assert found[device]["search"]["evaluated_live"] >= 1
        assert found[device]["provenance"]["hardware"]
    closest = found["gpu"]["closest"]  # on a busy machine the search may end undecided
    entries = [*found["gpu"]["pareto"], *([closest["entry"]] if closest else [])]
    assert {entry["config"]["device"] for entry in entries} == {"gpu"}
    assert "| search | done |" in page
    _, records, _ = proof("tests")
    assert records["tests"]["state"] == "done", records["tests"]
    assert "1 passed, 1 skipped, 1 deselected" in records["tests"]["results"]["said"][-1]


def test_tests_that_were_all_skipped_are_not_done(
    made_up_machine: Machine, proof: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    made_up_machine(nvml={"faults": {"nvmlInit": "NVML_ERROR_DRIVER_NOT_LOADED"}})
    _, records, _ = proof("tests")
    assert records["tests"]["state"] == "missing"
    assert "NVML finds no NVIDIA GPU on this machine" in records["tests"]["said"]


def test_a_step_whose_process_dies_is_recorded(tmp_path: Path, monkeypatch: Any) -> None:
    import gpu

    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "absent.py"))
    record = gpu.run_step("machine", 20.0, tmp_path / "machine.json")
    assert record["state"] == "failed"
    assert "its process ended with exit code 2" in record["said"]
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "slow.py"))
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    record = gpu.run_step("machine", 1.0, tmp_path / "machine.json")
    assert record["said"] == "it was not done within 1 s"


def test_every_step_is_explained_and_has_its_sentence() -> None:
    import gpu

    assert gpu.__doc__ is not None
    assert set(gpu.STEPS) == set(gpu_page._SENTENCES)
    assert all(f"\n    {name} " in gpu.__doc__ for name in gpu.STEPS)
    assert sum(step.seconds for step in gpu.STEPS.values()) == 600.0


def test_a_landscapes_table_is_one_that_the_twin_reads(tmp_path: Path) -> None:
    """Rows as of a closed network that the step would have measured; a second call adds none."""
    path = tmp_path / "table.csv"
    rows = []
    for configuration in gpu_landscape.configurations():
        instances, batch = configuration.instance_count, configuration.max_batch_size
        for clients in gpu_landscape.concurrencies(instances, batch):
            busy = min(clients, instances)
            joined = min(batch, max(clients // busy, 1))
            service_s = 0.002 * (1 + 0.2 * (busy - 1)) * (1 + 0.1 * (joined - 1))
            rate = min(busy * joined / service_s, clients / service_s)
            latency_ms = clients / rate * 1e3
            names = ("latency_ms_mean", "latency_ms_p90", "latency_ms_p95", "latency_ms_p99")
            rows.append(
                {
                    "model": "m",
                    "variant": configuration.precision,
                    "max_batch_size": batch,
                    "instance_count": instances,
                    "dynamic_batching": int(configuration.dynamic_batching),
                    "concurrency": clients,
                    "throughput_ips": rate,
                }
                | dict.fromkeys(names, latency_ms)
            )
    gpu_landscape._append(path, rows[:10])
    gpu_landscape._append(path, rows[10:])
    with path.open(newline="") as file:
        assert tuple(csv.DictReader(file).fieldnames or ()) == gpu_landscape.COLUMNS
    table = read(path, "99")
    assert (table.rows, table.left_out) == (len(rows), 0)
    assert {point.group for point in table.points} == {"m/fp32", "m/fp16"}
    found = gpu_landscape.summary(path)
    assert (found["rows"], found["of"]) == (len(rows), len(rows))
    assert np.isfinite(found["twin_error_median"]) and found["twin_error_median"] < 0.1


@pytest.mark.slow
def test_a_row_of_the_landscape_is_measured(made_up_machine: Machine, tmp_path: Path) -> None:
    """One deployment on the embedded server; its CUDA is the CPU."""
    made_up_machine()
    code = """
import sys
from pathlib import Path
from benchlib import gpu_landscape as g
g.BATCHES, g.INSTANCES, g.PRECISIONS = (1,), (1,), ("fp32",)
print(g.landscape(Path(sys.argv[1]), model_name="digits", until_s=60.0, seconds=0.3))
"""
    path = tmp_path / "table.csv"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], str(ROOT / "bench")))
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True, text=True, timeout=110, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["concurrency"] for row in rows] == ["1", "2"]
    assert all(float(row["throughput_ips"]) > 0 for row in rows)
