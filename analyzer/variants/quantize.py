"""INT8 by ONNX Runtime's quantizer: static (QuantizeLinear/DequantizeLinear) and dynamic."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Backend
from analyzer.engine.runtimes.onnxruntime_ import first_line, import_onnxruntime
from analyzer.errors import BuildError
from analyzer.hardware.machine import cpu_flags
from analyzer.variants.graph import is_quantized
from analyzer.variants.passed_outputs import (
    give_passed_outputs_of,
    passed_outputs,
    take_passed_outputs,
)
from analyzer.variants.precision import is_large, save_model
from analyzer.variants.reference import ROWS_PER_RUN

# Convolutions have no fast dynamically quantized form (ConvInteger), so they are left alone there.
_DYNAMIC_OPERATORS = ["MatMul", "Gemm", "Attention", "LSTM", "EmbedLayerNormalization", "Gather"]
# Outside convolutional networks a QDQ pair pays only around products with weights; around the rest
# it costs more than it saves.
_PRODUCTS = ["MatMul", "Gemm", "Conv", "ConvTranspose"]
#: A few rows give a range; more widen it little, and of a slow model would take the whole budget.
CALIBRATING_SECONDS_MAX = 30.0
_CALIBRATING_ROWS_MIN = 8

# From here on a QuantizeLinear may have a scale per channel.
_OPSET_MIN = 13


class RowReader:
    """Feeds rows to ONNX Runtime's calibrator, for a bounded time.

    The ranges are of all rows of a run; as many rows are scored in a run (``reference.chunks``).

    Args:
        inputs: Arrays ``[rows, *shape]``.
        batchable: Whether rows make a batch, of eight at most (else each is a whole request).
        seconds_max: Counted from the first row; none is fed that is expected to end later, as long
            as those before it took. At least 8 are fed.
    """

    def __init__(
        self,
        inputs: Mapping[str, NDArray[np.generic]],
        *,
        batchable: bool,
        seconds_max: float = CALIBRATING_SECONDS_MAX,
    ) -> None:
        self._inputs = inputs
        self._batchable = batchable
        self._seconds_max = seconds_max
        self._started: float | None = None
        self._rows_max = ROWS_PER_RUN if batchable else 1
        self._running = False
        self.used = 0

    def get_next(self) -> dict[str, NDArray[np.generic]] | None:
        """The next rows' feeds; None at the end."""
        self._running = False
        now = time.monotonic()
        self._started = now if self._started is None else self._started
        rows = len(next(iter(self._inputs.values())))
        first = self.used
        after = min(first + self._rows_max, rows)
        ends_s = (now - self._started) * after / max(first, 1)
        late = ends_s > self._seconds_max and first >= _CALIBRATING_ROWS_MIN
        if first >= rows or late:
            return None
        self.used, self._running = after, True
        return {
            name: array[first : self.used] if self._batchable else array[first, ...]
            for name, array in self._inputs.items()
        }

    def __iter__(self) -> RowReader:
        return self

    def __next__(self) -> dict[str, NDArray[np.generic]]:
        feeds = self.get_next()
        if feeds is None:
            raise StopIteration
        return feeds

    def __len__(self) -> int:
        return len(next(iter(self._inputs.values())))

    def rewind(self) -> None:
        """Starts again at the first row."""
        self._started = None
        self._running = False
        self.used = 0

    def halve(self) -> bool:
        """Starts again with half as many rows a run, and returns whether it does.

        It does where the calibrator stopped at the rows that it was given last: a graph may bear
        fewer together (as in ``reference.in_parts``).
        """
        if not self._running or self._rows_max == 1:
            return False
        self._rows_max //= 2
        self.rewind()
        return True

    def set_range(self, start_index: int, end_index: int) -> None:
        """Part of the calibrator's interface; it is only used with strided calibration."""
        raise BuildError("Strided calibration is not used.")


