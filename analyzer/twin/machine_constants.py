"""What the twin supposes of the machine it runs on: measured here where that was done, else fitted.

``analyze doctor --calibrate`` measures (:mod:`analyzer.measure.machine`) and keeps the result for a
week, by hardware and runtimes; without it the constants of :mod:`analyzer.twin.fitted` are used and
said to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from analyzer.twin.fitted import DISPATCH_MS, HOST_MS, OVERHEAD_MS_GUESS, REQUEST_MS
from analyzer.twin.service import SerialCost
from analyzer.twin.variation import Floats, TwoSpeeds, estimate

Server = Literal["embedded", "triton", "triton-python"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConstants:
    """What is known of a machine without any model. Defaults are the fitted fallbacks.

    Args:
        overhead_ms: What a request takes outside queue and model at light load, milliseconds.
        host_ms: CPU time that server and load generator spend on a request, milliseconds.
        interference: (busy cores k, factor): a computation's time beside k - 1 others over its
            time alone, k ascending; empty where nobody measured.
        slowness: Work's times by window (``variation.windows``) with every core busy, over the
            usual; 0 where nothing ran. Empty where nobody measured.
        wake_ms_p99: How late a sleeping thread wakes up, milliseconds.
        witness_share: Part of one core that the witness of the machine takes, 0 to 1.
        measured_at: Seconds since 1970; None for the fallback.
        server: What serves: the embedded server, a Triton, or a Triton without ONNX Runtime's
            backend, which runs ONNX graphs in its python backend. Known, never measured.
    """

    overhead_ms: float = OVERHEAD_MS_GUESS
    host_ms: float = HOST_MS
    interference: tuple[tuple[int, float], ...] = ()
    slowness: tuple[float, ...] = ()
    wake_ms_p99: float | None = None
    witness_share: float | None = None
    measured_at: float | None = None
    server: Server = "embedded"

    @property
    def serial(self) -> SerialCost | None:
        """What the server does one at a time; None where that is not known to bound its rates.

        Slower or faster than fitted as its CPU time for a request is.
        """
        if self.server != "embedded":
            return None
        slower = self.host_ms / HOST_MS
        return SerialCost(execution_ms=slower * DISPATCH_MS, request_ms=slower * REQUEST_MS)

    @property
    def series(self) -> list[Floats]:
        """``slowness`` as :func:`~analyzer.twin.variation.estimate` takes it."""
        values = np.array(self.slowness)
        return [np.where(values > 0, values, np.nan)] if len(values) else []

    @property
    def variation(self) -> TwoSpeeds | None:
        """How the speed varied while it was measured; None where nothing showed it."""
        return estimate(self.series)

    def slower(self, busy: Sequence[int]) -> list[float]:
        """The measured factor at each number of busy cores; beyond the last, as the cores are
        shared in turn. Needs ``interference``.
        """
        at, factors = zip(*((1, 1.0), *self.interference), strict=True)
        return [float(np.interp(k, at, factors)) * max(1.0, k / at[-1]) for k in busy]

    def sentence(self) -> str:
        """Where the constants come from."""
        if self.measured_at is None:
            return "fitted on another machine; analyze doctor --calibrate measures them here"
        day = datetime.fromtimestamp(self.measured_at, UTC).isoformat(timespec="minutes")
        return f"measured here, {day}"


#: Where nobody measured.
FALLBACK = MachineConstants()
