"""The instances of a configuration: what they share, and what each has of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.engine import backends
from analyzer.engine.runtimes.fake_cuda import FakeCuda
from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.engine.runtimes.open import Place, open_runtime, open_runtimes
from analyzer.errors import TargetMemoryError, TargetStartError
from analyzer.modelconfig.rules import expand_instances
from analyzer.modelconfig.text import parse_config
from analyzer.targets import embedded_runtimes as runtimes
from analyzer.targets.embedded_spec import EmbeddedSpec, FileModel

DIGITS = Path(__file__).parents[3] / "examples" / "digits.onnx"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "1" / "model.plan"
    path.parent.mkdir()
    profile = {"x": [[1, 3], [4, 3], [8, 3]]}
    path.write_text(json.dumps({"inputs": {"x": [-1, 3]}, "profiles": [profile]}))
    return path


def install(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> Any:
    """Puts the fakes where ``import`` finds them; returns TensorRT's."""
    trt = make_tensorrt()
    bindings = ModuleType("cuda.bindings")
    bindings.runtime = cuda  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    return trt


@pytest.mark.parametrize("dynamic", [True, False])
def test_instances_share_an_engine_only_where_all_its_shapes_are_fixed(
    plan: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool
) -> None:
    cuda = FakeCuda()
    if not dynamic:
        plan.write_text(json.dumps({"inputs": {"x": [2, 3]}, "profiles": []}))
    trt = install(monkeypatch, cuda)
    spec = EmbeddedSpec(
        name="m",
        model=FileModel(path=str(plan)),
        configuration=Configuration(
            precision="fp16", backend="tensorrt", device="gpu", max_batch_size=8, instance_count=3
        ),
        batchable=True,
        inputs_path=None,
    )
    opened = runtimes.open_embedded_runtimes(spec)
    # As Triton's TensorRT backend: what an instance takes of the memory depends on it.
    assert [engine.contexts for engine in trt.engines] == ([1, 1, 1] if dynamic else [3])
    assert len(cuda.streams) == 3
    for number, runtime in enumerate(opened, start=1):
        x = np.full((number if dynamic else 2, 3), number, np.float32)
        np.testing.assert_array_equal(runtime.run({"x": x})["x_doubled"], 2 * x)
    opened[0].close()
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(opened[1].run({"x": x})["x_doubled"], 2 * x)
    for runtime in opened[1:]:
        runtime.close()
    assert not cuda.streams and not cuda.buffers


def test_each_gpu_has_an_engine_of_its_own(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda((1 << 20, 1 << 20))
    trt = install(monkeypatch, cuda)
    config = parse_config(
        """
        name: "m" backend: "tensorrt" max_batch_size: 8 default_model_filename: "model.plan"
        input { name: "x" data_type: TYPE_FP32 dims: 3 }
        output { name: "x_doubled" data_type: TYPE_FP32 dims: 3 }
        instance_group { name: "m" count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }
        """
    )
    plan.write_text(json.dumps({"inputs": {"x": [2, 3]}, "profiles": []}))
    opened = backends.open_instances(config, plan.parent, expand_instances(config))
    assert [engine.contexts for engine in trt.engines] == [2, 2]
    assert sorted(handle // 1000 - 1 for handle in cuda.streams) == [0, 0, 1, 1]
    for runtime in opened:
        runtime.close()


def test_all_instances_or_none(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(FakeCuda):
        """Streams for two instances (and the one that selects the device)."""

        def cudaStreamCreateWithFlags(self, flags: int) -> tuple[int, int]:  # noqa: N802
            if len(self.streams) == 2:
                return self.cudaError_t.cudaErrorMemoryAllocation, 0
            return super().cudaStreamCreateWithFlags(flags)

    cuda = Narrow()
    install(monkeypatch, cuda)
    with pytest.raises(TargetMemoryError):
        open_runtimes(plan, [Place("gpu")] * 3, backend="tensorrt")
    assert not cuda.streams
    plan.write_bytes(b"\x00plan")
    with pytest.raises(TargetStartError, match="Magic tag"):
        open_runtime(plan, backend="tensorrt", device="gpu")


def test_sessions_of_onnx_runtime_are_separate() -> None:
    opened = open_runtimes(DIGITS, [Place()] * 2, intra_op_threads=1)
    assert len({id(runtime) for runtime in opened}) == 2
    assert all(isinstance(runtime, OrtRuntime) for runtime in opened)
    image = {"image": np.zeros((1, 1, 64, 64), np.float32)}
    first, second = (runtime.run(image)["logits"] for runtime in opened)
    np.testing.assert_array_equal(first, second)
    for runtime in opened:
        runtime.close()
