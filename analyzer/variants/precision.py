"""FP16 by converting the graph; inputs and outputs keep their types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analyzer.engine.runtimes.onnxruntime_ import first_line
from analyzer.errors import BuildError
from analyzer.variants.graph import all_graphs, all_tensors, is_quantized

# Protobuf's limit is 2 GiB for a whole file; weights beyond this go into a file of their own.
_INLINE_BYTES_MAX = 1_500_000_000


def convert_fp16(source: Path, target: Path) -> tuple[str, ...]:
    """Writes the graph at ``source`` with float16 inside to ``target``; returns notes for people.

    Weights beyond float16's range are clipped to it. Operators without a float16 form stay float32
    between casts, as does every subgraph of a control-flow operator whose conversion fails.

    Raises:
        BuildError: There is nothing to convert, or the conversion fails.
        OSError: ``target`` cannot be written.
    """
    import onnx
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    graph = onnx.load(str(source), load_external_data=False)
    if graph.functions:
        graph = onnx.inliner.inline_local_functions(graph)
    if not _has_float32(graph):
        raise BuildError(
            "The model holds no float32 values, so there is nothing to convert to fp16.",
            hint="The variant called fp32 is the model as it is.",
        )
    notes = []
    try:
        # On the graph without its external weights, since the inference copies what it is given.
        graph = onnx.shape_inference.infer_shapes(graph)
    except Exception as error:
        notes.append(f"shapes could not be inferred before the conversion: {first_line(error)}")
    onnx.external_data_helper.load_external_data_for_model(graph, str(source.parent))
    # Their scales and results are float32 in most operator sets.
    quantized = {
        node.op_type
        for part in all_graphs(graph.graph)
        for node in part.node
        if is_quantized(node.op_type)
    }
    try:
        converted = convert_float_to_float16(
            graph,
            keep_io_types=True,
            disable_shape_infer=True,
            op_block_list=[*DEFAULT_OP_BLOCK_LIST, *quantized],
        )
    except Exception as error:
        raise BuildError(
            f"The graph cannot be converted to fp16: {first_line(error)}.",
            hint="Leave fp16 out with --precisions.",
        ) from error
    save_model(converted, target)
    return tuple(notes)


def save_model(model: Any, target: Path) -> None:
    """Writes a ModelProto with all its weights, in a file beside ``target`` if they are large."""
    import onnx

    size = sum(
        len(tensor.raw_data) + 4 * (len(tensor.float_data) + len(tensor.int32_data))
        for tensor in all_tensors(model.graph)
    )
    if size <= _INLINE_BYTES_MAX:
        onnx.save(model, str(target))
        return
    onnx.save_model(
        model,
        str(target),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=target.name + ".data",
        size_threshold=1024,
    )


def is_large(source: Path, external: tuple[str, ...]) -> bool:
    """Whether graph and weights at ``source`` together are too large for one protobuf file."""
    parts = (source.name, *external)
    return sum((source.parent / part).stat().st_size for part in parts) > _INLINE_BYTES_MAX


def _has_float32(model: Any) -> bool:
    import onnx

    values = (*model.graph.input, *model.graph.value_info)
    return any(
        value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for value in values
    ) or any(tensor.data_type == onnx.TensorProto.FLOAT for tensor in all_tensors(model.graph))
