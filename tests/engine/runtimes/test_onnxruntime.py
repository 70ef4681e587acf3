"""ONNX Runtime as a runtime: the same numbers as a session, and errors in our words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, save

from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime, first_line
from analyzer.errors import MissingPartError, TargetError, TargetMemoryError, TargetStartError

DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits.onnx"


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_same_numbers_as_a_session(threads: int) -> None:
    images = np.random.default_rng(0).integers(0, 17, (5, 1, 64, 64)).astype(np.float32)
    expected = onnxruntime.InferenceSession(str(DIGITS), providers=["CPUExecutionProvider"]).run(
        None, {"image": images}
    )[0]
    runtime = OrtRuntime(DIGITS, intra_op_threads=threads)
    outputs = runtime.run({"image": images})
    runtime.close()
    assert list(outputs) == ["logits"]
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-4, atol=1e-4)


def test_wrong_input_is_a_failed_execution() -> None:
    runtime = OrtRuntime(DIGITS, intra_op_threads=1)
    with pytest.raises(TargetError, match=r"^digits\.onnx failed to execute"):
        runtime.run({"image": np.zeros((1, 3, 3), np.float32)})
    runtime.close()


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TargetStartError, match=r"none\.onnx cannot be loaded: Load model") as no:
        OrtRuntime(tmp_path / "none.onnx")
    assert "ONNXRuntimeError" not in no.value.message


def test_gpu_without_cuda_is_no_silent_fallback() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(MissingPartError, match="no CUDA provider"):
        OrtRuntime(DIGITS, device="gpu")


def test_out_of_memory_is_told_apart() -> None:
    class Session:
        def run(self, *_: object) -> None:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 9")

    runtime = OrtRuntime(DIGITS, intra_op_threads=1)
    runtime._session = Session()
    with pytest.raises(TargetMemoryError, match="ran out of memory"):
        runtime.run({})
    assert first_line(ValueError("a" * 500 + "\nb"), limit=10) == "a" * 9 + "…"


def test_strings_are_bytes_on_both_sides(tmp_path: Path) -> None:
    """What Triton's clients got back was the text b'hello'."""
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.STRING, ["n", 2]) for name in ("s", "t")
    ]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"])], "same", tensors[:1], tensors[1:]
    )
    opset = helper.make_opsetid("", 17)
    save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "same.onnx")
    runtime = OrtRuntime(tmp_path / "same.onnx", intra_op_threads=1)
    words = np.array([[b"hello", "ü\0é".encode()], [b"", b"b'x'"]], dtype=object)
    assert runtime.run({"s": words})["t"].tolist() == words.tolist()
    assert words[0, 0] == b"hello"  # the caller's array is left alone
    with pytest.raises(TargetError, match="not UTF-8"):
        runtime.run({"s": np.array([[b"\xff", b""]], dtype=object)})
    runtime.close()