def quantize_static(
    source: Path,
    target: Path,
    reader: RowReader,
    *,
    external: tuple[str, ...],
    backend: Backend,
    work: Path,
) -> tuple[str, ...]:
    """Writes ``source`` with QuantizeLinear/DequantizeLinear pairs to ``target``; returns notes.

    Ranges are the smallest and largest value seen, weights are quantized per channel. For ONNX
    Runtime's CPU kernels activations are uint8; for TensorRT everything is symmetric int8, weights
    keep their own pair and biases stay float, as its parser wants it. Where a graph cannot carry a
    scale per channel, its weights get one scale each, and a note says so. ``work`` is a folder for
    files in between; ``external`` names the files with the source's external weights.

    Raises:
        BuildError: There is nothing to quantize, or the quantizer fails.
    """
    from onnxruntime.quantization import QuantFormat, QuantType
    from onnxruntime.quantization import quantize_static as quantize

    prepared, notes = _prepare(source, work, external)
    before = _operators(prepared)
    if not before.keys() & set(_PRODUCTS):
        raise _nothing_left(before)  # the quantizer fails on a graph of constants alone, say
    # A vision transformer has a convolution too; what there is more of decides.
    convolutional = before["Conv"] + before["ConvTranspose"] > before["MatMul"] + before["Gemm"]
    options: dict[str, Any] = {"WeightSymmetric": True}
    if not convolutional:
        # Without a pair behind it a product runs as one operator from int8 to float.
        options["OpTypesToExcludeOutputQuantization"] = _PRODUCTS
    if backend == "tensorrt":
        options |= {
            "ActivationSymmetric": True,
            "AddQDQPairToWeight": True,
            "DedicatedQDQPair": True,
            "QuantizeBias": False,
        }
    quantized = partial(
        quantize,
        str(prepared),
        str(target),
        quant_format=QuantFormat.QDQ,
        nodes_to_exclude=[] if convolutional else _products_of_activations(prepared),
        op_types_to_quantize=None if convolutional and backend != "tensorrt" else _PRODUCTS,
        reduce_range=backend != "tensorrt" and needs_reduced_range(),
        activation_type=QuantType.QInt8 if backend == "tensorrt" else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        use_external_data_format=is_large(source, external),
        extra_options=options,
    )
    try:
        _run_quantizer(quantized, reader, per_channel=True)
        _require_loadable(target)
    except Exception as error:
        notes = (*notes, f"one scale per tensor, since {first_line(error)}")
        reader.rewind()
        try:
            _run_quantizer(quantized, reader, per_channel=False)
            _require_loadable(target)
        except Exception as again:
            raise _failed("static", again, before) from again
    if not convolutional:
        _keep_other_readers_float(target)
    give_passed_outputs_of(source, target)
    _require_change(before, _operators(target))
    rows = f"{reader.used} of {len(reader)}" if reader.used < len(reader) else f"{reader.used}"
    return (*notes, f"calibrated on {rows} rows")


def _run_quantizer(
    quantize: Callable[..., object], reader: RowReader, *, per_channel: bool
) -> None:
    """Calls ``quantize`` with as many rows a run as the model bears."""
    while True:
        try:
            quantize(calibration_data_reader=reader, per_channel=per_channel)
            return
        except Exception:
            if not reader.halve():
                raise


def quantize_dynamic(
    source: Path, target: Path, *, external: tuple[str, ...], work: Path
) -> tuple[str, ...]:
    """Writes ``source`` with weights in int8 and activations quantized at run time; returns notes.

    ``work`` is a folder for files in between.

    Raises:
        BuildError: There is nothing to quantize, or the quantizer fails.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as quantize

    prepared, notes = _prepare(source, work, external)
    before = _operators(prepared)
    try:
        quantize(
            str(prepared),
            str(target),
            op_types_to_quantize=_DYNAMIC_OPERATORS,
            per_channel=True,
            reduce_range=needs_reduced_range(),
            weight_type=QuantType.QInt8,
            use_external_data_format=is_large(source, external),
            extra_options={"MatMulConstBOnly": True},
        )
    except Exception as error:
        raise _failed("dynamic", error, before) from error
    give_passed_outputs_of(source, target)
    _require_change(before, _operators(target))
    return notes


def _products_of_activations(path: Path) -> list[str]:
    """Names of the products without constant weights (attention's), which stay float."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    constant = {tensor.name for tensor in graph.initializer}
    return [
        node.name
        for node in graph.node
        if node.op_type in ("MatMul", "Gemm") and not constant & set(node.input[:2])
    ]


def _keep_other_readers_float(path: Path) -> None:
    """Lets only products read quantized activations in the graph at ``path``.

    The quantizer hands the rounded values to every reader of a tensor. In a transformer that rounds
    the residual stream on one grid again and again, and small updates vanish: on a random encoder
    (examples/make_text_encoder.py, mini) it made the relative error 0.15 instead of 0.01.
    """
    import onnx

    # Without the external weights: the file keeps pointing at them.
    model = onnx.load(str(path), load_external_data=False)
    rounded_from = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }
    float_of = {
        node.output[0]: rounded_from[node.input[0]]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in rounded_from
    }
    for node in model.graph.node:
        if node.op_type not in (*_PRODUCTS, "QuantizeLinear", "DequantizeLinear"):
            for index, name in enumerate(node.input):
                node.input[index] = float_of.get(name, name)
    onnx.save(model, str(path))


def needs_reduced_range() -> bool:
    """Whether weights should use 7 bits: on x86 without VNNI, 8-bit products can saturate."""
    flags = cpu_flags()
    return "avx2" in flags and not any(flag.endswith("_vnni") for flag in flags)


