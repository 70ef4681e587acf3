"""A study's configurations as ``analyze studies show`` lists them, with the report's figures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from analyzer.domain.measurement import Measurement
from analyzer.hardware.machine import same_hardware
from analyzer.report.entries import StudyReport
from analyzer.report.gain_text import edge_text
from analyzer.report.wording import NOT_MEASURED, floored, rate
from analyzer.store.records import TrialRow

HEAD = ("trial", "role", "state", "config", "variant", "edge", "certified", "reason")
_REASON_MAX = 60  # of its characters: what a line of the table holds


def standing_rows(trials: Sequence[TrialRow]) -> dict[str, TrialRow]:
    """The row that stands for each configuration, by its id, in the order of their first.

    It is the last one, as in the study's result; a failure never replaces a measurement.
    """
    found: dict[str, TrialRow] = {}
    for row in trials:
        known = found.get(row.config_id)
        if known is None or row.state == "measured" or known.state != "measured":
            found[row.config_id] = row
    return found


def trial_table(report: StudyReport, trials: Sequence[TrialRow]) -> list[tuple[str, ...]]:
    """A row for each configuration, below :data:`HEAD`.

    Where the study went on on another machine, the last column says what each was measured on.

    Args:
        trials: Every outcome of the study in the order of storing.
    """
    numbers: dict[str, int] = {}
    roles: dict[str, set[str]] = {}
    for row in trials:
        roles.setdefault(row.config_id, set()).add(row.role)
        if row.trial_number >= 0:
            numbers.setdefault(row.config_id, row.trial_number)
    measured = {one.configuration.config_id: one for one in report.measured}
    told = [one.hardware for one in report.measured if one.hardware]
    moved = any(not same_hardware(told[0], other) for other in told)
    table: list[tuple[str, ...]] = [HEAD]
    for config_id, row in standing_rows(trials).items():
        measurement = measured.get(config_id)
        table.append(
            (
                str(numbers.get(config_id, NOT_MEASURED)),
                _role(report, config_id, roles[config_id]),
                "left out" if (row.role, row.state) == ("variant", "failed") else row.state,
                config_id,
                row.variant,
                edge_text(measurement.edge) if measurement is not None else NOT_MEASURED,
                rate(floored(measurement.capacity_rps) if measurement is not None else None),
                _shortened(row.message or row.reason or "")
                or _where(measurement if moved else None),
            )
        )
    return table


def _where(measurement: Measurement | None) -> str:
    """What a configuration of a study of several machines was measured on.

    It is not shortened: machines differ at the end of their names.
    """
    return f"measured on {measurement.hardware}" if measurement and measurement.hardware else ""


def _shortened(text: str) -> str:
    """``text`` on one line; where it is cut, between words as far as there are, that shows."""
    short = textwrap.shorten(text, _REASON_MAX, placeholder=" …")
    if short.strip(" …") or not text.strip():
        return short
    return f"{text.strip()[: _REASON_MAX - 1]}…"


def _role(report: StudyReport, config_id: str, roles: set[str]) -> str:
    """What a configuration is now, in what the report recommends; not what it once was."""
    if config_id == report.result.recommended_id:
        return "recommended"
    for role in ("baseline", "trial", "variant"):
        if role in roles:
            return role
    return "trial"
