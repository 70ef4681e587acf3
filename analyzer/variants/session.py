"""Opens an ONNX Runtime session of a model, and says in plain words why one cannot be opened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from analyzer.engine.runtimes.onnxruntime_ import CODE, first_line, import_onnxruntime
from analyzer.errors import AnalyzerError, MissingPartError, ModelError, is_out_of_memory

_SOURCE = re.compile(r"^/\S*onnxruntime\S*:\d+ \S.*?\) ")
_NEWER = {
    "opset": re.compile(r"Opset (\d+) is under development.* is till opset (\d+)", re.DOTALL),
    "the IR version": re.compile(r"Unsupported model IR version: (\d+), max \D*(\d+)"),
}


def open_session(file: Path) -> Any:
    """A session of the model ``file`` that logs nothing and optimizes nothing; on a CPU if it can.

    Raises:
        ModelError: ONNX Runtime cannot load it; the message says why.
        MissingPartError: ONNX Runtime is not installed, or the memory does not suffice.
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        try:
            return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception:
            # Some operators exist for CUDA only.
            providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
            if providers[0] not in ort.get_available_providers():
                raise
            return ort.InferenceSession(str(file), options, providers=providers)
    except Exception as error:
        raise _load_error(file, ort.__version__, error) from error


def run_error(error: Exception) -> str:
    """What ONNX Runtime says of a run that failed, without its codes and its own source files."""
    said = CODE.sub("", first_line(error))
    return _SOURCE.sub("", said.rpartition("Status Message: ")[2]).rstrip(".")


def _load_error(file: Path, version: str, error: Exception) -> AnalyzerError:
    if is_out_of_memory(error):
        return MissingPartError(
            f"{file} does not fit into this machine's memory: {first_line(error)}.",
            hint="Use a machine with more memory.",
        )
    for what, pattern in _NEWER.items():
        if newer := pattern.search(str(error)):
            return ModelError(
                f"{file} has {what} {newer[1]}, which is newer than ONNX Runtime {version} knows"
                f" (up to {newer[2]}).",
                hint=f"Export the model with {what} {newer[2]} or lower, or install a newer"
                " onnxruntime.",
            )
    reason = CODE.sub("", first_line(error))
    kernel = re.search(r"Could not find an implementation for (\S+?)(?:\(-?\d+\))? ", str(error))
    if kernel:
        return ModelError(
            f"{file} uses the operator {kernel[1]} in a version or with types that ONNX Runtime"
            f" {version} has no kernel for: {reason}.",
            hint="Export the model in float32 or float16 (bfloat16 has hardly a kernel on a"
            " CPU), with standard operators.",
        )
    operator = re.search(
        r"No Op registered for (\S+)|Fatal error: (\S+?)(?:\(-?\d+\))? is not a registered",
        str(error),
    )
    if operator:
        which = next(group for group in operator.groups() if group)
        return ModelError(
            f"{file} uses the operator {which}, which ONNX Runtime {version} does not"
            f" have: {reason}.",
            hint="Export the model with standard operators, or with an opset that this ONNX"
            " Runtime knows.",
        )
    return ModelError(
        f"ONNX Runtime {version} cannot load {file}: {reason}",
        hint="Check the export; ONNX Runtime has to run the model before it can be tuned.",
    )
