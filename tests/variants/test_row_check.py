"""Real data are refused where the model does not run them, and not where a range is too narrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

from analyzer.errors import DataError
from analyzer.variants.inputs import load_calibration
from analyzer.variants.inspect import inspect_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Write = Callable[..., Path]
make = helper.make_node


def embedding(
    write_model: Write, *nodes: NodeProto, index: str, kind: int = INT64, **weights: Any
) -> Path:
    """A table of 40 rows that ``index``, made of ``ids`` ``[n, 3]`` by ``nodes``, selects from."""
    weights = {"table": np.zeros((40, 4), np.float32), **weights}
    gather = make("Gather", ["table", index], ["y"])
    ids = ("ids", kind, ["n", 3])
    return write_model([*nodes, gather], [ids], [("y", FLOAT, ["n", 3, 4])], weights)


def saved(path: Path, ids: Any) -> Path:
    np.savez(path, ids=ids)
    return path


def test_columns_of_several_tables_keep_their_own_ranges(
    write_model: Write, tmp_path: Path
) -> None:
    """Valid categories were refused: the smallest table's range held for every column."""
    nodes = [
        make("Split", ["ids"], ["a", "b"], axis=1),
        make("Gather", ["large", "a"], ["x"]),
        make("Gather", ["small", "b"], ["z"]),
        make("Concat", ["x", "z"], ["y"], axis=2),
    ]
    weights = {"large": np.zeros((1000, 2), np.float32), "small": np.zeros((3, 2), np.float32)}
    model = inspect_model(
        write_model(nodes, [("ids", INT64, ["n", 2])], [("y", FLOAT, ["n", 1, 4])], weights)
    )
    assert model.inputs[0].value_range == (0, 2), "what is made up is valid in both"
    ids = np.stack([np.arange(50) * 20, np.arange(50) % 3], 1)
    assert load_calibration(saved(tmp_path / "c.npz", ids), model).rows == 50
    ids[33, 1] = 5
    with pytest.raises(DataError, match="'ids' has the value 5 in row 33, and the model does not"):
        load_calibration(saved(tmp_path / "d.npz", ids), model)


def test_offsets_of_columns_are_no_reason_to_refuse(write_model: Write, tmp_path: Path) -> None:
    add = make("Add", ["ids", "first"], ["i"])
    model = inspect_model(
        embedding(write_model, add, index="i", first=np.array([0, 30, 33], np.int64))
    )
    ids = np.array([[29, 2, 6], [0, 0, 0]])
    assert load_calibration(saved(tmp_path / "c.npz", ids), model).rows == 2


def test_padding_that_the_graph_replaces_is_valid(write_model: Write, tmp_path: Path) -> None:
    nodes = [
        make("Equal", ["ids", "pad"], ["padded"]),
        make("Where", ["padded", "zero", "ids"], ["i"]),
    ]
    model = inspect_model(
        embedding(write_model, *nodes, index="i", pad=np.int64(-100), zero=np.int64(0))
    )
    ids = np.array([[1, 39, -100]] * 4)
    assert load_calibration(saved(tmp_path / "c.npz", ids), model).rows == 4
    ids[2, 0] = -99
    with pytest.raises(DataError, match=r"value -99 in row 2.*out of data bounds") as caught:
        load_calibration(saved(tmp_path / "d.npz", ids), model)
    assert caught.value.exit_code == 2 and "ONNXRuntimeError" not in caught.value.message


def test_float_indices_outside_of_the_table_are_refused(write_model: Write, tmp_path: Path) -> None:
    """They failed while they were measured, as a fault of the program."""
    cast = make("Cast", ["ids"], ["i"], to=INT64)
    model = inspect_model(embedding(write_model, cast, index="i", kind=FLOAT))
    ids = np.zeros((6, 3))
    ids[4, 1] = 49
    with pytest.raises(DataError, match=r"value 49\.0 in row 4"):
        load_calibration(saved(tmp_path / "c.npz", ids), model)


def test_a_setting_that_the_model_refuses_is_told_with_its_row(
    write_model: Write, tmp_path: Path
) -> None:
    path = write_model(
        [make("TopK", ["x", "k"], ["v", "i"])],
        [("x", FLOAT, ["n", 20]), ("k", INT64, [1])],
        [("v", FLOAT, ["n", "k"]), ("i", INT64, ["n", "k"])],
    )
    data = tmp_path / "c.npz"
    np.savez(data, x=np.zeros((5, 1, 20), np.float32), k=np.array([[5], [20], [7], [50], [1]]))
    with pytest.raises(DataError, match="'k' has the value 50 in row 3"):
        load_calibration(data, inspect_model(path))


