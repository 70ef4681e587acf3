"""The constants of this machine, for the commands that ask the twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.cli.options import cache_dir

if TYPE_CHECKING:
    from analyzer.hardware.machine import Machine
    from analyzer.twin.machine_cache import MachineCache
    from analyzer.twin.machine_constants import MachineConstants


def constants_folder() -> Path:
    """Where ``analyze doctor --calibrate`` keeps what it measured."""
    return cache_dir() / "machine"


def machine_cache(machine: Machine) -> MachineCache:
    """What was measured of ``machine``."""
    from analyzer.twin.machine_cache import MachineCache

    return MachineCache(constants_folder(), machine.hardware_key)


def constants_of(
    machine: Machine, *, local: bool = True, server: str = "embedded"
) -> MachineConstants:
    """What was measured of ``machine``; the fallback where nothing was.

    Args:
        local: Whether servers run on it; of a cluster's machines nothing is known here.
        server: ``embedded``, ``triton`` or an endpoint's URL, of which nothing is known here.
    """
    from analyzer.targets.triton_install import find_triton
    from analyzer.twin.machine_constants import FALLBACK

    found = machine_cache(machine).load() if local else FALLBACK
    if server == "embedded":
        return found
    triton = find_triton() if server == "triton" else None
    return replace(
        found, server="triton-python" if triton is not None and triton.stand_in else "triton"
    )
