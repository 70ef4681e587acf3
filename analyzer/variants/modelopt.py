"""NVIDIA's Model Optimizer for ONNX graphs that TensorRT compiles, where it is installed.

AutoCast makes float16 and bfloat16 graphs and leaves what would lose its range in float32;
quantization places QuantizeLinear/DequantizeLinear pairs where TensorRT fuses them, int8 and FP8
over a float16 graph. Both are read from the package ``nvidia-modelopt`` (its extra ``onnx``), which
needs PyTorch.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.variants.precision import save_model

_PACKAGE = "nvidia-modelopt"
# What its ONNX part imports beside what this program has.
_NEEDS = ("modelopt", "torch", "onnx_graphsurgeon", "onnxconverter_common")


def modelopt_version() -> str | None:
    """The version that is installed here with all that it needs; None without."""
    if any(find_spec(name) is None for name in _NEEDS):
        return None
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        return None


def cast_with_modelopt(source: Path, target: Path, precision: str) -> None:
    """Writes the graph at ``source`` in ``precision`` (``fp16`` or ``bf16``) to ``target``.

    Inputs and outputs keep their types. Raises whatever the library raises.
    """
    from modelopt.onnx.autocast import convert_to_mixed_precision

    converted = convert_to_mixed_precision(
        str(source), low_precision_type=precision, keep_io_types=True
    )
    save_model(converted, target)


def quantize_with_modelopt(
    source: Path,
    target: Path,
    precision: str,
    rows: dict[str, NDArray[np.generic]],
    *,
    large: bool,
) -> None:
    """Writes the graph at ``source`` quantized (``int8`` or ``fp8``) over float16 to ``target``.

    Inputs and outputs keep their types. Raises whatever the library raises.

    Args:
        rows: Inputs to calibrate with, ``[rows, *shape]``.
        large: Whether the weights go into a file of their own.
    """
    from modelopt.onnx.quantization import quantize

    options: dict[str, Any] = {"calibration_eps": ["cpu"], "log_level": "ERROR"}
    quantize(
        str(source),
        quantize_mode=precision,
        calibration_data=rows,
        high_precision_dtype="fp16",
        use_external_data_format=large,
        output_path=str(target),
        **options,
    )
    if not target.is_file():
        raise RuntimeError("it wrote no graph, since it found nothing to quantize")
