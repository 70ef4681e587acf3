"""How far off the twin was: the part that is the model's, and the part that is the machine's drift.

The machine's speed changes between measurements. With the slowness s of the machine while an edge
was measured, over that of the study's median edge, the edge at the usual speed would be about s
times as high. So 1 + error = (1 + model error) · s, and s - 1 is the drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from analyzer.domain.measurement import Measurement

FAR_OFF = 0.25
"""A twin whose median error is above this is far off: its figures by themselves say little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinError:
    """Of one configuration, signed fractions.

    Args:
        error: Predicted over measured edge - 1.
        model: What it would be at the study's usual speed; None where nobody watched the speed of
            at least two.
        drift: How much slower the machine was than usual while the edge was measured; as ``model``.
    """

    error: float
    model: float | None = None
    drift: float | None = None


def twin_errors(
    edges: Sequence[tuple[float | None, float | None, float | None]],
) -> list[TwinError | None]:
    """The errors of several configurations of one study, in order; None where an edge is unknown.

    Args:
        edges: (predicted edge, measured edge, slowness of the machine in any unit); 0 and None are
            unknown.
    """
    slowness = [slow for predicted, edge, slow in edges if predicted and edge and slow]
    usual = median(slowness) if len(slowness) > 1 else None
    found: list[TwinError | None] = []
    for predicted, edge, slow in edges:
        if not predicted or not edge:
            found.append(None)
            continue
        error = TwinError(error=predicted / edge - 1.0)
        if usual and slow:
            relative = slow / usual
            model = predicted / edge / relative - 1.0
            error = replace(error, model=model, drift=relative - 1.0)
        found.append(error)
    return found


def slowness_of(measurement: Measurement) -> float | None:
    """What the witness's piece of work took while it was measured, microseconds; None if unknown.

    Of the edge, where it is known, else the median over all load tests.
    """
    if measurement.edge.work_us:
        return measurement.edge.work_us
    found = [us for test in measurement.load_tests if (us := test.work_us) is not None]
    return median(found) if found else None


def with_errors(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """The measurements of a study, each with how far off its prediction was."""
    errors = twin_errors(
        [(m.predicted.edge_rps, m.edge.rate_rps, slowness_of(m)) for m in measurements]
    )
    told = [(of.error, of.model, of.drift) if of is not None else (None,) * 3 for of in errors]
    return tuple(
        replace(m, predicted=replace(m.predicted, error=error, model_error=model, drift=drift))
        for m, (error, model, drift) in zip(measurements, told, strict=True)
    )
