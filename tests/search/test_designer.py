from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from analyzer.search.bound import Bound
from analyzer.search.designer import Candidate, Designer

Floats = NDArray[np.float64]


def space(seed: int, error: float, *, doubled: bool = False) -> tuple[list[Candidate], Floats]:
    """Candidates of a made-up server with a true edge that the prediction misses smoothly."""
    rng = np.random.default_rng(seed)
    features = np.array(
        [
            [np.log2(instances), np.log2(batch), np.log2(threads), quant]
            for instances in (1, 2, 3, 4)
            for batch in (1, 2, 4, 8, 16)
            for threads in (1, 2, 4)
            for quant in (0, 1)
        ],
        dtype=np.float64,
    )
    slope = rng.normal(size=4) * [0.1, 0.25, 0.1, 0.3]
    bend = rng.normal(size=4) * 0.08
    truth = 100 * np.exp(features @ slope + features**2 @ bend)
    miss = error * np.sin(features @ rng.normal(size=4) + rng.uniform(0, 6))
    miss += 0.3 * error * rng.normal(size=len(truth))
    predicted = truth * np.exp(miss) / (2.0 if doubled else 1.0)
    candidates = [
        Candidate(config_id=f"c{i}", features=features[i], predicted=float(predicted[i]))
        for i in range(len(truth))
    ]
    return candidates, truth


def evaluations_to(
    share: float, candidates: list[Candidate], truth: Floats, noise: float = 0.01
) -> int:
    designer = Designer(candidates)
    rng = np.random.default_rng(0)
    for count in range(1, len(candidates) + 1):
        chosen = designer.suggest()
        assert chosen is not None
        index = int(chosen[1:])
        if truth[index] >= share * truth.max():
            return count
        designer.update(chosen, float(truth[index] * np.exp(noise * rng.normal())))
    raise AssertionError("the best was never proposed")


@pytest.mark.parametrize(("error", "median_max"), [(0.05, 3), (0.15, 7)])
def test_few_evaluations_find_the_best(error: float, median_max: int) -> None:
    counts = [evaluations_to(0.99, *space(seed, error)) for seed in range(20)]
    assert np.median(counts) <= median_max, counts
    assert np.quantile(counts, 0.9) <= 15, counts


def test_a_common_bias_is_learned_away_and_stays_trusted() -> None:
    candidates, truth = space(3, 0.05, doubled=True)
    designer = Designer(candidates)
    for _ in range(5):
        chosen = designer.suggest()
        assert chosen is not None
        designer.update(chosen, float(truth[int(chosen[1:])]))
    best = designer.best
    assert best is not None and best[1] >= 0.97 * truth.max()
    free = designer.suggest()
    assert free is not None
    assert designer.corrected(free) == pytest.approx(truth[int(free[1:])], rel=0.3)


def test_a_twin_that_orders_wrongly_is_distrusted_and_gives_no_bound() -> None:
    candidates, truth = space(1, 0.05)
    inverted = [
        Candidate(config_id=c.config_id, features=c.features, predicted=1e4 / (c.predicted or 1.0))
        for c in candidates
    ]
    designer = Designer(inverted)
    assert designer.trusted
    rng = np.random.default_rng(0)
    for index in rng.choice(len(truth), 6, replace=False):
        designer.update(f"c{index}", float(truth[index]))
    assert not designer.trusted
    assert "orders them wrongly" in designer.trust_reason
    assert designer.bound() is None


@pytest.mark.parametrize(("fraction", "told"), [(0.768, "77 %"), (0.1, "10 %"), (0.042, "4.2 %")])
def test_a_bound_is_told_in_whole_per_cent_from_ten_on(fraction: float, told: str) -> None:
    bound = Bound(fraction=fraction, confidence=0.95, covered=3, space=3)
    assert str(bound) == (
        f"no configuration of the 3 in the space is better by more than {told} (confidence 0.95)"
    )


def test_a_bound_that_excludes_nothing_claims_nothing() -> None:
    """``no configuration … is better by more than 357 %`` did."""
    text = str(Bound(fraction=3.57, confidence=0.95, covered=3, space=3))
    assert "%" not in text and "too little is known of the 3 configurations" in text


