"""The samplers that ``replay.py`` compares: each yields rows of a recorded table to read.

A sampler is a generator: it yields the index of a row, and is resumed once that row was read. It
sees a row's configuration and load beforehand, its figures only after. Yielding a row that was
read already costs nothing and teaches nothing, as no study measures a configuration twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.search.designer import Candidate, Designer
from analyzer.search.residual import ResidualModel
from benchlib import closed_loop as twin
from benchlib.climb import hill_climb
from benchlib.recorded import Landscape

# Repeated proposals of an Optuna sampler before a random unread row breaks the circle.
_REPEATS_MAX = 30
_CALIBRATION_ROWS = 4
_BEST_K_CALIBRATION_ROWS = 8


@dataclass(slots=True, kw_only=True, eq=False)
class Replay:
    """A table that is being searched.

    Args:
        table: One row per configuration and load.
        budget_ms: Latency budget at the table's percentile.
        read: Rows read, in order.
    """

    table: Landscape
    budget_ms: float
    read: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.table.points)

    def feasible(self, index: int) -> bool:
        """Whether a row that was read keeps the budget."""
        return bool(self.table.latency_ms_sla[index] <= self.budget_ms)

    def violation(self, index: int) -> float:
        """By how much a row exceeds the budget, as a share; at most 0 if it does not."""
        return float(self.table.latency_ms_sla[index] / self.budget_ms - 1.0)

    def unread(self) -> NDArray[np.int64]:
        """Rows that were not read."""
        free = np.ones(len(self), dtype=bool)
        free[self.read] = False
        return np.flatnonzero(free)


Rows = Iterator[int]
Sampler = Callable[[Replay, int], Rows]


def random_rows(replay: Replay, seed: int) -> Rows:
    """All rows in a random order."""
    yield from (int(i) for i in np.random.default_rng(seed).permutation(len(replay)))


def grid_rows(replay: Replay, seed: int) -> Rows:
    """A coarse grid of the table in its own order, then ever finer ones between its rows."""
    start = int(np.random.default_rng(seed).integers(len(replay)))
    bits = max(len(replay) - 1, 1).bit_length()
    for step in range(2**bits):
        # The bits of 0, 1, 2 … reversed: 0, 1/2, 1/4, 3/4, 1/8 … of the table.
        position = int(f"{step:0{bits}b}"[::-1], 2)
        if position < len(replay):
            yield (start + position) % len(replay)


def sobol_rows(replay: Replay, seed: int) -> Rows:
    """The unread row nearest to each point of a scrambled Sobol sequence."""
    from scipy.stats import qmc

    axes = _axes(replay)
    levels = np.maximum(axes.max(axis=0), 1)
    sequence = qmc.Sobol(axes.shape[1], seed=seed)
    while len(unread := replay.unread()):
        # Sobol's points come in powers of two; one is drawn after the other here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            point = sequence.random(1)[0]
        yield int(unread[np.argmin(np.sum((axes[unread] / levels - point) ** 2, axis=1))])


def hill_climb_rows(replay: Replay, seed: int) -> Rows:
    """Model Analyzer's quick search."""
    yield from hill_climb(_axes(replay), partial(_rank, replay), np.random.default_rng(seed))


def _rank(replay: Replay, index: int) -> tuple[bool, float]:
    if replay.feasible(index):
        return True, float(replay.table.throughput_ips[index])
    return False, -replay.violation(index)


