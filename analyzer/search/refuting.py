"""Measures what a proof takes that nothing keeps the SLA.

Where the promise is about any rate, it is the configuration that answers soonest that must fail: no
queue delay, the shortest executions, the fewest instances. Runs of seconds at a low rate, at a
moderate one and near the one where the smallest share was late so far (``analyzer/measure/refute``)
decide; where all its executions in the probes took clearly longer than the budget, one short run.
"""

from __future__ import annotations

from contextlib import suppress

from analyzer.domain import answer
from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.refutation import low_rps, quiet_rps, shown
from analyzer.errors import BudgetEndedError
from analyzer.measure.jobs import Job
from analyzer.measure.plan import REQUESTS_MIN, CertifyPlan, RefutePlan, certifying_runs
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext
from analyzer.search.outcome_log import merged, outcome_of
from analyzer.search.screening import Screening
from analyzer.search.time_plan import hangs_after_s
from analyzer.search.twin_refuted import contradicted, expected_edge, kind_of
from analyzer.search.wording import complexity

# Seconds of one visit at one rate, at least and at most: with two visits of three rates, a span
# that most bursts of a neighbour (0.1 to 10 s) do not fill.
_VISIT_S = (1.5, 2.5)
_VISITS = 2
_FIXED_VISIT_S = 5.0  # at most, where there is one rate alone
_LOAD_SHARE = 0.85  # of the time left: the rest is for the warm-up and between the visits
# Where every execution takes longer than the budget by this factor, one run of so many requests
# does.
_CLEARLY = 1.5
_CLEAR_REQUESTS = 25.0
_CLEAR_S_MIN = 0.5
# A moderate rate keeps a server busy for this share of the time; no higher one is visited than
# twice that, and none that a generator beside the server might not send.
_MODERATE_UTILIZATION = 0.3
_UTILIZATION_MAX = 0.6
_MODERATE_RPS_MAX = 1000.0
# Closer rates are one.
_SAME_RATE = 1.5
# Walks: of the first configuration, once more where that was disturbed, and of another kind.
_WALKS_MAX = 3


# Of failures those that come again however often a configuration is tried.
_LASTING_REASONS = frozenset({"build", "start", "missing", "out_of_memory", "crash", "accuracy"})


def never_runs(outcome: Measurement | Failure | None) -> bool:
    """Whether it failed for a reason that lasts; no time, say, or a lost worker is none."""
    return isinstance(outcome, Failure) and outcome.reason in _LASTING_REASONS


def shortest_ms(built: BuiltVariants, configuration: Configuration) -> float | None:
    """The shortest execution of a variant with as many threads in the probes, milliseconds.

    None without any.
    """
    calibration = built.calibrations.get(configuration.variant)
    return min(
        (
            min(result.samples_ms)
            for result in (calibration.results if calibration is not None else ())
            if result.samples_ms and result.probe.threads == (configuration.intra_op_threads or 0)
        ),
        default=None,
    )


