"""TensorRT engines: an engine is loaded once, every instance has a context and a stream."""

from __future__ import annotations

import ctypes
import math
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.runtimes.cuda import START_ANEW, CudaStream
from analyzer.errors import (
    MissingPartError,
    TargetCrashError,
    TargetError,
    TargetMemoryError,
    TargetStartError,
    is_device_lost,
    is_out_of_memory,
)

_LESS_MEMORY = "Fewer instances, smaller batches or a lower precision need less memory."
# What TensorRT 8 to 11 say of a plan of another version.
_VERSIONS = re.compile(
    r"expecting (?:library version )?(?P<expected>[\d.]+\d)\s*,?\s*got (?P<got>[\d.]+\d)"
)


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


def import_tensorrt_rtx() -> Any:
    """The module ``tensorrt_rtx``: TensorRT for RTX, whose builder needs no GPU.

    Raises:
        MissingPartError: It is not here.
    """
    try:
        import tensorrt_rtx
    except ImportError as error:
        raise MissingPartError(
            f"TensorRT for RTX cannot be imported: {error}.",
            hint="Install the package tensorrt-rtx (the extra rtx of tritune); it needs no GPU.",
        ) from error
    return tensorrt_rtx


def product(trt: Any) -> str:
    """Name and version for people: ``TensorRT 10.9.0.34``, ``TensorRT for RTX 1.7.1.116``."""
    rtx = getattr(trt, "__name__", "").startswith("tensorrt_rtx")
    return f"TensorRT{' for RTX' if rtx else ''} {trt.__version__}"


def library_version(trt: Any) -> str:
    """Version of the library behind the bindings ``trt``, to which engines are bound.

    The bindings of one release load the library of another where both have the same major version.
    """
    module = sys.modules.get(trt.Runtime.__module__)
    try:
        library = ctypes.CDLL(str(getattr(module, "__file__", None)))
        parts = ("Major", "Minor", "Patch", "Build")
        return ".".join(str(getattr(library, f"getInferLib{part}Version")()) for part in parts)
    except (OSError, AttributeError):
        return str(trt.__version__)


def recording_logger(trt: Any) -> Any:
    """An ILogger that keeps TensorRT's errors in ``errors`` (the last 20) and prints nothing.

    ``seen`` counts all of them, and ``since(count)`` gives those that came after so many.
    """

    class RecordingLogger(trt.ILogger):  # type: ignore[misc]  # a class of the loaded library
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.seen = 0

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors = [*self.errors[-19:], message.strip()]
                self.seen += 1

        def since(self, count: int) -> list[str]:
            return self.errors[count - self.seen :] if self.seen > count else []

    return RecordingLogger()


def started(factory: Any, logger: Any, name: str) -> Any:
    """What ``factory`` (TensorRT's ``Builder`` or ``Runtime``) makes.

    Raises:
        MissingPartError: It makes nothing, which pybind11 tells as a TypeError.
    """
    before = logger.seen
    try:
        return factory(logger)
    except (TypeError, RuntimeError) as error:
        raise MissingPartError(
            f"{name} does not start: {' '.join(logger.since(before)) or error}",
            hint="It needs an NVIDIA GPU with a driver that fits (`analyze doctor`).",
        ) from error


def load_plugins(trt: Any, logger: Any) -> None:
    """Registers the plugins that come with TensorRT, which parser and engines may name.

    A lean runtime has none. What a model needs and is not there is told by the parser or on loading
    the engine.
    """
    register = getattr(trt, "init_libnvinfer_plugins", None)
    if register is not None:
        register(logger, "")


