"""A stand-in for CUDA's Python bindings over host memory, for tests and for machines without a GPU.

It has the functions that we call, and where the real ones would let a mistake pass until a GPU is
busy, it tells:

- A stream's work runs late: when the stream is waited for. Until then the host reads NaN where a
  download into page-locked memory is under way (CUDA Runtime API, "API synchronization behavior":
  copies from and to pageable memory are staged at once).
- ``violations`` are what CUDA leaves undefined: page-locked memory that changed before it was
  copied, memory freed while queued work uses it, work of two streams on one buffer without a wait.
- Some errors stick (``STICKY``): every later call of the process returns them.
- ``leaks`` is what was not given back; page-locked memory is counted.

The errors have the real module's names and numbers; a test compares them.
"""

from __future__ import annotations

import ctypes
import enum
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from analyzer.engine.runtimes.cuda import STICKY

# Of cuda-bindings' cudaError_t, those that happen here or that tests inject.
_ERRORS = {
    "cudaSuccess": 0,
    "cudaErrorInvalidValue": 1,
    "cudaErrorMemoryAllocation": 2,
    "cudaErrorInvalidMemcpyDirection": 21,
    "cudaErrorInsufficientDriver": 35,
    "cudaErrorNoDevice": 100,
    "cudaErrorInvalidDevice": 101,
    "cudaErrorECCUncorrectable": 214,
    "cudaErrorInvalidResourceHandle": 400,
    "cudaErrorIllegalAddress": 700,
    "cudaErrorLaunchTimeout": 702,
    "cudaErrorAssert": 710,
    "cudaErrorMisalignedAddress": 716,
    "cudaErrorLaunchFailure": 719,
    "cudaErrorSystemDriverMismatch": 803,
}
_COPY_KINDS = {
    "cudaMemcpyHostToHost": 0,
    "cudaMemcpyHostToDevice": 1,
    "cudaMemcpyDeviceToHost": 2,
    "cudaMemcpyDeviceToDevice": 3,
    "cudaMemcpyDefault": 4,
}
# A function's name for faults: what a kernel does when it runs.
LAUNCH = "launch"


class Span(NamedTuple):
    """Bytes of device or page-locked memory."""

    address: int
    size: int

    def overlaps(self, other: Span) -> bool:
        """Whether both have a byte in common."""
        return (
            self.address < other.address + other.size and other.address < self.address + self.size
        )


@dataclass(slots=True)
class _Work:
    """What is queued: it fails with the name of an error, or runs."""

    run: Callable[[], str | None]
    reads: Sequence[Span]
    writes: Sequence[Span]
    pinned: Mapping[Span, bytes]  # page-locked sources, as they were when they were queued


@dataclass(slots=True)
class _Stream:
    handle: int
    device: int
    queue: list[_Work] = field(default_factory=list)


_current: FakeCuda | None = None


def current() -> FakeCuda | None:
    """The module that last selected a device: which one a fake of TensorRT runs on."""
    return _current