def test_a_bound_of_one_is_told_of_one() -> None:
    one = Bound(fraction=0.2, confidence=0.95, covered=1, space=2)
    assert str(one).startswith("of the 1 configuration with a prediction")
    assert "; 1 of 2 has neither" in str(one) and "3 of 4 have" in str(replace(one, space=4))
    assert "of the 1 configuration that was built" in str(replace(one, space=1, unbuilt=2))
    assert "of the 1 configuration in" in str(replace(one, fraction=3.0, space=1))


def test_bound_covers_the_truth_and_shrinks() -> None:
    covered = 0
    spaces = [space(seed, 0.08) for seed in range(16)]
    for candidates, truth in spaces:
        designer = Designer(candidates)
        first = None
        for count in range(8):
            chosen = designer.suggest()
            assert chosen is not None
            designer.update(chosen, float(truth[int(chosen[1:])]))
            if count == 1:
                first = designer.bound(0.95)
        bound, best = designer.bound(0.95), designer.best
        assert bound is not None and first is not None and best is not None
        assert bound.covered == bound.space == len(candidates)
        covered += truth.max() / best[1] - 1 <= bound.fraction + 1e-12
        assert bound.fraction <= first.fraction
        assert bound.fraction < 0.35
    assert covered >= 15


@pytest.mark.parametrize("measured", [1, 2])
def test_one_or_two_measurements_never_exclude_every_gain(measured: int) -> None:
    """Even where the best was predicted at three times the second."""
    for seed in range(8):
        candidates, _ = space(seed, 0.3)
        best = max(candidates, key=lambda c: c.predicted or 0.0)
        candidates = [replace(c, predicted=0.3 * (c.predicted or 0)) for c in candidates]
        candidates[int(best.config_id[1:])] = best
        designer = Designer(candidates)
        for _ in range(measured):
            chosen = designer.suggest()
            assert chosen is not None
            designer.update(chosen, best.predicted if chosen == best.config_id else 1.0)
        bound = designer.bound()
        assert bound is None or "more than 0.0" not in str(bound)


def test_the_bound_of_a_recommended_baseline_is_that_of_the_best_candidate_over_it() -> None:
    candidates, truth = space(3, 0.1)
    designer = Designer(candidates)
    for _ in range(4):
        chosen = designer.suggest()
        assert chosen is not None
        designer.update(chosen, float(truth[int(chosen[1:])]))
    assert designer.best is not None
    own = designer.bound()
    assert own is not None
    designer.update("baseline", 1.5 * designer.best[1])
    found = designer.bound(recommended="baseline")
    assert found is not None and found.space == own.space
    assert 1.0 + found.fraction == pytest.approx(max((1.0 + own.fraction) / 1.5, 1.01), rel=0.02)
    assert designer.bound(recommended="never measured") is None


def test_a_better_baseline_is_in_the_bound() -> None:
    designer = Designer(few([10.0]))
    designer.update("c0", 10.0)
    assert designer.bound() is not None
    designer.update("baseline", 15.0)
    bound = designer.bound()
    assert bound is not None and bound.fraction == pytest.approx(0.5)


def test_a_bound_is_about_what_is_recommended() -> None:
    designer = Designer(few([10.0, 9.0]))
    designer.update("c0", 10.0)
    designer.update("c1", 8.0)
    bound = designer.bound(recommended="c1")
    assert bound is not None and bound.fraction >= 0.249
    assert designer.bound(recommended="elsewhere") is None


def test_errors_that_were_seen_widen_the_bound() -> None:
    candidates, _ = space(0, 0.05)
    bounds = []
    for error in (0.02, 0.6):
        designer = Designer(candidates)
        for number in range(6):
            chosen = designer.suggest()
            assert chosen is not None
            predicted = candidates[int(chosen[1:])].predicted or 0.0
            designer.update(chosen, predicted * float(np.exp((-1) ** number * error)))
        assert designer.scale >= error
        if (bound := designer.bound()) is not None:
            bounds.append(bound.fraction)
    assert len(bounds) == 2 and bounds[1] > 3 * bounds[0], bounds


