"""Outputs that are inputs, handed on as they are: converters cannot tell the two apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Places among the outputs, and what a graph declares there.
Passed = Sequence[tuple[int, Any]]


def passed_outputs(graph: Any) -> Passed:
    """The outputs of ``graph`` (a GraphProto) that are its inputs; a server gives them back."""
    inputs = {value.name for value in graph.input}
    return [(i, value) for i, value in enumerate(graph.output) if value.name in inputs]


def take_passed_outputs(graph: Any) -> Passed:
    """Removes the outputs that are inputs from ``graph``; returns them."""
    passed = [(place, _copy(value)) for place, value in passed_outputs(graph)]
    for place, _ in reversed(passed):
        del graph.output[place]
    return passed


def give_passed_outputs(graph: Any, passed: Passed) -> None:
    """Puts outputs that :func:`take_passed_outputs` removed back in their places."""
    outputs = [_copy(value) for value in graph.output]
    for place, value in passed:
        outputs.insert(place, value)
    del graph.output[:]
    graph.output.extend(outputs)


def give_passed_outputs_of(source: Path, target: Path) -> None:
    """Puts the outputs of the model at ``source`` that are inputs into that at ``target``."""
    import onnx

    passed = passed_outputs(onnx.load(str(source), load_external_data=False).graph)
    if passed:
        # Without the external weights: the file keeps pointing at them.
        model = onnx.load(str(target), load_external_data=False)
        give_passed_outputs(model.graph, passed)
        onnx.save(model, str(target))


def _copy(value: Any) -> Any:
    copy = type(value)()
    copy.CopyFrom(value)
    return copy