class TensorRtEngine:
    """A deserialized engine, shared by the instances of one process.

    Args:
        path: The plan file.
        device_id: Number of the CUDA device.
        trt, cudart: The modules to use; default the installed ones.

    Attributes:
        dynamic: Whether an input or output has a dimension that is known only at run time. Triton
            gives each instance an engine of its own then.

    Raises:
        MissingPartError: TensorRT or CUDA's bindings are not here, or TensorRT does not start.
        TargetMemoryError: The device is out of memory.
        TargetStartError: The plan cannot be loaded (another TensorRT, another GPU model), or has
            tensors that numpy cannot hold.
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
        self.runtime = started(self.trt.Runtime, self.logger, f"{product(self.trt)}'s runtime")
        try:
            plan = self.path.read_bytes()
        except OSError as error:
            raise TargetStartError(f"{path} cannot be read: {error.strerror or error}.") from error
        load_plugins(self.trt, self.logger)
        before = self.logger.seen
        self.engine = self.runtime.deserialize_cuda_engine(plan)
        if self.engine is None:
            raise _load_error(self.path, self.logger.since(before), product(self.trt))
        names = [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]
        mode = self.trt.TensorIOMode.INPUT
        self.inputs = frozenset(n for n in names if self.engine.get_tensor_mode(n) == mode)
        self.dtypes = {name: self._dtype(name) for name in names}
        self.dynamic = any(dim < 0 for name in names for dim in self.engine.get_tensor_shape(name))

    def _dtype(self, name: str) -> np.dtype[np.generic]:
        datatype = self.engine.get_tensor_dtype(name)
        try:
            found: np.dtype[np.generic] = np.dtype(self.trt.nptype(datatype))
        except TypeError as error:  # BF16, FP8, INT4: numpy has no such types
            kind = getattr(datatype, "name", datatype)
            raise TargetStartError(
                f"{self.path}: the tensor {name!r} is {kind}, which cannot be fed from here.",
                hint="Cast it to FP32 at the model's inputs and outputs; inside, any type will do.",
            ) from error
        return found

    def create_context(self) -> Any:
        """A new execution context.

        Raises:
            TargetMemoryError: The device is out of memory.
        """
        before = self.logger.seen
        context = self.engine.create_execution_context()
        if context is None:
            said = _reason(self.logger.since(before))
            raise TargetMemoryError(
                f"{self.path}: TensorRT could not create another instance: {said}",
                hint=_LESS_MEMORY,
            )
        return context


class TensorRtRuntime:
    """One instance of an engine: a context, a stream and buffers of its own.

    Args:
        engine: The engine, or the path of a plan file.
        device_id: Number of the CUDA device, where a path is given.
        pinned: Whether inputs and outputs pass through page-locked memory, as Triton's do unless
            its configuration says otherwise.

    Raises:
        MissingPartError, TargetStartError, TargetMemoryError: As :class:`TensorRtEngine`.
    """

    def __init__(
        self, engine: TensorRtEngine | str | Path, *, device_id: int = 0, pinned: bool = True
    ) -> None:
        if not isinstance(engine, TensorRtEngine):
            engine = TensorRtEngine(engine, device_id=device_id)
        self._shared = engine
        self._stream = CudaStream(device_id=engine.device_id, cudart=engine.cudart, pinned=pinned)
        try:
            self._context = engine.create_context()  # on the device that the stream selected
        except BaseException:
            self._stream.close()
            raise
        dtypes, inputs = engine.dtypes, engine.inputs
        self._inputs = {name: dtypes[name] for name in dtypes if name in inputs}
        self._outputs = {name: dtypes[name] for name in dtypes if name not in inputs}

    def run(self, inputs: Tensors) -> Tensors:
        """The outputs of one batch; see :class:`analyzer.engine.runtimes.base.Runtime`."""
        self._stream.activate()
        try:
            for name, dtype in self._inputs.items():
                self._send(name, dtype, inputs[name])
            shapes = {name: self._output_shape(name) for name in self._outputs}
            sizes = {
                name: self._outputs[name].itemsize * math.prod(shapes[name]) for name in shapes
            }
            addresses = {name: self._stream.buffer(name, size) for name, size in sizes.items()}
            for name, address in addresses.items():
                self._context.set_tensor_address(name, address)
            self._execute()
            staged = {name: self._stream.staging(name, size) for name, size in sizes.items()}
            for name, memory in staged.items():
                self._stream.download(memory.ctypes.data, addresses[name], sizes[name])
        except BaseException:
            # What was queued still reads the staging memory, which the next batch is written to.
            with suppress(TargetError):
                self._stream.synchronize()
            raise
        self._stream.synchronize()
        return {
            name: memory.view(self._outputs[name]).reshape(shapes[name]).copy()
            for name, memory in staged.items()
        }

    def _send(self, name: str, dtype: np.dtype[np.generic], array: NDArray[np.generic]) -> None:
        """Queues the copy of one input."""
        before = self._shared.logger.seen
        if not self._context.set_input_shape(name, tuple(array.shape)):
            raise TargetError(
                f"{self._shared.path}: the input {name!r} of shape {array.shape} is outside"
                f" the engine's profile: {_reason(self._shared.logger.since(before))}",
                hint="Build the engine for the batch sizes that are served.",
            )
        size = array.size * dtype.itemsize
        address, memory = self._stream.buffer(name, size), self._stream.staging(name, size)
        np.copyto(memory.view(dtype).reshape(array.shape), array, casting="unsafe")
        self._context.set_tensor_address(name, address)
        self._stream.upload(address, memory.ctypes.data, size)

    def _output_shape(self, name: str) -> tuple[int, ...]:
        shape = tuple(self._context.get_tensor_shape(name))
        if any(dim < 0 for dim in shape):
            raise TargetError(
                f"{self._shared.path}: the shape of the output {name!r} depends on the data,"
                " which TensorRT instances here do not support.",
                hint="Serve this model with ONNX Runtime.",
            )
        return shape

    def _execute(self) -> None:
        before = self._shared.logger.seen
        if self._context.execute_async_v3(self._stream.handle):
            return
        said = self._shared.logger.since(before)
        message = f"{self._shared.path} failed to execute: {_reason(said)}"
        if any(map(is_out_of_memory, said)):
            raise TargetMemoryError(message, hint=_LESS_MEMORY)
        if any(map(is_device_lost, said)):
            raise TargetCrashError(message, hint=START_ANEW)
        raise TargetError(message)

    def close(self) -> None:
        """Frees the context, the buffers and the stream."""
        self._context = None
        self._stream.close()


def _load_error(path: Path, said: list[str], library: str) -> TargetError:
    """Why a plan could not be loaded, from what TensorRT said of it."""
    text = " ".join(said) or "TensorRT gave no reason."
    if any(map(is_out_of_memory, said)):
        return TargetMemoryError(
            f"{path} cannot be loaded, since the GPU is out of memory: {text}", hint=_LESS_MEMORY
        )
    versions = _VERSIONS.search(text)
    if versions is not None:
        return TargetStartError(
            f"{path} was built by TensorRT {versions['got']}, and here is TensorRT"
            f" {versions['expected']}.",
            hint="An engine runs only on the version that built it: build it anew here, or use"
            " that version.",
        )
    return TargetStartError(
        f"{path} cannot be loaded by {library}: {text}",
        hint="An engine belongs to one TensorRT version and one GPU model; build it anew.",
    )


def _reason(said: list[str]) -> str:
    return said[-1] if said else "TensorRT gave no reason."
