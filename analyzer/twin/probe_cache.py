"""Probes that are kept between studies, by the file that was probed and the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analyzer.domain.configuration import VariantKey
from analyzer.twin.calibration import VariantCalibration

_KIND = "probes"


class ProbeCache:
    """What was probed of a file on this hardware.

    Args:
        read: A kept value by kind and key; None if there is none (``ResultStore.get_cache``).
        write: Keeps a value under kind and key (``ResultStore.put_cache``).
        hardware_key: Equal where measurements can be shared.
    """

    def __init__(
        self,
        read: Callable[[str, str], dict[str, Any] | None],
        write: Callable[[str, str, dict[str, Any]], None],
        hardware_key: str,
    ) -> None:
        self._read = read
        self._write = write
        self._hardware_key = hardware_key

    def load(self, variant: VariantKey, sha256: str) -> VariantCalibration | None:
        """What earlier studies probed of the file with this hash; None if nothing."""
        values = self._read(_KIND, self._key(sha256))
        return VariantCalibration.from_dict(variant, values) if values else None

    def save(self, sha256: str, calibration: VariantCalibration) -> None:
        """Keeps ``calibration`` for the next study."""
        self._write(_KIND, self._key(sha256), calibration.to_dict())

    def _key(self, sha256: str) -> str:
        return f"{sha256}:{self._hardware_key}"
