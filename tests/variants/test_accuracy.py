"""Accuracy and its intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.engine.runtimes.base import Tensors
from analyzer.errors import DataError
from analyzer.variants import accuracy
from analyzer.variants.accuracy import (
    RowScores,
    class_output,
    compare_rows,
    judge,
    labels_note,
    paired_interval,
    unjudged,
    wilson_interval,
)


class FunctionRuntime:
    """Answers with what a function makes of the input ``x``."""

    def __init__(self, function: object, output: str = "logits") -> None:
        self._function, self._output = function, output

    def run(self, inputs: Tensors) -> Tensors:
        return {self._output: self._function(inputs["x"])}  # type: ignore[operator]

    def close(self) -> None: ...


def make_model(output: str = "logits", width: int = 3, datatype: str = "FP32") -> ModelInfo:
    return ModelInfo(
        name="m", path="m", sha256="0" * 64, batchable=True,
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(width,)),),
        outputs=(TensorSpec(name=output, datatype=datatype, shape=(width,)),),
    )  # fmt: skip


def rows(n: int = 100, width: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((n, width)).astype(np.float32)}


def test_labels_score_paired_rows() -> None:
    inputs = rows()
    labels = inputs["x"].argmax(axis=1)
    labels[:10] = (labels[:10] + 1) % 3  # the reference errs on the first ten

    def variant(x: np.ndarray) -> np.ndarray:
        return np.where(np.isin(x, inputs["x"][90:].max(axis=1)), -9, x)  # errs on the last ten

    scores = compare_rows(
        make_model(), FunctionRuntime(lambda x: x), FunctionRuntime(variant), inputs
    )
    found = judge(scores, labels=labels, synthetic=False)
    assert found.metric == "label_accuracy" and found.samples == 100
    assert found.value == pytest.approx(0.8) and found.drop == pytest.approx(0.1)
    assert found.interval is not None and found.interval[0] < 0.1 < found.interval[1]
    agreement = judge(scores, labels=None, synthetic=False)
    assert agreement.metric == "top1_agreement" and agreement.drop == pytest.approx(0.1)


def test_labels_beyond_the_classes() -> None:
    scores = compare_rows(
        make_model(), FunctionRuntime(lambda x: x), FunctionRuntime(lambda x: x), rows(9)
    )
    with pytest.raises(DataError, match="go up to 3, and the model has 3 classes"):
        judge(scores, labels=np.full(9, 3), synthetic=False)


def test_vectors_are_compared_by_their_angle() -> None:
    model = make_model("embedding")
    assert class_output(model) is None and class_output(model, labelled=True) == "embedding"
    same = FunctionRuntime(lambda x: x, "embedding")
    doubled = FunctionRuntime(lambda x: 2 * x, "embedding")
    found = judge(compare_rows(model, same, doubled, rows()), labels=None, synthetic=False)
    assert found.metric == "cosine" and found.drop == pytest.approx(0, abs=1e-9)
    made_up = judge(compare_rows(model, same, doubled, rows()), labels=None, synthetic=True)
    assert made_up.metric == "relative_error" and made_up.synthetic
    assert made_up.drop == pytest.approx(1) and made_up.value == pytest.approx(1)


def test_labels_are_of_the_output_that_has_so_many_classes_and_is_no_vector() -> None:
    def model(**columns: int) -> ModelInfo:
        specs = [
            TensorSpec(name=name, datatype="FP32", shape=(width,))
            for name, width in columns.items()
        ]
        return replace(make_model(), outputs=tuple(specs))

    both = model(pooled=32, logits=4)
    assert class_output(both, labelled=True, classes_min=4) == class_output(both) == "logits"
    detector = model(box=4, scores=6)
    assert class_output(detector, labelled=True, classes_min=3) == "scores"
    assert class_output(model(first=4, second=6), labelled=True, classes_min=5) == "second"
    assert class_output(model(first=4), labelled=True, classes_min=5) is None
    same = FunctionRuntime(lambda x: x)
    scores = compare_rows(make_model(), same, same, rows())
    unused, used = (replace(scores, output=name) for name in (None, "logits"))
    labels = np.zeros(100, np.int64)
    assert "not used" in labels_note(both, unused, labels)
    assert "'logits'" in labels_note(both, used, labels)
    assert not labels_note(model(logits=4), used, labels)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_a_number_is_a_total_loss(bad: float) -> None:
    model = make_model("embedding")
    same = FunctionRuntime(lambda x: x, "embedding")
    broken = FunctionRuntime(lambda x: np.full_like(x, bad), "embedding")
    scores = compare_rows(model, same, broken, rows())
    for synthetic in (False, True):
        assert judge(scores, labels=None, synthetic=synthetic).drop == 1.0
    classes = compare_rows(
        make_model(), FunctionRuntime(lambda x: x), FunctionRuntime(lambda x: x * np.nan), rows()
    )
    assert judge(classes, labels=None, synthetic=False).drop == 1.0


def test_wilson_interval_of_a_textbook_case() -> None:
    # Newcombe (1998), table I: 81 of 263 and 0 of 20, method 3.
    assert wilson_interval(81, 263, confidence=0.95) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20, confidence=0.95) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_paired_interval_follows_its_formula() -> None:
    low, high = paired_interval(12, 4, 100, confidence=0.95)
    b, c, n = 12.5, 4.5, 102
    half = 1.959964 * math.sqrt(b + c - (b - c) ** 2 / n) / n
    assert (low, high) == pytest.approx(((b - c) / n - half, (b - c) / n + half))


def test_paired_interval_covers() -> None:
    rng = np.random.default_rng(5)
    lost, won, n = 0.03, 0.01, 400
    draws = rng.multinomial(n, [lost, won, 1 - lost - won], size=2000)
    covered = [
        low <= lost - won <= high
        for low, high in (paired_interval(b, c, n, confidence=0.95) for b, c, _ in draws)
    ]
    assert np.mean(covered) > 0.93


@given(st.integers(1, 300), st.data())
def test_intervals_contain_the_estimate(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n))
    low, high = wilson_interval(lost, n, confidence=0.9)
    assert 0 <= low <= lost / n + 1e-12 and lost / n - 1e-12 <= high <= 1
    won = data.draw(st.integers(0, n - lost))
    low, high = paired_interval(lost, won, n, confidence=0.9)
    assert -1 <= low <= high <= 1


def test_scoring_stops_where_the_rows_suffice() -> None:
    asked = []

    def enough(scores: RowScores) -> bool:
        asked.append(len(scores.cosine))
        return len(asked) == 3

    same = FunctionRuntime(lambda x: x)
    scores = compare_rows(
        make_model(), same, FunctionRuntime(lambda x: 1.01 * x), rows(1000), enough=enough
    )
    assert asked == [8, 16, 32] and len(scores.cosine) == 32
    assert (scores.reference_class == scores.variant_class).all()


def test_of_single_numbers_the_error_counts_since_their_cosine_is_a_sign() -> None:
    want = {"y": np.array([[2.0], [4.0], [-1.0]])}
    got = {"y": np.array([[1.0], [4.0], [1.0]])}
    cosine, error, _ = accuracy._compare(want, got, 3)
    assert cosine.tolist() == [0.5, 1.0, 0.0] and error.tolist() == [0.5, 0.0, 2.0]


@pytest.mark.parametrize("output", ["logits", "embedding"])
def test_rows_that_the_reference_cannot_answer_are_left_out(output: str) -> None:
    """A model that gives NaN alone agreed with itself on every row."""
    inputs = rows()
    inputs["x"][:20] = np.nan
    inputs["x"][20:30] = np.inf
    inputs["x"][30:40, 0] = -np.inf  # as masked scores are: the rest can be judged

    def variant(x: np.ndarray) -> np.ndarray:
        return np.where(np.isin(x, inputs["x"][90:]), np.nan, np.nan_to_num(x, neginf=-9e9))

    model, reference = make_model(output), FunctionRuntime(lambda x: x, output)
    scores = compare_rows(model, reference, FunctionRuntime(variant, output), inputs)
    labels = inputs["x"].argmax(axis=1)
    for truth, synthetic in ((labels, False), (None, False), (None, True)):
        found = judge(scores, labels=truth, synthetic=synthetic)
        assert found.samples == 70 and found.drop == pytest.approx(10 / 70, abs=1e-6)
        told = unjudged(scores, found)
        assert told.startswith("30 of 100 rows are left out") and f"(output '{output}')" in told


@pytest.mark.parametrize("output", ["logits", "embedding"])
def test_without_a_row_that_can_be_judged_there_is_no_accuracy(output: str) -> None:
    nothing = FunctionRuntime(lambda x: x * np.nan, output)
    scores = compare_rows(make_model(output), nothing, nothing, rows())
    for labels, synthetic in ((np.zeros(100, np.int64), False), (None, False), (None, True)):
        found = judge(scores, labels=labels, synthetic=synthetic)
        assert (found.value, found.drop, found.interval, found.samples) == (None, None, None, 0)
        assert unjudged(scores, found).endswith(f"to all 100 rows (output '{output}')")
    whole = compare_rows(make_model(output), *[FunctionRuntime(lambda x: x, output)] * 2, rows())
    assert unjudged(whole, judge(whole, labels=None, synthetic=False)) == ""


def test_a_class_that_overflowed_is_wrong() -> None:
    """fp16 ends at 65504: infinity is its largest score, and perhaps the right one by chance."""
    inputs = {"x": 1e5 * np.eye(3, dtype=np.float32)[np.arange(60) % 3]}

    def variant(x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)

    scores = compare_rows(
        make_model(), FunctionRuntime(lambda x: x), FunctionRuntime(variant), inputs
    )
    labels = inputs["x"].argmax(axis=1)
    for truth in (None, labels):
        found = judge(scores, labels=truth, synthetic=False)
        assert (found.value, found.drop, found.samples) == (0.0, 1.0, 60)


def test_labels_of_rows_that_tell_several_classes_each_are_not_used() -> None:
    """One label for each row, and a class for each of its steps: an IndexError ended the search."""
    model = replace(
        make_model(),
        batchable=False,
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(-1, 3)),),
    )
    inputs = {"x": np.random.default_rng(0).standard_normal((40, 5, 3)).astype(np.float32)}
    same = FunctionRuntime(lambda x: x)
    scores = compare_rows(model, same, FunctionRuntime(lambda x: -x), inputs, classifier=True)
    labels = np.zeros(40, np.int64)
    found = judge(scores, labels=labels, synthetic=False)
    assert (found.metric, found.samples) == ("top1_agreement", 200)
    assert "not used, since the output 'logits' tells 200 classes" in labels_note(
        model, scores, labels
    )
    # As many as there are, they are.
    each = judge(scores, labels=np.zeros((40, 5), np.int64), synthetic=False)
    assert (each.metric, each.samples) == ("label_accuracy", 200)
