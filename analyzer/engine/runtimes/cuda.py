"""Device memory and streams through NVIDIA's CUDA bindings, imported when they are needed."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.errors import (
    MissingPartError,
    TargetCrashError,
    TargetError,
    TargetMemoryError,
    is_out_of_memory,
)

_STREAM_NON_BLOCKING = 1  # cudaStreamNonBlocking
_HOST_ALLOC_DEFAULT = 0  # cudaHostAllocDefault
# After these "the process must be terminated and relaunched", as CUDA's documentation says of each
# (cudaError_t); a test holds the list against the bindings' own documentation.
STICKY = frozenset(
    (
        "cudaErrorContained",
        "cudaErrorIllegalAddress",
        "cudaErrorLaunchTimeout",
        "cudaErrorAssert",
        "cudaErrorHardwareStackError",
        "cudaErrorIllegalInstruction",
        "cudaErrorMisalignedAddress",
        "cudaErrorInvalidAddressSpace",
        "cudaErrorInvalidPc",
        "cudaErrorLaunchFailure",
        "cudaErrorTensorMemoryLeak",
        "cudaErrorMpsClientTerminated",
        "cudaErrorExternalDevice",
    )
)
#: What to do after one of them.
START_ANEW = (
    "CUDA answers every later call of this process with the same error: start the server anew. A"
    " kernel of the model or of a plugin reads outside its tensors, or the GPU is at fault"
    " (`dmesg` shows NVIDIA's Xid errors)."
)

_UNUSABLE = {
    "cudaErrorInsufficientDriver": "the NVIDIA driver is missing, or older than this CUDA",
    "cudaErrorNoDevice": "CUDA sees no GPU here",
    "cudaErrorInvalidDevice": "CUDA sees no GPU of this number",
    "cudaErrorSystemDriverMismatch": "the driver's libraries and its kernel module differ",
}


def import_cudart() -> Any:
    """The module of CUDA's runtime functions.

    Raises:
        MissingPartError: It is not installed.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        try:
            from cuda import cudart as runtime  # packages before 12.8
        except ImportError:
            raise MissingPartError(
                f"CUDA's Python bindings cannot be imported: {error}.",
                hint="Install the package cuda-bindings; TensorRT engines are fed through it.",
            ) from error
    return runtime


class CudaStream:
    """A stream of its own on one device, with grow-only named buffers; ends with :meth:`close`.

    Args:
        device_id: Number of the CUDA device.
        cudart: The module to use; default the installed one.
        pinned: Whether :meth:`staging` gives page-locked memory.

    Raises:
        MissingPartError: There is no driver or no such GPU.
        TargetMemoryError: The device is out of memory.
        TargetCrashError: An error that leaves this process without CUDA (``STICKY``).
        TargetError: Any other CUDA error.
    """

    def __init__(self, *, device_id: int = 0, cudart: Any = None, pinned: bool = True) -> None:
        self._rt = cudart if cudart is not None else import_cudart()
        self._device_id = device_id
        self._pinned = pinned
        self._buffers: dict[str, tuple[int, int]] = {}
        self._staging: dict[str, tuple[int, NDArray[np.uint8]]] = {}
        self.handle = 0
        self.activate()
        self.handle = int(self._call("cudaStreamCreateWithFlags", _STREAM_NON_BLOCKING))

    def activate(self) -> None:
        """Makes the device the calling thread's."""
        self._call("cudaSetDevice", self._device_id)

    def buffer(self, name: str, size_bytes: int) -> int:
        """Address of the device buffer ``name``, at least ``size_bytes`` large."""
        address, size = self._buffers.get(name, (0, -1))
        if size >= size_bytes:
            return address
        if address:
            self.synchronize()
            del self._buffers[name]
            self._call("cudaFree", address)
        address = int(self._call("cudaMalloc", max(size_bytes, 1)))
        self._buffers[name] = (address, size_bytes)
        return address

    def staging(self, name: str, size_bytes: int) -> NDArray[np.uint8]:
        """Host memory ``name`` of that many bytes, which copies go through.

        Page-locked, so that copies run beside the host, as in Triton (its pinned memory pool);
        ordinary memory where the host has no more of it, as there. It may be written and read only
        while nothing is queued that uses it.
        """
        address, memory = self._staging.get(name, (0, np.empty(0, np.uint8)))
        if memory.size < size_bytes:
            if name in self._staging:
                self.synchronize()
                del self._staging[name]
                self._free_staging(address)
            address, memory = self._allocate_staging(max(size_bytes, 1))
            self._staging[name] = (address, memory)
        return memory[:size_bytes]

    def _allocate_staging(self, size_bytes: int) -> tuple[int, NDArray[np.uint8]]:
        if self._pinned:
            with suppress(TargetMemoryError):
                address = int(self._call("cudaHostAlloc", size_bytes, _HOST_ALLOC_DEFAULT))
                block = (ctypes.c_uint8 * size_bytes).from_address(address)
                return address, np.ctypeslib.as_array(block)
        return 0, np.empty(size_bytes, np.uint8)

    def _free_staging(self, address: int) -> None:
        if address:  # else it is numpy's
            self._call("cudaFreeHost", address)

    def upload(self, address: int, host: int, size_bytes: int) -> None:
        """Queues a copy from host memory at ``host`` to the device."""
        kind = self._rt.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, host, size_bytes, kind, self.handle)

    def download(self, host: int, address: int, size_bytes: int) -> None:
        """Queues a copy from the device to host memory at ``host``."""
        kind = self._rt.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", host, address, size_bytes, kind, self.handle)

    def synchronize(self) -> None:
        """Waits until everything queued is done."""
        self._call("cudaStreamSynchronize", self.handle)

    def close(self) -> None:
        """Waits for the stream and frees it with its memory; errors are left to the process."""
        with suppress(TargetError, MissingPartError):
            self.activate()
            if self.handle:
                self.synchronize()
        for address, _ in self._buffers.values():
            self._rt.cudaFree(address)
        for address, _ in self._staging.values():
            if address:
                self._rt.cudaFreeHost(address)
        self._buffers.clear()
        self._staging.clear()
        if self.handle:
            self._rt.cudaStreamDestroy(self.handle)
            self.handle = 0

    def _call(self, function: str, *arguments: Any) -> Any:
        """The result of a CUDA function; the bindings return ``(error, *results)``."""
        status, *results = getattr(self._rt, function)(*arguments)
        if int(status) == 0:
            return results[0] if results else None
        name = getattr(status, "name", str(status))
        if name in _UNUSABLE:
            raise MissingPartError(
                f"GPU {self._device_id} cannot be used: {_UNUSABLE[name]} ({function}: {name}).",
                hint="Compare `nvidia-smi` with the CUDA version of the installed packages; analyze"
                " doctor shows what is here.",
            )
        if is_out_of_memory(name):
            raise TargetMemoryError(
                f"GPU {self._device_id} is out of memory ({function}: {name}).",
                hint="Fewer instances, smaller batches or a lower precision need less memory.",
            )
        message = f"CUDA failed on GPU {self._device_id} ({function}: {name})."
        if name in STICKY:
            raise TargetCrashError(message, hint=START_ANEW)
        raise TargetError(message)
