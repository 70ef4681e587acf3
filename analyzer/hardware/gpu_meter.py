"""What one GPU tells of itself while a target is under load, through NVML.

Memory is the processes' own where NVML matches them, else what the device gained under the lease.
Everything else is an average over a window that NVML chooses (NVML API Reference:
``nvmlDeviceGetUtilizationRates`` between 1/6 s and 1 s, ``nvmlDeviceGetPowerUsage`` 1 s from Ampere
on), so a reading that reaches back before the start says nothing of the target and is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from analyzer.domain.load_test import ResourceUse
from analyzer.hardware.gpus import GpuIdentity, open_handle
from analyzer.hardware.nvml import nvml_session

# NVML's longest averaging window, seconds; energy over less is mostly the counter's own steps.
_WINDOW_S = 1.0
# NVML's bits (nvmlClocksEventReasons), by the names that we give them. An idle GPU's is left out.
_REASONS = {
    "applications_clocks_setting": "nvmlClocksEventReasonApplicationsClocksSetting",
    "sw_power_cap": "nvmlClocksEventReasonSwPowerCap",
    "hw_slowdown": "nvmlClocksEventReasonHwSlowdown",
    "sync_boost": "nvmlClocksEventReasonSyncBoost",
    "sw_thermal_slowdown": "nvmlClocksEventReasonSwThermalSlowdown",
    "hw_thermal_slowdown": "nvmlClocksEventReasonHwThermalSlowdown",
    "hw_power_brake_slowdown": "nvmlClocksEventReasonHwPowerBrakeSlowdown",
    "display_clock_setting": "nvmlClocksEventReasonDisplayClockSetting",
}
# Heat and failing power supply pass, or get worse: what is measured meanwhile does not hold. Limits
# that somebody set (power cap, clocks) are the same in production.
_THROTTLING = frozenset(
    ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
)


class GpuMeter:
    """Samples one GPU between :meth:`open` and :meth:`close`. Used by one thread at a time.

    Args:
        gpu: Which.
        base_bytes: Memory in use on it before the target started, under the exclusive lease; None
            where that is unknown.
        library: Stands in for the module ``pynvml`` (tests).
        clock: Seconds (tests).
    """

    def __init__(
        self,
        gpu: GpuIdentity,
        base_bytes: int | None,
        library: Any | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpu = gpu
        self._base_bytes = base_bytes
        self._library = library
        self._clock = clock
        self._stack = ExitStack()
        self._nvml: Any | None = None
        self._handle: Any = None
        self._board: Any = None  # the whole GPU, of a MIG instance too
        self._start_s = self._end_s = 0.0
        self._own_peak = 0
        self._device_peak = 0
        self._buffered = False
        self._seen_us = 0
        self._inside = False  # whether the windows that come now began after the start
        self._utilization: list[float] = []
        self._power: list[float] = []
        self._energy_mj: list[int] = []
        self._clock_mhz: list[float] = []
        self._limits: list[frozenset[str]] = []

    def open(self) -> None:
        """Begins; what NVML does not tell of this GPU stays unknown."""
        self._nvml = self._stack.enter_context(nvml_session(self._library))
        nvml = self._nvml
        if nvml is None:
            return
        self._handle = self._board = open_handle(nvml, self._gpu)
        if self._handle is None:
            self._nvml = None
            return
        if self._gpu.mig:
            self._board = next(
                self._ask(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle)),
                None,
            )
        self._start_s = self._end_s = self._clock()
        # The newest sample before the start: the next one's window still begins before it.
        for samples in self._samples(0):
            self._buffered = True
            self._seen_us = max(sample.timeStamp for sample in samples)
        self._read_energy()

    def close(self) -> None:
        """Ends; :meth:`result` is complete afterwards."""
        if self._nvml is not None:
            self._end_s = self._clock()
            self._read_energy()
        self._stack.close()
        self._nvml = None

    def sample(self, pids: Sequence[int]) -> None:
        """Looks at the GPU once; ``pids`` are the target's processes."""
        nvml, handle = self._nvml, self._handle
        if nvml is None:
            return
        for own in self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)):
            # None where the driver does not tell (a container's own process numbers, MIG).
            used = [p.usedGpuMemory for p in own if p.pid in pids and p.usedGpuMemory is not None]
            self._own_peak = max(self._own_peak, sum(used))
        for memory in self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle)):
            self._device_peak = max(self._device_peak, int(memory.used))
        self._sample_utilization()
        if self._board is None:
            return
        for mhz in self._ask(lambda: nvml.nvmlDeviceGetClockInfo(self._board, nvml.NVML_CLOCK_SM)):
            self._clock_mhz.append(float(mhz))
        for mask in self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(self._board)):
            self._limits.append(
                frozenset(name for name, bit in _REASONS.items() if mask & getattr(nvml, bit))
            )
        if self._since_start_s >= _WINDOW_S and not self._gpu.mig:
            for milliwatts in self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle)):
                self._power.append(milliwatts / 1000.0)

    def result(self) -> ResourceUse:
        """What was seen; the energy of an inference is for those who count them."""
        memory, source = None, None
        if self._own_peak:
            memory, source = self._own_peak, "process"
        elif self._device_peak and self._base_bytes is not None:
            memory, source = max(self._device_peak - self._base_bytes, 0), "device"
        joules = self._joules()
        seconds = self._end_s - self._start_s
        limits = self._limits
        return ResourceUse(
            gpu_memory_bytes_peak=memory,
            gpu_memory_source=source,
            gpu_utilization=_mean(self._utilization),
            power_watts=_mean(self._power) if joules is None else joules / seconds,
            energy_joules=joules,
            gpu_clock_mhz=_mean(self._clock_mhz),
            gpu_clock_limits=tuple(
                name for name in _REASONS if any(name in each for each in limits)
            ),
            gpu_throttled=_mean([float(bool(_THROTTLING & each)) for each in limits]),
        )

    @property
    def _since_start_s(self) -> float:
        return self._clock() - self._start_s

    def _sample_utilization(self) -> None:
        """Takes each of NVML's windows once; where it keeps no buffer, its latest average."""
        nvml = self._nvml
        assert nvml is not None
        if self._buffered:
            for samples in self._samples(self._seen_us):
                fresh = sorted((s.timeStamp, s.sampleValue.uiVal) for s in samples)
                # The first window that ends after the start begins before it.
                kept = fresh if self._inside else fresh[1:]
                self._utilization += [percent / 100.0 for _, percent in kept]
                self._inside, self._seen_us = True, fresh[-1][0]
        elif self._since_start_s >= _WINDOW_S:
            for rates in self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(self._handle)):
                self._utilization.append(rates.gpu / 100.0)

    def _samples(self, since_us: int) -> Iterator[Any]:
        nvml = self._nvml
        assert nvml is not None
        kind = nvml.NVML_GPU_UTILIZATION_SAMPLES
        for _, samples in self._ask(
            lambda: nvml.nvmlDeviceGetSamples(self._handle, kind, since_us)
        ):
            newer = [sample for sample in samples if sample.timeStamp > since_us]
            if newer:
                yield newer

    def _read_energy(self) -> None:
        # Millijoules since the driver was loaded (Volta and newer), of the whole board.
        nvml = self._nvml
        assert nvml is not None
        if self._board is not None and not self._gpu.mig:
            for energy in self._ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(self._board)):
                self._energy_mj.append(int(energy))

    def _joules(self) -> float | None:
        if len(self._energy_mj) < 2 or self._end_s - self._start_s < _WINDOW_S:
            return None
        return (self._energy_mj[-1] - self._energy_mj[0]) / 1e3

    def _ask(self, question: Callable[[], Any]) -> Iterator[Any]:
        """The answer, or nothing where this GPU does not tell."""
        assert self._nvml is not None
        try:
            answer = question()
        except self._nvml.NVMLError:
            return
        yield answer


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
