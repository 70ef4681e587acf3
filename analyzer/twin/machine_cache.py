"""Constants that were measured of this machine, kept between commands."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analyzer.twin.machine_constants import FALLBACK, MachineConstants
from analyzer.twin.probe_cache import SECONDS_KEPT, runtimes

# Of the record; one of another form is measured anew.
_FORMAT = 1


class MachineCache:
    """Constants that were measured on this hardware with these runtimes, for a week.

    Args:
        folder: A file for each hardware.
        hardware_key: Equal where measurements can be shared.
        now: Seconds since 1970.
    """

    def __init__(
        self, folder: Path, hardware_key: str, *, now: Callable[[], float] = time.time
    ) -> None:
        self._path = folder / f"machine-{hardware_key}.json"
        self._now = now

    def load(self) -> MachineConstants:
        """What was measured; the fallback where nothing was, or where it is too old."""
        try:
            values = json.loads(self._path.read_text())
            if values["format"] != _FORMAT or values["runtimes"] != runtimes():
                return FALLBACK
            found = _from_dict(values["constants"])
        except (OSError, ValueError, KeyError, TypeError):
            return FALLBACK
        age_s = self._now() - (found.measured_at or 0.0)
        return found if 0.0 <= age_s <= SECONDS_KEPT else FALLBACK

    def save(self, constants: MachineConstants) -> None:
        """Keeps them for the next commands.

        Raises:
            OSError: The folder cannot be written.
        """
        values = {"format": _FORMAT, "runtimes": runtimes(), "constants": asdict(constants)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=self._path.parent, suffix=".json", delete=False
        ) as file:
            file.write(json.dumps(values))
        try:
            os.replace(file.name, self._path)  # noqa: PTH105 - one atomic step
        except OSError:
            with suppress(OSError):
                Path(file.name).unlink()
            raise


def _from_dict(values: dict[str, Any]) -> MachineConstants:
    return MachineConstants(
        **values
        | {
            "interference": tuple((int(k), float(f)) for k, f in values["interference"]),
            "slowness": tuple(map(float, values["slowness"])),
        }
    )