def test_without_the_file_of_the_model_no_row_is_doubted(
    write_model: Write, tmp_path: Path
) -> None:
    path = embedding(write_model, index="ids")
    model = inspect_model(path)
    data = saved(tmp_path / "c.npz", np.full((2, 3), 99))
    with pytest.raises(DataError):
        load_calibration(data, model)
    path.unlink()
    assert load_calibration(data, model).rows == 2


def test_labels_of_a_window_are_one_per_request(write_model: Write, tmp_path: Path) -> None:
    """[16, 8] was taken for a batch of 16, and its labels were cut to a sixteenth."""
    mean = [make("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)]
    model = inspect_model(write_model(mean, [("x", FLOAT, [16, 8])], [("y", FLOAT, [1, 8])]))
    assert model.fixed_batch is None
    windows, labels = np.zeros((20, 16, 8), np.float32), np.arange(20) % 8
    np.savez(tmp_path / "c.npz", x=windows, labels=labels)
    data = load_calibration(tmp_path / "c.npz", model)
    assert data.labels is not None and data.labels.tolist() == labels.tolist()
    np.savez(tmp_path / "d.npz", x=windows.reshape(-1, 8), labels=np.arange(320) % 8)
    with pytest.raises(DataError, match=r"\(rows, 16, 8\) is needed"):
        load_calibration(tmp_path / "d.npz", model)


def test_features_are_no_batch(write_model: Write, tmp_path: Path) -> None:
    weights = {"w": np.ones((8, 8), np.float32)}
    multiply = [make("MatMul", ["x", "w"], ["y"])]
    model = inspect_model(write_model(multiply, [("x", FLOAT, [8])], [("y", FLOAT, [8])], weights))
    assert model.fixed_batch is None
    np.savez(tmp_path / "c.npz", x=np.zeros((5, 8), np.float32), labels=np.zeros(5, int))
    data = load_calibration(tmp_path / "c.npz", model)
    assert data.labels is not None and data.labels.shape == (5,)


def tree(write_model: Write, kind: str) -> Path:
    """A tree of one split (``TreeEnsembleRegressor``), or a sum (``ReduceSum``) of ``x``."""
    node = make(kind, ["x"], ["y"], keepdims=1, axes=[1])
    if kind != "ReduceSum":
        node = make(
            kind, ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0, 0, 0],
            nodes_nodeids=[0, 1, 2], nodes_featureids=[1, 0, 0], nodes_values=[0.5, 0.0, 0.0],
            nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0],
            nodes_falsenodeids=[2, 0, 0], nodes_missing_value_tracks_true=[1, 0, 0],
            target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0],
            target_weights=[3.0, 7.0],
        )  # fmt: skip
    opsets = [("", 11), ("ai.onnx.ml", 1)]
    path = write_model([node], [("x", FLOAT, ["n", 3])], [("y", FLOAT, ["n", 1])])
    model = onnx.load(path)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*opset) for opset in opsets)
    onnx.save(model, path)
    return path


def test_missing_values_are_taken_where_the_model_knows_them(
    write_model: Write, tmp_path: Path
) -> None:
    """Tables of boosted trees have NaN in most rows, and every such file was refused."""
    rows = np.zeros((40, 3), np.float32)
    rows[7:, 1] = np.nan
    np.savez(tmp_path / "c.npz", x=rows)
    model = inspect_model(tree(write_model, "TreeEnsembleRegressor"))
    data = load_calibration(tmp_path / "c.npz", model)
    assert data.rows == 40 and np.isnan(data.inputs["x"]).sum() == 33
    with pytest.raises(DataError, match="NaN or infinity in row 7"):
        load_calibration(tmp_path / "c.npz", inspect_model(tree(write_model, "ReduceSum")))
    rows[9, 0] = np.inf
    np.savez(tmp_path / "c.npz", x=rows)
    with pytest.raises(DataError, match="NaN or infinity in row 9"):
        load_calibration(tmp_path / "c.npz", model)
