"""The weights of an ONNX graph, and the files beside it that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def all_tensors(graph: Any) -> Iterator[Any]:
    """Every constant tensor of ``graph`` (a GraphProto), subgraphs and attributes included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for subgraph in subgraphs(attribute):
                yield from all_tensors(subgraph)


def external_pieces(graph: Any) -> Iterator[tuple[str, str, int, int | None]]:
    """``(file, tensor, offset, length)`` of every tensor whose data lies outside the graph.

    The file is relative to the model's folder; the length is None where the graph does not tell.
    """
    for tensor in all_tensors(graph):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        length = entries.get("length")
        yield (
            entries.get("location", ""),
            tensor.name,
            int(entries.get("offset") or 0),
            int(length) if length else None,
        )


def subgraphs(attribute: Any) -> Iterator[Any]:
    """The graphs that ``attribute`` of a node (If, Loop, Scan) holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
