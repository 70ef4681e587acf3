"""Whether the kernel killed a process for want of memory, as far as it tells.

SIGKILL alone says nothing: anybody may send it. The kernel counts the processes that it killed, for
each control group (of any kind of such kill: ``oom_kill`` in
https://docs.kernel.org/admin-guide/cgroup-v2.html) and for the whole machine (``oom_kill`` in
``/proc/vmstat``), but keeps no list of them that everybody may read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from analyzer.hardware.control_groups import own_groups

Likelihood = Literal["no", "perhaps", "probably"]

PERHAPS_STARVED = "meanwhile the system killed a process for want of memory, perhaps this one"
"""What to say of a child that was killed, where it is likely only ``perhaps``."""

# Of a group's own processes: version 2 (Linux 5.2 and newer), and version 1 (4.13).
_COUNTERS = ("memory.events.local", "memory.oom_control")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKills:
    """How many processes the kernel had killed for want of memory at one moment.

    Args:
        group: In this process's control group, where its children begin their lives; None where
            the kernel does not tell (the group at the top, or an old kernel).
        machine: On the whole machine.
    """

    group: int | None
    machine: int

    @classmethod
    def until_now(cls, *, root: Path = Path("/")) -> Self:
        """The counts of this moment.

        Args:
            root: Where ``proc`` and ``sys`` are (tests).
        """
        files = (one / name for one in own_groups("memory", root=root) for name in _COUNTERS)
        known = (count for file in files if (count := _oom_kills(file)) is not None)
        return cls(group=next(known, None), machine=_oom_kills(root / "proc/vmstat") or 0)

    def likely_since(self, before: MemoryKills) -> Likelihood:
        """How likely such a kill was what ended a child that lived ``before`` and got a SIGKILL.

        ``probably``: it was a process of our group; ``perhaps``: of this machine, and nothing is
        known of its group.
        """
        if self.group is not None and before.group is not None:
            return "probably" if self.group > before.group else "no"
        return "perhaps" if self.machine > before.machine else "no"


def _oom_kills(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None
