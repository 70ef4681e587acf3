"""TensorRT engines: an engine is loaded once, every instance has a context and a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.runtimes.cuda import CudaStream
from analyzer.errors import MissingPartError, TargetError, TargetMemoryError, TargetStartError


def import_tensorrt() -> Any:
    """The module ``tensorrt``, version 10 or newer.

    Raises:
        MissingPartError: The bindings or the libraries behind them are not here, or too old.
    """
    try:
        import tensorrt
    except ImportError as error:
        text = str(error)
        if ".so" in text or "DLL" in text:
            raise MissingPartError(
                f"TensorRT's Python bindings are here and its libraries are not: {text}.",
                hint="Install TensorRT's libraries (package tensorrt, from NVIDIA's index, or a"
                " Triton container); they compile and run engines.",
            ) from error
        raise MissingPartError(
            f"TensorRT cannot be imported: {text}.",
            hint="Install tritune[gpu] on a machine with an NVIDIA GPU; it compiles and runs"
            " engines.",
        ) from error
    if int(tensorrt.__version__.split(".")[0]) < 10:
        raise MissingPartError(
            f"TensorRT {tensorrt.__version__} is too old.", hint="Install TensorRT 10 or newer."
        )
    return tensorrt


def recording_logger(trt: Any) -> Any:
    """An ILogger that keeps TensorRT's errors in ``errors`` (the last 20) and prints nothing."""

    class RecordingLogger(trt.ILogger):  # type: ignore[misc]  # a class of the loaded library
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors = [*self.errors[-19:], message.strip()]

    return RecordingLogger()


class TensorRtEngine:
    """A deserialized engine, shared by the instances of one process.

    Args:
        path: The plan file.
        device_id: Number of the CUDA device.
        trt, cudart: The modules to use; default the installed ones.

    Raises:
        MissingPartError: TensorRT or CUDA's bindings are not here.
        TargetStartError: The plan cannot be loaded (another TensorRT, another GPU model).
    """

    def __init__(
        self, path: str | Path, *, device_id: int = 0, trt: Any = None, cudart: Any = None
    ) -> None:
        self.trt = trt if trt is not None else import_tensorrt()
        self.path = Path(path)
        self.device_id = device_id
        self.cudart = cudart
        self.logger = recording_logger(self.trt)
        CudaStream(device_id=device_id, cudart=cudart).close()  # selects the device
        self.runtime = self.trt.Runtime(self.logger)
        try:
            plan = self.path.read_bytes()
        except OSError as error:
            raise TargetStartError(f"{path} cannot be read: {error.strerror or error}.") from error
        self.engine = self.runtime.deserialize_cuda_engine(plan)
        if self.engine is None:
            raise TargetStartError(
                f"{path} cannot be loaded: {_last(self.logger)}",
                hint="An engine belongs to one TensorRT version and one GPU model; build it anew.",
            )

    def create_context(self) -> Any:
        """A new execution context.

        Raises:
            TargetMemoryError: The device is out of memory.
        """
        context = self.engine.create_execution_context()
        if context is None:
            raise TargetMemoryError(
                f"{self.path}: TensorRT could not create another instance: {_last(self.logger)}",
                hint="Fewer instances or smaller batches need less memory.",
            )
        return context


class TensorRtRuntime:
    """One instance of an engine: a context, a stream and buffers of its own.

    Args:
        engine: The engine, or the path of a plan file.
        device_id: Number of the CUDA device, where a path is given.

    Raises:
        MissingPartError, TargetStartError, TargetMemoryError: As :class:`TensorRtEngine`.
    """

    def __init__(self, engine: TensorRtEngine | str | Path, *, device_id: int = 0) -> None:
        if not isinstance(engine, TensorRtEngine):
            engine = TensorRtEngine(engine, device_id=device_id)
        self._shared = engine
        self._stream = CudaStream(device_id=engine.device_id, cudart=engine.cudart)
        try:
            self._context = engine.create_context()  # on the device that the stream selected
        except BaseException:
            self._stream.close()
            raise
        trt, inner = engine.trt, engine.engine
        names = [inner.get_tensor_name(index) for index in range(inner.num_io_tensors)]
        inputs = {name for name in names if inner.get_tensor_mode(name) == trt.TensorIOMode.INPUT}
        dtypes = {name: np.dtype(trt.nptype(inner.get_tensor_dtype(name))) for name in names}
        self._inputs = {name: dtypes[name] for name in names if name in inputs}
        self._outputs = {name: dtypes[name] for name in names if name not in inputs}

    def run(self, inputs: Tensors) -> Tensors:
        """The outputs of one batch; see :class:`analyzer.engine.runtimes.base.Runtime`."""
        stream, context = self._stream, self._context
        stream.activate()
        sent = []  # alive until the copies are done
        for name, dtype in self._inputs.items():
            array = np.ascontiguousarray(inputs[name], dtype)
            sent.append(array)
            if not context.set_input_shape(name, tuple(array.shape)):
                raise TargetError(
                    f"{self._shared.path}: the input {name!r} of shape {array.shape} is outside"
                    f" the engine's profile: {_last(self._shared.logger)}",
                    hint="Build the engine for the batch sizes that are served.",
                )
            address = stream.buffer(name, array.nbytes)
            context.set_tensor_address(name, address)
            stream.upload(address, array.ctypes.data, array.nbytes)
        results: dict[str, NDArray[np.generic]] = {}
        for name, dtype in self._outputs.items():
            shape = tuple(context.get_tensor_shape(name))
            if any(dim < 0 for dim in shape):
                raise TargetError(
                    f"{self._shared.path}: the shape of the output {name!r} depends on the data,"
                    " which TensorRT instances here do not support.",
                    hint="Serve this model with ONNX Runtime.",
                )
            results[name] = np.empty(shape, dtype)
            context.set_tensor_address(name, stream.buffer(name, results[name].nbytes))
        if not context.execute_async_v3(stream.handle):
            raise TargetError(
                f"{self._shared.path} failed to execute: {_last(self._shared.logger)}"
            )
        for name, array in results.items():
            stream.download(array.ctypes.data, stream.buffer(name, array.nbytes), array.nbytes)
        stream.synchronize()
        return results

    def close(self) -> None:
        """Frees the context, the buffers and the stream."""
        self._context = None
        self._stream.close()


def _last(logger: Any) -> str:
    return logger.errors[-1] if logger.errors else "TensorRT gave no reason."
