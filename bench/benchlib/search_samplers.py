"""The searches that ``search.py`` compares: each yields once for every configuration it read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.sla import Sla
from analyzer.measure.edge import EdgeGoal, EdgeSearch, RateOutcome
from analyzer.search.designer import Candidate, Designer
from analyzer.search.optuna_samplers import make_sampler
from analyzer.search.optuna_trials import OptunaTrials
from analyzer.search.score import Score, score_of
from analyzer.search.screening import features, groups, preference
from benchlib.climb import hill_climb
from benchlib.search_tables import Table, groups_of

# Standard deviation of what is read, as a share: two searches for one edge differ by so much.
NOISE = 0.015
# Of a load test, as the search chooses them with a short budget, and of a warm-up.
RUN_SECONDS = (0.7, 1.5)
WARM_SECONDS = 0.3
# No limit but the edge's matters where edges are read from a table.
_SLA = Sla(latency_budget_ms=50.0)


@dataclass(slots=True, kw_only=True, eq=False)
class Replay:
    """One search in progress."""

    table: Table
    rng: np.random.Generator
    read: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    designer: Designer | None = None

    def measure(self, config_id: str, start_rps: float | None, *, trusted: bool = False) -> float:
        """Reads a configuration; counts the load tests that its edge takes."""
        value = self.table.true[config_id] * float(np.exp(self.rng.normal(0.0, NOISE)))
        self.seconds += WARM_SECONDS + _edge_seconds(
            value, start_rps or 0.8 * self.table.saturation[config_id], trusted
        )
        self.read[config_id] = value
        return value

    @property
    def recommended(self) -> str | None:
        known = {config_id: value for config_id, value in self.read.items() if value > 0}
        return max(known, key=lambda config_id: known[config_id]) if known else None


def _edge_seconds(edge_rps: float, start_rps: float, trusted: bool) -> float:
    """Seconds under load until the edge search has pinned ``edge_rps``, at most 4."""
    search = EdgeSearch(
        EdgeGoal(
            budget_ms=1.0,
            miss_rate_max=0.01,
            start_rps=start_rps,
            step=1.07 if trusted else 1.2,
            precision=1.04,
            floor_rps=20 / RUN_SECONDS[1],
        )
    )
    spent = 0.0
    while (rate := search.next_rate_rps()) is not None and spent < 4.0:
        kept = rate <= edge_rps
        # A hopeless rate is given up half way.
        aborted = rate > 1.1 * edge_rps
        spent += float(np.clip(500 / rate, *RUN_SECONDS)) * (0.5 if aborted else 1.0)
        search.record(
            RateOutcome(
                rate_rps=rate,
                requests=1000,
                over_budget=0 if kept else 100,
                latency_ms=None,
                aborted=aborted,
            )
        )
    return spent


Ids = Iterator[str]
Sampler = Callable[[Replay, int], Ids]


def _score(configuration: Configuration, value: float) -> Score:
    edge = Edge(rate_rps=value or None, interval_rps=(value, value))
    return score_of(Measurement(configuration=configuration, edge=edge), _SLA)


def twin(replay: Replay, seed: int) -> Ids:
    """The search's own, as `--sampler twin`."""
    table = replay.table
    candidates = table.space.candidates()
    sla = Sla(latency_budget_ms=table.budget_ms) if table.budget_ms else None
    designer = Designer(
        [
            Candidate(
                config_id=config_id,
                features=features(configuration),
                groups=groups(configuration),
                preference=preference(configuration, sla) if sla is not None else 0.0,
                predicted=table.predicted[config_id],
            )
            for config_id, (configuration, _) in candidates.items()
        ],
        seed=seed,
    )
    replay.designer = designer
    while (config_id := designer.suggest()) is not None:
        trusted = designer.compared >= 2 and designer.trusted
        value = replay.measure(config_id, designer.corrected(config_id), trusted=trusted)
        score = _score(candidates[config_id][0], value)
        designer.update(config_id, score.value, feasible=score.feasible, exact=score.exact)
        yield "stop" if designer.finished(0.95) else ""


