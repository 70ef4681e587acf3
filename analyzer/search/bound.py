"""How much better than the recommended configuration another one may plausibly be."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.units import counted
from analyzer.search.residual import ResidualModel

Floats = NDArray[np.float64]

# Candidates whose draws are taken together; the others cannot plausibly win.
_RIVALS_MAX = 120
_DRAWS = 2000  # a tail of 5 % is good to half a per cent
# The size of the residuals is known like a variance with so many degrees of freedom, besides one
# for each measurement.
_FREEDOM_PRIOR = 2
# A larger fraction says nothing to people: another configuration may then be twice as good.
_TELLING_MAX = 1.0
# From here on in whole per cent: the draws behind it give no more.
_WHOLE_FROM = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """No configuration of those covered is better than the recommended one by more than this.

    Args:
        fraction: Of the recommended one's value; at least 1 % while anything is unmeasured, since
            an edge is known no better.
        confidence: Of the statement.
        covered: Configurations that were predicted or measured.
        space: Configurations that could have been recommended.
        unbuilt: Configurations of variants that had no time to be built: nothing is said of them.
    """

    fraction: float
    confidence: float
    covered: int
    space: int
    unbuilt: int = 0

    def __str__(self) -> str:
        space, covered = (counted(n, "configuration") for n in (self.space, self.covered))
        if self.fraction > _TELLING_MAX:
            return (
                f"too little is known of the {space} in the space to claim "
                "anything: another may be more than twice as good"
            )
        digits = 0 if self.fraction >= _WHOLE_FROM else 1
        fraction = f"{100 * self.fraction:.{digits}f} %"
        said = f"is better by more than {fraction} (confidence {self.confidence:g})"
        unbuilt = f"; {self.unbuilt} more had no time to be built" if self.unbuilt else ""
        if (without := self.space - self.covered) > 0:
            return (
                f"of the {covered} with a prediction or a measurement none "
                f"{said}; {without} of {self.space} {'has' if without == 1 else 'have'} neither"
                f"{unbuilt}"
            )
        if self.unbuilt:
            were = "was" if self.space == 1 else "were"
            return f"of the {space} that {were} built none {said}{unbuilt}"
        return f"no configuration of the {self.space} in the space {said}"


def plausible_gain(
    model: ResidualModel,
    log_predicted: Floats,
    *,
    rest: NDArray[np.int64],
    chance: Floats,
    own: int,
    own_log: float | None,
    measurements: int,
    confidence: float,
    rng: np.random.Generator,
) -> float:
    """Quantile of log(the best of ``rest`` / candidate ``own``), both as they truly are.

    Args:
        log_predicted: Of every candidate, shape (m,).
        rest: Candidates that may be better, at least one, shape (k,).
        chance: Of each of these to keep the limits, shape (k,).
        own_log: The value of ``own`` where the model does not know it.
        measurements: Behind ``model``.
    """
    mean, scale = model.predict(rest)
    order = np.argsort(-(log_predicted[rest] + mean + 4.0 * scale), kind="stable")[:_RIVALS_MAX]
    rest, chance = rest[order], chance[order]
    indices = np.append(rest, own)
    mean = model.predict(indices)[0]
    freedom = _FREEDOM_PRIOR + measurements
    wider = np.sqrt(freedom / rng.chisquare(freedom, (_DRAWS, 1)))
    drawn = log_predicted[indices] + mean + wider * (model.draw(indices, _DRAWS, rng) - mean)
    usable = rng.random((_DRAWS, len(rest))) < chance
    top = np.max(np.where(usable, drawn[:, :-1], -inf), axis=1)
    own_drawn = drawn[:, -1] if own_log is None else own_log
    return float(np.quantile(top - own_drawn, confidence, method="higher"))
