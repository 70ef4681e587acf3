"""How much correlated requests inflate the variance of a share, from batch means.

The share over budget of n independent requests has the variance p(1-p)/n. In a queue an overload
makes many late at once, and the variance is ``inflation`` times that: n requests then say as much
as n / inflation independent ones. Batches that are long against an overload are nearly
independent, so that the variance of their means shows it:
``inflation = m · var(batch means) / (p (1-p))`` with batches of m requests.
Source: Law, Simulation Modeling and Analysis, chapter 9 (method of batch means).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

# Batch counts that are tried: few see slow swings, many leave degrees of freedom. A batch of fewer
# requests, or a share of fewer misses, says nothing of a variance (Law, chapter 9).
BATCHES = (20, 40, 80, 160)
BATCH_REQUESTS_MIN = 8
MISSES_MIN = 10
# Thresholds that as many requests exceed as may be late, and twice as many.
_NEAR_LATE = (1.0, 2.0)
# Errors of what an inflation is above 1 are relative to at least this; how it grows with the share
# is told by shares that are so many times as large.
_EXCESS_MIN = 0.3
_SPAN_MIN = 2.0
# One-sided: the true inflation exceeds the upper estimate in one case of ten, if means are normal.
_UPPER_TAIL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflation:
    """Variance inflation of an indicator, at least 1.

    Args:
        point: The estimate; the largest over several batch counts.
        upper: An upper estimate, which allows for the few degrees of freedom.
    """

    point: float
    upper: float


def variance_inflation(
    blocks: Sequence[Flags], *, batches: Sequence[int] = BATCHES, misses_min: int = MISSES_MIN
) -> Inflation | None:
    """Returns the inflation of the share of true flags; None where too few are true or false.

    A single batch count sees one time scale. Short batches miss slow swings, long ones leave few
    degrees of freedom, so the largest estimate over several counts is taken.

    Args:
        blocks: One array of shape (n,) per run, in the order of the requests; batches do not
            reach from one run into the next.
        batches: Batch counts to try; those that leave batches shorter than 8 requests are not.
        misses_min: Least number of true flags, and of false ones.
    """
    total = sum(len(block) for block in blocks)
    true = sum(int(np.count_nonzero(block)) for block in blocks)
    if min(true, total - true) < misses_min:
        return None
    share = true / total
    cumulated = [np.concatenate(([0], np.cumsum(block, dtype=np.int64))) for block in blocks]
    point = upper = 1.0
    usable = False
    for count in batches:
        length = total // count
        if length < BATCH_REQUESTS_MIN:
            continue
        sums = np.concatenate([np.diff(block[::length]) for block in cumulated])
        if len(sums) < count // 2:
            continue
        usable = True
        estimate = over_independent(sums, length, share)
        point = max(point, estimate)
        upper = max(upper, estimate * _margin(len(sums)))
    return Inflation(point=point, upper=upper) if usable else None


def over_independent(sums: NDArray[np.integer], length: int, share: float) -> float:
    """Variance of sums of ``length`` flags each, shape (n,), over that of independent flags.

    Args:
        share: Of the flags that are true, between 0 and 1.
    """
    return float(np.var(sums, ddof=1)) / (length * share * (1.0 - share))


def _margin(batches: int) -> float:
    """How far above its estimate a variance from this many normal means may lie (chi-square)."""
    from scipy.special import chdtri

    freedom = batches - 1
    return freedom / float(chdtri(freedom, 1.0 - _UPPER_TAIL))


def lower_threshold_inflation(
    latency_s: Sequence[NDArray[np.floating]],
    shares: Sequence[float] = (0.5, 0.2, 0.1, 0.05),
    *,
    least_s: float = 0.0,
    late_share: float | None = None,
    steady: bool = False,
) -> Inflation | None:
    """Returns the inflation of "among the slowest", from several thresholds.

    Where hardly a request is over budget nothing can be seen of how they cluster. But the same
    overloads that would carry a request over the budget carry many over a lower threshold, which
    every run has plenty of. Where the machine is slow for seconds, though, the inflation grows in
    proportion to a small share above the threshold (docs/statistics.md, section 4). So where
    ``late_share`` is told, what the thresholds show is split into a part that is the same at all of
    them and one that grows with the share, and taken at the promise's own share.

    Args:
        latency_s: One array of shape (n,) per run, in the order of the requests, inf for failures.
        shares: Shares of the requests above the threshold.
        least_s: Thresholds below this do not count; it is one itself where it is above the lowest.
            None is returned where fewer than ten requests exceed it.
        late_share: Of the requests that may be late, 0 to 1; None for the largest inflation of all
            thresholds. The upper estimate is the largest of all in any case.
        steady: The machine's speed is known to have stayed the same. Then there was no slow state,
            and inflation that grows with the share is chance as likely: the geometric mean of the
            largest and of what the split tells counts. The split alone is the lowest of several
            noisy figures as often as not, and guards too little against a twin that is wrong
            (``bench/certificate.py``).
    """
    everything = np.concatenate(list(latency_s))
    count = len(everything)
    if count == 0:
        return None
    if late_share is not None:
        shares = (*shares, *(late_share * factor for factor in _NEAR_LATE))
    ranks = [min(int(count * max(1.0 - share, 0.0)), count - 1) for share in shares]
    ordered = np.partition(everything, sorted(set(ranks)))
    thresholds = {float(ordered[rank]) for rank in ranks if ordered[rank] >= least_s}
    if least_s > ordered[min(ranks)]:
        thresholds.add(least_s)
    seen: dict[float, Inflation] = {}
    for threshold in thresholds:
        above = [block > threshold for block in latency_s]
        if (found := variance_inflation(above)) is not None:
            exceeding = sum(int(np.count_nonzero(block)) for block in above)
            seen[exceeding / count] = found
    if not seen:
        return None
    share = np.array(list(seen))
    points = np.array([of.point for of in seen.values()])
    point = float(points.max())
    if late_share is not None:
        split = _at_share(late_share, share, points, count * share / points)
        point = sqrt(point * split) if steady else split
    return Inflation(point=point, upper=max(of.upper for of in seen.values()))


def _at_share(late_share: float, share: Floats, inflation: Floats, overloads: Floats) -> float:
    """The inflation at a share, from that at each ``share`` above a threshold; all [thresholds].

    What is above 1 is a + b·share with a, b >= 0, by least squares of the relative errors, whose
    variances fall with the number of independent ``overloads`` behind each. Shares that lie close
    together tell nothing of b, and the largest counts.
    """
    from scipy.optimize import nnls

    excess = inflation - 1.0
    if share.max() < _SPAN_MIN * share.min():
        return float(inflation.max())
    weight = np.sqrt(np.maximum(overloads, 1.0)) / np.maximum(excess, _EXCESS_MIN)
    design = np.stack([np.ones(len(share)), share], axis=1)
    (constant, slope), _ = nnls(design * weight[:, None], excess * weight)
    return 1.0 + float(constant + slope * late_share)