class Refuting:
    """Makes the runs, one configuration after the other. Used once."""

    def __init__(self, context: SearchContext, built: BuiltVariants, screening: Screening) -> None:
        self._context, self._built, self._screening = context, built, screening
        self._walks = 0
        #: Whether a configuration was left out for lack of time.
        self.out_of_time = False

    def run(self) -> None:
        """Refutes what answers soonest, and another kind where the twin is no witness."""
        log, allowed = self._context.log, self._screening.unrefuted
        while self._walks < _WALKS_MAX:
            configuration = self._next()
            if configuration is None or log.ranked(allowed):
                return
            self._walks += 1
            if not self._refute(configuration):
                self.out_of_time = True
                return

    def _next(self) -> Configuration | None:
        """What to refute next; None where nothing more is needed."""
        context, sla = self._context, self._context.request.sla
        known = [m for key in self._screening.unrefuted if (m := context.log.measurement(key))]
        refuted = [m.configuration for m in known if shown(m, sla)]
        others = len(self._screening.unrefuted) > len(known)
        if refuted and not (others and contradicted(context, self._screening)):
            return None
        kinds = {kind_of(configuration) for configuration in refuted}
        if sla.fixed_rps is not None and not kinds:
            return self._closest()
        left = [
            configuration
            for config_id, configuration in self._screening.unrefuted.items()
            if kind_of(configuration) not in kinds
            and not never_runs(context.log.latest.get(config_id))
        ]

        def rank(configuration: Configuration) -> tuple[bool, tuple[object, ...]]:
            # Only one of which the twin expected nothing speaks for it.
            expected = refuted and expected_edge(context, self._screening, configuration.config_id)
            return bool(expected), self._rank(configuration)

        soonest = min(left, key=rank, default=None)
        if soonest is None or refuted:
            return soonest
        # One that is as quick and was measured already: what its runs were like is known.
        alike = [
            configuration
            for configuration in (m.configuration for m in known)
            if kind_of(configuration) == kind_of(soonest)
            and configuration.instance_count == soonest.instance_count
            and not _delay_us(configuration)
        ]
        return min(alike, key=complexity, default=soonest)

    def _closest(self) -> Configuration | None:
        """What came closest of those that may be recommended; None where nothing was measured."""
        log, allowed = self._context.log, self._screening.unrefuted
        found = answer.closest_miss(log.outcomes, self._context.request.sla, among=list(allowed))
        closest = found[0].configuration if found is not None else None
        return closest if closest is not None and closest.config_id in allowed else None

    def _rank(self, configuration: Configuration) -> tuple[float, float, tuple[int, int, int]]:
        """Sorts what answers soonest first."""
        execution_ms = self._execution_ms(configuration)
        return (
            _delay_us(configuration),
            execution_ms if execution_ms is not None else float("inf"),
            complexity(configuration),
        )

    def _execution_ms(self, configuration: Configuration) -> float | None:
        """Mean execution of one request alone, milliseconds; None if unknown.

        From the probes, and what runs have taught the twin since.
        """
        model = self._screening.twin.server_model(configuration)
        if model is None:
            return None
        return float(model.service.curve_ms(self._context.load.batch_sizes()[:1])[0])

    def _refute(self, configuration: Configuration) -> bool:
        """Makes the runs of one configuration; False where the time does not suffice."""
        context, log, screening = self._context, self._context.log, self._screening
        known = log.measurement(configuration.config_id)
        left_s = context.plan.left_s - context.server_start_s
        plan = self._plan(configuration, known, left_s)
        if plan is None:
            return False
        seconds = plan.visits * sum(max(plan.seconds, REQUESTS_MIN / r) for r in plan.rates_rps)
        task = context.measure_task(
            configuration,
            accuracy=self._built.accuracy(configuration),
            predicted_rps=screening.predicted.get(configuration.config_id),
            edge_plan=None,
            certify=CertifyPlan(
                seconds=seconds,
                edge=known.edge if known is not None else None,
                twin=screening.server_model(configuration),
                earlier=known.evidence if known is not None else (),
                open_claims=log.open_claims(screening.recommendable),
                tests=known.load_tests if known is not None else (),
                runs_before=certifying_runs(known),
                conditions=log.watched,
                refute=plan,
            ),
        )
        job = Job(f"refute-{self._walks}", task, hangs_after_s(seconds), "refute")
        with suppress(BudgetEndedError):
            for result in context.run([job]):
                outcome, logs = outcome_of(result, configuration)
                if isinstance(outcome, Measurement) and known is not None:
                    outcome = merged(known, outcome)
                log.record(outcome, role="trial", logs=logs)
        return True

    def _plan(
        self, configuration: Configuration, known: Measurement | None, left_s: float
    ) -> RefutePlan | None:
        """The visits; None where the time does not suffice for them."""
        sla = self._context.request.sla
        execution_ms = self._execution_ms(configuration)
        fixed = sla.fixed_rps is not None
        shortest = shortest_ms(self._built, configuration)
        if shortest is not None and shortest > _CLEARLY * sla.latency_budget_ms:
            rate = self._low_rps(known, execution_ms)
            seconds = max(_CLEAR_REQUESTS / rate, _CLEAR_S_MIN)
            if left_s < seconds:
                return None
            return RefutePlan(rates_rps=(rate,), seconds=seconds, visits=1, fixed=fixed)
        rates = self._rates(known, execution_ms)
        least_s = _VISITS * sum(max(_VISIT_S[0], REQUESTS_MIN / rate) for rate in rates)
        if left_s < least_s:
            return None
        # The warm-up and the drains between the visits take a part.
        longest_s = _FIXED_VISIT_S if fixed else _VISIT_S[1]
        seconds = min(max(_LOAD_SHARE * left_s / least_s, 1.0) * _VISIT_S[0], longest_s)
        return RefutePlan(
            rates_rps=rates, seconds=seconds, visits=_VISITS, fixed=fixed, expected_ms=execution_ms
        )

    def _low_rps(self, known: Measurement | None, execution_ms: float | None) -> float:
        """A rate at which nearly no request waits."""
        sla = self._context.request.sla
        if known is not None and known.load_tests:
            return quiet_rps(known, sla)
        return low_rps(execution_ms, sla)

    def _rates(self, known: Measurement | None, execution_ms: float | None) -> tuple[float, ...]:
        """A low rate, a moderate one and the one with the smallest share late, as they differ."""
        low = self._low_rps(known, execution_ms)
        if self._context.request.sla.fixed_rps is not None:
            return (low,)
        alone_ms = execution_ms or 0.0
        if known is not None:
            of = (each.mean_ms for test in known.load_tests for each in test.executions)
            alone_ms = min(of, default=alone_ms)
        if alone_ms <= 0.0:
            alone_ms = 1.0
        most = max(_UTILIZATION_MAX * 1e3 / alone_ms, low)
        found = [low]
        best = self._least_late(known)
        moderate = min(_MODERATE_UTILIZATION * 1e3 / alone_ms, _MODERATE_RPS_MAX)
        for rate in (min(best.offered_rps, most) if best is not None else 0.0, moderate):
            if rate > low and all(max(rate / r, r / rate) > _SAME_RATE for r in found):
                found.append(rate)
        return tuple(sorted(found))

    def _least_late(self, known: Measurement | None) -> LoadTest | None:
        """The run with the smallest share late: of this configuration, else of any."""
        log = self._context.log
        measured = [known] if known is not None and known.load_tests else []
        measured = measured or [m for key in log.latest if (m := log.measurement(key))]
        tests = [
            test
            for measurement in measured
            for test in measurement.load_tests
            if test.validity.valid
            and test.concurrency is None
            and test.over_budget is not None
            and test.requests >= REQUESTS_MIN
        ]
        return min(tests, key=lambda test: (test.over_budget or 0) / test.requests, default=None)


def _delay_us(configuration: Configuration) -> int:
    """How long a request may be kept waiting for others, microseconds."""
    return (configuration.max_queue_delay_us or 0) if configuration.dynamic_batching else 0
