"""The control groups (cgroups) of this process: what may limit it, and what counts it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def control_groups(controller: str, *, root: Path = Path("/")) -> list[Path]:
    """Folders of the control groups that may limit this process.

    Of the one hierarchy of version 2 and of the ``controller``'s own of version 1. In a container
    the hierarchy may be mounted at the process's group, so that only the mount's root exists.

    Args:
        root: Where ``proc`` and ``sys`` are (tests).
    """
    base = root / "sys/fs/cgroup"
    found = [base, base / controller]
    for own, top in _own(controller, root):
        found += [own, *(parent for parent in own.parents if parent.is_relative_to(top))]
    return list(dict.fromkeys(found))


def own_groups(controller: str, *, root: Path = Path("/")) -> list[Path]:
    """Folders that may be this process's own group in each hierarchy; not its parents'.

    Args:
        root: Where ``proc`` and ``sys`` are (tests).
    """
    return [own if own.is_dir() else top for own, top in _own(controller, root)]


def _own(controller: str, root: Path) -> list[tuple[Path, Path]]:
    """This process's group in each hierarchy, as it is named, with the hierarchy's mount."""
    base = root / "sys/fs/cgroup"
    found = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" or controller in controllers.split(","):
                top = base if number == "0" else base / controller
                found.append((top / path.strip().lstrip("/"), top))
    return found
