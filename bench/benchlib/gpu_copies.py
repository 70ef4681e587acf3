"""Our TensorRT instances on a real device without TensorRT: CuPy's kernels behind its interface.

The engine is the fake's, which doubles its inputs; memory, streams, copies and page-locked memory
are the device's own, through NVIDIA's bindings or through CuPy's.
"""

from __future__ import annotations

import enum
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.runtimes.cuda import import_cudart
from analyzer.engine.runtimes.fake_cuda import Span
from analyzer.engine.runtimes.fake_tensorrt import Kernel, make_tensorrt
from analyzer.engine.runtimes.tensorrt_ import TensorRtEngine, TensorRtRuntime
from analyzer.errors import AnalyzerError, MissingPartError, TargetCrashError, TargetMemoryError

# An image of 3 × 224 × 224, as FP32.
ROW = 3 * 224 * 224
BATCHES = (1, 2, 4, 8, 16, 32, 64)
_SECONDS = 0.3  # of one figure
_KERNEL = """
extern "C" __global__ void doubled(const float* x, float* y, long long count) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) y[i] = 2 * x[i];
}
"""
_THREADS = 256  # of a block; any size does for one multiplication


class _Status(int):
    """A number with CUDA's name of it."""

    name: str


class CupyCudart:
    """CuPy's functions of CUDA's runtime in the manner of NVIDIA's bindings: status and result."""

    class cudaMemcpyKind(enum.IntEnum):  # noqa: N801 - CUDA's name
        """Directions of a copy (``cudaMemcpyKind``)."""

        cudaMemcpyHostToDevice = 1  # noqa: N815
        cudaMemcpyDeviceToHost = 2  # noqa: N815

    def __init__(self, cupy: Any) -> None:
        self._runtime = cupy.cuda.runtime

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        """``cudaMalloc`` is CuPy's ``malloc``."""
        plain = name.removeprefix("cuda")
        function = getattr(self._runtime, plain[:1].lower() + plain[1:])

        def call(*arguments: Any) -> tuple[Any, ...]:
            try:
                return _Status(0), function(*arguments)
            except self._runtime.CUDARuntimeError as error:
                status = _Status(error.status)
                status.name = str(error).partition(":")[0]
                return (status, None)

        return call


def import_cupy() -> Any:
    """CuPy.

    Raises:
        MissingPartError: It is not installed.
    """
    try:
        import cupy  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingPartError(
            f"CuPy cannot be imported: {error}.", hint="Install cupy-cuda13x (for CUDA 13)."
        ) from error
    return cupy


def doubling(cupy: Any) -> Kernel:
    """A kernel that doubles, on the stream of a number."""
    kernel = cupy.RawKernel(_KERNEL, "doubled")

    def launch(stream: int, source: Span, target: Span) -> None:
        count = source.size // 4
        with cupy.cuda.ExternalStream(stream):
            blocks = (count + _THREADS - 1) // _THREADS
            kernel((blocks,), (_THREADS,), (source.address, target.address, count))

    return launch


def opened(
    folder: Path, cudart: Any, kernel: Kernel, *, pinned: bool = True, row: int = ROW
) -> TensorRtRuntime:
    """An instance whose engine doubles ``x``, rows of ``row`` numbers."""
    plan = folder / "model.plan"
    plan.write_text(json.dumps({"inputs": {"x": [-1, row]}, "profiles": []}))
    engine = TensorRtEngine(plan, trt=make_tensorrt(kernel=kernel), cudart=cudart)
    return TensorRtRuntime(engine, pinned=pinned)


def copies(*, row: int = ROW, seconds: float = _SECONDS) -> dict[str, Any]:
    """Answers, times, memory and errors of the instances, by the module that reaches CUDA.

    Raises:
        MissingPartError: CuPy or a GPU is not here.
    """
    cupy = import_cupy()
    modules: dict[str, Any] = {"cupy": CupyCudart(cupy)}
    found: dict[str, Any] = {"cupy_version": cupy.__version__}
    try:
        modules = {"cuda-bindings": import_cudart()} | modules
    except MissingPartError as error:
        found["cuda-bindings"] = {"said": error.message}
    kernel = doubling(cupy)
    with tempfile.TemporaryDirectory() as scratch:
        for name, module in modules.items():
            found[name] = _one_module(Path(scratch), cupy, module, kernel, row, seconds)
    return found


def _one_module(
    folder: Path, cupy: Any, module: Any, kernel: Kernel, row: int, seconds: float
) -> dict[str, Any]:
    opened(folder, module, kernel, row=row).close()  # a process's first use takes memory for good
    free_before, total = cupy.cuda.runtime.memGetInfo()
    found: dict[str, Any] = {}
    for pinned in (True, False):
        runtime = opened(folder, module, kernel, pinned=pinned, row=row)
        found["page-locked" if pinned else "pageable"] = {
            str(batch): _timed(runtime, batch, row, seconds) for batch in BATCHES
        }
        runtime.close()
    pair = [opened(folder, module, kernel, row=row) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda each: _timed(each, 8, row, seconds)["correct"], pair))
    for runtime in pair:
        runtime.close()
    found["two_instances_correct"] = all(answers)
    found["out_of_memory"] = _out_of_memory(folder, module, kernel, total, row)
    free_after, _ = cupy.cuda.runtime.memGetInfo()
    found["bytes_not_given_back"] = free_before - free_after
    return found


def _timed(runtime: TensorRtRuntime, batch: int, row: int, seconds: float) -> dict[str, Any]:
    rows = np.random.default_rng(batch).standard_normal((batch, row), np.float32)
    correct = bool(np.array_equal(runtime.run({"x": rows})["x_doubled"], 2 * rows))
    return {"correct": correct, "ms": median_ms(lambda: runtime.run({"x": rows}), seconds)}


def median_ms(run: Callable[[], object], seconds: float) -> float:
    """The median of at least three runs and as many as take so long, milliseconds."""
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < seconds:
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def _out_of_memory(
    folder: Path, module: Any, kernel: Kernel, total: int, row: int
) -> dict[str, Any]:
    """What is said of a buffer larger than the device, and whether the instance runs on."""
    runtime = opened(folder, module, kernel, row=row)
    try:
        runtime._stream.buffer("too large", 2 * total)
        said = "nothing: the device gave it"
    except TargetMemoryError as error:
        said = error.message
    rows: NDArray[np.float32] = np.ones((1, row), np.float32)
    answer = runtime.run({"x": rows})["x_doubled"]
    runtime.close()
    return {"said": said, "runs_on": bool(np.array_equal(answer, 2 * rows))}


def lost() -> dict[str, Any]:
    """A kernel that writes where no memory is, in a process that is of no use afterwards.

    Raises:
        MissingPartError: CuPy or a GPU is not here.
        AnalyzerError: The fault was not told as the end of this process's use of the GPU.
    """
    cupy = import_cupy()
    kernel = doubling(cupy)

    def astray(stream: int, source: Span, target: Span) -> None:
        kernel(stream, source, Span(8, target.size))

    with tempfile.TemporaryDirectory() as scratch:
        runtime = opened(Path(scratch), CupyCudart(cupy), astray, row=ROW)
        said = []
        for _ in range(2):
            try:
                runtime.run({"x": np.ones((1, ROW), np.float32)})
            except TargetCrashError as error:
                said.append(error.message)
        if len(said) != 2:
            raise AnalyzerError("An illegal address was not told as the loss of the GPU.")
        return {"said": said}