class FakeCuda:
    """CUDA's runtime functions, as the module ``cuda.bindings.runtime``. Thread-safe.

    Args:
        memory_bytes: What each device has; one number for a single device. More is
            ``cudaErrorMemoryAllocation``.
        pinned_bytes: What can be page-locked on the host.
        faults: By function, or ``launch`` for what kernels do: the name of an error and how many
            calls succeed before it. An error that does not stick comes once.
        real: The real module, whose enumerations are taken then; default: the same ones made here.
    """

    def __init__(
        self,
        memory_bytes: int | Sequence[int] = 1 << 20,
        *,
        pinned_bytes: int = 1 << 30,
        faults: Mapping[str, tuple[str, int]] | None = None,
        real: Any = None,
    ) -> None:
        devices = (memory_bytes,) if isinstance(memory_bytes, int) else memory_bytes
        self.memory_bytes = tuple(devices)
        self.free = list(devices)
        self.pinned_free = pinned_bytes
        self.faults = dict(faults or {})
        self.cudaError_t: Any = real and real.cudaError_t
        self.cudaMemcpyKind: Any = real and real.cudaMemcpyKind
        if real is None:
            self.cudaError_t = _enumeration("cudaError_t", _ERRORS)
            self.cudaMemcpyKind = _enumeration("cudaMemcpyKind", _COPY_KINDS)
        self.buffers: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.streams: dict[int, _Stream] = {}
        self.violations: list[str] = []
        self.pinned_peak = 0
        self._device_of: dict[int, int] = {}
        self._sticky = "cudaSuccess"
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._created = 0

    @property
    def device(self) -> int:
        """The calling thread's device."""
        return int(getattr(self._thread, "device", 0))

    def leaks(self) -> list[str]:
        """What was taken and not given back."""
        found = [f"{len(block)} bytes of device memory" for block in self.buffers.values()]
        found += [f"{len(block)} bytes of page-locked memory" for block in self.pinned.values()]
        return found + [f"stream {handle}" for handle in self.streams]

    def reserve(self, size: int) -> bool:
        """Takes memory of the calling thread's device that no address is asked for."""
        with self._lock:
            if size > self.free[self.device]:
                return False
            self.free[self.device] -= size
            return True

    def release(self, size: int, device: int) -> None:
        """Gives back what :meth:`reserve` took."""
        with self._lock:
            self.free[device] += size

    def launch(
        self,
        handle: int,
        run: Callable[[], None],
        *,
        reads: Iterable[Span] = (),
        writes: Iterable[Span] = (),
    ) -> str | None:
        """Queues a kernel; the name of the error where CUDA would refuse to."""
        with self._lock:
            error = self._fault("cudaLaunchKernel")
            if error is None and handle not in self.streams:
                error = "cudaErrorInvalidResourceHandle"
            if error is not None:
                return error

            def execute() -> str | None:
                failed = self._fault(LAUNCH)
                if failed is None:
                    run()
                return failed

            self._enqueue(handle, _Work(execute, tuple(reads), tuple(writes), {}))
            return None

    def cudaSetDevice(self, device: int) -> tuple[Any]:  # noqa: N802
        """Selects a device for the calling thread."""
        global _current
        with self._lock:
            error = self._fault("cudaSetDevice")
            if error is None and not 0 <= device < len(self.free):
                error = "cudaErrorInvalidDevice" if self.free else "cudaErrorNoDevice"
            if error is None:
                self._thread.device = device
                _current = self
            return (self._status(error),)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Any, int]:  # noqa: N802
        """Makes a stream."""
        with self._lock:
            error = self._fault("cudaStreamCreateWithFlags")
            if error is not None:
                return self._status(error), 0
            self._created += 1
            handle = 1000 * (1 + self.device) + self._created
            self.streams[handle] = _Stream(handle, self.device)
            return self._status(), handle

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any]:  # noqa: N802
        """Runs what is queued."""
        with self._lock:
            error = self._fault("cudaStreamSynchronize")
            if error is None:
                error = self._run(stream)
            return (self._status(error),)

    def cudaStreamDestroy(self, stream: int) -> tuple[Any]:  # noqa: N802
        """Frees a stream once its work is done."""
        with self._lock:
            error = self._fault("cudaStreamDestroy")
            if error is None:
                error = self._run(stream)
            self.streams.pop(stream, None)
            return (self._status(error),)

    def cudaMalloc(self, size: int) -> tuple[Any, int | None]:  # noqa: N802
        """Takes device memory."""
        with self._lock:
            error = self._fault("cudaMalloc")
            if error is None and not self.reserve(size):
                error = "cudaErrorMemoryAllocation"
            if error is not None:
                return self._status(error), None
            block = ctypes.create_string_buffer(size)
            self.buffers[ctypes.addressof(block)] = block
            self._device_of[ctypes.addressof(block)] = self.device
            return self._status(), ctypes.addressof(block)

    def cudaFree(self, address: int) -> tuple[Any]:  # noqa: N802
        """Gives device memory back."""
        with self._lock:
            error = self._fault("cudaFree")
            if error is None and address not in self.buffers:
                error = "cudaErrorInvalidValue"
            if error is None:
                size = len(self.buffers[address])
                self._check_unused(Span(address, size), "device memory")
                del self.buffers[address]
                self.release(size, self._device_of.pop(address))
            return (self._status(error),)

    def cudaHostAlloc(self, size: int, flags: int) -> tuple[Any, int | None]:  # noqa: N802
        """Takes page-locked memory of the host."""
        with self._lock:
            error = self._fault("cudaHostAlloc")
            if error is None and size > self.pinned_free:
                error = "cudaErrorMemoryAllocation"
            if error is not None:
                return self._status(error), None
            self.pinned_free -= size
            block = ctypes.create_string_buffer(size)
            self.pinned[ctypes.addressof(block)] = block
            self.pinned_peak = max(self.pinned_peak, sum(map(len, self.pinned.values())))
            return self._status(), ctypes.addressof(block)

    def cudaFreeHost(self, address: int) -> tuple[Any]:  # noqa: N802
        """Gives page-locked memory back."""
        with self._lock:
            error = self._fault("cudaFreeHost")
            if error is None and address not in self.pinned:
                error = "cudaErrorInvalidValue"
            if error is None:
                size = len(self.pinned[address])
                self._check_unused(Span(address, size), "page-locked memory")
                del self.pinned[address]
                self.pinned_free += size
            return (self._status(error),)

    def cudaMemcpyAsync(  # noqa: N802
        self, target: int, source: int, size: int, kind: int, stream: int
    ) -> tuple[Any]:
        """Queues a copy; one from pageable memory is staged now, one to it is waited for."""
        with self._lock:
            error = self._fault("cudaMemcpyAsync")
            if error is None:
                error = self._copy(Span(target, size), Span(source, size), int(kind), stream)
            return (self._status(error),)

    def _copy(self, target: Span, source: Span, kind: int, handle: int) -> str | None:
        if handle not in self.streams:
            return "cudaErrorInvalidResourceHandle"
        kinds = self.cudaMemcpyKind
        if kind == kinds.cudaMemcpyHostToDevice:
            if not _inside(target, self.buffers):
                return "cudaErrorInvalidValue"
            content = ctypes.string_at(source.address, source.size)
            pinned = {source: content} if _inside(source, self.pinned) else {}
            reads = tuple(pinned)
            work = _Work(lambda: _move(target, content), reads, (target,), pinned)
            self._enqueue(handle, work)
            return None
        if kind != kinds.cudaMemcpyDeviceToHost:
            return "cudaErrorInvalidMemcpyDirection"
        if not _inside(source, self.buffers):
            return "cudaErrorInvalidValue"
        late = _inside(target, self.pinned)
        if late:
            # Whoever reads it too early sees NaN (or −1).
            ctypes.memset(target.address, 0xFF, target.size)

        def download() -> str | None:
            return _move(target, ctypes.string_at(source.address, source.size))

        writes = (target,) if late else ()
        self._enqueue(handle, _Work(download, (source,), writes, {}))
        return None if late else self._run(handle)

    def _enqueue(self, handle: int, work: _Work) -> None:
        for other in self.streams.values():
            if other.handle == handle:
                continue
            for queued in other.queue:
                pairs = [(a, b) for a in queued.writes for b in (*work.reads, *work.writes)]
                pairs += [(a, b) for a in queued.reads for b in work.writes]
                if any(a.overlaps(b) for a, b in pairs):
                    self.violations.append(
                        f"streams {other.handle} and {handle} use one buffer without a wait"
                    )
        self.streams[handle].queue.append(work)

    def _run(self, handle: int) -> str | None:
        """Runs a stream's work in order; what comes after a failure is lost."""
        stream = self.streams.get(handle)
        if stream is None:
            return "cudaErrorInvalidResourceHandle"
        queue, stream.queue = stream.queue, []
        for work in queue:
            for span, content in work.pinned.items():
                if ctypes.string_at(span.address, span.size) != content:
                    self.violations.append("page-locked memory changed before it was copied")
            error = work.run()
            if error is not None:
                return error
        return None

    def _check_unused(self, span: Span, what: str) -> None:
        for stream in self.streams.values():
            for work in stream.queue:
                if any(span.overlaps(used) for used in (*work.reads, *work.writes)):
                    self.violations.append(f"{what} was freed while stream {stream.handle} uses it")
                    return

    def _fault(self, function: str) -> str | None:
        """The error that a call of ``function`` comes to, if any."""
        if self._sticky != "cudaSuccess":
            return self._sticky
        if function not in self.faults:
            return None
        error, left = self.faults[function]
        if left > 0:
            self.faults[function] = (error, left - 1)
            return None
        if error in STICKY:
            self._sticky = error
        else:
            del self.faults[function]
        return error

    def _status(self, error: str | None = None) -> Any:
        return getattr(self.cudaError_t, error or "cudaSuccess")


def _enumeration(name: str, members: Mapping[str, int]) -> Any:
    make: Any = enum.IntEnum
    return make(name, members)


def _inside(span: Span, blocks: Mapping[int, Any]) -> bool:
    """Whether all of ``span`` lies in one of the blocks."""
    return any(
        address <= span.address and span.address + span.size <= address + len(block)
        for address, block in blocks.items()
    )


def _move(target: Span, content: bytes) -> str | None:
    ctypes.memmove(target.address, content, target.size)
    return None
