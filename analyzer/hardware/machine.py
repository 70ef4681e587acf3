"""What this machine has: cores, memory, GPUs; as a sentence and as a key for caches."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.hardware.control_groups import control_groups
from analyzer.hardware.gpus import GpuIdentity, visible_gpus

_UNLIMITED_BYTES = 1 << 60  # more than any machine has

# Instructions that decide how fast products of 8 bits and of floats run, by their names in
# /proc/cpuinfo, best first (ONNX Runtime's and oneDNN's kernels are chosen by them).
_INSTRUCTIONS = (
    ("amx_int8", "AMX"),
    ("avx512_vnni", "AVX-512 VNNI"),
    ("avx512f", "AVX-512"),
    ("avx_vnni", "AVX-VNNI"),
    ("avx2", "AVX2"),
    ("sve", "SVE"),
    ("i8mm", "I8MM"),
    ("asimddp", "NEON dot product"),
)
_GENERATION = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of a machine.

    Args:
        cpu: Model of the CPU, with the best of its instructions for products.
        cores: Cores that this process may use: its affinity, at most what its control group allows.
        cores_total: Cores of the machine.
        memory_bytes: Memory that this process may use.
        gpus: Those that this process may use (``hardware/gpus.py:visible_gpus``).
        system: Kernel and architecture.
        generation: Family, model and stepping of the CPU (x86) or its part (ARM), which the name
            of a virtual machine's CPU may hide.
    """

    cpu: str
    cores: int
    cores_total: int
    memory_bytes: int
    gpus: tuple[GpuIdentity, ...] = ()
    system: str = ""
    generation: str = ""

    @property
    def hardware(self) -> str:
        """For people: ``2 × Intel Xeon Processor @ 2.10GHz (AVX2), 24 GiB`` and the GPUs."""
        parts = [f"{self.cores} × {self.cpu}", f"{self.memory_bytes / 2**30:.0f} GiB"]
        for name in dict.fromkeys(gpu.name for gpu in self.gpus):
            count = sum(gpu.name == name for gpu in self.gpus)
            parts.append(f"{count} × {name}" if count > 1 else name)
        return ", ".join(parts)

    @property
    def hardware_key(self) -> str:
        """12 hex digits that are equal where measurements and engines can be shared.

        Of CPU with its generation, cores and GPUs with their driver; not of the memory, which a
        restart may change by a few pages.
        """
        gpus = [(gpu.name, (gpu.memory_bytes or 0) >> 30, gpu.driver) for gpu in self.gpus]
        facts = repr((self.cpu, self.generation, self.cores, platform.machine(), gpus))
        return hashlib.sha256(facts.encode()).hexdigest()[:12]


def same_hardware(one: str, other: str) -> bool:
    """Whether what is measured on a machine holds on another, by their :attr:`Machine.hardware`.

    All of it counts but the memory, which a limit or a restart changes. It tells less than
    :attr:`Machine.hardware_key`: not the generation.
    """
    told = [[part for part in of.split(", ") if not part.endswith(" GiB")] for of in (one, other)]
    return told[0] == told[1]


def usable_cores(*, root: Path = Path("/")) -> int:
    """Cores that this process may use, at least 1: what every pool of threads is sized by.

    Those of its affinity mask, at most what the CPU bandwidth limits of its control groups allow
    (version 2: ``cpu.max``; version 1: ``cpu.cfs_quota_us`` over ``cpu.cfs_period_us``), rounded
    down. ``os.cpu_count()`` knows neither.

    Args:
        root: Where ``proc`` and ``sys`` are (tests).
    """
    return max(1, int(core_seconds_max(root=root)))


def core_seconds_max(*, root: Path = Path("/")) -> float:
    """CPU time that this process may use in a second: :func:`usable_cores`, but not rounded.

    Args:
        root: Where ``proc`` and ``sys`` are (tests).
    """
    cores, quota = len(os.sched_getaffinity(0)), _smallest_quota(root)
    return cores if quota is None else min(cores, quota)


