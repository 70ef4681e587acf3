"""As much of CuPy as ``bench/benchlib/gpu_copies.py`` uses, over the fake CUDA beside it."""

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import runtime as _cuda

from analyzer.engine.runtimes.fake_cuda import FakeCuda, Span

assert isinstance(_cuda, FakeCuda)
__version__ = "14.2.0"
_streams: list[int] = []


class CUDARuntimeError(RuntimeError):
    """A status of CUDA's; CuPy's text begins with its name."""

    def __init__(self, status: Any) -> None:
        super().__init__(f"{status.name}: as CUDA says it")
        self.status = int(status)


class _Runtime:
    CUDARuntimeError = CUDARuntimeError

    def __getattr__(self, name: str) -> Any:
        function = getattr(_cuda, f"cuda{name[0].upper()}{name[1:]}")

        def call(*arguments: Any) -> Any:
            status, *results = function(*arguments)
            if int(status):
                raise CUDARuntimeError(status)
            return results[0] if results else None

        return call

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        """Free and total memory of the device."""
        return _cuda.free[0], _cuda.memory_bytes[0]


@contextmanager
def _external_stream(handle: int) -> Any:
    _streams.append(handle)
    yield
    _streams.pop()


class RawKernel:
    """Doubles, whatever its source says; its name does."""

    def __init__(self, code: str, name: str) -> None:
        assert f"__global__ void {name}" in code

    def __call__(self, grid: Any, block: Any, arguments: tuple[int, int, int]) -> None:
        source, target, count = arguments
        assert grid[0] * block[0] >= count
        if target not in _cuda.buffers:
            _cuda.faults["launch"] = ("cudaErrorIllegalAddress", 0)

        def double() -> None:
            values, doubled = (
                np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
                for address in (source, target)
            )
            np.multiply(values, 2, out=doubled)

        size = 4 * count
        error = _cuda.launch(
            _streams[-1], double, reads=[Span(source, size)], writes=[Span(target, size)]
        )
        if error is not None:
            raise CUDARuntimeError(getattr(_cuda.cudaError_t, error))


cuda = SimpleNamespace(runtime=_Runtime(), ExternalStream=_external_stream)
