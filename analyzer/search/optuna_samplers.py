"""The samplers behind ``--sampler``: Optuna's own, and the designer in Optuna's interface."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, BruteForceSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from analyzer.domain.space import Choice, Params, SearchSpace
from analyzer.search.designer import Designer
from analyzer.search.samplers import SamplerName, require_sampler

# The one parameter of a space that lists its configurations.
LISTED = "configuration"
# Trials drawn at random before TPE's model leads: a tenth of the space within these limits.
_TPE_STARTUP = (4, 10)
# The same where TPE takes over from a twin that is not trusted: so much was measured by then.
_TPE_STARTUP_AFTER_TWIN = 5
_NSGA2_POPULATION = 10  # a few generations of a search's tens of trials; Optuna's default is 50

_Key = tuple[tuple[str, str], ...]


def make_sampler(
    name: SamplerName, *, seed: int, space: SearchSpace, parallel: bool, designer: Designer
) -> BaseSampler:
    """The sampler of that name.

    Args:
        parallel: Whether several trials run at the same time.
        designer: What ``twin`` proposes; the others do without it.

    Raises:
        MissingPartError: ``gp`` without PyTorch.
    """
    require_sampler(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "twin":
            return TwinSampler(
                designer, params=suggested_params(space), choices=choices(space), seed=seed
            )
        if name == "tpe":
            fewest, most = _TPE_STARTUP
            startup = min(most, max(fewest, len(space.candidates()) // 10))
            return TPESampler(seed=seed, n_startup_trials=startup, constant_liar=parallel)
        if name == "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed, population_size=_NSGA2_POPULATION)
        if name == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        if name == "grid":
            return ExhaustiveSampler(seed=seed)
        assert name == "gp", name
        return optuna.samplers.GPSampler(seed=seed, deterministic_objective=False)


def suggested_params(space: SearchSpace) -> dict[str, Params]:
    """What a trial suggests for each candidate, by ``config_id``."""
    if space.listed:
        return {config_id: {LISTED: label} for config_id, label in space.labels().items()}
    return {config_id: params for config_id, (_, params) in space.candidates().items()}


def choices(space: SearchSpace) -> dict[str, tuple[Choice, ...]]:
    """The parameters that trials suggest, in their order, with their values."""
    if space.listed:
        return {LISTED: tuple(listed.label for listed in space.listed)}
    return {parameter.name: parameter.choices for parameter in space.parameters}


class TwinSampler(BaseSampler):
    """Proposes what the designer suggests; what TPE does where that does not lead.

    It reads from the study which trials run. The designer is updated by whoever tells the study.

    Args:
        params: Of each candidate, by ``config_id``: every parameter that the trial will suggest,
            inactive conditional ones left out.
        choices: Every categorical parameter with its choices in the order in which the trial
            suggests them.
        seed: Of TPE.
    """

    def __init__(
        self,
        designer: Designer,
        *,
        params: Mapping[str, Mapping[str, Choice]],
        choices: Mapping[str, Sequence[Choice]],
        seed: int,
    ) -> None:
        self._designer = designer
        self._params = params
        self._ids = {_key(values): config_id for config_id, values in params.items()}
        self._space: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(tuple(values)) for name, values in choices.items()
        }
        self._tpe = TPESampler(
            seed=seed, n_startup_trials=_TPE_STARTUP_AFTER_TWIN, constant_liar=True
        )
        self._running: dict[int, str] = {}

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The whole space while the twin leads, TPE's otherwise."""
        # A trial runs from its creation, and has its parameters only when they were suggested;
        # until then what was chosen for it is known here alone.
        others = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        self._running = {
            other.number: self._running.get(other.number) or self._ids.get(_key(other.params), "")
            for other in others
            if other.number != trial.number
        }
        chosen = None
        if self._designer.leads:
            chosen = self._designer.suggest(self._running.values())
        if chosen is None:
            return self._tpe.infer_relative_search_space(study, trial)
        self._running[trial.number] = chosen
        return dict(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The chosen candidate's parameters, all of them at once."""
        chosen = self._running.get(trial.number)
        if chosen is None:
            return self._tpe.sample_relative(study, trial, search_space)
        return dict(self._params[chosen])

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """TPE's choice, for a parameter that the candidate does not name."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Passes the event on to TPE."""
        self._tpe.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Passes the event on to TPE."""
        self._tpe.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Reseeds TPE; the designer's draws have a seed of their own."""
        self._tpe.reseed_rng()


class ExhaustiveSampler(BruteForceSampler):
    """Every combination once, in random order: Optuna's brute force for ask and tell.

    Optuna's own ends the study when the space is used up, which only ``study.optimize`` allows;
    :class:`~analyzer.search.optuna_trials.OptunaTrials` notices that by itself.
    """

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Nothing: the next proposal reads the study anew."""


def _key(params: Mapping[str, Any]) -> _Key:
    return tuple(sorted((name, repr(value)) for name, value in params.items()))
