"""A stand-in for ``tensorrt`` with the surface that we use, for tests.

Where no builder library or GPU is at hand, the code that compiles and runs engines runs against
this. It has exactly the names that we call, and ``tools/real_tensorrt.py`` holds them against
the real bindings. An engine of this fake doubles its inputs, as work on a stream of
``fake_cuda.py``, and takes that one's memory.
"""

from __future__ import annotations

import ctypes
import enum
import json
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from analyzer.engine.runtimes.fake_cuda import FakeCuda, Span, current

Kernel = Callable[[int, Span, Span], None]


def make_tensorrt(
    *,
    version: str = "11.4.0",
    inputs: dict[str, tuple[int, ...]] | None = None,
    parse_errors: tuple[str, ...] = (),
    build_error: str = "",
    load_error: str = "",
    starts: bool = True,
    kernel: Kernel | None = None,
) -> Any:
    """A module-like object.

    Args:
        version: ``__version__``.
        inputs: The network's inputs with −1 for dynamic dimensions; float32.
        parse_errors: What the parser complains of; it fails if there is anything.
        build_error: What the builder logs before it gives no plan; empty for a plan.
        load_error: What the runtime logs before it loads no plan; empty for an engine.
        starts: Whether the builder finds a GPU.
        kernel: What doubles, on a real device: gets the stream, the input and the output. None for
            ``fake_cuda.py``'s memory.

    Returns:
        The module; its list ``engines`` holds every engine that was deserialized, in order, and
        ``calls`` what else was called.
    """
    shapes = inputs or {"x": (-1, 3)}
    engines: list[_Engine] = []
    calls: list[str] = []

    def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
        calls.append("init_libnvinfer_plugins")
        return True

    class ILogger:
        class Severity(enum.Enum):
            INTERNAL_ERROR = 0
            ERROR = 1
            WARNING = 2

        def __init__(self) -> None: ...

    class Builder:
        def __init__(self, logger: Any) -> None:
            if not starts:
                logger.log(ILogger.Severity.ERROR, "CUDA initialization failure with error: 100")
                raise TypeError("pybind11::init(): factory function returned nullptr")
            self._logger = logger

        def create_network(self, flags: int = 0) -> Any:
            tensors = [SimpleNamespace(name=name, shape=dims) for name, dims in shapes.items()]
            return SimpleNamespace(
                flags=flags, num_inputs=len(tensors), get_input=tensors.__getitem__
            )

        def create_builder_config(self) -> Any:
            return _Config()

        def create_optimization_profile(self) -> Any:
            return _Profile()

        def build_serialized_network(self, network: Any, config: Any) -> bytes | None:
            if build_error:
                self._logger.log(ILogger.Severity.ERROR, build_error)
                return None
            profiles = [profile.shapes for profile in config.profiles]
            if config.timings is not None:
                config.timings.content += b"+1"
            plan = {
                "inputs": shapes,
                "profiles": profiles,
                "flags": network.flags,
                "limits": config.limits,
            }
            return json.dumps(plan).encode()

    class OnnxParser:
        def __init__(self, network: Any, logger: Any) -> None:
            self.num_errors = len(parse_errors)

        def parse_from_file(self, path: str) -> bool:
            calls.append("parse_from_file")
            return Path(path).is_file() and not parse_errors

        def get_error(self, index: int) -> Any:
            return SimpleNamespace(
                desc=lambda: parse_errors[index],
                node_operator=lambda: "",
                node_name=lambda: "",
            )

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, plan: bytes) -> Any:
            calls.append("deserialize_cuda_engine")
            if load_error:
                self._logger.log(ILogger.Severity.ERROR, load_error)
                return None
            try:
                engine = _Engine(json.loads(plan), self._logger, ILogger.Severity.ERROR, kernel)
            except ValueError:
                self._logger.log(ILogger.Severity.ERROR, "Magic tag does not match")
                return None
            if not _take(engine, engine.plan.get("weights_bytes", 0), engine._log):
                return None
            engines.append(engine)
            return engine

    return SimpleNamespace(
        __version__=version,
        engines=engines,
        calls=calls,
        init_libnvinfer_plugins=init_libnvinfer_plugins,
        DataType=_DataType,
        ILogger=ILogger,
        Builder=Builder,
        OnnxParser=OnnxParser,
        Runtime=Runtime,
        NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=1),
        MemoryPoolType=SimpleNamespace(WORKSPACE="workspace"),
        TensorIOMode=SimpleNamespace(INPUT="input", OUTPUT="output"),
        nptype=_nptype,
    )