def optuna_rows(
    replay: Replay, seed: int, *, kind: str, constrained: bool, feasible_first: bool = False
) -> Rows:
    """A sampler of Optuna's on the table's axes, each an ordinal number.

    Args:
        kind: ``tpe``, ``nsga2`` or ``gp``.
        constrained: The budget is told as a constraint; otherwise throughput alone counts.
        feasible_first: Random rows until one is feasible; infeasible ones then count as nothing.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rng = np.random.default_rng(seed)
    axes = _axes(replay)
    names = [f"axis_{number}" for number in range(axes.shape[1])]
    rows = {tuple(int(v) for v in axis): index for index, axis in enumerate(axes)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler: optuna.samplers.BaseSampler
        if kind == "gp":
            sampler = optuna.samplers.GPSampler(seed=seed, deterministic_objective=False)
        elif kind == "nsga2":
            sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=10)
        else:
            sampler = optuna.samplers.TPESampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        space: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.IntDistribution(0, int(top))
            for name, top in zip(names, axes.max(axis=0), strict=True)
        }
        searching = not feasible_first
        while len(unread := replay.unread()):
            trial, index = None, None
            if searching:
                for _ in range(_REPEATS_MAX):
                    trial = study.ask(space)
                    index = rows.get(tuple(trial.params[name] for name in names))
                    if index is not None and index not in replay.read:
                        break
                    _tell(replay, study, trial, index, constrained, feasible_first)
                    index = None
            if index is None:
                index = int(rng.choice(unread))
                values = dict(zip(names, (int(v) for v in axes[index]), strict=True))
                study.enqueue_trial(values)
                trial = study.ask(space)
            yield index
            assert trial is not None
            _tell(replay, study, trial, index, constrained, feasible_first)
            searching = searching or replay.feasible(index)


def _tell(
    replay: Replay,
    study: Any,
    trial: Any,
    index: int | None,
    constrained: bool,
    feasible_first: bool,
) -> None:
    if index is None:  # the table has no such row
        if constrained:
            trial.set_constraint("latency", 10.0)
        study.tell(trial, 0.0)
        return
    value = float(replay.table.throughput_ips[index])
    if constrained:
        trial.set_constraint("latency", replay.violation(index))
    if feasible_first and not replay.feasible(index):
        value = 0.0
    study.tell(trial, value)


def twin_rows(replay: Replay, seed: int) -> Rows:
    """The designer on a closed-loop twin that is fitted to the rows read so far."""
    table, rng = replay.table, np.random.default_rng(seed)
    features = twin.features(table.points)
    fitted = None
    yield from twin.informative(table.points, _CALIBRATION_ROWS, rng)
    while len(replay.read) < len(replay):
        fitted = twin.fit(
            [table.points[i] for i in replay.read],
            table.throughput_ips[replay.read],
            start=fitted,
        )
        chosen = _designer(replay, fitted, features, seed).suggest()
        yield int(chosen) if chosen is not None else int(rng.choice(replay.unread()))


def twin_best_k_rows(replay: Replay, seed: int) -> Rows:
    """The trivial use of a twin: calibrate it once, then confirm its best, one after the other."""
    table, rng = replay.table, np.random.default_rng(seed)
    yield from twin.informative(table.points, _BEST_K_CALIBRATION_ROWS, rng)
    read = list(replay.read)
    fitted = twin.fit([table.points[i] for i in read], table.throughput_ips[read])
    throughput = fitted.throughput_ips(table.points)
    tail = np.median(table.latency_ms_sla[read] / table.latency_ms_mean[read])
    late = fitted.latency_s_mean(table.points) * 1e3 * tail > replay.budget_ms
    # Ties between replicates are broken by chance.
    order = np.lexsort((rng.random(len(replay)), -throughput, late))
    yield from (int(index) for index in order)


def _designer(
    replay: Replay, fitted: twin.ClosedLoopTwin, features: NDArray[np.float64], seed: int
) -> Designer:
    """A designer that knows what the twin expects of every row, how likely it keeps the budget,
    and what the rows read so far turned out to be.
    """
    from scipy.special import ndtr

    table, read = replay.table, replay.read
    throughput = fitted.throughput_ips(table.points)
    mean_ms = fitted.latency_s_mean(table.points) * 1e3
    tail = np.median(np.log(table.latency_ms_sla[read] / table.latency_ms_mean[read]))
    model = ResidualModel(features, scale_prior=0.2, local=(0.4,))
    everything = np.arange(len(replay))
    expected = np.log(mean_ms) + tail
    model.learn(np.array(read), np.log(table.latency_ms_sla[read]) - expected[read])
    offset, scale = model.predict(everything)
    margin = (np.log(replay.budget_ms) - expected - offset) / scale
    chance = np.maximum(ndtr(margin), 1e-6)
    designer = Designer(
        [
            Candidate(
                config_id=str(index),
                features=features[index],
                predicted=float(throughput[index]),
                feasible_prior=float(chance[index]),
            )
            for index in everything
        ],
        scale_prior=0.15,
        refitted=True,
        learn_limits=False,
        seed=seed,
    )
    for index in read:
        value = float(table.throughput_ips[index])
        designer.update(str(index), value, feasible=replay.feasible(index))
    return designer


def _axes(replay: Replay) -> NDArray[np.int64]:
    """Ordinal coordinates of every row along the settings that vary, shape (n, d)."""
    points = replay.table.points
    columns: list[list[Any]] = [
        [p.group for p in points],
        [p.instances for p in points],
        [p.dynamic_batching for p in points],
        [p.max_batch_size for p in points],
        [p.request_batch_size for p in points],
        [p.concurrency for p in points],
    ]
    axes = [np.unique(column, return_inverse=True)[1] for column in columns]
    varying = [axis for axis in axes if axis.max() > 0]
    return np.stack(varying or axes[:1], axis=1).astype(np.int64)


SAMPLERS: tuple[tuple[str, Sampler], ...] = (
    ("twin", twin_rows),
    ("random", random_rows),
    ("sobol", sobol_rows),
    ("grid", grid_rows),
    ("hillclimb", hill_climb_rows),
    ("tpe_scalar", partial(optuna_rows, kind="tpe", constrained=False)),
    ("tpe", partial(optuna_rows, kind="tpe", constrained=True)),
    ("nsga2", partial(optuna_rows, kind="nsga2", constrained=True)),
    ("gp", partial(optuna_rows, kind="gp", constrained=True)),
    (
        "feasible_first_tpe",
        partial(optuna_rows, kind="tpe", constrained=False, feasible_first=True),
    ),
    ("twin_best_k", twin_best_k_rows),
)
# Equal names would hide one another in the results.
assert all(a[0] != b[0] for a, b in pairwise(sorted(SAMPLERS, key=lambda pair: pair[0])))
