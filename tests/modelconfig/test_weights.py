"""Every place in a graph where weights may be kept is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from analyzer.errors import RepositoryError
from analyzer.modelconfig.files import external_names


def external(name: str, location: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def graph_with(path: Path, *, sparse: TensorProto | None = None, dense: list[TensorProto]) -> Path:
    inner = helper.make_graph([], "inner", [], [], dense[1:])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)]
    graph = helper.make_graph(nodes, "outer", [], [], dense[:1])
    if sparse is not None:
        indices = helper.make_tensor("at", TensorProto.INT64, [1], [0])
        graph.sparse_initializer.append(helper.make_sparse_tensor(sparse, indices, [4]))
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_weights_of_sparse_tensors_and_of_subgraphs_are_found(tmp_path: Path) -> None:
    """The file of a sparse tensor was neither fetched nor sent to a server."""
    dense = [external("w", "w.bin"), external("v", "./inner/v.bin"), external("u", "w.bin")]
    path = graph_with(tmp_path / "m.onnx", sparse=external("s", "s.bin"), dense=dense)
    assert external_names(path) == ("w.bin", "s.bin", "inner/v.bin")


@pytest.mark.parametrize("location", ["../w.bin", "/w.bin", ""])
def test_weights_elsewhere_are_refused(tmp_path: Path, location: str) -> None:
    path = graph_with(tmp_path / "m.onnx", dense=[external("w", location)])
    with pytest.raises(RepositoryError, match="outside its folder"):
        external_names(path)
