"""GPUs as they go wrong: each time a sentence, the exit code and the failure that are documented.

The real program in processes of its own, on machines that are made up (``tests/fake_packages``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton

from analyzer.domain.measurement import Failure, Measurement
from analyzer.hardware.gpu_lock import _FOLDER, building_on
from analyzer.hardware.gpus import GpuIdentity
from benchlib.own_server import own_server

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits.onnx"
GIB = 1 << 30
SEARCH = (
    "search", str(DIGITS), "--latency-budget", "50ms", "--device", "gpu",
    "--executor", "in-process", "--json",
)  # fmt: skip
FULL = {"uuid": "GPU-full-1", "memory_total": 80 * GIB, "memory_used": 79 * GIB}
EMPTY = {"uuid": "GPU-empty-2", "memory_total": 80 * GIB, "memory_used": GIB}
# As ONNX Runtime's CUDA provider says it.
NO_ROOM = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: "
    "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 4294967296"
)
LOST = (
    "CUDNN failure: CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; "
    "hostname=a ; file=cuda_execution_provider.cc ; line=450"
)

Machine = Callable[..., None]


def analyze(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "analyzer.cli.main", *words],
        cwd=folder, capture_output=True, text=True, timeout=110, check=False,
        env=os.environ | {"TRITUNE_CACHE": str(folder / "cache")},
    )  # fmt: skip


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "analyzer.cli.main", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TRITUNE_CACHE": str(folder / "cache")},
    )  # fmt: skip


def search(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return analyze(folder, *SEARCH, *words)


@pytest.mark.parametrize(
    ("options", "hidden", "said", "hint"),
    [
        (
            {"nvml": {"faults": {"nvmlInit": "NVML_ERROR_LIBRARY_NOT_FOUND"}}},
            None,
            "the NVIDIA driver is not installed, or not shown to this container",
            "install its driver",
        ),
        (
            {"nvml": {"faults": {"nvmlInit": "NVML_ERROR_DRIVER_NOT_LOADED"}}},
            None,
            "NVML finds no NVIDIA GPU on this machine: the NVIDIA driver is not loaded.",
            "install its driver",
        ),
        (
            {"nvml": {"faults": {"nvmlInit": "NVML_ERROR_LIB_RM_VERSION_MISMATCH"}}},
            None,
            "the driver's libraries and its kernel module are of different versions",
            "analyze doctor",
        ),
        (
            {"nvml": {"cuda": 12020}, "onnxruntime": {"cuda_version": "13.0"}},
            None,
            "The NVIDIA driver runs CUDA up to 12.2, and ONNX Runtime",
            "Install a newer driver",
        ),
        ({}, "", "CUDA_VISIBLE_DEVICES='' hides every GPU of this machine.", "Unset it"),
        ({}, "7", "CUDA_VISIBLE_DEVICES='7' hides every GPU of this machine.", "name one of: 0"),
        (
            {"nvml": {"gpus": [{"mig": True}]}},
            None,
            "GPU 0 is in MIG mode and has no instance that a program could use.",
            "Use --device cpu",
        ),
    ],
    ids=["no driver", "not loaded", "mismatch", "driver too old", "hidden", "no such", "empty MIG"],
)
def test_a_gpu_that_cannot_be_used_is_told_before_anything_starts(
    made_up_machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: dict[str, Any],
    hidden: str | None,
    said: str,
    hint: str,
) -> None:
    made_up_machine(**options)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    done = search(tmp_path)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, "usage")
    assert said in error["message"] and error["message"].startswith("--device gpu: ")
    assert hint in error["hint"]
    assert not (tmp_path / "cache").exists()


# A measurement of one configuration, as a worker of a search runs it; prints the stored failure.
WORKER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from analyzer.domain.configuration import Configuration
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson
from analyzer.hardware.gpus import first_gpu
from analyzer.measure.jobs import WorkerContext
from analyzer.measure.plan import EdgePlan, LoadPlan
from analyzer.measure.tasks import Assets, MeasureTask
from analyzer.variants.inspect import inspect_model

path, cache, values, server = sys.argv[1:]
task = MeasureTask(
    server=server,
    assets=Assets(model=inspect_model(path)),
    configuration=Configuration(**json.loads(values)),
    load=LoadPlan(sla=Sla(latency_budget_ms=50.0), arrivals=Poisson()),
    edge_plan=EdgePlan(seconds=4.0),
)
gpu = first_gpu()
context = WorkerContext(
    worker_id="1", device="gpu", gpu=gpu, cores=1, cache_dir=Path(cache), node="here"
)
result = task(context)
print(json.dumps({"kind": type(result.outcome).__name__} | asdict(result.outcome)))
"""


def measured(
    folder: Path,
    model: Path = DIGITS,
    *,
    server: str = "embedded",
    kind: type[Failure | Measurement] = Failure,
    **configuration: Any,
) -> dict[str, Any]:
    values = json.dumps({"device": "gpu"} | configuration)
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(model), str(folder / "cache"), values, server],
        cwd=folder, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["kind"] == kind.__name__, found.get("message", found)
    return found


