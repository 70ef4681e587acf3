"""``--sampler twin`` in Optuna's own interface: the guided search, or TPE in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalChoiceType, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from analyzer.search.guided import GuidedSearch

_Key = tuple[tuple[str, str], ...]


class TwinSampler(BaseSampler):
    """Proposes the guided search's candidates; learns from the study's trials, told or resumed.

    Every finished trial of the study counts: one whose constraints are all kept with its value,
    any other as infeasible. Running ones are pending. A study that minimises is not supported, as
    every objective of ours is maximised.

    Args:
        search: The candidates and what is known of them.
        params: Of each candidate, by ``config_id``: every parameter that the trial will suggest,
            inactive conditional ones left out.
        choices: Every categorical parameter with its choices in the order in which the trial
            suggests them.
        seed: Of the fallback.
    """

    def __init__(
        self,
        search: GuidedSearch,
        *,
        params: Mapping[str, Mapping[str, CategoricalChoiceType]],
        choices: Mapping[str, Sequence[CategoricalChoiceType]],
        seed: int,
    ) -> None:
        self.search = search
        self._params = {config_id: dict(values) for config_id, values in params.items()}
        self._ids: dict[_Key, str] = {_key(v): config_id for config_id, v in self._params.items()}
        self._space: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(tuple(values)) for name, values in choices.items()
        }
        self._fallback = TPESampler(seed=seed, n_startup_trials=5, constant_liar=True)
        self._chosen: dict[int, str] = {}
        self._heard: set[int] = set()
        self.fell_back = False

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The whole space while the twin leads, TPE's otherwise."""
        self._listen(study)
        # A trial counts as running from its creation, and shows its parameters as they are
        # suggested; what was chosen for those without any yet is remembered here.
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        alive = {other.number for other in running if other.number != trial.number}
        self._chosen = {n: chosen for n, chosen in self._chosen.items() if n in alive}
        pending = set(self._chosen.values())
        pending.update(
            found
            for other in running
            if other.number in alive and (found := self._ids.get(_key(other.params))) is not None
        )
        chosen = self.search.ask(pending) if self.search.trusted else None
        if chosen is None or chosen not in self._params:
            self.fell_back = self.fell_back or not self.search.trusted
            return self._fallback.infer_relative_search_space(study, trial)
        self._chosen[trial.number] = chosen
        return dict(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The chosen candidate's parameters, all of them at once."""
        chosen = self._chosen.get(trial.number)
        if chosen is None:
            return self._fallback.sample_relative(study, trial, search_space)
        return dict(self._params[chosen])

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """TPE's choice, for a parameter that the candidate does not name."""
        return self._fallback.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Passes the event on to TPE."""
        self._fallback.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Passes the event on to TPE; the outcome is read from the study at the next proposal."""
        self._fallback.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Reseeds TPE; the guided search draws nothing."""
        self._fallback.reseed_rng()

    def _listen(self, study: Study) -> None:
        """Tells the search every finished trial that it has not heard of."""
        for trial in study.get_trials(deepcopy=False):
            if trial.number in self._heard or not trial.state.is_finished():
                continue
            self._heard.add(trial.number)
            config_id = self._ids.get(_key(trial.params))
            # A trial that was abandoned (Optuna's FAIL) says nothing of its configuration.
            if config_id is not None and trial.state == TrialState.COMPLETE:
                self.search.tell(config_id, positive_value(trial))


def positive_value(trial: FrozenTrial) -> float | None:
    """The trial's objective on the guided search's scale; None if a constraint is broken.

    A negative value is minus a latency or a memory: its reciprocal keeps the order and the ratios.
    """
    if any(violation > 0 for violation in trial.constraints.values()):
        return None
    value = trial.value
    if value is None or value == 0:
        return None
    return value if value > 0 else -1.0 / value


def _key(params: Mapping[str, Any]) -> _Key:
    return tuple(sorted((name, repr(value)) for name, value in params.items()))
