"""Which converter makes the graph that TensorRT compiles: the notes say it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analyzer.domain.configuration import Execution, Precision, VariantKey
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.variants import compiled_graphs
from analyzer.variants.compiled_graphs import compiled_graph
from analyzer.variants.inspect import inspect_model
from analyzer.variants.modelopt import modelopt_version

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = {"image": np.load(EXAMPLES / "digits.npz")["image"][:16].astype(np.float32)}
PLAIN = Execution(graph_level=2)


def error(path: Path) -> float:
    """Of the graph's answers relative to the fp32 model's."""
    want = OrtRuntime(EXAMPLES / "digits.onnx").run(ROWS)["logits"]
    got = OrtRuntime(path, execution=PLAIN).run(ROWS)["logits"]
    return float(np.linalg.norm(want - got) / np.linalg.norm(want))


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 0.01), ("int8", 0.1), ("fp8", 0.15)])
def test_ours_where_modelopt_is_not_and_the_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, limit: float
) -> None:
    monkeypatch.setattr(compiled_graphs, "modelopt_version", lambda: None)
    key = VariantKey(precision=precision, backend="tensorrt")
    target = tmp_path / "graph.onnx"
    notes = compiled_graph(inspect_model(EXAMPLES / "digits.onnx"), key, target, ROWS, tmp_path)
    assert "converted by ONNX Runtime's tools" in notes
    assert error(target) < limit


def test_a_failure_of_modelopt_is_told_and_ours_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, target: Path, precision: str) -> None:
        target.write_bytes(b"half a graph")
        raise RuntimeError("no such operator")

    monkeypatch.setattr(compiled_graphs, "modelopt_version", lambda: "1.2")
    monkeypatch.setattr(compiled_graphs, "cast_with_modelopt", fail)
    key = VariantKey(precision="fp16", backend="tensorrt")
    target = tmp_path / "graph.onnx"
    notes = compiled_graph(inspect_model(EXAMPLES / "digits.onnx"), key, target, ROWS, tmp_path)
    assert notes[0] == "NVIDIA ModelOpt 1.2 failed: no such operator"
    assert error(target) < 0.01


@pytest.mark.skipif(modelopt_version() is None, reason="nvidia-modelopt is not installed")
@pytest.mark.parametrize(("precision", "limit"), [("fp16", 0.01), ("int8", 0.1), ("fp8", 0.15)])
def test_modelopt_converts_where_it_is(tmp_path: Path, precision: Precision, limit: float) -> None:
    key = VariantKey(precision=precision, backend="tensorrt")
    target = tmp_path / "graph.onnx"
    notes = compiled_graph(inspect_model(EXAMPLES / "digits.onnx"), key, target, ROWS, tmp_path)
    assert notes == (f"converted by NVIDIA ModelOpt {modelopt_version()}",)
    assert error(target) < limit