def test_few_predictions_make_no_claim_about_the_space() -> None:
    """A screen that lost most of the space must not look like an optimum."""
    designer = Designer(few([10.0, *[None] * 278]))
    assert not designer.leads
    assert "1 of 279" in designer.trust_reason
    designer.update("c0", 10.0)
    bound = designer.bound()
    assert bound is not None and (bound.covered, bound.space) == (1, 279)
    assert "no configuration" not in str(bound) and "278 of 279 have neither" in str(bound)
    assert not designer.finished(0.95)


def test_new_predictions_keep_the_errors_of_the_old() -> None:
    designer = Designer(few([10.0, 9.0, 8.0]))
    designer.update("c0", 5.0)
    designer.repredict({"c0": 5.0, "c1": 4.5, "c2": 4.0})
    assert designer.error_median == pytest.approx(1.0)
    assert designer.corrected("c1") == pytest.approx(4.5, rel=0.02)
    assert designer.scale > 0.5


def test_the_first_proposals_come_in_the_order_of_the_predictions() -> None:
    candidates, truth = space(2, 0.2)
    order = sorted(candidates, key=lambda c: -(c.predicted or 0.0))
    designer = Designer(candidates)
    for expected in order[:3]:
        chosen = designer.suggest()
        assert chosen == expected.config_id
        designer.update(chosen, float(truth[int(chosen[1:])]))


@pytest.mark.parametrize(
    ("other", "best", "chosen"),
    [
        pytest.param(40.0, 100.0, "b0", id="nothing is expected to be better"),
        pytest.param(20.0, 100.0, "a3", id="the twin expects too little of it"),
        pytest.param(40.0, 60.0, "a3", id="another one is expected to be better"),
    ],
)
def test_a_variant_that_was_never_measured_is_tried(other: float, best: float, chosen: str) -> None:
    def candidate(name: str, predicted: float, place: str) -> Candidate:
        features = np.array([float(place == "y")])
        groups = (name[0], name[0] + place)
        return Candidate(config_id=name, features=features, predicted=predicted, groups=groups)

    own = [candidate("a0", 100.0, "x"), candidate("a1", 99.0, "x"), candidate("a2", 98.0, "x")]
    rest = [candidate("a3", 90.0, "y"), candidate("b0", other, "x"), candidate("b1", 15.0, "y")]
    designer = Designer([*own, *rest])
    for each in own:
        assert designer.suggest() == each.config_id
        designer.update(each.config_id, best / 100.0 * (each.predicted or 0.0))
    assert designer.suggest() == chosen


def test_a_preference_orders_what_is_alike_and_changes_no_expectation() -> None:
    def candidate(name: str, predicted: float, preference: float) -> Candidate:
        return Candidate(
            config_id=name, features=np.zeros(1), predicted=predicted, preference=preference
        )

    designer = Designer([candidate("late", 102.0, -0.03), candidate("soon", 100.0, 0.0)])
    assert designer.suggest() == "soon" and designer.corrected("late") == pytest.approx(102.0)
    designer = Designer([candidate("late", 105.0, -0.03), candidate("soon", 100.0, 0.0)])
    assert designer.suggest() == "late"


def test_pending_candidates_are_not_proposed_again() -> None:
    candidates, _ = space(0, 0.1)
    designer = Designer(candidates)
    pending: list[str] = []
    for _ in range(6):
        chosen = designer.suggest(pending)
        assert chosen is not None and chosen not in pending
        pending.append(chosen)


def test_the_whole_space_is_proposed_once_and_then_nothing() -> None:
    candidates, truth = space(0, 0.1)
    designer = Designer(candidates)
    seen = []
    while (chosen := designer.suggest()) is not None:
        seen.append(chosen)
        designer.update(chosen, float(truth[int(chosen[1:])]))
    assert sorted(seen) == sorted(c.config_id for c in candidates)
    bound = designer.bound()
    assert bound is not None and bound.fraction < 0.03


