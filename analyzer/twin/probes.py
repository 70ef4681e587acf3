"""Which short runs the twin's service times come from, and their results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from analyzer.stats.percentiles import nearest_rank_position
from analyzer.twin.fitted import SHARED_CORE_FACTOR, TRIMMED_PERCENT
from analyzer.twin.variation import windows

#: Probes of one variant; at 0.15 s each, 3 s.
PROBES_MAX = 20
#: Executions of a probe that a mean is taken of; of fewer the median.
MEAN_COUNT_MIN = 10
#: Executions of a probe below which the machine's part in single ones is left out.
EXECUTIONS_FEW = 40
# Batch sizes of a curve: all of 1 to 32; of 1 to 64, which are seven, four.
_SIZES_MAX = 6
_MS_MIN = 1e-9
# Of few executions one that took so many times the median is the machine's.
_STALLED_FACTOR = 3.0
# Rounds further apart than this are not of one stretch of time: another process, or another day.
_GAP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One short run: ``busy`` instances with ``threads`` threads each execute ``batch``.

    On a GPU there are no ``threads`` (0), and its instances share it.
    """

    threads: int
    busy: int
    batch: int
    seconds: float = 0.15
    on_gpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What it gave: milliseconds of single executions; empty if the probe was skipped as slow.

    Args:
        limit_ms: Of a probe that was skipped: a smaller batch already took longer than this.
        rounds: When each round began (seconds since 1970), and its mean time, milliseconds.
        failed: Why the model does not run this batch, or a smaller one; empty if it does.
        changed_ms: Executions right after one of another batch size, milliseconds, but for those
            that met the batch size for the first time; empty but on a GPU.
        mean_ms: :func:`trimmed_mean_ms` of the samples, computed here once; NaN without any.
        count, median_ms, cv: Number, median and coefficient of variation of the samples that
            ``mean_ms`` is of; 0 and NaN without any.
    """

    probe: Probe
    samples_ms: tuple[float, ...]
    limit_ms: float | None = None
    rounds: tuple[tuple[float, float], ...] = ()
    failed: str = ""
    changed_ms: tuple[float, ...] = ()
    mean_ms: float = field(init=False, repr=False, compare=False)
    count: int = field(init=False, repr=False, compare=False)
    median_ms: float = field(init=False, repr=False, compare=False)
    cv: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        crowded = self.probe.threads != 1 and not self.probe.on_gpu
        mean_ms = median_ms = cv = math.nan
        kept = _kept(self.samples_ms, crowded=crowded)
        if len(kept):
            mean_ms = trimmed_mean_ms(self.samples_ms, crowded=crowded)
            median_ms, cv = float(np.median(kept)), float(kept.std() / max(kept.mean(), _MS_MIN))
        for name, value in (("mean_ms", mean_ms), ("median_ms", median_ms), ("cv", cv)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "count", len(kept))


def trimmed_mean_ms(samples_ms: Sequence[float], *, crowded: bool) -> float:
    """Mean without the slowest percent, which belongs to the machine and not to the curve.

    Of fewer than ten executions the median: one of them may well have been disturbed.

    Args:
        samples_ms: At least one.
        crowded: With several threads of a CPU the executions of which two shared a core are left
            out: they take up to three times as long, and their share in a short probe is random.
            What instances on a GPU cost each other looks the same and stays in: it is the
            deployment's own.
    """
    ordered = _kept(samples_ms, crowded=crowded)
    if len(ordered) < MEAN_COUNT_MIN:
        return float(np.median(ordered))
    return float(ordered[: nearest_rank_position(len(ordered), TRIMMED_PERCENT)].mean())


def undisturbed_ms(samples_ms: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The executions of a probe without those in which the machine stood still.

    All are of the same input, so that one of a few that took several times as long tells of the
    machine; the canary and the load tests tell how often that happens, a probe of a tenth of a
    second does not.
    """
    samples = np.asarray(samples_ms, dtype=np.float64)
    if not 0 < len(samples) < EXECUTIONS_FEW:
        return samples
    kept: NDArray[np.float64] = samples[samples <= _STALLED_FACTOR * np.median(samples)]
    return kept


