"""``--sampler grid``: every combination once, in random order."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.samplers import BruteForceSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState


class ExhaustiveSampler(BruteForceSampler):
    """Optuna's brute force, which knows conditional parameters, for ask and tell.

    Optuna's own ends the study when the space is used up, which only ``study.optimize`` allows;
    :class:`~analyzer.search.proposals.Proposals` notices that by itself.
    """

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Nothing: the next proposal reads the study anew."""
