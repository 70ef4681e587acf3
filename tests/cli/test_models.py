"""What a model directory's own configuration tells, and what of it is left out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from analyzer.cli import search_run
from analyzer.cli.models import inspect_path
from analyzer.cli.search_options import SearchOptions
from analyzer.errors import ModelError, UsageError
from analyzer.search.request import SearchRequest

DIGITS = Path(__file__).parents[2] / "examples" / "digits.onnx"


def test_settings_that_are_not_measured_are_noted(tmp_path: Path) -> None:
    """A baseline without its sequence batcher or cache is another server: nobody was told."""
    folder = tmp_path / "digits"
    (folder / "1").mkdir(parents=True)
    shutil.copy(DIGITS, folder / "1" / "model.onnx")
    config = 'backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }'
    (folder / "config.pbtxt").write_text(config)
    plain, baseline = inspect_path(folder, {})
    assert baseline is not None and baseline.max_batch_size == 8
    (folder / "config.pbtxt").write_text(config + " response_cache { enable: true }")
    noted, same = inspect_path(folder, {})
    assert same == baseline
    (note,) = set(noted.notes) - set(plain.notes)
    assert "response_cache" in note


@pytest.mark.parametrize(("batch", "dims"), [(4, "24"), (0, "-1, 24")])
def test_what_the_graph_leaves_open_its_configuration_tells(
    tmp_path: Path, save_open_model: Callable[[Path], None], batch: int, dims: str
) -> None:
    """An exported repository could not be measured or searched again without its options."""
    folder = tmp_path / "tokens"
    save_open_model(folder / "1" / "model.onnx")
    config = folder / "config.pbtxt"
    text = (
        f'backend: "onnxruntime" max_batch_size: {batch} '
        f'input {{ name: "tokens" data_type: TYPE_INT64 dims: [ {dims} ] }}'
    )
    config.write_text(text)
    if batch:
        model, _ = inspect_path(folder, {})
        assert model.inputs[0].shape == (24,)
        model, _ = inspect_path(folder, {"tokens": (7,)})  # the user's word stands
        assert model.inputs[0].shape == (7,)
        config.write_text(text.replace("24", "-1"))
    with pytest.raises(ModelError, match="sequence"):
        inspect_path(folder, {})


def test_a_fixed_batch_in_the_configuration_is_not_taken_for_a_dimension(
    tmp_path: Path, save_open_model: Callable[[Path], None]
) -> None:
    folder = tmp_path / "tokens"
    save_open_model(folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(
        'backend: "onnxruntime" input { name: "tokens" data_type: TYPE_INT64 dims: [ 1, 24 ] }'
    )
    model, _ = inspect_path(folder, {})
    assert model.inputs[0].shape == (24,)


def test_a_model_that_does_not_run_two_requests_is_searched_one_at_a_time(
    folder: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first dimension is dynamic by its own word, and a reshape inside holds one row."""
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "one"], ["row"]),
            helper.make_node("MatMul", ["row", "w"], ["y"]),
        ],
        "baked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [
            numpy_helper.from_array(np.array([1, 8]), "one"),
            numpy_helper.from_array(np.ones((8, 4), np.float32), "w"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "baked.onnx")
    seen: list[SearchRequest] = []

    def search(options: SearchOptions, request: SearchRequest, *others: Any) -> None:
        seen.append(request)
        raise UsageError("seen")

    monkeypatch.setattr(search_run, "_search", search)
    words = ("--latency-budget", "50ms", "--executor", "in-process")
    assert call("search", "baked.onnx", *words).code == 2
    (request,) = seen
    assert not request.model.batchable
    sizes = {found.max_batch_size for found, _ in request.space.candidates().values()}
    assert sizes == {0}
