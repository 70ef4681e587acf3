"""FP16 by converting the graph; inputs and outputs keep their types."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from analyzer.engine.runtimes.onnxruntime_ import first_line
from analyzer.errors import BuildError
from analyzer.modelconfig.weights import all_tensors
from analyzer.variants.cache import write_error
from analyzer.variants.graph import all_graphs, is_quantized
from analyzer.variants.passed_outputs import give_passed_outputs, take_passed_outputs

# Protobuf's limit is 2 GiB for a whole file; weights beyond this go into a file of their own.
_INLINE_BYTES_MAX = 1_500_000_000
_QDQ = ("QuantizeLinear", "DequantizeLinear")
# From here on their scales may be float16 (ONNX's operator changelog).
_HALF_SCALES_OPSET = 19
# From this version of ONNX's file format on, weights need not be among the inputs.
_IR_WEIGHTS_APART = 4

# Operators of ai.onnx.ml that give float32 whatever they take, and which of their outputs it is;
# the inference of types knows nothing of most of them.
_GIVES_FLOAT = {
    **dict.fromkeys(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"), 1),
    **dict.fromkeys(("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor"), 0),
    **dict.fromkeys(("FeatureVectorizer", "Normalizer", "OneHotEncoder", "Scaler"), 0),
}
# Those that give what they take.
_GIVES_ITS_INPUT = ("ArrayFeatureExtractor", "Binarizer", "Imputer", "TreeEnsemble")


def convert_fp16(source: Path, target: Path, *, keep_quantizers: bool = True) -> tuple[str, ...]:
    """Writes the graph at ``source`` with float16 inside to ``target``; returns notes for people.

    Weights beyond float16's range are clipped to it. Operators without a float16 form stay float32
    between casts, as does every subgraph of a control-flow operator whose conversion fails.

    Args:
        keep_quantizers: Whether quantizing operators keep their float32 scales, between casts. If
            not, QuantizeLinear and DequantizeLinear read and give float16 too (from operator set
            19 on, to which the graph is brought): a cast beside them keeps TensorRT from running
            the operator between them in int8.

    Raises:
        BuildError: There is nothing to convert, or the conversion fails.
        OSError: ``target`` cannot be written.
    """
    import onnx
    from onnx import inliner  # unlike the others, onnx does not import it
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    graph = onnx.load(str(source), load_external_data=False)
    if graph.functions:
        graph = inliner.inline_local_functions(graph)
    if not keep_quantizers:
        graph = with_opset(graph, _HALF_SCALES_OPSET)
    if not _has_float32(graph):
        raise BuildError(
            "The model holds no float32 values, so there is nothing to convert to fp16.",
            hint="The variant called fp32 is the model as it is.",
        )
    notes = []
    try:
        # On the graph without its external weights, since the inference copies what it is given.
        graph = onnx.shape_inference.infer_shapes(graph)
        while _declare_floats(graph.graph):
            graph = onnx.shape_inference.infer_shapes(graph)
    except Exception as error:
        notes.append(f"shapes could not be inferred before the conversion: {first_line(error)}")
    onnx.external_data_helper.load_external_data_for_model(graph, str(source.parent))
    _take_defaults(graph)
    passed = take_passed_outputs(graph.graph)
    # Their scales and results are float32 in most operator sets.
    quantized = {
        node.op_type
        for part in all_graphs(graph.graph)
        for node in part.node
        if is_quantized(node.op_type) and (keep_quantizers or node.op_type not in _QDQ)
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
    # The converter appends its casts, where ONNX wants each node behind those that it reads.
    ONNXModel(converted).topological_sort()
    give_passed_outputs(converted.graph, passed)
    save_model(converted, target)
    return tuple(notes)


def _declare_floats(graph: Any) -> bool:
    """Declares which outputs of ai.onnx.ml's operators are float32; returns whether any was added.

    The converter puts casts around what it knows to be one.
    """
    import onnx

    values = (*graph.input, *graph.output, *graph.value_info)
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    added = False
    for node in graph.node:
        if node.domain != "ai.onnx.ml":
            continue
        place = _GIVES_FLOAT.get(node.op_type)
        if node.op_type in _GIVES_ITS_INPUT and kinds.get(node.input[0]) == onnx.TensorProto.FLOAT:
            place = 0
        name = node.output[place] if place is not None and node.output[place:] else ""
        if name and not kinds.get(name):
            value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            graph.value_info.append(value)
            kinds[name] = onnx.TensorProto.FLOAT
            added = True
    return added


def _take_defaults(model: Any) -> None:
    """Removes the weights from the inputs of ``model``, where old versions of ONNX list them.

    The converter keeps the types of inputs. A server cannot be sent weights anyway.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) < len(model.graph.input):
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.ir_version = max(model.ir_version, _IR_WEIGHTS_APART)


def with_opset(model: Any, version: int) -> Any:
    """``model`` at the operator set ``version`` or a later one.

    Raises:
        BuildError: It cannot be brought there.
    """
    import onnx

    own = max((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), default=1)
    if own >= version:
        return model
    try:
        return onnx.version_converter.convert_version(model, version)
    except Exception as error:
        raise BuildError(
            f"The graph cannot be brought to operator set {version}: {first_line(error)}.",
            hint="Export the model with a newer operator set, or leave this precision out with"
            " --precisions.",
        ) from error


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


def save_shared_model(model: Any, target: Path) -> None:
    """Writes a ModelProto as :func:`save_model` does; several processes may write one target.

    Raises:
        BuildError: ``target`` cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            save_model(model, Path(folder) / target.name)
            # The weights first, so that nobody finds a model without them.
            for part in sorted(Path(folder).iterdir(), reverse=True):
                os.replace(part, target.parent / part.name)  # noqa: PTH105 - one atomic step
    except OSError as error:
        raise write_error(target.parent, error) from error


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