class _DataType(enum.Enum):
    FLOAT = 0
    BF16 = 7


def _nptype(datatype: _DataType) -> Any:
    """As the real one: TypeError for what numpy has no type of."""
    if datatype is _DataType.FLOAT:
        return np.float32
    raise TypeError("Could not resolve TensorRT datatype to an equivalent numpy datatype.")


class _Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, name: str, low: Any, middle: Any, high: Any) -> None:
        self.shapes[name] = [tuple(low), tuple(middle), tuple(high)]


class _Config:
    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.profiles: list[_Profile] = []
        self.timings: Any = None

    def set_memory_pool_limit(self, pool: str, size: int) -> None:
        self.limits[pool] = size

    def add_optimization_profile(self, profile: _Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, content: bytes) -> Any:
        cache = SimpleNamespace(content=content)
        cache.serialize = lambda: cache.content
        return cache

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        if cache.content.startswith(b"foreign"):
            return False
        self.timings = cache
        return True

    def get_timing_cache(self) -> Any:
        return self.timings


# cudaGetErrorString's, which TensorRT quotes.
_WORDS = {
    "cudaErrorIllegalAddress": "an illegal memory access was encountered",
    "cudaErrorMemoryAllocation": "out of memory",
}


def _take(owner: object, size: int, log: Any) -> bool:
    """Takes device memory until ``owner`` is gone; says so as TensorRT does where there is none."""
    cuda = current()
    if not size or cuda is None:
        return True
    if not cuda.reserve(size):
        log(f"Error Code 2: OutOfMemory (Requested size was {size} bytes.)")
        return False
    weakref.finalize(owner, cuda.release, size, cuda.device)
    return True


class _Engine:
    def __init__(
        self, plan: dict[str, Any], logger: Any, severity: Any, kernel: Kernel | None
    ) -> None:
        self.plan = plan
        self.kernel = kernel
        self._logger, self._severity = logger, severity
        self._names = [*plan["inputs"], *(f"{name}_doubled" for name in plan["inputs"])]
        self.num_io_tensors = len(self._names)
        self.contexts = 0

    def _log(self, message: str) -> None:
        self._logger.log(self._severity, message)

    def get_tensor_name(self, index: int) -> str:
        return str(self._names[index])

    def get_tensor_mode(self, name: str) -> str:
        return "output" if name.endswith("_doubled") else "input"

    def get_tensor_dtype(self, name: str) -> Any:
        return _DataType[self.plan.get("datatype", "FLOAT")]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.plan["inputs"][name.removesuffix("_doubled")])

    def create_execution_context(self) -> Any:
        context = _Context(self, current())
        if not _take(context, self.plan.get("context_bytes", 0), self._log):
            return None
        self.contexts += 1
        return context


class _Context:
    def __init__(self, engine: _Engine, cuda: FakeCuda | None) -> None:
        self._engine = engine
        self._cuda = cuda
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        for profile in self._engine.plan["profiles"]:
            low, _, high = profile[name]
            if not all(a <= dim <= b for a, dim, b in zip(low, shape, high, strict=True)):
                return False
        self._shapes[name] = shape
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name.removesuffix("_doubled")]

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        pairs = [
            (
                Span(self._addresses[name], 4 * int(np.prod(shape))),
                Span(self._addresses[f"{name}_doubled"], 4 * int(np.prod(shape))),
            )
            for name, shape in self._shapes.items()
        ]
        if self._engine.kernel is not None:
            for source, target in pairs:
                self._engine.kernel(stream_handle, source, target)
            return True
        assert self._cuda is not None, "an instance has a stream"
        error = self._cuda.launch(
            stream_handle,
            partial(_double, pairs),
            reads=[source for source, _ in pairs],
            writes=[target for _, target in pairs],
        )
        if error is not None:
            self._engine._log(f"Error Code 1: Cuda Runtime ({_WORDS.get(error, error)})")
        return error is None


def _double(pairs: Sequence[tuple[Span, Span]]) -> None:
    for pair in pairs:
        values, doubled = (
            np.ctypeslib.as_array(
                ctypes.cast(span.address, ctypes.POINTER(ctypes.c_float)), (span.size // 4,)
            )
            for span in pair
        )
        doubled[:] = 2 * values