def _prepare(source: Path, folder: Path, external: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """A copy of ``source`` in ``folder`` with constants folded and shapes inferred."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = folder / "prepared.onnx"
    passed = passed_outputs(onnx.load(str(source), load_external_data=False).graph)
    if passed or (external and not is_large(source, external)):
        # The preparation looks for the weights beside its own files, and does not find them.
        whole = folder / "whole.onnx"
        model = onnx.load(str(source))
        take_passed_outputs(model.graph)
        save_model(model, whole)
        source, external = whole, tuple(part.name for part in folder.glob(f"{whole.name}.*"))
    notes: tuple[str, ...]
    try:
        quant_pre_process(
            str(source),
            str(prepared),
            skip_symbolic_shape=True,
            save_as_external_data=is_large(source, external),
            all_tensors_to_one_file=True,
            external_data_location=prepared.name + ".data",
        )
    except Exception as error:
        for leftover in folder.glob("prepared.onnx*"):
            leftover.unlink()
        save_model(onnx.load(str(source)), prepared)
        notes = (f"quantized without preparation: {first_line(error)}",)
    else:
        notes = ()
    model = onnx.load(str(prepared), load_external_data=False)
    if any(
        entry.domain in ("", "ai.onnx") and entry.version < _OPSET_MIN
        for entry in model.opset_import
    ):
        try:
            model = onnx.version_converter.convert_version(onnx.load(str(prepared)), _OPSET_MIN)
        except Exception as error:
            notes = (*notes, f"kept at its old operator set: {first_line(error)}")
    _name_nodes(model.graph)
    _own_biases(model.graph)
    _type_products(model.graph)
    onnx.save(model, str(prepared))
    return prepared, notes


def _name_nodes(graph: Any) -> None:
    """Gives every node a name of its own, by which the quantizer tells them apart."""
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_unnamed_{index}"
        taken.add(node.name)


def _own_biases(graph: Any) -> None:
    """Gives every product a bias ``[n]`` of its own.

    The quantizer fails on Gemm's biases of shape ``[1, n]``, and names its copies of a shared bias
    so that they can meet the names of other tensors.
    """
    weights = {tensor.name: tensor for tensor in graph.initializer}
    readers = Counter(name for node in graph.node for name in node.input)
    for node in graph.node:
        bias = weights.get(node.input[2]) if node.op_type in _PRODUCTS and node.input[2:] else None
        if bias is None:
            continue
        if readers[bias.name] > 1:
            own = graph.initializer.add()
            own.CopyFrom(bias)
            own.name = node.input[2] = f"{bias.name}_of_{node.name}"
            bias = own
        if list(bias.dims[:-1]) == [1] * (len(bias.dims) - 1):
            bias.dims[:] = bias.dims[-1:]


def _type_products(graph: Any) -> None:
    """Declares the types of what products read and give, where the inference could not.

    It stops at operators beside the standard (fused attention), and the quantizer fails on values
    of which it knows no type.
    """
    weights = {tensor.name: tensor.data_type for tensor in graph.initializer}
    known = {value.name for value in (*graph.value_info, *graph.input, *graph.output)}
    for node in graph.node:
        kind = weights.get(node.input[1]) if node.op_type in _PRODUCTS else None
        if kind is None:
            continue
        for name in {node.input[0], node.output[0]} - known - weights.keys():
            known.add(name)
            value = graph.value_info.add()
            value.name = name
            value.type.tensor_type.elem_type = kind


def _require_loadable(path: Path) -> None:
    """Raises whatever ONNX Runtime raises where it cannot open the model at ``path``."""
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _operators(path: Path) -> Counter[str]:
    import onnx

    return Counter(
        node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node
    )


def _require_change(before: Counter[str], after: Counter[str]) -> None:
    """Raises a BuildError if ``after`` has no quantized operator more than ``before``."""
    if any(is_quantized(name) and count > before[name] for name, count in after.items()):
        return
    raise _nothing_left(before)


def _nothing_left(before: Counter[str]) -> BuildError:
    if any(is_quantized(name) for name in before):
        return BuildError(
            "There is nothing left to quantize: the model's weights are quantized already.",
            hint="Leave int8 out with --precisions; the variant called fp32 is the model as it is.",
        )
    return BuildError(
        "There is nothing to quantize: the model has no operator with weights that the int8"
        " quantizer knows.",
        hint="Leave int8 out with --precisions.",
    )


def _failed(kind: str, error: Exception, before: Counter[str]) -> BuildError:
    if isinstance(error, BuildError):
        return error
    if any(is_quantized(name) for name in before) or "proper ai.onnx domain" in str(error):
        return _nothing_left(before)  # its own pairs, or only operators beside the standard
    if "scale issue" in str(error):
        return BuildError(
            f"The {kind} int8 quantization failed: the model computes NaN on the rows that"
            " calibrate it, so there is no range.",
            hint="Give inputs on which it computes numbers (--calibration-data), or leave int8 out"
            " with --precisions.",
        )
    return BuildError(
        f"The {kind} int8 quantization failed: {type(error).__name__}: {first_line(error)}.",
        hint="Leave int8 out with --precisions.",
    )