def known_components(replay: Replay, seed: int) -> Ids:
    """Expected improvement where the covariance of the errors is known: what is attainable."""
    table, variances = replay.table, replay.table.error_variances
    if not variances:
        return
    candidates = table.space.candidates()
    ids = list(table.predicted)
    shared = [groups_of(candidates[key][0]) for key in ids]
    covariance = np.zeros((len(ids), len(ids)))
    for part, variance in variances.items():
        numbers = {group: n for n, group in enumerate({each[part] for each in shared})}
        of = np.array([numbers[each[part]] for each in shared])
        covariance += variance * (of[:, None] == of)
    predicted = np.log([table.predicted[key] for key in ids])
    read: list[int] = []
    while len(read) < len(ids):
        value = predicted.copy()
        if read:
            known = covariance[np.ix_(read, read)] + NOISE**2 * np.eye(len(read))
            weights = np.linalg.solve(known, covariance[read])
            errors = np.log([replay.read[ids[i]] for i in read]) - predicted[read]
            expected = predicted + errors @ weights
            left = np.diag(covariance) - np.sum(covariance[read] * weights, axis=0)
            scale = np.sqrt(np.maximum(left, 1e-12))
            value = np.log(scale) + _log_improvement((expected - expected[read].max()) / scale)
            value[read] = -np.inf
        chosen = int(np.argmax(value))
        read.append(chosen)
        replay.measure(ids[chosen], table.predicted[ids[chosen]] or None)
        yield ""


def _log_improvement(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithm of the expectation of max(x, 0) for x normal with mean ``z`` and variance 1.

    Source: Jones, Schonlau and Welch, Efficient Global Optimization (1998).
    """
    density = -0.5 * z**2 - 0.5 * np.log(2.0 * np.pi)
    # density + z * probability, the second as a share of the first, so that far below both remain.
    share = np.maximum(1.0 + z * np.exp(log_ndtr(z) - density), 1e-12)
    found: NDArray[np.float64] = density + np.log(share)
    return found


def optuna_sampler(name: str, *, feasible_first: bool = False) -> Sampler:
    """One of Optuna's, as the study runs it."""

    def run(replay: Replay, seed: int) -> Ids:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        table, rng = replay.table, np.random.default_rng(seed)
        candidates = table.space.candidates()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = make_sampler(
                name,  # type: ignore[arg-type]
                seed=seed,
                space=table.space,
                parallel=False,
                designer=Designer([]),
            )
            study = optuna.create_study(direction="maximize", sampler=sampler)
            trials = OptunaTrials(study, table.space, frozenset(candidates))
            done: dict[str, Score] = {}
            while True:
                if feasible_first and not any(value > 0 for value in replay.read.values()):
                    unread = sorted(candidates.keys() - done.keys())
                    study.enqueue_trial(candidates[str(rng.choice(unread))][1])
                proposal = trials.ask(done, frozenset())
                if proposal is None:
                    return
                config_id = proposal.configuration.config_id
                value = replay.measure(config_id, None)
                done[config_id] = _score(proposal.configuration, value)
                trials.tell(proposal.trial_number, done[config_id])
                yield ""

    return run


def twin_best_k(replay: Replay, seed: int) -> Ids:
    """The twin's best, the second best and so on; nothing is learned."""
    table = replay.table
    for config_id in sorted(table.predicted, key=lambda key: -table.predicted[key]):
        replay.measure(config_id, table.predicted[config_id] or None)
        yield ""


def quick_search(replay: Replay, seed: int) -> Ids:
    """Model Analyzer's quick search."""
    settings, candidates = replay.table.space.parameters, replay.table.space.candidates()
    ids = list(candidates)
    axes = [
        [s.choices.index(params[s.name]) if s.name in params else 0 for s in settings]
        for _, params in candidates.values()
    ]
    rng = np.random.default_rng(seed)
    for index in hill_climb(np.array(axes), lambda row: replay.read[ids[row]], rng):
        replay.measure(ids[index], None)
        yield ""


SAMPLERS: dict[str, Sampler] = {
    "twin": twin,
    "twin_best_k": twin_best_k,
    "known_components": known_components,
    "random": optuna_sampler("random"),
    "tpe": optuna_sampler("tpe"),
    "feasible_first_tpe": optuna_sampler("tpe", feasible_first=True),
    "nsga2": optuna_sampler("nsga2"),
    "gp": optuna_sampler("gp"),
    "hillclimb": quick_search,
}
