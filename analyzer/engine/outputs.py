"""A result's outputs as a client asked for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.protocol import Fault, InferCall, InferResult, WireOutput

Finished = tuple[str, str, NDArray[Any], WireOutput | None]


def finished_outputs(
    model: LoadedModel, call: InferCall, result: InferResult
) -> Iterator[Finished]:
    """Name, data type, array and wish (None if outputs were not listed) of each output.

    Raises:
        Fault: A classification of something that has no order.
    """
    ports = model.signature.outputs
    if not call.outputs:
        for name, array in result.outputs.items():
            yield name, ports[name].datatype, array, None
        return
    for wanted in {output.name: output for output in call.outputs}.values():
        array = result.outputs[wanted.name]
        datatype = ports[wanted.name].datatype
        if wanted.classification:
            array = _classify(model, wanted, array)
            datatype = "BYTES"
        yield wanted.name, datatype, array, wanted


def _classify(model: LoadedModel, wanted: WireOutput, array: NDArray[Any]) -> NDArray[Any]:
    """``value:index[:label]`` of the highest elements, highest first, for each row of a batch."""
    if array.dtype.kind not in "fiu":
        raise Fault(
            "invalid",
            f"class result not available for output due to unsupported type '{array.dtype}'",
        )
    rows = len(array) if model.signature.batch_size_max and array.ndim else 1
    flat = array.reshape(rows, -1)
    count = min(wanted.classification, flat.shape[1])
    labels = model.labels.get(wanted.name, ())
    texts = np.empty((rows, count), dtype=object)
    for row, values in enumerate(flat):
        for place, index in enumerate(
            np.argsort(-values.astype(np.float64), kind="stable")[:count]
        ):
            value = values[index]
            text = f"{value:f}" if array.dtype.kind == "f" else str(value)
            label = f":{labels[index]}" if index < len(labels) else ""
            texts[row, place] = f"{text}:{index}{label}".encode()
    return texts if model.signature.batch_size_max else texts.reshape(count)


def read_labels(config: Any, folder: Path) -> dict[str, tuple[str, ...]]:
    """The labels of each output whose configuration names a file with them, one per line."""
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.output:
        name = output.label_filename
        if name and Path(name).name == name and (folder / name).is_file():
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
            labels[output.name] = tuple(text.splitlines())
    return labels
