"""The outcomes of a study: committed to the store first, then remembered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Protocol

from analyzer.domain import answer
from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import Conditions, RequestLog
from analyzer.domain.measurement import OUT_OF_TIME, Failure, Measurement
from analyzer.domain.space import Params
from analyzer.domain.speeds import restated
from analyzer.measure.failures import as_failure
from analyzer.measure.jobs import JobResult
from analyzer.measure.session import combine
from analyzer.measure.slow_states import tenable, unmet_rates
from analyzer.measure.tasks import MeasureResult
from analyzer.measure.witness import SlowEdge, in_proportion
from analyzer.search.claims import standing
from analyzer.search.request import Progress, SearchRequest
from analyzer.search.score import Score, score_of
from analyzer.search.watch import StudyWatch
from analyzer.stats.certificate import is_open
from analyzer.store.records import StoredOutcome

# So many configurations that failed, none being measured, say that another one will fail as well;
# a smaller one may find the memory that it needs, and a busy machine or a lost worker is no reason.
_FAULTS_OF_ALL = 6
_OWN_FAULTS = frozenset({"crash", "start"})


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


class OutcomeLog:
    """Outcomes by configuration, warnings, and where they are kept.

    Args:
        stored: Outcomes of an interrupted run of this study; none of them is stored again. What was
            left for want of time is none: it may be done now.
        watch: Who watches the machine; what is seen up to an outcome is stored with it.
        earlier_us: The canary's work in earlier studies on this machine; an attribute as well.

    Attributes:
        latest: The outcome that stands for each configuration, by id, in the order of their first
            appearance.
        first: The outcome of each configuration's first measurement. These were all made alike, by
            short runs, so that the designer compares them.
        slow_edge: What a slower machine leaves of a configuration's edge; in proportion to its
            speed, until a twin knows better.
        response: How executions answer to the canary's work, as the twin learned it.
        start_s: Seconds from the last task's begin to its first load test; None where none told.
    """

    def __init__(
        self,
        request: SearchRequest,
        store: TrialStore,
        progress: Progress,
        *,
        stored: Sequence[StoredOutcome] = (),
        watch: StudyWatch | None = None,
        earlier_us: tuple[float, ...] = (),
    ) -> None:
        self._request = request
        self._store = store
        self._progress = progress
        self.stored = tuple(stored)
        self.earlier_us = earlier_us
        self.latest: dict[str, Measurement | Failure] = {}
        self.first: dict[str, Measurement | Failure] = {}
        self.warnings: list[str] = []
        self._until_proven: set[str] = set()
        self.slow_edge: Callable[[Configuration], SlowEdge] = lambda _: in_proportion
        self.response: Callable[[], float] = lambda: 1.0
        self.start_s: float | None = None
        self._watch = watch or StudyWatch()
        # The whole time, and that of load tests alone.
        self._watched: Conditions | None = None
        self._tested: Conditions | None = None
        self._faults = 0
        # Of the latest outcomes; a search asks for them at every step.
        self._scores: dict[str, Score] = {}
        self._ranked: list[Measurement] | None = None
        for earlier in stored:
            if isinstance(earlier.outcome, Failure) and earlier.outcome.reason == OUT_OF_TIME:
                # There may be time for it now; what was watched until then counts.
                self._watched = Conditions.pooled([self._watched, earlier.outcome.watched])
            else:
                self._remember(earlier.outcome)

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
        self._faults += isinstance(outcome, Failure) and outcome.reason in _OWN_FAULTS
        watched = self._watch.take()
        known = (s for s in self.stored if s.role == role)
        if any(replace(s.outcome, watched=None) == outcome for s in known):
            # It is stored already; what was watched meanwhile counts.
            self._watched = Conditions.pooled([self._watched, watched])
            if outcome.configuration.config_id not in self.latest:
                self._remember(outcome)  # once more it lacked the time
        else:
            outcome = replace(outcome, watched=watched)
            self._store.add_outcome(
                self._request.study, trial_number, params or {}, outcome, role=role, logs=logs
            )
            self._remember(outcome)

    def _remember(self, outcome: Measurement | Failure) -> None:
        config_id = outcome.configuration.config_id
        tested: list[Conditions | None] = []
        if isinstance(outcome, Measurement):
            known = self.measurement(config_id)
            before = len(known.load_tests) if known is not None else 0
            tested = [test.conditions for test in outcome.load_tests[before:]]
            self.start_s = outcome.start_s or self.start_s
        watched = [outcome.watched] if outcome.watched is not None else tested
        self._watched = Conditions.pooled([self._watched, *watched])
        self._tested = Conditions.pooled([self._tested, *tested])
        self.first.setdefault(config_id, outcome)
        if isinstance(outcome, Measurement) or self.measurement(config_id) is None:
            self.latest[config_id] = outcome
            self._scores[config_id] = score_of(outcome, self._request.sla)
            self._ranked = None

    def warn(self, text: str, *, until_proven: bool = False) -> None:
        """Keeps a sentence that qualifies the result, and tells it.

        Args:
            until_proven: Whether it says that a proof may not be, which one refutes.
        """
        if text not in self.warnings:
            self.warnings.append(text)
            self._progress.warn(text)
        if until_proven:
            self._until_proven.add(text)

    def take_back_doubts(self) -> None:
        """Something is proven: what said that it may not be qualifies the result no more."""
        self.warnings = [text for text in self.warnings if text not in self._until_proven]

    @property
    def outcomes(self) -> tuple[Measurement | Failure, ...]:
        """One for each configuration, in the order of their first appearance."""
        return tuple(self.latest.values())

    @property
    def scores(self) -> Mapping[str, Score]:
        """The scores of the latest outcomes, by configuration."""
        return self._scores

    @property
    def nothing_runs(self) -> bool:
        """Whether whatever was begun in this run of the study failed, and nothing was measured."""
        measured = any(isinstance(outcome, Measurement) for outcome in self.latest.values())
        return self._faults >= _FAULTS_OF_ALL and not measured

    def failed(self, config_id: str) -> bool:
        """Whether a configuration could not be measured, for more than want of time."""
        outcome = self.latest.get(config_id)
        return isinstance(outcome, Failure) and outcome.is_fault

    def measurement(self, config_id: str) -> Measurement | None:
        """What is known of a configuration; None if it was not measured, or failed."""
        outcome = self.latest.get(config_id)
        return outcome if isinstance(outcome, Measurement) else None

    def ranked(self, allowed: Mapping[str, Configuration]) -> list[Measurement]:
        """The measured configurations of ``allowed`` that keep every limit, the best first."""
        if self._ranked is None:
            devices = self._request.pricing.devices_per_machine
            ranked = answer.rank(self.outcomes, self._request.sla, devices_per_machine=devices)
            self._ranked = [m for m in ranked if self._scores[m.configuration.config_id].feasible]
        return [m for m in self._ranked if m.configuration.config_id in allowed]

    def best_by_evidence(self, allowed: Mapping[str, Configuration]) -> Measurement | None:
        """The measured configuration of ``allowed`` that is the best estimate; None without one.

        It keeps every limit by its edge; a rate that was kept counts by the requests behind it.
        """
        sla, devices = self._request.sla, self._request.pricing.devices_per_machine
        kept = [
            measurement
            for measurement in self.ranked(allowed)
            if measurement.certificate is None or measurement.certificate.verdict != "FAIL"
        ]
        return answer.best_by_evidence(kept, sla, devices_per_machine=devices)

    def restate(
        self, factors: Mapping[str, float], unmet_rates: Sequence[tuple[str, float]]
    ) -> dict[str, float]:
        """States every edge over all speeds that the study met, as :func:`restated`.

        In memory only, for the result; the stored outcomes keep what the runs found.

        Returns:
            Of ``factors``, what became of the estimates: certificates' runs may say more, or less.
        """
        allowed = self._request.sla.miss_rate_max
        before = {key: _edge_rps(outcome) for key, outcome in self.latest.items()}
        stated = restated(self.latest.values(), factors, unmet_rates, miss_rate_max=allowed)
        self.latest = dict(zip(self.latest, stated, strict=True))
        self._scores = {key: score_of(o, self._request.sla) for key, o in self.latest.items()}
        self._ranked = None
        return {
            key: (_edge_rps(self.latest[key]) or 0.0) / found_rps
            if (found_rps := before.get(key))
            else factor
            for key, factor in factors.items()
        }

    @property
    def unmet_rates(self) -> tuple[tuple[str, float], ...]:
        """Of each configuration the rates that say nothing of all speeds, by its id.

        As of :class:`~analyzer.domain.study.StudyResult`; a claim that stands does.
        """
        found = list[tuple[str, float]]()
        for measurement in filter(None, map(self.measurement, self.latest)):
            configuration = measurement.configuration
            slow_edge = self.slow_edge(configuration)
            unmet = unmet_rates(
                measurement, self.conditions, self._request.sla, slow_edge, self.response()
            )
            claimed_rps = measurement.capacity_rps if self.stands(measurement) else None
            found += ((configuration.config_id, rate) for rate in unmet if rate != claimed_rps)
        return tuple(found)

    def open_claims(self, config_ids: Collection[str]) -> int:
        """Claims that these configurations, together one family, have begun and that are open.

        Those that were given up are: they ended without a PASS, and nothing gave their part back.
        """
        sla = self._request.sla
        measured = filter(None, map(self.measurement, config_ids))
        return sum(
            known.given_up + is_open(known, percentile=sla.percentile, confidence=sla.confidence)
            for measurement in measured
            for known in measurement.evidence
        )

    @property
    def conditions(self) -> Conditions | None:
        """What the machine was like over the study so far; None where nobody watched.

        Its stalls from the first probe on, earlier walks included; where only load tests were
        watched, theirs. Its speeds are those of the load tests' seconds: between them servers that
        start and simulations on all cores slow the witness, and no state of the machine does.
        """
        watched = self.watched
        tested_us = self._tested.work_us if self._tested is not None else ()
        return replace(watched, work_us=tested_us) if watched is not None else None

    @property
    def usual_us(self) -> float | None:
        """The median of the witness's work over the study so far; None where nobody watched."""
        watched = self.watched
        return median(watched.work_us) if watched is not None and watched.work_us else None

    @property
    def watched(self) -> Conditions | None:
        """As :attr:`conditions`, with the speeds between load tests."""
        return Conditions.pooled([self._watched, self._watch.so_far()])

    @property
    def holding_us(self) -> tuple[float, ...]:
        """``earlier_us``, which claims are held against besides this study's speeds.

        Empty where a rate was asked for: that is proven for what this study meets.
        """
        return () if self._request.sla.fixed_rps else self.earlier_us

    def certified(self, allowed: Mapping[str, Configuration]) -> Measurement | None:
        """The certified measurement of ``allowed`` to recommend: the highest proven rate.

        What the study has seen of the machine since may speak against a claim; of such a one the
        highest lower rate that is proven counts (:func:`~analyzer.search.claims.standing`).
        For the objectives latency and memory, all of whose rates are the target's, the best rank.
        """
        sla = self._request.sla
        found = (standing(m, sla, self.stands) for m in self.ranked(allowed))
        proven = [m for m in found if m is not None]
        if not self._request.sla.at_any_rate:
            return proven[0] if proven else None
        return max(proven, key=lambda m: m.capacity_rps or 0.0, default=None)

    def settled(self, allowed: Mapping[str, Configuration]) -> Measurement | None:
        """:meth:`certified`, which is stored where a part of its claim was taken back."""
        winner = self.certified(allowed)
        if winner is not None and winner != self.measurement(winner.configuration.config_id):
            self.record(winner, role="recommendation")
        return winner

    @property
    def taken_back(self) -> tuple[str, ...]:
        """Ids of what has a certificate that passed, at a rate that may not be claimed any more."""
        return tuple(
            config_id
            for config_id, outcome in self.latest.items()
            if isinstance(outcome, Measurement)
            and outcome.capacity_rps
            and not self.stands(outcome)
        )

    def stands(self, measurement: Measurement) -> bool:
        """Whether a rate is certified, and nothing seen of the machine since speaks against it."""
        return bool(measurement.capacity_rps) and tenable(
            measurement,
            self.conditions,
            self._request.sla,
            self.slow_edge(measurement.configuration),
            self.response(),
            self.holding_us,
        )


