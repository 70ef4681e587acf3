"""ONNX Runtime's CUDA provider: cuDNN's search, copies, CUDA graphs; what NVML tells meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import CudnnSearch, Execution
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime, import_onnxruntime
from analyzer.engine.runtimes.providers import configure_session
from analyzer.errors import AnalyzerError, MissingPartError
from analyzer.hardware.gpu_meter import GpuMeter
from analyzer.hardware.gpus import first_gpu, open_handle
from analyzer.hardware.nvml import nvml_session
from analyzer.hardware.sampler import gpu_used_bytes
from analyzer.variants.inputs import synthetic_inputs
from analyzer.variants.inspect import inspect_model
from benchlib.command import ROOT, WORK
from benchlib.gpu_copies import BATCHES, import_cupy, median_ms
from benchlib.models import write_convnet

SEARCHES: tuple[CudnnSearch, ...] = ("heuristic", "exhaustive", "default")
_SECONDS = 0.3  # of one figure
_GRAPH_BATCHES = (1, 8, 64)
_ALTERNATING = (8, 16)
# NVML is watched for so long, idle and busy; its longest window is one second.
_WATCHED_S = 5.0
_POLL_S = 0.004  # well below NVML's shortest window


def models() -> dict[str, Path]:
    """The models of these steps."""
    convnet = write_convnet(WORK / "gpu" / "convnet.onnx")
    return {"digits": ROOT / "examples" / "digits.onnx", "convnet": convnet}


def provider(*, seconds: float = _SECONDS) -> dict[str, Any]:
    """Of each model: agreement with the CPU, times by batch size and search, bound, as a graph.

    Raises:
        MissingPartError: ONNX Runtime, its CUDA provider or a GPU is not here.
    """
    ort = import_onnxruntime()
    found: dict[str, Any] = {"onnxruntime": ort.__version__, "models": {}}
    for name, path in models().items():
        rows = synthetic_inputs(inspect_model(path), max(BATCHES), 0)
        one: dict[str, Any] = {"difference": _difference(path, rows)}
        for search in SEARCHES:
            one[search] = _by_batch(path, rows, search, seconds)
        for part, measure in (("bound", _bound), ("graph", _graph)):
            one[part] = _told(lambda path=path, rows=rows, of=measure: of(ort, path, rows, seconds))  # type: ignore[misc]
        found["models"][name] = one
    return found


def _told(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A part's figures, or what it failed with: the others are worth having."""
    try:
        return measure()
    except Exception as error:
        return {"said": f"{type(error).__name__}: {error}"[:400]}


def _difference(path: Path, rows: dict[str, Any]) -> float:
    """The largest difference to the CPU's answers, over the largest answer."""
    batch = {name: array[:8] for name, array in rows.items()}
    want: dict[str, Any] = dict(OrtRuntime(path).run(batch))
    got: dict[str, Any] = dict(OrtRuntime(path, device="gpu").run(batch))
    return max(
        float(np.abs(got[key] - value).max() / max(np.abs(value).max(), 1e-9))
        for key, value in want.items()
    )


def _by_batch(
    path: Path, rows: dict[str, Any], search: CudnnSearch, seconds: float
) -> dict[str, Any]:
    """Milliseconds of the first run of each batch size, when cuDNN searches, and of later ones.

    ``alternating`` has those of runs of two batch sizes in turns, each of which ran before.
    """
    runtime = OrtRuntime(path, device="gpu", execution=Execution(cudnn_search=search))
    found: dict[str, Any] = {}
    for batch in BATCHES:
        inputs = {name: array[:batch] for name, array in rows.items()}
        began = time.perf_counter()
        runtime.run(inputs)
        first = (time.perf_counter() - began) * 1e3
        found[str(batch)] = {
            "first_ms": first,
            "ms": median_ms(lambda inputs=inputs: runtime.run(inputs), seconds),  # type: ignore[misc]
        }
    pair = [{name: array[:batch] for name, array in rows.items()} for batch in _ALTERNATING]
    found["alternating"] = {
        "batches": list(_ALTERNATING),
        "ms": median_ms(lambda: [runtime.run(inputs) for inputs in pair], seconds) / len(pair),
    }
    runtime.close()
    return found


def _session(ort: Any, path: Path, **cuda: str) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    providers = configure_session(ort, options, Execution(), device="gpu")
    providers[0] = (providers[0][0], providers[0][1] | cuda)
    return ort.InferenceSession(str(path), options, providers=providers)


def _bind(ort: Any, session: Any, inputs: dict[str, Any]) -> Any:
    """A binding whose inputs lie on the device."""
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    return binding


