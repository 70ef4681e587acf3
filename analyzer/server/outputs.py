"""A result's outputs as a client asked for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.runtimes.base import Tensors
from analyzer.server.wire_call import RequestedOutput, WireCall

Finished = tuple[str, str, NDArray[Any], RequestedOutput | None]


def finished_outputs(model: LoadedModel, call: WireCall, outputs: Tensors) -> Iterator[Finished]:
    """Name, data type, array and wish (None if outputs were not listed) of each output.

    They come in the order of the backend, whatever the order in which they were listed. Of an
    output that is listed twice the first wish counts.

    Raises:
        Fault: A classification of something that has no order.
    """
    ports = model.signature.outputs
    if not call.requested:
        for name, whole in outputs.items():
            yield name, ports[name].datatype, whole, None
        return
    wishes = {output.name: output for output in reversed(call.requested)}
    for name, array in outputs.items():
        wanted = wishes.get(name)
        if wanted is None:
            continue
        datatype = ports[name].datatype
        if wanted.classification:
            array = _classify(model, wanted, array, datatype)
            datatype = "BYTES"
        yield wanted.name, datatype, array, wanted


def response_parameters(model: LoadedModel, call: WireCall) -> dict[str, int | str | bool]:
    """Parameters of a response; Triton gives each tensor of an ensemble its request's sequence."""
    if model.config.platform != "ensemble":
        return {}
    return {
        "sequence_id": call.sequence_id,
        "sequence_start": call.sequence_start,
        "sequence_end": call.sequence_end,
    }


def _classify(
    model: LoadedModel, wanted: RequestedOutput, array: NDArray[Any], datatype: str
) -> NDArray[Any]:
    """``value:index[:label]`` of the highest elements, highest first, for each row of a batch."""
    if array.dtype.kind not in "fiu" or datatype == "FP16":
        raise Fault(
            "invalid",
            f"class result not available for output due to unsupported type '{datatype}'",
        )
    rows = len(array) if model.signature.batch_size_max and array.ndim else 1
    flat = array.reshape(rows, -1)
    count = min(wanted.classification, flat.shape[1])
    labels = model.labels_of(wanted.name)
    texts = np.empty((rows, count), dtype=object)
    for row, values in enumerate(flat):
        # Integers as they are: beyond 2**53 several of them are one float. Their complement has the
        # reverse order, of the least one, too. NaN comes last.
        falling = -values.astype(np.float64) if array.dtype.kind == "f" else ~values
        for place, index in enumerate(np.argsort(falling, kind="stable")[:count]):
            value = values[index]
            text = f"{value:f}" if array.dtype.kind == "f" else str(value)
            label = f":{labels[index]}" if index < len(labels) else ""
            texts[row, place] = f"{text}:{index}{label}".encode()
    return texts if model.signature.batch_size_max else texts.reshape(count)
