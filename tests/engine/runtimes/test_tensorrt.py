"""TensorRT instances, against the fake; the real ones run where a GPU and TensorRT are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from analyzer.engine.runtimes.fake_cuda import FakeCuda
from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt
from analyzer.engine.runtimes.tensorrt_ import TensorRtEngine, TensorRtRuntime, import_tensorrt
from analyzer.errors import MissingPartError, TargetError, TargetMemoryError, TargetStartError


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "model.plan"
    profile = {"x": [[1, 3], [4, 3], [8, 3]]}
    path.write_text(json.dumps({"inputs": {"x": [-1, 3]}, "profiles": [profile]}))
    return path


def test_two_instances_share_an_engine_and_nothing_else(plan: Path) -> None:
    cuda = FakeCuda()
    engine = TensorRtEngine(plan, trt=make_tensorrt(), cudart=cuda)
    first, second = TensorRtRuntime(engine), TensorRtRuntime(engine)
    assert len(cuda.streams) == 2
    for rows in (2, 8, 1):
        x = np.random.default_rng(rows).random((rows, 3), np.float32)
        y = np.asfortranarray(x + 1)
        np.testing.assert_array_equal(first.run({"x": x})["x_doubled"], 2 * x)
        np.testing.assert_array_equal(second.run({"x": y})["x_doubled"], 2 * y)
    first.close()
    second.close()
    assert not cuda.streams and not cuda.buffers


def test_batch_outside_the_profile(plan: Path) -> None:
    runtime = TensorRtRuntime(TensorRtEngine(plan, trt=make_tensorrt(), cudart=FakeCuda()))
    with pytest.raises(TargetError, match=r"'x' of shape \(9, 3\) is outside the engine's profile"):
        runtime.run({"x": np.zeros((9, 3), np.float32)})


def test_out_of_memory(plan: Path) -> None:
    cuda = FakeCuda(memory_bytes=100)
    runtime = TensorRtRuntime(TensorRtEngine(plan, trt=make_tensorrt(), cudart=cuda))
    with pytest.raises(TargetMemoryError, match=r"GPU 0 is out of memory \(cudaMalloc"):
        runtime.run({"x": np.zeros((8, 3), np.float32)})
    runtime.close()
    assert not cuda.buffers


def test_an_instance_without_room_for_its_context_leaves_nothing(plan: Path) -> None:
    cuda = FakeCuda()
    engine = TensorRtEngine(plan, trt=make_tensorrt(), cudart=cuda)
    engine.engine.create_execution_context = lambda: None  # as TensorRT says it
    with pytest.raises(TargetMemoryError, match="could not create another instance"):
        TensorRtRuntime(engine)
    assert not cuda.streams


@pytest.mark.parametrize(
    "said",
    [
        "Error Code 2: OutOfMemory (Requested size was 4294967296 bytes.)",
        "[defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)",
        "Error Code 1: Cublas (CUBLAS_STATUS_ALLOC_FAILED)",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ],
)
def test_no_room_for_the_engine_is_no_other_version(plan: Path, said: str) -> None:
    with pytest.raises(TargetMemoryError, match="the GPU is out of memory") as caught:
        TensorRtEngine(plan, trt=make_tensorrt(load_error=said), cudart=FakeCuda())
    assert said in caught.value.message
    assert "version" not in caught.value.message + caught.value.hint


def test_a_plan_of_another_version_names_both(plan: Path) -> None:
    said = (
        "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is "
        "not compatible with this version of TensorRT, expecting library version 10.9.0.34 got "
        "10.3.0.26, please rebuild.)"
    )
    with pytest.raises(TargetStartError, match=r"built by TensorRT 10\.3\.0\.26, and here"):
        TensorRtEngine(plan, trt=make_tensorrt(load_error=said), cudart=FakeCuda())


def test_out_of_memory_under_load_is_told_as_that(plan: Path) -> None:
    engine = TensorRtEngine(plan, trt=make_tensorrt(), cudart=FakeCuda())
    runtime = TensorRtRuntime(engine)

    def fail(stream: int) -> bool:
        severity = engine.trt.ILogger.Severity.ERROR
        engine.logger.log(severity, "Error Code 1: Cublas (CUBLAS_STATUS_ALLOC_FAILED)")
        return False

    runtime._context.execute_async_v3 = fail
    x = {"x": np.zeros((1, 3), np.float32)}
    with pytest.raises(TargetMemoryError, match="CUBLAS_STATUS_ALLOC_FAILED"):
        runtime.run(x)
    runtime._context.execute_async_v3 = lambda stream: False
    # What was said of an earlier failure is no reason of this one.
    with pytest.raises(TargetError, match="gave no reason") as caught:
        runtime.run(x)
    assert not isinstance(caught.value, TargetMemoryError)


def test_bf16_at_an_input_is_refused_in_words(plan: Path) -> None:
    values = json.loads(plan.read_text()) | {"datatype": "BF16"}
    plan.write_text(json.dumps(values))
    with pytest.raises(TargetStartError, match="'x' is BF16, which cannot be fed"):
        TensorRtEngine(plan, trt=make_tensorrt(), cudart=FakeCuda())


def test_plugins_are_registered_before_an_engine_is_loaded(plan: Path) -> None:
    trt = make_tensorrt()
    TensorRtEngine(plan, trt=trt, cudart=FakeCuda())
    assert trt.calls == ["init_libnvinfer_plugins", "deserialize_cuda_engine"]
    del trt.init_libnvinfer_plugins  # the lean runtime has none
    TensorRtEngine(plan, trt=trt, cudart=FakeCuda())


def test_foreign_plan(tmp_path: Path) -> None:
    (tmp_path / "a.plan").write_bytes(b"\x00plan")
    with pytest.raises(TargetStartError, match="Magic tag does not match"):
        TensorRtEngine(tmp_path / "a.plan", trt=make_tensorrt(), cudart=FakeCuda())


def test_what_is_missing_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingPartError, match="TensorRT cannot be imported"):
        import_tensorrt()
    old = ModuleType("tensorrt")
    old.__version__ = "8.6.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    with pytest.raises(MissingPartError, match=r"8\.6\.1 is too old"):
        import_tensorrt()
    monkeypatch.delitem(sys.modules, "tensorrt")
    (tmp_path / "tensorrt.py").write_text(
        "raise ImportError('libnvinfer.so.11: cannot open shared object file')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPartError, match=r"its libraries are not: libnvinfer\.so\.11"):
        import_tensorrt()