def _bound(ort: Any, path: Path, rows: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Milliseconds without copies between host and device."""
    session = _session(ort, path)
    found = {}
    for batch in BATCHES:
        binding = _bind(ort, session, {name: array[:batch] for name, array in rows.items()})
        for output in session.get_outputs():
            binding.bind_output(output.name, "cuda")
        found[str(batch)] = {"ms": median_ms(_runs(session, binding), seconds)}
    return found


def _graph(ort: Any, path: Path, rows: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Milliseconds as a CUDA graph, captured for one batch size in a session of its own."""
    found = {}
    for batch in _GRAPH_BATCHES:
        session = _session(ort, path, enable_cuda_graph="1")
        inputs = {name: array[:batch] for name, array in rows.items()}
        outputs = OrtRuntime(path).run(inputs)
        binding = _bind(ort, session, inputs)
        values = {key: ort.OrtValue.ortvalue_from_numpy(np.zeros_like(value), "cuda", 0)
                  for key, value in outputs.items()}  # fmt: skip
        for name, value in values.items():
            binding.bind_ortvalue_output(name, value)
        ms = median_ms(_runs(session, binding), seconds)
        correct = all(
            np.allclose(value.numpy(), outputs[key], rtol=1e-2, atol=1e-2)
            for key, value in values.items()
        )
        found[str(batch)] = {"ms": ms, "correct": correct}
    return found


def _runs(session: Any, binding: Any) -> Callable[[], None]:
    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return run


def nvml(*, seconds: float = _WATCHED_S) -> dict[str, Any]:
    """NVML's windows, the steps of its counters, and our meter, on an idle and on a busy GPU.

    Raises:
        MissingPartError: NVML or a GPU is not here.
    """
    gpu = first_gpu()
    with nvml_session() as library:
        handle = open_handle(library, gpu) if library is not None else None
        if library is None or handle is None:
            raise MissingPartError("NVML does not know the GPU by its UUID.")
        found: dict[str, Any] = {"gpu": gpu.name, "driver": gpu.driver}
        found["idle"] = _watch(library, handle, seconds)
        base = gpu_used_bytes(gpu)
        with _busy() as by:
            time.sleep(1.0)  # NVML's longest window, which would reach back before the load
            meter = GpuMeter(gpu, base)
            meter.open()
            own = (os.getpid(),)
            found["busy"] = _watch(library, handle, seconds, each=lambda: meter.sample(own))
            meter.close()
        found["busy_by"] = by
        use = meter.result()
        names = ("gpu_memory_bytes_peak", "gpu_memory_source", "gpu_utilization", "power_watts",
                 "energy_joules", "gpu_clock_mhz", "gpu_clock_limits", "gpu_throttled")  # fmt: skip
        found["meter"] = {name: getattr(use, name) for name in names}
    return found


def _watch(
    library: Any, handle: Any, seconds: float, each: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Windows of utilization and the energy counter's steps over so many seconds."""

    def ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except library.NVMLError as error:
            return str(error)

    kind = library.NVML_GPU_UTILIZATION_SAMPLES
    energies: list[tuple[float, int]] = []
    power: list[int] = []
    began = time.perf_counter()
    began_us = time.time_ns() // 1000
    while (now := time.perf_counter()) - began < seconds:
        energy = ask(lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle))
        if isinstance(energy, int) and (not energies or energy != energies[-1][1]):
            energies.append((now, energy))
        watts = ask(lambda: library.nvmlDeviceGetPowerUsage(handle))
        power += [watts] if isinstance(watts, int) else []
        each()
        time.sleep(_POLL_S)
    samples = ask(lambda: library.nvmlDeviceGetSamples(handle, kind, 0))
    if isinstance(samples, str):
        windows: Any = samples
    else:
        stamps = [sample.timeStamp for sample in samples[1]]
        fresh = [sample.sampleValue.uiVal for sample in samples[1] if sample.timeStamp >= began_us]
        windows = {
            "kept": len(stamps),
            "gap_ms_median": float(np.median(np.diff(stamps)) / 1e3) if len(stamps) > 1 else None,
            "percent_mean": float(np.mean(fresh)) if fresh else None,
        }
    steps = np.diff([at for at, _ in energies])
    joules = (energies[-1][1] - energies[0][1]) / 1e3 if len(energies) > 1 else None
    return {
        "windows": windows,
        "energy_step_ms_median": float(np.median(steps) * 1e3) if len(steps) else None,
        "energy_watts": joules / (energies[-1][0] - energies[0][0]) if joules else None,
        "power_watts": float(np.mean(power)) / 1e3 if power else None,
    }


@contextmanager
def _busy() -> Iterator[str]:
    """Keeps the GPU busy meanwhile, by matrix products of CuPy or by a model; tells which."""
    work, name = _work()
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield name
    finally:
        stop.set()
        thread.join()


def _work() -> tuple[Callable[[], object], str]:
    try:
        cupy = import_cupy()
        matrix = cupy.ones((4096, 4096), dtype=cupy.float32)

        def multiply() -> None:
            matrix.dot(matrix)
            cupy.cuda.runtime.deviceSynchronize()

        multiply()
        return multiply, "CuPy"
    except Exception as error:
        path = models()["convnet"]
        rows = synthetic_inputs(inspect_model(path), 64, 0)
        try:
            runtime = OrtRuntime(path, device="gpu")
        except AnalyzerError as second:
            raise MissingPartError(
                f"Nothing here keeps the GPU busy: {error}; {second.message}"
            ) from second
        return lambda: runtime.run(rows), "ONNX Runtime"
