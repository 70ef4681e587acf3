"""ONNX Runtime on a CPU or a CUDA device: one session per instance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analyzer.domain.configuration import DEFAULT_EXECUTION, Execution
from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.runtimes.cuda import START_ANEW
from analyzer.engine.runtimes.providers import check_started, configure_session
from analyzer.errors import (
    AnalyzerError,
    MissingPartError,
    TargetCrashError,
    TargetError,
    TargetMemoryError,
    TargetStartError,
    is_device_lost,
    is_out_of_memory,
)

# Triton's names of ONNX Runtime's tensor types (the ``type`` of an ``onnxruntime.NodeArg``).
ORT_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}

_DECODE = np.frompyfunc(lambda text: text.decode() if isinstance(text, bytes) else text, 1, 1)
_ENCODE = np.frompyfunc(lambda text: str(text).encode("utf-8", "surrogatepass"), 1, 1)
#: What ONNX Runtime begins every message with.
CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


def import_onnxruntime() -> Any:
    """The module ``onnxruntime``.

    Raises:
        MissingPartError: It is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPartError(
            f"ONNX Runtime cannot be imported: {error}.",
            hint="Install tritune[cpu] (or tritune[gpu] on a machine with an NVIDIA GPU); it runs"
            " and inspects the models.",
        ) from error
    return onnxruntime


class OrtRuntime:
    """One ONNX Runtime session with Triton's settings: by default all optimizations, sequential.

    Idle threads of a session spin for a while, which is ONNX Runtime's default and Triton's; it is
    kept, although it costs neighbouring instances time on few cores, because what is measured here
    has to hold there.

    Args:
        path: The ONNX file; external weights lie beside it.
        device: ``cpu`` or ``gpu`` (CUDA; operators that it lacks run on the CPU, as in Triton).
        intra_op_threads: Threads inside an operator; 0 is ONNX Runtime's default, one per core.
        device_id: Number of the CUDA device.
        execution: Accelerator and settings of the session.
        accelerator_options: The accelerator's parameters under Triton's names.

    Raises:
        MissingPartError: ONNX Runtime, or the provider that is asked for, is not here.
        TargetMemoryError: The device is out of memory.
        TargetStartError: The model cannot be loaded.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        device: Literal["cpu", "gpu"] = "cpu",
        intra_op_threads: int = 0,
        device_id: int = 0,
        execution: Execution = DEFAULT_EXECUTION,
        accelerator_options: Mapping[str, str] | None = None,
    ) -> None:
        ort = import_onnxruntime()
        self._path = str(path)
        self._run_options = ort.RunOptions()
        options = ort.SessionOptions()
        options.intra_op_num_threads = intra_op_threads
        options.log_severity_level = 4  # whatever fails is raised, and told in our own words
        providers = configure_session(
            ort,
            options,
            execution,
            device=device,
            device_id=device_id,
            accelerator_options=accelerator_options,
        )
        try:
            self._session = ort.InferenceSession(self._path, options, providers=providers or None)
        except Exception as error:
            raise self._translate(error, "cannot be loaded", TargetStartError) from error
        check_started(self._session, execution, device=device, path=self._path)
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._strings = {
            value.name
            for value in (*self._session.get_inputs(), *self._session.get_outputs())
            if ORT_DATATYPES.get(value.type) == "BYTES"
        }

    def run(self, inputs: Tensors) -> Tensors:
        """The outputs of one batch; see :class:`analyzer.engine.runtimes.base.Runtime`."""
        given = dict(inputs)
        try:
            # ONNX Runtime wants str where Triton's clients and ours have bytes.
            for name in self._strings & given.keys():
                given[name] = np.asarray(_DECODE(given[name]), dtype=object)
            values = self._session.run(self._outputs, given, self._run_options)
        except UnicodeDecodeError as error:
            raise TargetError(
                "a string is not UTF-8, which ONNX Runtime's Python interface needs",
                hint="Send text, or serve the model with a real Triton.",
            ) from error
        except Exception as error:
            raise self._translate(error, "failed to execute", TargetError) from error
        found = dict(zip(self._outputs, values, strict=True))
        for name in self._strings & found.keys():
            found[name] = np.asarray(_ENCODE(found[name]), dtype=object)
        return found

    def stop(self) -> None:
        """Ends a run that another thread is in, at its next operator; runs fail from now on."""
        self._run_options.terminate = True

    def close(self) -> None:
        """Frees the session."""
        self._session = None

    def _translate(self, error: Exception, what: str, kind: type[AnalyzerError]) -> AnalyzerError:
        if is_out_of_memory(error):
            return TargetMemoryError(
                f"{self._path} ran out of memory: {first_line(error)}",
                hint="Fewer instances, smaller batches or a lower precision need less memory.",
            )
        # Clients read why an execution failed: where the file lies is not theirs to know.
        file = self._path if kind is TargetStartError else Path(self._path).name
        said = CODE.sub("", first_line(error)).removeprefix(f"Load model from {self._path} failed:")
        message = f"{file} {what}: {said}"
        if is_device_lost(error):
            return TargetCrashError(message, hint=START_ANEW)
        return kind(message)


def first_line(error: BaseException, *, limit: int = 400) -> str:
    """The first line of what ``error`` says, at most ``limit`` characters."""
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
