"""Device memory and streams through NVIDIA's CUDA bindings, imported when they are needed."""

from __future__ import annotations

from typing import Any

from analyzer.errors import MissingPartError, TargetError, TargetMemoryError, is_out_of_memory

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

    Raises:
        MissingPartError: There is no driver or no such GPU.
        TargetMemoryError: The device is out of memory.
        TargetError: Any other CUDA error.
    """

    def __init__(self, *, device_id: int = 0, cudart: Any = None) -> None:
        self._rt = cudart if cudart is not None else import_cudart()
        self._device_id = device_id
        self._buffers: dict[str, tuple[int, int]] = {}
        self.activate()
        self.handle = int(self._call("cudaStreamCreateWithFlags", 1))  # 1: cudaStreamNonBlocking

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
        """Frees the buffers and the stream; errors are left to the process's end."""
        for address, _ in self._buffers.values():
            self._rt.cudaFree(address)
        self._buffers.clear()
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
        raise TargetError(f"CUDA failed on GPU {self._device_id} ({function}: {name}).")
