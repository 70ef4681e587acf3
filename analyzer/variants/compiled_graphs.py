"""The ONNX graph that TensorRT compiles for a precision; its notes say who made it.

TensorRT's networks are strongly typed: it computes in the types of the graph. So beside int8 and
FP8 stands float16, not float32.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import VariantKey
from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.onnxruntime_ import first_line
from analyzer.errors import BuildError
from analyzer.variants.modelopt import (
    cast_with_modelopt,
    modelopt_version,
    quantize_with_modelopt,
)
from analyzer.variants.narrow_floats import retype_bf16, retype_fp8
from analyzer.variants.precision import convert_fp16, is_large
from analyzer.variants.quantize import RowReader, quantize_static


def compiled_graph(
    model: ModelInfo,
    key: VariantKey,
    target: Path,
    calibrating: dict[str, NDArray[np.generic]] | None,
    work: Path,
) -> tuple[str, ...]:
    """Writes the graph of ``key`` to ``target``; returns notes for people.

    NVIDIA's Model Optimizer makes it where it is installed; where it is not, or fails, the
    converters here do, and a note says so.

    Args:
        key: Of any precision but fp32; int8 is static.
        calibrating: Rows for int8 and FP8, ``[rows, *shape]`` by input.
        work: A folder for files in between.

    Raises:
        BuildError: It cannot be made.
    """
    source = Path(model.path)
    number = modelopt_version()
    notes: tuple[str, ...] = ()
    if number is not None:
        made = partial(cast_with_modelopt, source, target, key.precision)
        if key.precision in ("int8", "fp8"):
            made = partial(
                quantize_with_modelopt,
                source,
                target,
                key.precision,
                calibrating or {},
                large=is_large(source, model.external_files),
            )
        try:
            made()
        except Exception as error:
            notes = (f"NVIDIA ModelOpt {number} failed: {first_line(error)}",)
            for leftover in target.parent.glob(f"{target.name}*"):
                leftover.unlink()
        else:
            return (f"converted by NVIDIA ModelOpt {number}",)
    own = _our_graph(model, key, target, calibrating, work)
    return (*notes, *own, "converted by ONNX Runtime's tools")


def _our_graph(
    model: ModelInfo,
    key: VariantKey,
    target: Path,
    calibrating: dict[str, NDArray[np.generic]] | None,
    work: Path,
) -> tuple[str, ...]:
    source = Path(model.path)
    if key.precision == "fp16":
        return convert_fp16(source, target)
    if key.precision == "bf16":
        half = work / "half.onnx"
        notes = convert_fp16(source, half)
        retype_bf16(half, source, target)
        return notes
    if not calibrating:
        raise BuildError(f"{key.label} needs rows to calibrate with.")
    int8 = work / "int8.onnx"
    notes = quantize_static(
        source,
        int8,
        RowReader(calibrating, batchable=model.batchable),
        external=model.external_files,
        backend="tensorrt",
        work=work,
    )
    quantized = int8
    if key.precision == "fp8":
        quantized = work / "fp8.onnx"
        retype_fp8(int8, quantized)
    return (*notes, *convert_fp16(quantized, target, keep_quantizers=False), "over fp16")
