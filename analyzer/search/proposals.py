"""The Optuna study: who proposes configurations, and what it is told about them."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analyzer.domain import answer
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.space import Params, SearchSpace
from analyzer.errors import MissingPartError
from analyzer.search.guide import Guide
from analyzer.search.request import SamplerName

if TYPE_CHECKING:
    import optuna

# Proposals of configurations that are measured already, in a row, before a sampler is held to be
# going in circles.
_REPEATS_MAX = 200
# The constraints of a trial that cannot be measured, or failed.
_UNUSABLE = {"works": 1.0, "sla": 0.0, "memory": 0.0, "accuracy": 0.0}
_WORST = -1e12
# The one parameter of a space that lists its configurations.
_LISTED = "configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A configuration to measure, and the trial that proposed it."""

    trial_number: int
    configuration: Configuration
    params: Params


def make_sampler(
    name: SamplerName, *, seed: int, space: SearchSpace, parallel: bool, guide: Guide
) -> optuna.samplers.BaseSampler:
    """Optuna's own sampler of that name.

    Raises:
        MissingPartError: ``gp`` without PyTorch.
    """
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "twin":
            if guide.search is None:
                return optuna.samplers.RandomSampler(seed=seed)
            from analyzer.search.twin_sampler import TwinSampler

            return TwinSampler(
                guide.search, params=_params(space), choices=_choices(space), seed=seed
            )
        if name == "tpe":
            return optuna.samplers.TPESampler(
                seed=seed,
                n_startup_trials=min(10, max(4, len(space.candidates()) // 10)),
                constant_liar=parallel,
            )
        if name == "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed, population_size=10)
        if name == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        if name == "grid":
            from analyzer.search.exhaustive import ExhaustiveSampler

            return ExhaustiveSampler(seed=seed)
        assert name == "gp", name
        try:
            importlib.import_module("torch")
        except ImportError as error:
            raise MissingPartError(
                "--sampler gp needs PyTorch, which is not installed.",
                hint="Install the extra: pip install 'tritune[gp]'; or use --sampler twin.",
            ) from error
        return optuna.samplers.GPSampler(seed=seed, deterministic_objective=False)


def _params(space: SearchSpace) -> dict[str, Mapping[str, Any]]:
    """What a trial suggests for each candidate, by ``config_id``."""
    if not space.listed:
        return {config_id: params for config_id, (_, params) in space.candidates().items()}
    return {config_id: {_LISTED: label} for config_id, label in space.labels().items()}


def _choices(space: SearchSpace) -> dict[str, tuple[Any, ...]]:
    """The parameters that trials suggest, in their order."""
    if not space.listed:
        return {parameter.name: parameter.choices for parameter in space.parameters}
    return {_LISTED: tuple(fixed.label for fixed in space.listed)}


class Proposals:
    """One Optuna study in the same database as our own tables.

    Args:
        study: The Optuna study; its direction is to maximise :func:`objective_value`.
        space: What may be proposed.
        allowed: Ids of the configurations that may be measured (its variant exists and keeps the
            accuracy limit).
    """

    def __init__(
        self, study: optuna.Study, space: SearchSpace, sla: Sla, allowed: frozenset[str]
    ) -> None:
        self._study = study
        self._space = space
        self._sla = sla
        self._allowed = allowed
        self._open: dict[int, optuna.Trial] = {}

    def ask(
        self, done: Mapping[str, Measurement | Failure], pending: frozenset[str]
    ) -> Proposal | None:
        """A configuration that is neither measured nor being measured.

        One that is measured already is told again from what is known, and never measured twice.

        Returns:
            None when the sampler finds nothing new: the space is used up or it goes in circles.
        """
        if self._allowed <= done.keys() | pending:
            return None
        for _ in range(_REPEATS_MAX):
            trial = self._study.ask()
            params = self._suggest(trial)
            configuration = self._space.configuration(params)
            if configuration is None or configuration.config_id not in self._allowed:
                self._tell_unusable(trial)
                continue
            config_id = configuration.config_id
            if config_id in done:
                self._open[trial.number] = trial
                self.tell(trial.number, done[config_id])
                continue
            if config_id in pending:
                self._tell_unusable(trial)
                continue
            self._open[trial.number] = trial
            return Proposal(trial_number=trial.number, configuration=configuration, params=params)
        return None

    def _suggest(self, trial: optuna.Trial) -> Params:
        if self._space.listed:
            labels = _choices(self._space)[_LISTED]
            label = trial.suggest_categorical(_LISTED, labels)
            return dict(self._space.listed[labels.index(label)].params)
        params: Params = {}
        for parameter in self._space.parameters:
            if parameter.active(params):
                value: Any = trial.suggest_categorical(parameter.name, parameter.choices)
                params[parameter.name] = value
        return params

    def tell(self, trial_number: int, outcome: Measurement | Failure) -> None:
        """Tells what a proposed configuration turned out to be.

        A failure is told with the worst value and its constraint broken, so that it teaches the
        sampler too.
        """
        trial = self._open.pop(trial_number, None)
        if trial is None:
            return
        for name, value in constraints(outcome, self._sla).items():
            trial.set_constraint(name, value)
        self._study.tell(trial, objective_value(outcome, self._sla), skip_if_finished=True)

    def reconcile(self, known: Mapping[int, Measurement | Failure]) -> None:
        """Brings Optuna's trials up to date with what was stored before an interruption.

        Of the trials that still run there, those whose outcome is stored are told it; nobody will
        ever finish the others: they are abandoned, so that their configurations can be proposed.
        """
        import optuna

        running = (optuna.trial.TrialState.RUNNING,)
        for frozen in self._study.get_trials(deepcopy=False, states=running):
            self._open[frozen.number] = optuna.Trial(self._study, frozen._trial_id)
            if frozen.number in known:
                self.tell(frozen.number, known[frozen.number])
        self.abandon()

    def _tell_unusable(self, trial: optuna.Trial) -> None:
        for name, value in _UNUSABLE.items():
            trial.set_constraint(name, value)
        self._study.tell(trial, 0.0)

    def abandon(self) -> None:
        """Ends what is still open (the search stops); such trials teach nothing."""
        import optuna

        for trial in self._open.values():
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
        self._open.clear()


def objective_value(outcome: Measurement | Failure, sla: Sla) -> float:
    """What Optuna maximises: the edge, or minus the latency or memory at the target rate.

    A failure and a configuration that never keeps the SLA have the worst value.
    """
    if sla.objective in ("capacity", "cost"):
        return (outcome.edge.rate_rps or 0.0) if isinstance(outcome, Measurement) else 0.0
    value = answer.objective_value(outcome, sla) if isinstance(outcome, Measurement) else None
    return -value if value is not None else _WORST


def constraints(outcome: Measurement | Failure, sla: Sla) -> dict[str, float]:
    """Optuna's constraints by name; at most 0 is feasible.

    Every trial has the same ones (Optuna's GP asks for that): what has no limit, or was not
    measured, is 0.
    """
    if isinstance(outcome, Failure):
        return dict(_UNUSABLE)
    found = dict.fromkeys(_UNUSABLE, 0.0) | {"sla": -1.0 if outcome.edge.rate_rps else 1.0}
    headline = outcome.headline
    if sla.objective not in ("capacity", "cost"):
        if headline is None or headline.over_budget is None or not headline.requests:
            found["sla"] = 1.0
        else:
            found["sla"] = headline.over_budget / headline.requests - sla.miss_rate_max
    memory_bytes = answer.memory_bytes(outcome)
    if sla.max_memory_bytes is not None and memory_bytes is not None:
        found["memory"] = memory_bytes / sla.max_memory_bytes - 1.0
    drop = answer.accuracy_drop_worst(outcome)
    if drop is not None:
        found["accuracy"] = drop - sla.max_accuracy_drop
    return found


def guided_value(outcome: Measurement | Failure, sla: Sla) -> float | None:
    """The objective on the guided search's scale: positive, larger is better; None if it fails.

    Minus a latency or a memory becomes its reciprocal, which keeps order and ratios.
    """
    value = objective_value(outcome, sla)
    if value == 0 or value <= _WORST or not feasible(outcome, sla):
        return None
    return value if value > 0 else -1.0 / value


def feasible(outcome: Measurement | Failure, sla: Sla) -> bool:
    """Whether an outcome keeps every limit, as far as it was measured."""
    return all(value <= 0 for value in constraints(outcome, sla).values())
