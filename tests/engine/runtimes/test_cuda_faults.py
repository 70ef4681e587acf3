"""TensorRT's instances over a CUDA whose streams run late, whose errors stick, and that can fail.

The enumerations are the real bindings' own where those are installed.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.engine.runtimes.cuda import CudaStream
from analyzer.engine.runtimes.fake_cuda import FakeCuda, Span
from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt
from analyzer.engine.runtimes.tensorrt_ import TensorRtEngine, TensorRtRuntime
from analyzer.errors import (
    MissingPartError,
    TargetCrashError,
    TargetError,
    TargetMemoryError,
    TargetStartError,
)

try:
    from cuda.bindings import runtime as real
except ImportError:
    real = None

Open = Callable[..., TensorRtRuntime]


@pytest.fixture(params=["real", "made here"])
def enums(request: pytest.FixtureRequest) -> Any:
    """The real module, whose enumerations the fake takes, or None for its own."""
    if request.param == "real" and real is None:
        pytest.skip("the package cuda-bindings is not installed")
    return real if request.param == "real" else None


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """An instance of an engine that doubles ``x``, rows of three."""

    def make(cuda: FakeCuda, *, pinned: bool = True, **plan: Any) -> TensorRtRuntime:
        path = tmp_path / "model.plan"
        values = {"inputs": {"x": [-1, 3]}, "profiles": [{"x": [[1, 3], [4, 3], [8, 3]]}]}
        path.write_text(json.dumps(values | plan))
        return TensorRtRuntime(
            TensorRtEngine(path, trt=make_tensorrt(), cudart=cuda), pinned=pinned
        )

    return make


def rows(count: int, first: float = 0.0) -> dict[str, Any]:
    return {"x": first + np.arange(3 * count, dtype=np.float32).reshape(count, 3)}


@pytest.mark.parametrize("pinned", [True, False])
def test_batches_of_every_size_leave_nothing_behind(opened: Open, enums: Any, pinned: bool) -> None:
    cuda = FakeCuda(1 << 12, real=enums)
    runtime = opened(cuda, pinned=pinned, weights_bytes=1 << 10, context_bytes=1 << 9)
    for count in (2, 8, 1, 5):
        inputs = rows(count, first=count)
        np.testing.assert_array_equal(runtime.run(inputs)["x_doubled"], 2 * inputs["x"])
    # Input and output, 8 rows each of 3 floats; smaller ones went through the same memory.
    assert sum(map(len, cuda.pinned.values())) == (192 if pinned else 0)
    assert cuda.pinned_peak == (192 if pinned else 0)
    assert cuda.free[0] == (1 << 12) - (1 << 10) - (1 << 9) - 192
    runtime.close()
    assert cuda.leaks() == []
    assert cuda.violations == []
    del runtime
    gc.collect()
    assert cuda.free == [1 << 12]  # the engine and its context too


def test_answers_stay_the_callers_when_the_next_batch_runs(opened: Open) -> None:
    runtime = opened(FakeCuda())
    first = runtime.run(rows(2))["x_doubled"]
    kept = first.copy()
    runtime.run(rows(2, first=100.0))
    np.testing.assert_array_equal(first, kept)


def test_no_room_for_the_engine_and_none_for_an_instance(opened: Open, enums: Any) -> None:
    cuda = FakeCuda(1 << 10, real=enums)
    with pytest.raises(TargetMemoryError, match="the GPU is out of memory: Error Code 2"):
        opened(cuda, weights_bytes=1 << 11)
    with pytest.raises(TargetMemoryError, match="could not create another instance: Error Code 2"):
        opened(cuda, weights_bytes=600, context_bytes=600)
    gc.collect()
    assert cuda.leaks() == []
    assert cuda.free == [1 << 10]


def test_out_of_memory_under_load_costs_the_request_and_nothing_else(
    opened: Open, enums: Any
) -> None:
    cuda = FakeCuda(80, real=enums)
    runtime = opened(cuda)
    np.testing.assert_array_equal(runtime.run(rows(2))["x_doubled"], 2 * rows(2)["x"])
    with pytest.raises(TargetMemoryError, match=r"GPU 0 is out of memory \(cudaMalloc: cudaErrorM"):
        runtime.run(rows(8))
    # It does not stick: smaller batches run.
    np.testing.assert_array_equal(runtime.run(rows(1))["x_doubled"], 2 * rows(1)["x"])
    runtime.close()
    assert (cuda.leaks(), cuda.violations) == ([], [])


def test_without_page_locked_memory_it_goes_through_ordinary_one(opened: Open) -> None:
    cuda = FakeCuda(pinned_bytes=30)
    runtime = opened(cuda)
    np.testing.assert_array_equal(runtime.run(rows(8))["x_doubled"], 2 * rows(8)["x"])
    runtime.close()
    assert (cuda.leaks(), cuda.pinned_peak) == ([], 0)


@pytest.mark.parametrize("name", ["cudaErrorIllegalAddress", "cudaErrorLaunchFailure"])
def test_a_kernels_fault_shows_at_the_wait_and_sticks(opened: Open, enums: Any, name: str) -> None:
    cuda = FakeCuda(faults={"launch": (name, 1)}, real=enums)
    runtime = opened(cuda)
    runtime.run(rows(1))
    for function in ("cudaStreamSynchronize", "cudaSetDevice"):
        with pytest.raises(TargetCrashError, match=rf"GPU 0 \({function}: {name}\)") as caught:
            runtime.run(rows(1))
        assert "start the server anew" in caught.value.hint
    runtime.close()  # raises nothing
    with pytest.raises(TargetCrashError):
        CudaStream(cudart=cuda)


def test_tensorrt_quotes_a_lost_gpu(opened: Open) -> None:
    cuda = FakeCuda(faults={"cudaLaunchKernel": ("cudaErrorIllegalAddress", 0)})
    with pytest.raises(TargetCrashError, match="an illegal memory access was encountered"):
        opened(cuda).run(rows(1))


def test_an_error_that_does_not_stick_is_one_requests(opened: Open) -> None:
    cuda = FakeCuda(faults={"cudaMemcpyAsync": ("cudaErrorInvalidValue", 0)})
    runtime = opened(cuda)
    with pytest.raises(TargetError, match="cudaErrorInvalidValue") as caught:
        runtime.run(rows(1))
    assert type(caught.value) is TargetError
    runtime.run(rows(1))


@pytest.mark.parametrize(
    ("function", "after"),
    [("cudaMalloc", 1), ("cudaMemcpyAsync", 1), ("cudaLaunchKernel", 0), ("cudaHostAlloc", 1)],
)
def test_a_batch_that_fails_half_way_leaves_no_copy_under_way(
    opened: Open, function: str, after: int
) -> None:
    """The next batch is written to memory that the queued copy reads."""
    error = "cudaErrorMemoryAllocation"
    cuda = FakeCuda(faults={function: (error, after)})
    runtime = opened(cuda)
    if function == "cudaHostAlloc":
        runtime.run(rows(1))  # in ordinary memory
    else:
        with pytest.raises(TargetError):
            runtime.run(rows(1))
    inputs = rows(1, first=50.0)
    np.testing.assert_array_equal(runtime.run(inputs)["x_doubled"], 2 * inputs["x"])
    assert cuda.violations == []
    runtime.close()
    assert cuda.leaks() == []


def test_a_driver_that_is_missing_or_old_and_a_gpu_that_is_hidden(tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    plan.write_text("{}")
    for cuda, said in (
        (
            FakeCuda(faults={"cudaSetDevice": ("cudaErrorInsufficientDriver", 0)}),
            "the NVIDIA driver is missing, or older than this CUDA",
        ),
        (FakeCuda(()), "CUDA sees no GPU here"),
    ):
        with pytest.raises(MissingPartError, match=said):
            TensorRtEngine(plan, trt=make_tensorrt(), cudart=cuda)
    with pytest.raises(MissingPartError, match="CUDA sees no GPU of this number"):
        TensorRtEngine(plan, device_id=1, trt=make_tensorrt(), cudart=FakeCuda())


def test_of_two_gpus_each_has_its_own_memory(tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    plan.write_text(json.dumps({"inputs": {"x": [2, 3]}, "profiles": [], "weights_bytes": 500}))
    cuda = FakeCuda((100, 1000))
    trt = make_tensorrt()
    with pytest.raises(TargetMemoryError, match="cannot be loaded, since the GPU is out of memory"):
        TensorRtEngine(plan, device_id=0, trt=trt, cudart=cuda)
    kept = TensorRtEngine(plan, device_id=1, trt=trt, cudart=cuda)
    assert cuda.free == [100, 500]
    with pytest.raises(TargetStartError):
        plan.write_text("no plan")
        TensorRtEngine(plan, device_id=1, trt=trt, cudart=cuda)
    assert kept.engine is not None


class TestTheFakeTells:
    """It is not blind: each mistake that the runtime does not make is told."""

    def test_a_download_that_is_read_too_early(self) -> None:
        cuda = FakeCuda()
        stream = CudaStream(cudart=cuda)
        device, host = stream.buffer("a", 4), stream.staging("a", 4)
        host.view(np.float32)[:] = 7.0
        stream.upload(device, host.ctypes.data, 4)
        stream.synchronize()
        stream.download(host.ctypes.data, device, 4)
        assert np.isnan(host.view(np.float32)[0])
        stream.synchronize()
        assert host.view(np.float32)[0] == 7.0

    def test_page_locked_memory_that_is_overwritten_too_early(self) -> None:
        cuda = FakeCuda()
        stream = CudaStream(cudart=cuda)
        device, host = stream.buffer("a", 4), stream.staging("a", 4)
        host[:] = 1
        stream.upload(device, host.ctypes.data, 4)
        host[:] = 2
        stream.synchronize()
        assert cuda.violations == ["page-locked memory changed before it was copied"]

    def test_memory_that_is_freed_while_it_is_used(self) -> None:
        cuda = FakeCuda()
        stream = CudaStream(cudart=cuda)
        device, host = stream.buffer("a", 4), stream.staging("a", 4)
        stream.upload(device, host.ctypes.data, 4)
        cuda.cudaFree(device)
        cuda.cudaFreeHost(host.ctypes.data)
        assert cuda.violations == [
            f"device memory was freed while stream {stream.handle} uses it",
            f"page-locked memory was freed while stream {stream.handle} uses it",
        ]

    def test_two_streams_on_one_buffer(self) -> None:
        cuda = FakeCuda()
        first, second = CudaStream(cudart=cuda), CudaStream(cudart=cuda)
        device, host = first.buffer("a", 4), first.staging("a", 4)
        host[:] = 0
        first.upload(device, host.ctypes.data, 4)
        read = [Span(device, 4)]
        assert cuda.launch(second.handle, lambda: None, reads=read) is None
        told = f"streams {first.handle} and {second.handle} use one buffer without a wait"
        assert cuda.violations == [told]
        first.synchronize()
        assert cuda.launch(second.handle, lambda: None, reads=read) is None
        assert cuda.violations == [told]

    def test_what_is_not_given_back(self) -> None:
        cuda = FakeCuda()
        stream = CudaStream(cudart=cuda)
        stream.buffer("a", 4)
        stream.staging("a", 8)
        assert cuda.leaks() == [
            "4 bytes of device memory",
            "8 bytes of page-locked memory",
            f"stream {stream.handle}",
        ]
        stream.close()
        assert cuda.leaks() == []

    def test_a_copy_outside_a_buffer_and_a_stream_that_is_gone(self) -> None:
        cuda = FakeCuda()
        stream = CudaStream(cudart=cuda)
        device, host = stream.buffer("a", 4), stream.staging("a", 8)
        with pytest.raises(TargetError, match="cudaErrorInvalidValue"):
            stream.upload(device, host.ctypes.data, 8)
        gone = stream.handle
        stream.close()
        assert cuda.cudaStreamSynchronize(gone) == (
            cuda.cudaError_t.cudaErrorInvalidResourceHandle,
        )