def busy_seconds(*, root: Path = Path("/")) -> float | None:
    """CPU time of all programs on the cores of this process's affinity mask so far, seconds.

    What a hypervisor gave to others counts as well. None where control groups allow less than
    these cores: how busy others keep them does not tell what is left then.

    Args:
        root: Where ``proc`` and ``sys`` are (tests).
    """
    mask, quota = os.sched_getaffinity(0), _smallest_quota(root)
    if quota is not None and quota < len(mask):
        return None
    ticks = 0
    with suppress(OSError, ValueError):
        for line in (root / "proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name.removeprefix("cpu").isdecimal() and int(name[3:]) in mask:
                user, nice, system, _idle, _waiting, *other = map(int, fields[:8])
                ticks += user + nice + system + sum(other)
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None


def _smallest_quota(root: Path) -> float | None:
    """Cores' worth of time that control groups allow; None without a limit."""
    groups = control_groups("cpu", root=root)
    return min(
        (quota for group in groups if (quota := _cpu_quota(group)) is not None), default=None
    )


def inspect_machine(*, nvml: Any | None = None, root: Path = Path("/")) -> Machine:
    """Looks at this machine.

    Args:
        nvml: Stands in for the module ``pynvml`` (tests).
        root: Where ``proc`` and ``sys`` are (tests).
    """
    cores = usable_cores(root=root)
    facts = _cpu_facts(root)
    cpu, quota = _cpu_model(facts), _smallest_quota(root)
    if quota is not None and quota < len(os.sched_getaffinity(0)) and not quota.is_integer():
        cpu += f" (a quota of {quota:.3g} cores)"  # half a core is another machine than a whole one
    return Machine(
        cpu=cpu,
        cores=cores,
        cores_total=os.cpu_count() or cores,
        memory_bytes=min(_memory_total(root), _memory_limit(root)),
        gpus=visible_gpus(nvml=nvml),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        generation=" ".join(facts[field] for field in _GENERATION if field in facts),
    )


def machine_id() -> str:
    """The same for all containers of a running machine, and another one on each machine."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def cpu_flags() -> frozenset[str]:
    """What this machine's CPU can do, by the names in ``/proc/cpuinfo``; empty if nothing says."""
    return _flags(_cpu_facts(Path("/")))


def _cpu_facts(root: Path) -> dict[str, str]:
    """The fields of the first core in ``/proc/cpuinfo``."""
    core, _, _others = _read(root / "proc/cpuinfo").partition("\n\n")
    fields = (line.partition(":") for line in core.splitlines())
    return {key.strip(): value.strip() for key, _, value in fields}


def _flags(facts: dict[str, str]) -> frozenset[str]:
    return frozenset(facts.get("flags", facts.get("Features", "")).split())


def _cpu_model(facts: dict[str, str]) -> str:
    """The name, and what it does not tell: a virtual machine names many generations alike."""
    name = facts.get("model name") or platform.processor() or platform.machine()
    for mark in ("(R)", "(TM)", " CPU"):
        name = name.replace(mark, "")
    flags = _flags(facts)
    best = next((f" ({label})" for flag, label in _INSTRUCTIONS if flag in flags), "")
    return " ".join(name.split()) + best


def _memory_total(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED_BYTES


def _cpu_quota(group: Path) -> float | None:
    """Cores that a control group allows; None without a limit."""
    fields = _read(group / "cpu.max").split()
    if not fields:
        fields = [_read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if not all(field.isdecimal() for field in fields):
        return None  # "max", -1, or no such file
    return int(fields[0]) / int(fields[1])


def _memory_limit(root: Path) -> int:
    limits = [_UNLIMITED_BYTES]
    for group in control_groups("memory", root=root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _read(group / name).strip()
            if value.isdecimal():
                limits.append(int(value))
    return min(limits)