def few(
    predicted: Sequence[float | None], prior: Callable[[int], float] = lambda _: 1.0
) -> list[Candidate]:
    return [
        Candidate(
            config_id=f"c{i}",
            features=np.array([float(i)]),
            predicted=value,
            feasible_prior=prior(i),
        )
        for i, value in enumerate(predicted)
    ]


def test_known_infeasible_is_never_proposed_and_hopeless_comes_last() -> None:
    designer = Designer(few([5.0, 0.0, 3.0, 9.0], lambda i: float(i != 3)))
    order = []
    while (chosen := designer.suggest()) is not None:
        order.append(chosen)
        designer.update(chosen, None)
    assert order[:2] in (["c0", "c2"], ["c2", "c0"])
    assert order[2:] == ["c1"]


def test_feasible_first_prefers_the_likely() -> None:
    designer = Designer(few([10.0, 9.0], lambda i: (0.2, 1.0)[i]))
    assert designer.suggest() == "c1"


def test_a_failure_keeps_the_search_from_its_neighbours() -> None:
    predicted = [10.0, 9.9, 9.8, 9.7, 9.6, 9.5, 9.4]
    designer = Designer(few(predicted))
    first = designer.suggest()
    assert first == "c0"
    designer.update(first, None)
    assert designer.suggest() not in ("c1",)


def test_unknown_ids_and_useless_values_are_survived() -> None:
    designer = Designer(few([1.0, 2.0]))
    designer.update("elsewhere", 3.0)
    designer.update("c1", float("nan"))
    assert designer.best is None and designer.compared == 0
    assert designer.suggest() == "c0"
    assert designer.bound() is None


def test_a_value_that_breaks_a_limit_teaches_the_error() -> None:
    """Twice as slow as predicted is twice as slow, whether or not the memory suffices."""
    designer = Designer(few([10.0, 9.0, 8.0]))
    designer.update("c0", 5.0, feasible=False)
    designer.update("c1", 4.5, feasible=False)
    assert designer.best is None
    assert designer.compared == 2 and designer.error_median == pytest.approx(1.0)
    corrected = designer.corrected("c2")
    assert corrected is not None and corrected < 6.0
    assert "100%" in designer.trust_reason


def test_limits_that_the_caller_knows_are_not_moved_by_neighbours() -> None:
    designer = Designer(few([10.0, 9.9, 1.0]), learn_limits=False)
    designer.update("c0", None)
    assert designer.suggest() == "c1"


def test_one_candidate_without_features_is_a_space() -> None:
    designer = Designer([Candidate(config_id="only", features=np.zeros(0), predicted=1.0)])
    assert designer.suggest() == "only"
    designer.update("only", 1.1)
    bound = designer.bound()
    assert designer.suggest() is None and bound is not None and bound.fraction == 0.0


def test_an_empty_space_is_finished() -> None:
    designer = Designer([])
    assert designer.suggest() is None and designer.finished(0.95) and designer.trusted
    assert designer.corrected("elsewhere") is None and designer.bound() is None


def test_a_bound_from_below_does_not_teach_that_the_twin_expects_too_much() -> None:
    candidates, _ = space(3, 0.05)
    designer = Designer(candidates)
    chosen = designer.suggest()
    assert chosen is not None
    predicted = designer.corrected(chosen)
    assert predicted is not None
    designer.update(chosen, 0.4 * predicted, exact=False)
    assert designer.corrected(chosen) == pytest.approx(predicted)
    assert designer.suggest() != chosen, "it counts as measured"
    assert designer.best == (chosen, 0.4 * predicted)
    other = designer.suggest()
    assert other is not None
    designer.update(other, 3.0 * predicted, exact=False)
    assert (designer.corrected(other) or 0.0) > predicted, "more than was expected teaches"


def test_what_was_never_built_is_not_spoken_of() -> None:
    bound = Bound(fraction=0.2, confidence=0.95, covered=3, space=3, unbuilt=6)
    assert str(bound).startswith("of the 3 configurations that were built none is better")
    assert str(bound).endswith("; 6 more had no time to be built")
    assert "6 more had no time" in str(replace(bound, covered=2))