def test_no_room_at_load_on_the_full_one_of_two_gpus(
    made_up_machine: Machine, tmp_path: Path
) -> None:
    made_up_machine(nvml={"gpus": [FULL, EMPTY]}, onnxruntime={"load_error": NO_ROOM})
    failure = measured(tmp_path)
    # The variant is scored first, which opens it on the GPU for the first time.
    assert (failure["stage"], failure["reason"]) == ("start", "out_of_memory")
    assert "Failed to allocate memory" in failure["message"]
    assert failure["message"].endswith("Before, 79.0 of 80.0 GiB of GPU 0 were in use.")
    assert failure["hint"].endswith(
        "GPU 1 has 79.0 GiB free: set CUDA_VISIBLE_DEVICES=GPU-empty-2 to use it."
    )


def test_out_of_memory_under_load(made_up_machine: Machine, tmp_path: Path) -> None:
    made_up_machine(onnxruntime={"run_error": {"after": 20, "said": NO_ROOM}})
    failure = measured(tmp_path)
    assert (failure["stage"], failure["reason"]) == ("load", "out_of_memory")
    assert "ran out of memory" in failure["message"]
    assert "Fewer instances" in failure["hint"]


def test_a_gpu_that_is_lost_under_load_ends_the_server(
    made_up_machine: Machine, tmp_path: Path
) -> None:
    made_up_machine(onnxruntime={"run_error": {"after": 20, "said": LOST}})
    failure = measured(tmp_path)
    assert (failure["stage"], failure["reason"]) == ("load", "crash")
    assert "an illegal memory access was encountered" in failure["message"]
    assert "start the server anew" in failure["hint"]


