"""What this machine has: cores, memory, GPUs; as a sentence and as a key for caches."""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.hardware.nvml import nvml_session, text

_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """One GPU.

    Args:
        index: NVML's number.
        name: For example ``NVIDIA H200``.
        memory_bytes: Total.
        driver: Version of the driver.
    """

    index: int
    name: str
    memory_bytes: int
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of a machine.

    Args:
        cpu: Model of the CPU.
        cores: Cores that this process may use: its affinity, at most what its control group allows.
        cores_total: Cores of the machine.
        memory_bytes: Memory that this process may use.
        gpus: By NVML's number.
        system: Kernel and architecture.
    """

    cpu: str
    cores: int
    cores_total: int
    memory_bytes: int
    gpus: tuple[GpuInfo, ...] = ()
    system: str = ""

    @property
    def hardware(self) -> str:
        """For people: ``2 × Intel Xeon Processor @ 2.10GHz, 24 GiB`` and the GPUs."""
        parts = [f"{self.cores} × {self.cpu}", f"{self.memory_bytes / 2**30:.0f} GiB"]
        for name in dict.fromkeys(gpu.name for gpu in self.gpus):
            count = sum(gpu.name == name for gpu in self.gpus)
            parts.append(f"{count} × {name}" if count > 1 else name)
        return ", ".join(parts)

    @property
    def hardware_key(self) -> str:
        """12 hex digits that are equal where measurements and engines can be shared.

        Of CPU, cores and GPUs with their driver; not of the memory, which a restart may change by
        a few pages.
        """
        gpus = [(gpu.name, gpu.memory_bytes >> 30, gpu.driver) for gpu in self.gpus]
        facts = repr((self.cpu, self.cores, platform.machine(), gpus))
        return hashlib.sha256(facts.encode()).hexdigest()[:12]


def inspect_machine(*, nvml: Any | None = None, root: Path = Path("/")) -> Machine:
    """Looks at this machine.

    Args:
        nvml: Stands in for the module ``pynvml`` (tests).
        root: Where ``proc`` and ``sys`` are (tests).
    """
    allowed = len(os.sched_getaffinity(0))
    quota = _cpu_quota(root)
    cores = max(1, min(allowed, int(quota))) if quota is not None else allowed
    return Machine(
        cpu=_cpu_model(root),
        cores=cores,
        cores_total=os.cpu_count() or allowed,
        memory_bytes=min(_memory_total(root), _memory_limit(root)),
        gpus=_gpus(nvml),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def _cpu_model(root: Path) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.replace("(R)", "").replace("(TM)", "").replace(" CPU", "")
            return " ".join(name.split())
    return platform.processor() or platform.machine()


def _memory_total(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED_BYTES


def _groups(root: Path) -> list[Path]:
    """This process's control groups, innermost first (version 2)."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            base = root / "sys/fs/cgroup"
            own = base / line[3:].strip().lstrip("/")
            return [own, *(parent for parent in own.parents if parent.is_relative_to(base))]
    return [root / "sys/fs/cgroup"]


def _cpu_quota(root: Path) -> float | None:
    """Cores that the control groups allow; None without a limit."""
    quotas = []
    for group in _groups(root):
        fields = _read(group / "cpu.max").split()
        if len(fields) == 2 and fields[0] != "max":
            quotas.append(int(fields[0]) / int(fields[1]))
    old = root / "sys/fs/cgroup/cpu"
    quota, period = _read(old / "cpu.cfs_quota_us"), _read(old / "cpu.cfs_period_us")
    if quota.strip() and period.strip() and int(quota) > 0:
        quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _memory_limit(root: Path) -> int:
    limits = [_UNLIMITED_BYTES]
    files = [group / "memory.max" for group in _groups(root)]
    files.append(root / "sys/fs/cgroup/memory/memory.limit_in_bytes")
    for file in files:
        value = _read(file).strip()
        if value.isdigit():
            limits.append(int(value))
    return min(limits)


def _gpus(library: Any | None) -> tuple[GpuInfo, ...]:
    with nvml_session(library) as nvml:
        if nvml is None:
            return ()
        try:
            driver = text(nvml.nvmlSystemGetDriverVersion())
            gpus = []
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append(
                    GpuInfo(
                        index=index,
                        name=text(nvml.nvmlDeviceGetName(handle)),
                        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                        driver=driver,
                    )
                )
        except nvml.NVMLError:
            return ()
        return tuple(gpus)
