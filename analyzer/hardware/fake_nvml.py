"""A stand-in for ``pynvml`` over made-up GPUs, for tests and for commands tried by hand.

Constants, structures and error classes are those of the real module, which must be installed; it
answers no question that the real one would not. Faults can be put on every function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# NVML's window of utilization on current GPUs (1/6 s), and how many of them it keeps.
_WINDOW_S = 1 / 6
_SAMPLES_KEPT = 100


@dataclass(slots=True, kw_only=True, eq=False)
class FakeGpu:
    """One made-up GPU; every field may be changed while it is in use.

    Args:
        memory_used: Of all processes.
        processes: Memory by process; None where the driver does not tell.
        utilization: Percent at a time, in seconds of the clock.
        watts: Its power, from which its energy counter follows.
        reasons: Bits of the clocks' event reasons.
        instances: MIG instances; it is in MIG mode where there are any, or ``mig`` says so.
        faults: What a question about this GPU fails with: NVML's name of the error by the
            function's name, or by ``*`` for all (a GPU that is lost stays lost).
        buffered: Whether it keeps windows of utilization.
    """

    uuid: str = "GPU-11111111-2222-3333-4444-555555555555"
    name: str = "NVIDIA H200"
    memory_total: int = 139 << 30
    memory_used: int = 1 << 30
    processes: dict[int, int | None] = field(default_factory=dict)
    utilization: Callable[[float], int] = lambda _: 50
    watts: float = 250.0
    sm_clock_mhz: int = 1980
    reasons: int = 0
    capability: tuple[int, int] = (9, 0)
    instances: Sequence[FakeGpu] = ()
    mig: bool = False
    faults: dict[str, str] = field(default_factory=dict)
    buffered: bool = True


class FakeNvml:
    """The module.

    Args:
        gpus: In the order of their PCI bus.
        faults: As of :class:`FakeGpu`, for functions that ask about no GPU (``nvmlInit``).
        clock: Seconds, by which windows pass and energy is counted.
        cuda: The newest CUDA that the driver runs, as NVML writes it (12020 is 12.2).
    """

    def __init__(
        self,
        gpus: Sequence[FakeGpu] = (),
        *,
        faults: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        cuda: int = 13000,
    ) -> None:
        import pynvml

        self._real = pynvml
        self._gpus = gpus
        self._faults = dict(faults or {})
        self._clock = clock
        self._cuda = cuda
        self._since_s = clock()
        self.sessions = 0

    def __getattr__(self, name: str) -> Any:
        """A constant, a structure or an error of the real module; none of its functions."""
        if name.startswith("nvml") and callable(getattr(self._real, name)):
            raise AttributeError(f"the fake has no {name}")
        return getattr(self._real, name)

    def _check(self, function: str, gpu: FakeGpu | None = None) -> None:
        faults = self._faults if gpu is None else gpu.faults
        error = faults.get(function) or faults.get("*")
        if error is not None:
            raise self._real.NVMLError(getattr(self._real, error))
        if self.sessions < 1 and function != "nvmlInit":
            raise self._real.NVMLError(self._real.NVML_ERROR_UNINITIALIZED)

    def _fail(self, error: str) -> Any:
        raise self._real.NVMLError(getattr(self._real, error))

    def nvmlInit(self) -> None:  # noqa: N802
        """Begins a session."""
        self._check("nvmlInit")
        self.sessions += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Ends it."""
        self._check("nvmlShutdown")
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        """The driver's version."""
        self._check("nvmlSystemGetDriverVersion")
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        """The newest CUDA that it runs."""
        self._check("nvmlSystemGetCudaDriverVersion_v2")
        return self._cuda

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """How many GPUs there are."""
        self._check("nvmlDeviceGetCount")
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        """A handle by number."""
        self._check("nvmlDeviceGetHandleByIndex")
        if not 0 <= index < len(self._gpus):
            self._fail("NVML_ERROR_INVALID_ARGUMENT")
        self._check("nvmlDeviceGetHandleByIndex", self._gpus[index])
        return self._gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        """A handle by UUID, of a MIG instance too."""
        self._check("nvmlDeviceGetHandleByUUID")
        for gpu in self._gpus:
            for each in (gpu, *gpu.instances):
                if each.uuid == uuid:
                    self._check("nvmlDeviceGetHandleByUUID", each)
                    return each
        found: FakeGpu = self._fail("NVML_ERROR_NOT_FOUND")
        return found

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:  # noqa: N802
        """Its UUID."""
        self._check("nvmlDeviceGetUUID", handle)
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:  # noqa: N802
        """Its name."""
        self._check("nvmlDeviceGetName", handle)
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu) -> Any:  # noqa: N802
        """Its memory, bytes."""
        self._check("nvmlDeviceGetMemoryInfo", handle)
        total, used = handle.memory_total, handle.memory_used
        return self._real.c_nvmlMemory_t(total=total, free=total - used, used=used)

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:  # noqa: N802
        """Its compute capability."""
        self._check("nvmlDeviceGetCudaComputeCapability", handle)
        return handle.capability

    def nvmlDeviceGetMigMode(self, device: FakeGpu) -> list[int]:  # noqa: N802
        """Whether it is in MIG mode, now and after a reset."""
        self._check("nvmlDeviceGetMigMode", device)
        return [int(device.mig or bool(device.instances))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeGpu) -> int:  # noqa: N802
        """How many instances it can have."""
        self._check("nvmlDeviceGetMaxMigDeviceCount", device)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(  # noqa: N802
        self, device: FakeGpu, index: int
    ) -> FakeGpu:
        """A MIG instance; NOT_FOUND where that place is empty."""
        self._check("nvmlDeviceGetMigDeviceHandleByIndex", device)
        if index >= len(device.instances):
            self._fail("NVML_ERROR_NOT_FOUND")
        return device.instances[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: FakeGpu) -> FakeGpu:  # noqa: N802, N803
        """The GPU that an instance is of."""
        self._check("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", migDevice)
        return next(gpu for gpu in self._gpus if migDevice in gpu.instances)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[Any]:  # noqa: N802
        """Its processes."""
        self._check("nvmlDeviceGetComputeRunningProcesses", handle)
        record = self._real.c_nvmlProcessInfo_v3_t
        found = []
        for pid, used in handle.processes.items():
            process = self._real.nvmlStructToFriendlyObject(
                record(pid=pid, usedGpuMemory=used or 0)
            )
            process.usedGpuMemory = used
            found.append(process)
        return found

    def nvmlDeviceGetSamples(  # noqa: N802
        self,
        device: FakeGpu,
        sampling_type: int,
        timeStamp: int,  # noqa: N803
    ) -> tuple[int, list[Any]]:
        """Its windows of utilization that ended after a time, microseconds."""
        self._check("nvmlDeviceGetSamples", device)
        if not device.buffered or sampling_type != self._real.NVML_GPU_UTILIZATION_SAMPLES:
            self._fail("NVML_ERROR_NOT_SUPPORTED")
        last = int(self._clock() / _WINDOW_S)
        samples = []
        for number in range(last - _SAMPLES_KEPT + 1, last + 1):
            ended_us = round(number * _WINDOW_S * 1e6)
            if ended_us > timeStamp:
                percent = device.utilization((number - 0.5) * _WINDOW_S)
                value = self._real.c_nvmlValue_t(uiVal=percent)
                samples.append(self._real.c_nvmlSample_t(timeStamp=ended_us, sampleValue=value))
        if not samples:
            self._fail("NVML_ERROR_NOT_FOUND")
        return self._real.NVML_VALUE_TYPE_UNSIGNED_INT, samples

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Any:  # noqa: N802
        """Its utilization over the last window, percent."""
        self._check("nvmlDeviceGetUtilizationRates", handle)
        percent = handle.utilization(self._clock())
        return self._real.c_nvmlUtilization_t(gpu=percent, memory=0)

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:  # noqa: N802
        """Its power, milliwatts."""
        self._check("nvmlDeviceGetPowerUsage", handle)
        return round(handle.watts * 1e3)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeGpu) -> int:  # noqa: N802
        """Its energy since the driver was loaded, millijoules."""
        self._check("nvmlDeviceGetTotalEnergyConsumption", handle)
        return round(7e9 + handle.watts * (self._clock() - self._since_s) * 1e3)

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, type: int) -> int:  # noqa: N802
        """A clock, MHz."""
        self._check("nvmlDeviceGetClockInfo", handle)
        assert type == self._real.NVML_CLOCK_SM
        return handle.sm_clock_mhz

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeGpu) -> int:  # noqa: N802
        """What holds its clocks down, bits."""
        self._check("nvmlDeviceGetCurrentClocksEventReasons", handle)
        return handle.reasons