def _edge_rps(outcome: Measurement | Failure) -> float | None:
    return outcome.edge.rate_rps if isinstance(outcome, Measurement) else None


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

    A certificate that knew of the earlier runs stands, be it better or worse; where it rests on
    them alone, it is the earlier one. Of others the higher rate stands.
    """
    edge = later.edge if later.edge.at_least_rps else earlier.edge
    if edge.work_us is None:
        edge = replace(edge, work_us=earlier.edge.work_us, slow_us=earlier.edge.slow_us)
    knew = any(known.rate_rps == earlier.capacity_rps for known in later.evidence)
    forgot = not knew and (earlier.capacity_rps or 0.0) > (later.capacity_rps or 0.0)
    same = later.capacity_rps == earlier.capacity_rps and later.headline is None
    proven = earlier if forgot or same else later
    headline = proven.headline
    if headline is not None:  # of both walks' runs at that rate those that say most
        of_both = filter(None, (later.headline, earlier.headline))
        told = [test for test in of_both if test.offered_rps == headline.offered_rps]
        headline = max(told, key=lambda test: test.requests)
    return replace(
        later,
        edge=edge,
        capacity_rps=proven.capacity_rps,
        certificate=proven.certificate,
        headline=headline,
        load_tests=(*earlier.load_tests, *later.load_tests),
        load_test_seconds=earlier.load_test_seconds + later.load_test_seconds,
        resources=combine([earlier.resources, later.resources]),
        predicted=earlier.predicted if earlier.predicted.edge_rps else later.predicted,
        evidence=later.evidence or earlier.evidence,
    )
