"""What a search knows so far, committed to the store before anybody is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from analyzer.domain import answer
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure, Measurement, RequestLog
from analyzer.domain.space import Params
from analyzer.measure.failures import as_failure
from analyzer.measure.jobs import JobResult
from analyzer.measure.session import combine
from analyzer.measure.tasks import MeasureResult
from analyzer.search.proposals import feasible
from analyzer.search.request import Progress, SearchRequest


class TrialStore(Protocol):
    """What a search needs of the results database."""

    def add_outcome(
        self,
        study: str,
        trial_number: int,
        params: Mapping[str, Any],
        outcome: Measurement | Failure,
        *,
        role: str = "trial",
        logs: Sequence[RequestLog] = (),
    ) -> None:
        """Commits one outcome."""

    def put_cache(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keeps a value for later studies."""

    def get_cache(self, kind: str, key: str) -> dict[str, Any] | None:
        """A kept value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An outcome that an earlier run of the same study stored."""

    trial_number: int
    role: str
    params: Params
    outcome: Measurement | Failure


class Ledger:
    """Outcomes by configuration, warnings, and where they are kept.

    Args:
        known: Outcomes of an interrupted run of this study; none of them is stored again.
    """

    def __init__(
        self,
        request: SearchRequest,
        store: TrialStore,
        progress: Progress,
        *,
        known: Sequence[Known] = (),
    ) -> None:
        self._request = request
        self._store = store
        self._progress = progress
        self.known = tuple(known)
        self.done: dict[str, Measurement | Failure] = {}
        self.warnings: list[str] = []
        for earlier in known:
            self.done[earlier.outcome.configuration.config_id] = earlier.outcome

    def record(
        self,
        outcome: Measurement | Failure,
        *,
        role: str,
        trial_number: int = -1,
        params: Params | None = None,
        logs: Sequence[RequestLog] = (),
    ) -> None:
        """Commits an outcome and takes it in; a failure never hides a measurement.

        Raises:
            StoreError: It cannot be written; everything before it is stored.
        """
        config_id = outcome.configuration.config_id
        if not any(k.outcome == outcome and k.role == role for k in self.known):
            self._store.add_outcome(
                self._request.study, trial_number, params or {}, outcome, role=role, logs=logs
            )
        measured_before = isinstance(self.done.get(config_id), Measurement)
        if not (measured_before and isinstance(outcome, Failure)):
            self.done[config_id] = outcome

    def warn(self, text: str) -> None:
        """Keeps a sentence that qualifies the result, and tells it."""
        if text not in self.warnings:
            self.warnings.append(text)
            self._progress.warn(text)

    @property
    def outcomes(self) -> tuple[Measurement | Failure, ...]:
        """One for each configuration, in the order of their first appearance."""
        return tuple(self.done.values())

    def certified_before(self, config_id: str) -> bool:
        """Whether an earlier run of this study has certified the configuration."""
        found = self.done.get(config_id)
        return isinstance(found, Measurement) and found.capacity_rps is not None

    def ranked(self, allowed: frozenset[str]) -> list[Measurement]:
        """The measured configurations of ``allowed`` that keep every limit, the best first."""
        sla = self._request.sla
        ranked = answer.rank(
            self.outcomes, sla, devices_per_machine=self._request.pricing.devices_per_machine
        )
        return [m for m in ranked if m.configuration.config_id in allowed and feasible(m, sla)]


def outcome_of(
    result: JobResult, configuration: Configuration
) -> tuple[Measurement | Failure, Sequence[RequestLog]]:
    """What a measuring job came to, with its raw requests."""
    if result.error is not None:
        return as_failure(configuration, result.error, stage="load", lost=result.lost), ()
    assert isinstance(result.value, MeasureResult)
    return _with_error(result.value.outcome), result.value.logs


def _with_error(outcome: Measurement | Failure) -> Measurement | Failure:
    """The outcome with the twin's relative error, where both edges are known."""
    if isinstance(outcome, Failure):
        return outcome
    predicted, measured = outcome.predicted.edge_rps, outcome.edge.rate_rps
    if not predicted or not measured:
        return outcome
    return replace(outcome, predicted=replace(outcome.predicted, error=predicted / measured - 1.0))


def merged(earlier: Measurement, later: Measurement) -> Measurement:
    """One record of a configuration that was measured twice: its edge, then its certificate.

    What was proven stays proven where the later runs proved no more.
    """
    proven = later
    if earlier.capacity_rps is not None and earlier.capacity_rps > (later.capacity_rps or 0.0):
        proven = earlier
    return replace(
        later,
        edge=later.edge if later.edge.rate_rps else earlier.edge,
        capacity_rps=proven.capacity_rps,
        certificate=proven.certificate,
        headline=proven.headline,
        load_tests=(*earlier.load_tests, *later.load_tests),
        load_test_seconds=earlier.load_test_seconds + later.load_test_seconds,
        resources=combine([earlier.resources, later.resources]),
        predicted=earlier.predicted if earlier.predicted.edge_rps else later.predicted,
    )


def plainness(configuration: Configuration) -> tuple[int, int, int]:
    """Sorts configurations from the plainest on: instances, batch, threads."""
    return (
        configuration.instance_count,
        configuration.max_batch_size,
        configuration.intra_op_threads or 1 << 30,
    )


def describe(configuration: Configuration) -> str:
    """One line about a configuration, for progress and warnings."""
    batching = "no batching"
    if configuration.dynamic_batching:
        delay_ms = (configuration.max_queue_delay_us or 0) / 1e3
        batching = f"batches up to {configuration.max_batch_size} (delay {delay_ms:g} ms)"
    count = configuration.instance_count
    instances = f"{count} instance{'s' * (count > 1)}"
    if configuration.intra_op_threads:
        instances += f" × {configuration.intra_op_threads} threads"
    return f"{configuration.variant.label}, {instances}, {batching}"
