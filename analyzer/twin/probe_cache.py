"""Probes that are kept between studies, by probed file, shapes, runtime and machine."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from analyzer.domain.configuration import DeviceKind, VariantKey
from analyzer.domain.model import TensorSpec
from analyzer.engine.runtimes.providers import onnxruntime_versions
from analyzer.twin.calibration import VariantCalibration

_KIND = "probes"
#: Machines change: drivers, neighbours, clock limits.
SECONDS_KEPT = 7 * 86400.0  # a week
_TENSORRT = "tensorrt"


class ProbeCache:
    """What was probed of a file on this hardware with these runtimes, for a week.

    Args:
        read: A kept value by kind and key; None if there is none (``ResultStore.get_cache``).
        write: Keeps a value under kind and key (``ResultStore.put_cache``).
        hardware_key: Equal where measurements can be shared.
        inputs: The model's, with the shapes that are measured: how long executions take depends on
            ``--input-shape``, which the file does not tell.
        installed: What runs models there, as :func:`runtimes` tells; None for what does here.
        now: Seconds since 1970.
    """

    def __init__(
        self,
        read: Callable[[str, str], dict[str, Any] | None],
        write: Callable[[str, str, dict[str, Any]], None],
        hardware_key: str,
        *,
        inputs: Sequence[TensorSpec],
        installed: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._read = read
        self._write = write
        shapes = str([(tensor.name, tensor.shape) for tensor in inputs])
        fed = hashlib.sha256(shapes.encode()).hexdigest()[:16]
        self._place = f"{hardware_key}:{installed or runtimes()}:{fed}"
        self._now = now
        self._recorded: dict[str, float] = {}

    def load(
        self, variant: VariantKey, sha256: str, device: DeviceKind
    ) -> VariantCalibration | None:
        """What earlier studies probed of the file with this hash on ``device``; None if nothing."""
        key = self._key(variant, sha256, device)
        values = self._read(_KIND, key)
        if values is None:
            return None
        recorded = float(values.get("recorded_at", 0.0))
        if self._now() - recorded > SECONDS_KEPT:
            return None
        self._recorded[key] = recorded
        return VariantCalibration.from_dict(variant, values)

    def save(self, sha256: str, calibration: VariantCalibration, device: DeviceKind) -> None:
        """Keeps ``calibration`` for the next study; it is as old as its oldest probe."""
        key = self._key(calibration.variant, sha256, device)
        recorded = self._recorded.setdefault(key, self._now())
        self._write(_KIND, key, calibration.to_dict() | {"recorded_at": recorded})

    def _key(self, variant: VariantKey, sha256: str, device: DeviceKind) -> str:
        executed = "".join(f":{word}" for word in variant.execution.words)
        return f"{sha256}:{self._place}:{device}{executed}"


def runtimes() -> str:
    """The runtimes that are installed, with their versions."""
    found = onnxruntime_versions()
    with suppress(PackageNotFoundError):
        found[_TENSORRT] = version(_TENSORRT)
    return ",".join(f"{package}-{number}" for package, number in found.items())
