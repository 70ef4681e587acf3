"""Between the domain's objects and the rows that hold them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure, Measurement, without_claims
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.domain.speeds import restated
from analyzer.domain.study import StudyResult, Verification
from analyzer.store import codec
from analyzer.store.blobs import pack_load_tests, unpack_load_tests
from analyzer.store.records import StoredOutcome, StoredResult, StudyRecord, TrialRow


def study_row(record: StudyRecord) -> dict[str, Any]:
    """The columns of ``tritune_studies`` apart from the id."""
    return {
        "name": record.name,
        "model_name": record.model.name,
        "status": record.status,
        "verdict": record.verdict,
        "started_at": record.started_at,
        "seed": None if record.seed is None else str(record.seed),
        "model": codec.dumps(record.model),
        "sla": codec.dumps(record.sla),
        "options": codec.dumps(record.options),
        "provenance": codec.dumps(record.provenance),
    }


def study_record(row: Mapping[str, Any]) -> StudyRecord:
    """The record that :func:`study_row` wrote.

    Raises:
        ValueError: A column cannot be read.
    """
    return StudyRecord(
        name=row["name"],
        model=codec.loads(row["model"], ModelInfo),
        sla=codec.loads(row["sla"], Sla),
        options=codec.loads_plain(row["options"]),
        seed=None if row["seed"] is None else int(row["seed"]),
        started_at=row["started_at"],
        status=row["status"],
        verdict=row["verdict"],
        provenance=codec.loads_plain(row["provenance"]),
    )


def stored_result(result: StudyResult) -> StoredResult:
    """What is stored of ``result`` in a row of its own."""
    kept = {field.name for field in dataclasses.fields(StoredResult)} - {"told"}
    told = tuple(map(_told, result.outcomes)) or None
    return StoredResult(told=told, **{name: getattr(result, name) for name in kept})


def _told(outcome: Measurement | Failure) -> tuple[str, bool]:
    return outcome.configuration.config_id, isinstance(outcome, Measurement)


def standing(
    outcomes: Iterable[StoredOutcome], told: Iterable[tuple[str, bool]] | None = None
) -> tuple[Measurement | Failure, ...]:
    """One outcome for each configuration, the last one, in the order of their first.

    A failure never replaces a measurement.

    Args:
        told: As of :class:`StoredResult`; no other outcome counts.
    """
    last: dict[Configuration, Measurement | Failure] = {}
    counting = set(told) if told is not None else None
    for item in outcomes:
        if counting is not None and _told(item.outcome) not in counting:
            continue
        known = last.get(item.outcome.configuration)
        if not (isinstance(item.outcome, Failure) and isinstance(known, Measurement)):
            last[item.outcome.configuration] = item.outcome
    return tuple(last.values())


def study_result(
    record: StudyRecord,
    stored: StoredResult,
    outcomes: Iterable[StoredOutcome],
    verifications: Iterable[Verification],
) -> StudyResult:
    """The result that is kept in several tables, its outcomes as :func:`standing`."""
    fields = {field.name: getattr(stored, field.name) for field in dataclasses.fields(stored)}
    told = fields.pop("told")
    return StudyResult(
        name=record.name,
        verdict=record.verdict or "undecided"
        if record.status == "finished" or stored.recommended_id is not None
        else "undecided",
        status=record.status,
        model=record.model,
        sla=record.sla,
        # They are stored as short runs found them.
        outcomes=without_claims(
            restated(
                standing(outcomes, told),
                dict(stored.speed_factors),
                stored.unmet_rates,
                miss_rate_max=record.sla.miss_rate_max,
            ),
            stored.taken_back,
        ),
        provenance=record.provenance,
        verifications=tuple(verifications),
        **fields,
    )


def with_stated_edges(
    trials: Iterable[TrialRow],
    outcomes: Sequence[StoredOutcome],
    stored: StoredResult,
    sla: Sla,
) -> list[TrialRow]:
    """``trials`` with their edges over all speeds, as the study's result tells them.

    Args:
        outcomes: Those of ``trials``; load tests may be left out.
        stored: What was stored of the study's result.
    """
    stated = restated(
        [item.outcome for item in outcomes],
        dict(stored.speed_factors),
        stored.unmet_rates,
        miss_rate_max=sla.miss_rate_max,
    )
    edges = {
        item.number: _finite(outcome.edge.rate_rps)
        for item, outcome in zip(outcomes, stated, strict=True)
        if isinstance(outcome, Measurement)
    }
    return [row._replace(edge_rps=edges.get(row.number)) for row in trials]


def without_claimed(trials: Iterable[TrialRow], taken_back: Collection[str]) -> list[TrialRow]:
    """``trials`` with no certified rate where the study does not uphold it."""
    return [
        row._replace(capacity_rps=None) if row.config_id in taken_back else row for row in trials
    ]


def outcome_row(
    outcome: Measurement | Failure, params: Mapping[str, Any], *, cost_per_hour: float | None
) -> dict[str, Any]:
    """The columns of ``tritune_outcomes`` that come from the outcome itself."""
    row: dict[str, Any] = {
        "config_id": outcome.configuration.config_id,
        "variant": outcome.configuration.variant.label,
        "load_test_seconds": _finite(outcome.load_test_seconds),
        "cost_per_hour": _finite(cost_per_hour),
        "params": codec.dumps(dict(params)),
    }
    if isinstance(outcome, Failure):
        return row | {
            "state": "failed",
            "reason": outcome.reason,
            "message": outcome.message,
            "body": codec.dumps(outcome),
            "load_tests": None,
            **dict.fromkeys(_MEASURED),
        }
    return row | {
        "state": "measured",
        "reason": None,
        "message": None,
        "body": codec.dumps(dataclasses.replace(outcome, load_tests=())),
        "load_tests": pack_load_tests(outcome.load_tests),
        **_measured_columns(outcome),
    }


_MEASURED = (
    "edge_rps",
    "capacity_rps",
    "certificate",
    "measured_at_rps",
    "throughput_ips",
    "latency_ms_p50",
    "latency_ms_p99",
    "latency_ms_sla",
    "memory_bytes_peak",
    "gpu_memory_bytes_peak",
    "gpu_utilization",
    "power_watts",
    "cpu_utilization",
    "accuracy_drop",
)


def _measured_columns(outcome: Measurement) -> dict[str, Any]:
    headline = outcome.headline
    latency = headline.latency_ms if headline else None
    # The headline's own figures go with its latencies; peaks over all load tests are the fallback.
    use = headline.resources if headline else outcome.resources
    values = (
        _finite(outcome.edge.rate_rps),
        _finite(outcome.capacity_rps),
        outcome.certificate.verdict if outcome.certificate else None,
        _finite(headline.offered_rps) if headline else None,
        _finite(headline.throughput_ips) if headline else None,
        _finite(latency.p50) if latency else None,
        _finite(latency.p99) if latency else None,
        _finite(latency.sla) if latency else None,
        _whole(use.memory_bytes_peak or outcome.resources.memory_bytes_peak),
        _whole(use.gpu_memory_bytes_peak or outcome.resources.gpu_memory_bytes_peak),
        _finite(use.gpu_utilization),
        _finite(use.power_watts),
        _finite(use.cpu_utilization),
        _finite(outcome.real_accuracy.drop) if outcome.real_accuracy else None,
    )
    return dict(zip(_MEASURED, values, strict=True))


def _finite(value: float | None) -> float | None:
    """A column's number: plain Python, None for what SQL cannot compare."""
    return float(value) if value is not None and math.isfinite(value) else None


def _whole(value: int | None) -> int | None:
    return None if value is None else int(value)


def read_outcome(body: str, load_tests: bytes | None) -> Measurement | Failure:
    """The outcome of a row; without its load tests if ``load_tests`` is None.

    Raises:
        ValueError: The row is damaged.
    """
    outcome: Measurement | Failure = codec.loads(body, Measurement, Failure)
    if load_tests is None or isinstance(outcome, Failure):
        return outcome
    return dataclasses.replace(outcome, load_tests=unpack_load_tests(load_tests))


def stored_outcome(row: Any) -> StoredOutcome:
    """The outcome and its trial of one row of :class:`ResultStore`'s query, by position.

    Raises:
        ValueError: The row is damaged.
    """
    number, trial_number, role, params, created_at, body, load_tests = row
    return StoredOutcome(
        number=number,
        trial_number=trial_number,
        role=role,
        params=codec.loads_plain(params) if params != "{}" else {},
        outcome=read_outcome(body, load_tests),
        created_at=created_at,
    )