def _kept(samples_ms: Sequence[float], *, crowded: bool) -> NDArray[np.float64]:
    """The samples that count, ascending, as of :func:`trimmed_mean_ms`."""
    ordered = np.sort(np.asarray(samples_ms, dtype=np.float64))
    if crowded and len(ordered):
        return ordered[ordered <= SHARED_CORE_FACTOR * np.percentile(ordered, 25)]
    return undisturbed_ms(ordered)


def speed_series(results: Iterable[ProbeResult], *, cores: int) -> list[NDArray[np.float64]]:
    """How slow the machine was while it probed: stretches as of :func:`~.variation.windows`.

    Each round stands in the window that it began in, over the mean of its probe's rounds. Probes
    take turns, so that neighbours in time are rounds of different probes. Those with several
    threads or more instances than cores are left out: they vary by themselves.
    """
    rounds: list[tuple[float, float]] = []
    for result in results:
        means = [mean_ms for _, mean_ms in result.rounds]
        if len(means) > 1 and result.probe.threads == 1 and result.probe.busy <= cores:
            usual = float(np.mean(means))
            rounds += [(start_s, mean_ms / usual) for start_s, mean_ms in result.rounds]
    rounds.sort()
    starts = np.array([start_s for start_s, _ in rounds])
    values = np.array([value for _, value in rounds])
    stretches = np.split(np.arange(len(rounds)), np.flatnonzero(np.diff(starts) > _GAP_S) + 1)
    return [windows(starts[each], values[each]) for each in stretches if len(each) > 1]


def plan_probes(
    *,
    deployments: Sequence[tuple[int, int]],
    batch_max: int,
    request_batch_size: int = 1,
    seconds: float = 0.15,
    on_gpu: bool = False,
) -> list[Probe]:
    """The probes of one variant, at most 20, where they inform most.

    For the first (simplest) thread count the curve over the batch sizes; for the others the ends
    and the middle of the curve, alone and side by side: the ratio is the interference. Where these
    are too many, what every deployment's prediction needs comes first (:func:`_rank`).

    Args:
        deployments: (instances, threads) pairs of the space.
        batch_max: Largest batch of the space; 1 for a model that cannot be batched.
        on_gpu: Whether the instances run on a GPU.
    """
    sizes = _sizes(min(request_batch_size, batch_max), batch_max)
    ends = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    instances: dict[int, set[int]] = {}
    for count, threads in deployments:
        instances.setdefault(threads, {1}).add(count)
    first = min(instances, key=_turn)
    ranked = [
        (
            # One curve has a middle, from which the others take their shape.
            1
            if (threads, busy, size) == (first, 1, sizes[len(sizes) // 2])
            else _rank(busy, max(counts), sizes, size),
            (_turn(threads), busy, size),
            threads,
        )
        for threads, counts in instances.items()
        for busy in counts
        for size in (sizes if (threads, busy) == (first, 1) else ends)
    ]
    kept = sorted(ranked)[:PROBES_MAX]
    return [
        Probe(threads=threads, busy=busy, batch=size, seconds=seconds, on_gpu=on_gpu)
        for _, (_, busy, size), threads in sorted(kept, key=itemgetter(1))
    ]


def _sizes(smallest: int, batch_max: int) -> list[int]:
    """The batch sizes of a curve, ascending: doublings of the smallest, and the largest.

    Of more than six every second one between the ends.
    """
    sizes = [smallest]
    while 2 * sizes[-1] <= batch_max:
        sizes.append(2 * sizes[-1])
    if sizes[-1] < batch_max:
        sizes.append(batch_max)
    while len(sizes) > _SIZES_MAX:
        sizes = [sizes[0], *sizes[2:-1:2], sizes[-1]]
    return sizes


def _turn(threads: int) -> int:
    """Where a thread count comes: few first, ONNX Runtime's own choice (0) last.

    That is the baseline's, hardly ever the winner's.
    """
    return threads or 1 << 30


def _rank(busy: int, most: int, sizes: Sequence[int], size: int) -> int:
    """How soon a probe is needed; 0 comes first.

    Of each thread count the time of the smallest batch alone, then of the largest; the same with as
    many instances as it has (``most``), between which and one the interference is interpolated; the
    sizes between; and other numbers of instances.
    """
    if busy not in (1, most):
        return 6
    outer = (sizes[0], sizes[-1])
    if size not in outer:
        return 4 if busy == 1 else 5
    return outer.index(size) + (0 if busy == 1 else 2)
