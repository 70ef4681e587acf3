"""What every runtime keeps, whatever library is behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, save

from analyzer.engine.runtimes.base import Runtime
from analyzer.engine.runtimes.fake_cuda import FakeCuda
from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.engine.runtimes.scripted import NullRuntime, Script, ScriptedRuntime
from analyzer.engine.runtimes.tensorrt_ import TensorRtEngine, TensorRtRuntime
from analyzer.errors import TargetError, TargetMemoryError

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Two instances of a model with one input ``x`` of three columns.

    Args:
        output: Name of its only output.
        factor: What the output is of the input.
        failing: An instance whose executions fail, with inputs that make it fail, and the error.
    """

    instances: tuple[Runtime, Runtime]
    output: str
    factor: float
    failing: tuple[Runtime, Rows, type[TargetError]] | None


def onnx(folder: Path) -> Case:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [value("x", TensorProto.FLOAT, ["n", 3])],
        [value("y", TensorProto.FLOAT, ["n", 3])],
    )
    opset = helper.make_opsetid("", 17)
    save(helper.make_model(graph, opset_imports=[opset], ir_version=8), folder / "double.onnx")
    first, second = (OrtRuntime(folder / "double.onnx", intra_op_threads=1) for _ in range(2))
    wrong = np.zeros((1, 4), np.float32)
    return Case(
        instances=(first, second), output="y", factor=2.0, failing=(first, wrong, TargetError)
    )


def tensorrt(folder: Path) -> Case:
    plan = {"inputs": {"x": [-1, 3]}, "profiles": [{"x": [[1, 3], [4, 3], [8, 3]]}]}
    (folder / "model.plan").write_text(json.dumps(plan))

    def engine(memory_bytes: int) -> TensorRtEngine:
        cuda = FakeCuda(memory_bytes)
        return TensorRtEngine(folder / "model.plan", trt=make_tensorrt(), cudart=cuda)

    shared = engine(1 << 20)
    tight = TensorRtRuntime(engine(8))
    return Case(
        instances=(TensorRtRuntime(shared), TensorRtRuntime(shared)),
        output="x_doubled",
        factor=2.0,
        failing=(tight, np.zeros((1, 3), np.float32), TargetMemoryError),
    )


def scripted(folder: Path) -> Case:
    script = Script([(1, 0.0)])
    broken = ScriptedRuntime(Script([(1, 0.0)], fault="memory"))
    return Case(
        instances=(ScriptedRuntime(script, 0), ScriptedRuntime(script, 1)),
        output="x",
        factor=1.0,
        failing=(broken, np.zeros((1, 3), np.float32), TargetMemoryError),
    )


def null(folder: Path) -> Case:
    return Case(instances=(NullRuntime(), NullRuntime()), output="x", factor=1.0, failing=None)


@pytest.fixture(params=[onnx, tensorrt, scripted, null], ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    make: Callable[[Path], Case] = request.param
    return make(tmp_path)


def rows(count: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).random((count, 3), np.float32)


@pytest.mark.parametrize("count", [1, 8])
def test_an_output_has_a_row_for_each_row_of_the_input(case: Case, count: int) -> None:
    outputs = case.instances[0].run({"x": rows(count)})
    assert list(outputs) == [case.output]
    np.testing.assert_allclose(outputs[case.output], case.factor * rows(count), rtol=1e-6)


def test_inputs_are_not_changed_and_need_not_be_contiguous(case: Case) -> None:
    x = np.asfortranarray(rows(5))
    x.flags.writeable = False
    outputs = case.instances[0].run({"x": x})
    np.testing.assert_allclose(outputs[case.output], case.factor * rows(5), rtol=1e-6)
    np.testing.assert_array_equal(x, rows(5))


def test_outputs_outlive_the_next_batch(case: Case) -> None:
    instance = case.instances[0]
    first = instance.run({"x": rows(2, seed=1)})
    instance.run({"x": rows(2, seed=2)})
    np.testing.assert_allclose(first[case.output], case.factor * rows(2, seed=1), rtol=1e-6)


def test_instances_are_independent(case: Case) -> None:
    first, second = case.instances
    first.close()
    outputs = second.run({"x": rows(3)})
    np.testing.assert_allclose(outputs[case.output], case.factor * rows(3), rtol=1e-6)
    second.close()


def test_a_failure_is_an_error_of_the_target(case: Case) -> None:
    if case.failing is None:
        pytest.skip("a runtime without a model cannot fail")
    instance, x, kind = case.failing
    with pytest.raises(kind) as caught:
        instance.run({"x": x})
    assert type(caught.value) is kind
    assert caught.value.message
