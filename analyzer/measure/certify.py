"""Certifies a rate: a safe one first, then the highest that the time left can still prove.

Pure but for the runs, which the caller gives as a function. Near the edge correlated requests are
weak evidence (docs/statistics.md, section 5), so a part of the time goes to the highest rate that
it is expected to prove; what is left then climbs from a PASS, or goes down from a FAIL. A rate's
certificate counts every run made at it, so that none is chosen by its luck, and every rate that is
tried is a claim of its own, which spends a part of the family's error unless it passes. A rate that
was left undecided may hand its claim and its runs to a lower one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from analyzer.domain.measurement import Certificate
from analyzer.errors import TargetError
from analyzer.measure.certify_goal import Certified, CertifyGoal, Judge, Run
from analyzer.measure.correlation import EXCESS_POWER
from analyzer.measure.ladder import LOWER_SHARE, SAFER, a_step_up, rates_to_try
from analyzer.measure.walk_claims import WalkClaims

# Parts of a rate's first plan, the shortest run, the longest first one, the least part of a rest.
_BLOCKS = 2
_RUN_S_MIN = 0.3
_PART_S_MIN = 3.0
_FIRST_BLOCK_S = 8.0
# A rate is left, while nothing is proven, for one that needs so much of what is missing to it.
_LEAVING_SHARE = 0.5
# Where a rate failed and nothing is proven: what the walk takes again of the time left in all.
_AGAIN_SHARE = 0.5
# A rate that is so many times what is safe, since others took cores meanwhile, is left while more
# is missing to it than it has.
_TOO_BOLD = 1.25
# Of the time left, for a rate above the slow states'. The rest is for runs that meet them.
_MEETING_SHARE = 0.5
# A climb whose runs lack no more than this share of what they have goes on with the time that was
# kept for other steps: less than that would be missing to them for nothing.
_LITTLE_SHARE = 0.25
# A run counts at most so many times as much as all before it at the same rate: what the first ones
# say of the correlation is rough, and too high an inflation makes a plan too long.
_GROWTH_MAX = 4.0
# How much more evidence than the plan says is expected to be needed before anything was run: the
# runs' own inflation was 1 to 1.6 times the twin's (bench/shares.py). A climb that cannot end hands
# its requests to a lower rate (where there is a twin), and may be bolder.
_CAUTION = 1.3
_CLIMB_CAUTION = 1.1
# A first proof goes on to the highest rate that is expected to take at most so many times as long
# as the one that fits: what is left undecided hands its requests down (1.15 and 1.6 were tried,
# bench/shares.py).
_ALIKE = 1.3
# Of the time left in all: what a first proof and a climb after it may take together. The edges of
# the baseline and of other candidates come in between.
_BOTH_SHARE = 0.5


def certify_capacity(goal: CertifyGoal, run: Run, judge: Judge) -> Certified:
    """Returns the highest rate that could be certified in the time, with its certificate.

    A PASS of an earlier walk stands while what is known of its rate still passes, and one of this
    walk though the server fails in a run after it.
    """
    result = Certified(evidence={known.rate_rps: known for known in goal.earlier})
    try:
        _Certifying(goal, run, judge, result).certify()
    except TargetError as error:
        if not result.passed or not result.blocks:
            raise
        result.trouble = f"The server failed in a run after its proof: {error.message}"
    return result


class _Certifying:
    """One walk over the rates."""

    def __init__(self, goal: CertifyGoal, run: Run, judge: Judge, result: Certified) -> None:
        self._goal, self._run, self._judge, self._result = goal, run, judge, result
        self._claims = WalkClaims(goal, self._result.evidence)
        self._left_s = goal.seconds
        # The goal's, until the machine does not carry what is proven any more.
        self._above_rps = goal.above_rps
        # What is left to what comes next, unless a first proof needs it.
        self._kept_s = goal.kept_s
        # The goal's, until a run shows that the server carries less.
        self._edge_rps = goal.edge_rps
        self._safe_rps = self._safe_now_rps()
        # How much more evidence than planned the runs at a rate have needed: their own correlation
        # counts where it is larger than the twin's.
        climbs = goal.above_rps > 0.0
        self._factor, self._factor_rps = _CLIMB_CAUTION if climbs else _CAUTION, 0.0
        # No higher rate is tried next, but for what was begun.
        self._next_rps = math.inf
        # What the next rate may be expected to take, where one was left for it.
        self._leaving_s = math.inf
        # The lowest rate that this walk showed to break the SLA.
        self._failed_rps = math.inf

    def certify(self) -> None:
        result = self._result
        rates = self._rates()
        for rate, certificate in self._judge_known():
            if certificate.verdict == "PASS" or not result.passed:
                self._keep(rate, certificate, ())
            if certificate.verdict == "PASS":
                rates = [other for other in rates if other > rate]
            elif certificate.verdict == "FAIL":
                rates = [other for other in rates if other < rate]
        while self._time_left_s() > _RUN_S_MIN and self._goal.goes_on():
            if self._answered and self._taken_back():
                rates = self._claim_again()
            runnable = self._runnable(rates)
            chosen, limit_s = self._choose(self._next(runnable)) if runnable else (None, 0.0)
            if chosen is None:
                break
            passed = self._attempt(chosen, limit_s, [lower for lower in runnable if lower < chosen])
            rates = [other for other in rates if (other > chosen if passed else other < chosen)]
            self._next_rps = math.inf if passed else LOWER_SHARE * chosen
            if not passed and not result.passed:
                rates = self._begin_again(chosen, rates)
            if result.passed and result.rate_rps:
                gain = 1.0 if self._climbs_on() else self._goal.climb_gain
                rates = [other for other in rates if other > gain * result.rate_rps]
        self._recall()

    def _taken_back(self) -> bool:
        """Whether rates are proven, and the machine turned out to carry none of them."""
        result, proves = self._result, self._goal.proves
        proven = [of.rate_rps for of in result.evidence.values() if of.claim and proves(of)]
        if result.passed and result.rate_rps is not None:
            proven.append(result.rate_rps)
        return bool(proven) and not any(map(self._may_be_run, proven))

    def _claim_again(self) -> list[float]:
        """Nothing is proven any more; the rates that are left then, down to the lowest."""
        result = self._result
        if result.passed and result.rate_rps is not None:
            self._take_back(result.rate_rps)
        self._above_rps = 0.0
        self._extend()
        return [rate for rate in self._rates() if rate < self._failed_rps]

    def _climbs_on(self) -> bool:
        """Whether a later climb would find no more time than there is now; takes it then."""
        if self._goal.left_s() > self._goal.climbs_within_s:
            return False
        self._kept_s = self._goal.climb_kept_s
        self._left_s = self._all_left_s()
        return True

    def _next(self, rates: list[float]) -> list[float]:
        """Those clearly below a rate that was given up, or that go on with its claim; else half."""
        clearly = [
            rate
            for rate in rates
            if rate <= self._next_rps or self._claims.opening(rate)[0] is not None
        ]
        return clearly or rates[len(rates) // 2 :]

    def _judge_known(self) -> Iterator[tuple[float, Certificate]]:
        """What earlier walks' evidence says, by rate from the lowest on, of rates not run here."""
        run = {test.offered_rps for test in self._result.runs}
        for known in sorted(self._goal.earlier, key=lambda known: known.rate_rps):
            if known.claim and known.rate_rps not in run:
                yield known.rate_rps, self._judge(known.rate_rps, (), known.claim, known)

    def _recall(self) -> None:
        """What was claimed before may be claimed again: this walk's runs tell more of the machine.

        A slow state of which nothing was known but the canary's work holds more rates back. Nothing
        is claimed again from a rate on that this walk showed to break the SLA.
        """
        result = self._result
        proven_rps = (result.rate_rps or 0.0) if result.passed else 0.0
        for rate, certificate in self._judge_known():
            if certificate.verdict == "PASS" and proven_rps < rate < self._failed_rps:
                self._keep(rate, certificate, ())

    def _time_left_s(self) -> float:
        """Seconds under load that are left; simulations and pauses take theirs as well."""
        self._left_s = min(self._left_s, self._all_left_s())
        return self._left_s

    def _all_left_s(self) -> float:
        """Seconds until the walk must end, what is kept apart."""
        return self._goal.left_s() - self._kept_s

    def _begin_again(self, failed_rps: float, rates: list[float]) -> list[float]:
        """Nothing is proven yet, and an answer goes before all else: more time, a safer rate.

        Returns the rates that are left: ``rates``, but where the last run was given up as hopeless
        those below what the server answered in it, which no edge exceeds.
        """
        if math.isfinite(self._safe_rps):
            certificate = self._result.certificate
            late = certificate is None or certificate.is_late(self._goal.miss_rate_max)
            # One that was left for want of time says nothing against a rate that is clearly lower.
            lower = SAFER if late or failed_rps >= self._failed_rps else LOWER_SHARE
            self._safe_rps = min(lower * failed_rps, self._safe_now_rps())
        tried = [test.offered_rps for test in self._result.runs[-1:]] == [failed_rps]
        answered = self._goal.answered_rps() if tried and not self._goal.fixed_rps else None
        if answered is not None:
            self._edge_rps = answered
            self._safe_rps = min(self._safe_rps, SAFER * answered)
            rates = self._rates()
        self._extend()
        return rates

    def _safe_now_rps(self) -> float:
        """The highest rate of a first proof by what is known now of the cores that others left."""
        goal, share = self._goal, self._goal.safe_share
        return math.inf if share >= 1.0 else share * goal.free_share() * self._edge_rps

    def _extend(self, stay_s: float = math.inf) -> None:
        """Takes more of the time that is left in all, while nothing is proven.

        Args:
            stay_s: Seconds that are missing to the rate. At the end what is kept is taken where
                they fit only with it, into the walk or into a completion.
        """
        left_s = self._all_left_s()
        if self._answered or not math.isfinite(left_s):
            return
        self._left_s = max(self._left_s, min(self._goal.seconds, _AGAIN_SHARE * left_s))
        late_s = left_s + self._goal.later_s
        short = [all_s < _CAUTION * stay_s <= all_s + self._kept_s for all_s in (left_s, late_s)]
        if left_s < _PART_S_MIN and any(short):
            self._left_s, self._kept_s = left_s + self._kept_s, 0.0

    def _rates(self) -> list[float]:
        """The rates that may be tried, the highest first; those tried before among them."""
        goal = self._goal
        if goal.fixed_rps:
            return [goal.fixed_rps]
        tried, enough_rps = self._result.evidence, goal.enough_rps
        rates = rates_to_try(self._edge_rps, tried=tried, enough_rps=enough_rps)
        return [rate for rate in rates if rate > self._above_rps]

    def _choose(self, rates: list[float]) -> tuple[float | None, float]:
        """The rate to try next, and the seconds that it may take.

        The highest whose expected need fits into the time, or a higher one that takes hardly
        longer. Where none fits, the highest that clearly does with the completion that may follow;
        else, of every third, the highest that fits after all, or the one that needs the least: a
        lower rate needs fewer requests, but each takes longer to come. Above a proven rate
        :meth:`_higher` says.
        """
        leaving_s, self._leaving_s = self._leaving_s, math.inf
        if self._answered:
            return self._higher(rates), self._left_s
        rates = [rate for rate in rates if rate <= self._safe_rps] or rates[-1:]
        if len(rates) == 1:
            return rates[0], self._left_s
        for share in self._goal.shares:
            limit_s = share * self._left_s
            rate = self._affordable(rates, min(limit_s, leaving_s))
            if rate is not None:
                return self._alike(rates, rate), limit_s
        # The caution counts twice: what takes longer still would end in nothing.
        late_s = (self._all_left_s() + self._goal.later_s) / _CAUTION
        if math.isfinite(late_s) and (rate := self._affordable(rates, late_s)) is not None:
            return rate, self._left_s
        some = {*rates[::3], *filter(self._claims.known, rates)}
        # Of a slow model lower rates take as long as higher ones, and the bisection may miss some.
        limit_s = max(min(map(self._seconds, some)), self._goal.shares[-1] * self._left_s)
        return max(rate for rate in some if self._seconds(rate) <= limit_s), self._left_s

    def _higher(self, rates: list[float]) -> float | None:
        """The rate above what is proven that is tried next; None to end the walk.

        Where the time is of no other use, what the twin does not expect to be carried as well.
        """
        share = 1.0 if self._may_be_run(rates[-1]) else _MEETING_SHARE
        rate = self._affordable(rates, share * self._left_s)
        if rate is not None or self._goal.may_exceed is None:
            return rate
        return a_step_up(rates, max(self._above_rps, self._result.rate_rps or 0.0))

    def _alike(self, rates: list[float], rate: float) -> float:
        """The highest of ``rates`` that is expected to take hardly longer than ``rate``.

        A slow model's lower rates need fewer requests, and as many seconds for them. Not where
        there will be time for both, since the lower one outlives more of what the machine may do,
        and not where claims were open as the walk began: the machine, or the edge, is not what it
        seemed.
        """
        rate_s, both_s = self._seconds(rate), _BOTH_SHARE * self._all_left_s()
        if self._goal.open_claims or (1.0 + _ALIKE) * rate_s <= both_s:
            return rate  # without a simulation of each higher rate
        limit_s = min(_ALIKE * rate_s, self._goal.shares[-1] * self._left_s)
        for other in rates[: rates.index(rate)]:
            if (other_s := self._seconds(other)) <= limit_s:
                return rate if rate_s + other_s <= both_s else other
        return rate

    def _affordable(self, rates: list[float], seconds: float) -> float | None:
        """The highest of ``rates`` whose expected need fits; None if none does.

        Bisects those that were never run, since each costs a simulation: the lower, the less they
        need. What was run needs less than its neighbours.
        """
        begun = list(filter(self._claims.known, rates))
        new = [rate for rate in rates if rate not in begun]
        first = bisect_left(new, True, key=lambda rate: self._seconds(rate) <= seconds)
        fitting = [rate for rate in begun if self._seconds(rate) <= seconds]
        return max([*new[first : first + 1], *fitting], default=None)

    def _seconds(self, rate: float) -> float:
        """How long a PASS at ``rate`` is expected to take from what is known."""
        opening, factor = self._claims.opening(rate), self._factor
        needed = self._claims.need(rate, *opening)
        if rate < self._factor_rps:
            # The lighter the load, the less a slow moment costs.
            falling = (rate / self._factor_rps) ** EXCESS_POWER
            factor = max(factor**falling, min(factor, _CAUTION))
        needed_s = max(needed * factor / rate, self._goal.lacking_s(rate, opening[0]))
        return needed_s + self._goal.lead_in_s(rate)

    def _attempt(self, rate: float, limit_s: float, lower: list[float]) -> bool:
        """Runs ``rate`` until it is decided, hopeless, or the time is better spent elsewhere."""
        runs, opening = self._result.runs, self._claims.opening(rate)
        known, claim = opening
        indices: list[int] = []
        self._claims.begin(opening)
        needed, gathered = self._goal.requests_needed(rate, claim, known) or 0.0, 0
        # The first one is short: it shows whether the rate is hopeless.
        block_s = max(min(needed * 1.1 / rate / _BLOCKS, _FIRST_BLOCK_S), 0.5)
        while (limit_s := min(limit_s, self._time_left_s())) > _RUN_S_MIN:
            too_long = self._goal.requests_min / rate > self._left_s
            if too_long or not self._runnable([rate]):
                return False
            # A fifth of a run at most does not count.
            block_s = min(block_s, limit_s)
            lead_s = min(self._goal.lead_in_s(rate), 0.25 * block_s)
            block_s = min(block_s, limit_s - lead_s)
            test = self._run(rate, lead_s, block_s)
            runs.append(test)
            self._left_s -= test.duration_s + lead_s
            limit_s -= test.duration_s + lead_s
            kept = (test.over_budget or 0) <= self._goal.miss_rate_max * test.requests
            if (grew := test.growing and kept) or not test.validity.excused:
                self._take_back(rate)
                if grew:
                    self._claims.give_up(rate)
                    self._failed_rps = min(self._failed_rps, rate)
                if not self._result.passed:
                    # Nothing is decided by it, and the certificate says why.
                    last = [*indices, len(runs) - 1]
                    self._keep(rate, self._judge(rate, last, claim, known), indices)
                return False
            indices.append(len(runs) - 1)
            gathered += test.requests
            certificate = self._judge(rate, indices, claim, known)
            self._claims.add(rate, certificate, opening, [runs[index] for index in indices])
            passed = certificate.verdict == "PASS"
            if passed or not self._result.passed or self._result.rate_rps == rate:
                self._keep(rate, certificate, indices)
            if passed:
                self._claims.passed(certificate, opening)
                return True
            if certificate.verdict == "FAIL" or test.aborted:
                self._failed_rps = min(self._failed_rps, rate)
                return False
            if not self._goal.goes_on():
                return False
            beyond = certificate.is_late(self._goal.miss_rate_max)
            if beyond and lower and self._goal.may_exceed is not None:
                return False
            missing = float(certificate.requests_missing or min(2.0 * block_s, limit_s) * rate)
            if beyond:
                # What is missing is missing to a FAIL; the least that a PASS takes is what follows
                # if no further request is late.
                missing = self._goal.to_pass(certificate, claim)
            else:
                # What the runs say of the machine's speed is in the need by now.
                needed = self._goal.requests_needed(rate, claim, known) or needed
                if needed and certificate.requests_missing and not self._claims.proven(rate):
                    self._factor = max(1.0, (gathered + missing) / needed)
                    self._factor_rps = rate
                missing = max(missing, self._claims.lacking(rate))
            open_ = lower and not self._answered and missing > certificate.requests
            if open_ and rate > _TOO_BOLD * self._safe_now_rps():
                return False
            stay_s = missing / rate
            if stay_s > limit_s:
                little = not beyond and missing <= _LITTLE_SHARE * certificate.requests
                if not self._stays(stay_s, lower, little=little):
                    return False
                if not beyond:
                    self._extend(stay_s)
                limit_s = self._time_left_s()
            # In parts, so that the correlation that the runs show counts in time.
            part_s = 0.5 * limit_s if limit_s > _PART_S_MIN else limit_s
            grown_s = max(_GROWTH_MAX * certificate.own_requests / rate, _PART_S_MIN)
            block_s = max(min(missing * 1.05 / rate, part_s, grown_s), 0.5)
        return False

    def _stays(self, stay_s: float, lower: list[float], *, little: bool) -> bool:
        """Whether the walk goes on with a rate that needs more time than it was given.

        Args:
            stay_s: Seconds that are missing to it.
            lower: The rates that are left below it.
            little: Whether hardly anything is missing to it.
        """
        if self._answered:
            if not little or stay_s > self._all_left_s():
                return False
            self._left_s = _CAUTION * stay_s
            return True
        # Only a lower rate that is proven much sooner, and in time, is worth leaving for; but any
        # that is proven in time, or by a completion, where this one is not.
        all_s, later_s = self._all_left_s(), self._goal.later_s
        leaving_s = all_s + later_s if stay_s > all_s + later_s else all_s
        if _CAUTION * stay_s <= all_s:
            leaving_s = min(_LEAVING_SHARE * stay_s, all_s)
        if lower and self._affordable(lower, leaving_s) is not None:
            self._leaving_s = leaving_s
            return False
        return True

    @property
    def _answered(self) -> bool:
        """Whether there is an answer already, here or of another configuration."""
        return self._result.passed or (self._above_rps > 0.0 and not self._goal.fixed_rps)

    def _runnable(self, rates: list[float]) -> list[float]:
        """Those that may be run; where there are none, those that may exceed what is expected."""
        sure, may_exceed = list(filter(self._may_be_run, rates)), self._goal.may_exceed
        if sure or may_exceed is None or not self._answered:
            return sure
        return list(filter(may_exceed, rates))

    def _may_be_run(self, rate: float) -> bool:
        return self._goal.may_be_run(rate, self._claims.known(rate))

    def _take_back(self, rate: float) -> None:
        """Gives up what was claimed of ``rate``, whose last run may not count."""
        result = self._result
        if result.rate_rps == rate and result.certificate is not None:
            result.passed = False
            result.certificate = replace(result.certificate, verdict="UNDECIDED")

    def _keep(self, rate: float, certificate: Certificate, indices: Sequence[int]) -> None:
        """What may be said so far: of the highest rate that passed, else of the last one tried."""
        result = self._result
        result.rate_rps, result.certificate = rate, certificate
        result.passed = certificate.verdict == "PASS"
        result.blocks = [result.runs[index] for index in indices]