def test_cuda_that_falls_back_to_the_cpu_is_refused(
    made_up_machine: Machine, tmp_path: Path
) -> None:
    made_up_machine(onnxruntime={"falls_back": True})
    failure = measured(tmp_path)
    assert (failure["stage"], failure["reason"]) == ("start", "missing")
    assert "could not start CUDA" in failure["message"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_lost_its_gpu_is_neither_live_nor_ready(
    made_up_machine: Machine, tmp_path: Path, protocol: str
) -> None:
    """An orchestrator starts it anew; who measures it is told why it failed."""
    made_up_machine(onnxruntime={"run_error": {"after": 12, "said": LOST}})
    (tmp_path / "repository").mkdir()
    with own_server(tmp_path / "repository", "--model-control-mode=explicit") as server:
        made_up_machine()
        health = partial(httpx.get, f"http://{server.http}/v2/health/live")
        assert health().status_code == 200
        failure = measured(tmp_path, server=f"{protocol}://{getattr(server, protocol)}")
        assert (failure["stage"], failure["reason"]) == ("load", "crash")
        assert "The model is not ready any more" in failure["message"]
        assert "an illegal memory access was encountered" in failure["message"]
        assert "Start its server anew" in failure["hint"]
        assert health().status_code == 400
        assert httpx.get(f"http://{server.http}/v2/health/ready").status_code == 400
        with triton.InferenceServerClient(server.grpc) as client:
            assert not client.is_server_live() and not client.is_server_ready()


def test_measure_ends_with_the_code_of_a_server_that_failed(
    made_up_machine: Machine, tmp_path: Path
) -> None:
    made_up_machine(nvml={"gpus": [FULL]}, onnxruntime={"load_error": NO_ROOM})
    done = analyze(tmp_path, "measure", str(DIGITS), "--rate", "5/s", "--duration", "1s", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (1, "target_memory")
    assert "79.0 of 80.0 GiB of GPU 0 were in use" in error["message"]


def _waits_for_a_lock(pid: int) -> bool:
    """As the kernel lists those that wait: ``1: -> FLOCK  ADVISORY  READ PID …``."""
    lines = map(str.split, Path("/proc/locks").read_text().splitlines())
    return any(line[1:3] == ["->", "FLOCK"] and line[5] == str(pid) for line in lines)


def test_a_load_test_waits_for_what_is_built_on_its_gpu(
    made_up_machine: Machine, tmp_path: Path
) -> None:
    uuid = f"GPU-{tmp_path.parent.name}-{os.getpid()}"
    made_up_machine(nvml={"gpus": [EMPTY | {"uuid": uuid}]})
    load_test = ("measure", str(DIGITS), "--rate", "20/s", "--duration", "1s", "--json")
    try:
        with building_on(GpuIdentity(uuid=uuid)):
            process = start(tmp_path, *load_test)
            until = time.monotonic() + 60.0
            while not _waits_for_a_lock(process.pid):
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.05)
        said, errors = process.communicate(timeout=60.0)
    finally:
        (_FOLDER / f"tritune-gpu-{uuid}.lock").unlink(missing_ok=True)
    assert process.returncode == 0, errors
    assert json.loads(said)["requests"] > 0


def test_a_plan_of_another_tensorrt(
    made_up_machine: Machine, write_doubling: Callable[[Path], Path], tmp_path: Path
) -> None:
    """The engine that this TensorRT builds does not load: as one from elsewhere."""
    said = "expecting library version 10.9.0.34 got 10.3.0.26, please rebuild."
    made_up_machine(tensorrt={"version": "10.9.0.34", "load_error": said})
    failure = measured(tmp_path, write_doubling(tmp_path), backend="tensorrt")
    assert (failure["stage"], failure["reason"]) == ("start", "start")
    assert "was built by TensorRT 10.3.0.26, and here is TensorRT 10.9.0.34" in failure["message"]


def test_no_room_for_an_engine_and_none_for_its_batches(
    made_up_machine: Machine, write_doubling: Callable[[Path], Path], tmp_path: Path
) -> None:
    model = write_doubling(tmp_path)
    engine = {"backend": "tensorrt", "dynamic_batching": True, "max_batch_size": 8}
    made_up_machine(tensorrt={}, cuda={"memory_bytes": 100})
    failure = measured(tmp_path, model, **engine)
    assert (failure["stage"], failure["reason"]) == ("start", "out_of_memory")
    assert "GPU 0 is out of memory (cudaMalloc: cudaErrorMemoryAllocation)" in failure["message"]


def test_an_engine_is_scored_and_measured_where_tensorrt_alone_runs_on_the_gpu(
    made_up_machine: Machine, write_doubling: Callable[[Path], Path], tmp_path: Path
) -> None:
    """Its answers were held against ONNX Runtime on a GPU, which is not there."""
    model = write_doubling(tmp_path)
    made_up_machine(onnxruntime={"cuda": False}, tensorrt={}, cuda={"memory_bytes": 1 << 30})
    found = measured(tmp_path, model, kind=Measurement, backend="tensorrt")
    # Under overload requests end with errors; below it none does.
    assert min(test["errors"] for test in found["load_tests"]) == 0
    without = measured(tmp_path, model)  # ONNX Runtime is asked to run it on the GPU
    assert without["stage"] == "start"
    assert "has no CUDA provider" in without["message"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_mig_instance_is_searched_on_by_its_uuid(
    made_up_machine: Machine, program: Any, tmp_path: Path
) -> None:
    """Until the first trial is stored: the rest of the time would tell no more of it."""
    instance = {"uuid": "MIG-cccc-4", "name": "NVIDIA H200 MIG 1g.18gb", "memory_total": 18 * GIB}
    made_up_machine(nvml={"gpus": [{"uuid": "GPU-whole-1", "instances": [instance]}]})
    with start(
        tmp_path, *SEARCH, "--percentile", "80", "--budget", "120s", "--precisions", "fp32"
    ) as process:
        program.wait_for(process, lambda: program.measured(tmp_path))
        process.send_signal(signal.SIGINT)
        done = program.finish(process)
    assert done.code == 130, done.stderr[-2000:]
    document = json.loads(analyze(tmp_path, "report", "--json").stdout)
    assert "NVIDIA H200 MIG 1g.18gb" in json.dumps(document["provenance"])
    assert document["search"]["evaluated_live"] >= 1
    assert [each for each in document["failures"] if each["reason"] == "start"] == []
    (_FOLDER / "tritune-gpu-MIG-cccc-4.lock").unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.timing
@pytest.mark.timeout(300)
def test_an_engine_from_its_search_to_a_load_test_of_its_export(
    made_up_machine: Machine,
    write_doubling: Callable[[Path], Path],
    engines_space: Path,
    tmp_path: Path,
) -> None:
    """Where TensorRT alone runs on the GPU; with another TensorRT both versions are named."""
    machine: dict[str, Any] = {"cuda": {"memory_bytes": 1 << 30}, "onnxruntime": {"cuda": False}}
    made_up_machine(tensorrt={"version": "10.3.0.26"}, **machine)
    store = f"sqlite:///{tmp_path}/r.db"
    repository = tmp_path / "models"
    model = write_doubling(tmp_path)
    done = analyze(
        tmp_path, "search", str(model), "--latency-budget", "200ms", "--device", "gpu", "--json",
        "--executor", "in-process", "--budget", "40s", "--space", str(engines_space),
        "--target-rate", "20/s", "--store", store, "--export", str(repository),
        "--accept", "estimated",
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    best = json.loads(done.stdout)["recommendation"]
    assert best["config"]["backend"] == "tensorrt"
    assert list((repository / "double" / "1").glob("*.plan"))
    words = ["verify", "--repository", str(repository), "--model", "double", "--json",
             "--budget", "20s", "--target-rate", "20/s"]  # fmt: skip
    verified = analyze(tmp_path, *words)
    document = json.loads(verified.stdout)
    assert verified.returncode in (0, 4), verified.stderr[-2000:]
    assert document["measured"]["config"]["backend"] == "tensorrt"
    assert document["measured"]["errors"] == 0
    said = "expecting library version 10.9.0.34 got 10.3.0.26, please rebuild."
    made_up_machine(tensorrt={"version": "10.9.0.34", "load_error": said}, **machine)
    refused = analyze(tmp_path, *words)
    error = json.loads(refused.stdout)["error"]
    assert (refused.returncode, error["code"]) == (1, "target_start")
    assert "was built by TensorRT 10.3.0.26, and here is TensorRT 10.9.0.34" in error["message"]
