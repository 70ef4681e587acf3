"""What is served: a model's name, its tensors, and whether its requests can be batched."""

from __future__ import annotations

from dataclasses import dataclass

# Triton's names of data types that we can feed; BYTES (strings) are refused with a clear sentence.
NUMPY_DTYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output.

    Args:
        name: The tensor's name in the model.
        datatype: Triton's name (``FP32``, ``INT64``, …).
        shape: Dimensions without the batch axis where the model is batchable; −1 is dynamic.
        value_range: Lowest and highest valid value (both inclusive) of an integer input that
            indexes a table; None if anything goes.
        declared: Of an output: the shape as the graph alone has it, where what is known of the
            inputs closes dimensions that are open there; None where it is ``shape``.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    value_range: tuple[int, int] | None = None
    declared: tuple[int, ...] | None = None

    @property
    def graph_shape(self) -> tuple[int, ...]:
        """The shape as the graph alone has it."""
        return self.shape if self.declared is None else self.declared

    def __post_init__(self) -> None:
        assert self.name
        assert all(dim == -1 or dim >= 0 for dim in self.shape), self.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model as it was inspected.

    Args:
        name: The name under which it is served.
        path: Absolute path of the ONNX file.
        sha256: Hash of the graph and its external weights, 64 hex digits.
        batchable: Whether every input and output has a dynamic first dimension.
        fixed_batch: The size of a fixed first dimension that looks like a batch; None
            otherwise.
        inputs: Inputs in the graph's order, every dynamic dimension resolved (``--input-shape``).
        outputs: Outputs in the graph's order.
        opset: Version of the default ONNX operator set.
        size_bytes: Size of the graph and its external weights.
        external_files: Names, relative to the model's folder, of files with external weights.
        notes: What people should know before it is served, a sentence each: why it cannot be
            batched, which of its outputs are states.
        refuses_zeros: Whether it was seen to fail on inputs of zeros, of which warm-ups are made.
    """

    name: str
    path: str
    sha256: str
    batchable: bool
    fixed_batch: int | None = None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int = 0
    size_bytes: int = 0
    external_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refuses_zeros: bool = False
