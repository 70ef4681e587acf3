"""How well a variant answers, compared with the fp32 reference row by row."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.measurement import Accuracy
from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.errors import DataError
from analyzer.variants.reference import ROWS_PER_RUN, chunks

#: Fewer rows leave an interval that clears no variant.
ROWS_MIN = 32
# More do not narrow an interval.
_RESAMPLES = 1000
# The class that scores tell which are not all numbers.
_NO_CLASS = int(np.iinfo(np.int64).min)
# Outputs [batch, n] with such names are vectors, not scores of classes.
_VECTOR_NAMES = re.compile(
    r"embed|hidden|pool|feature|vector|state|token|box|coord|landmark", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowScores:
    """The comparison of each row; arrays of length n.

    A row cannot be judged by an output of which the reference gave NaN, or nothing finite.

    Args:
        cosine: Cosine between the outputs, the worst of all outputs, float64; 0 where the variant
            gave NaN or infinity and the reference did not, NaN where an output cannot be judged.
        relative_error: |variant − reference| / |reference| (Euclidean), the worst of all outputs,
            float64; 1 where the variant gave NaN or infinity, NaN where an output cannot be judged.
        reference_class, variant_class: The answers of a classifier, int64, one per inference; empty
            if it is none. The least int64 is no class: of the reference where it cannot be judged,
            of the variant where it gave NaN or infinity and the reference did not.
        classes: Number of classes; 0 if unknown.
        output: What tells the class; None of no classifier.
        not_finite: Outputs by which some row cannot be judged.
    """

    cosine: NDArray[np.float64]
    relative_error: NDArray[np.float64]
    reference_class: NDArray[np.int64]
    variant_class: NDArray[np.int64]
    classes: int = 0
    output: str | None = None
    not_finite: frozenset[str] = frozenset()


def compare_rows(
    model: ModelInfo,
    reference: Runtime,
    variant: Runtime,
    inputs: Tensors,
    *,
    classifier: bool | None = None,
    classes_min: int = 0,
    enough: Callable[[RowScores], bool] = lambda _: False,
    seconds_max: float = 60.0,
) -> RowScores:
    """Runs both on ``inputs`` (``[rows, *shape]``) and compares their answers.

    Stops after ``seconds_max``, but not before 32 rows, and scores the rows done. The variant
    answers first, so that it works while a neighbour computes what the reference answers.

    Args:
        enough: Whether the rows so far suffice; asked after 8 rows, 16, 32 and so on.
        classifier: Whether the model is one; None to judge by its outputs: the first float output
            of rank 2 with at least two columns whose name does not speak of vectors, else an
            integer output of rank 1.
        classes_min: As in :func:`class_output`.
    """
    output = None
    if classifier is not False:
        output = class_output(model, labelled=bool(classifier), classes_min=classes_min)
    scored: list[RowScores] = []
    rows, next_look = 0, ROWS_PER_RUN
    started = time.monotonic()
    for feeds in chunks(model, inputs):
        answered = None if variant is reference else variant.run(feeds)
        expected = reference.run(feeds)
        count = len(next(iter(feeds.values()))) if model.batchable else 1
        scored.append(_score(expected, expected if answered is None else answered, count, output))
        rows += count
        if rows >= ROWS_MIN and time.monotonic() - started > seconds_max:
            break
        if rows >= next_look:
            next_look *= 2
            if enough(_join(scored)):
                break
    return _join(scored)


def _score(expected: Tensors, answered: Tensors, rows: int, output: str | None) -> RowScores:
    cosine, error, not_finite = _compare(expected, answered, rows)
    wanted = given = np.empty(0, np.int64)
    if output is not None:
        wanted, given = _decide(expected[output], answered[output])
    return RowScores(
        cosine=cosine,
        relative_error=error,
        reference_class=wanted,
        variant_class=given,
        classes=expected[output].shape[1] if output and expected[output].ndim == 2 else 0,
        output=output,
        not_finite=not_finite,
    )


def _join(parts: list[RowScores]) -> RowScores:
    return RowScores(
        cosine=np.concatenate([part.cosine for part in parts]),
        relative_error=np.concatenate([part.relative_error for part in parts]),
        reference_class=np.concatenate([part.reference_class for part in parts]),
        variant_class=np.concatenate([part.variant_class for part in parts]),
        classes=parts[-1].classes,
        output=parts[-1].output,
        not_finite=frozenset().union(*(part.not_finite for part in parts)),
    )


def class_output(model: ModelInfo, *, labelled: bool = False, classes_min: int = 0) -> str | None:
    """The output that tells the class, None if the model is no classifier.

    Args:
        labelled: There are labels, so that an output named like a vector counts where no other
            does.
        classes_min: The classes that the labels name at least.
    """
    lead = 1 if model.batchable else 0
    scores = [
        spec.name
        for spec in model.outputs
        if spec.datatype.startswith("FP")
        and len(spec.shape) + lead == 2
        and spec.shape[-1] not in (0, 1)
        and (spec.shape[-1] == -1 or spec.shape[-1] >= classes_min)
    ]
    named = [name for name in scores if not _VECTOR_NAMES.search(name)]
    found: list[str] = [*named, *(scores if labelled else ())]
    if found:
        return found[0]
    if any(spec.datatype.startswith("FP") for spec in model.outputs):
        return None
    for spec in model.outputs:
        if spec.datatype in ("INT32", "INT64") and len(spec.shape) + lead == 1:
            return spec.name
    return None


def judge(
    scores: RowScores,
    *,
    labels: NDArray[np.int64] | None,
    synthetic: bool,
    confidence: float = 0.95,
    seed: int = 0,
) -> Accuracy:
    """The accuracy that ``scores`` amount to.

    - Classifier with labels: ``label_accuracy``; drop = the reference's minus the variant's on the
      same rows, with Agresti and Min's interval for paired proportions (:func:`paired_interval`).
    - Classifier without labels: ``top1_agreement``; drop = 1 − agreement, with Wilson's interval.
    - Otherwise ``cosine`` (of single numbers one less the relative error): the mean; drop =
      1 − mean, with a bootstrap interval over rows.
    - Made-up inputs: ``relative_error``: value and drop are its mean, with a bootstrap interval.

    Rows that cannot be judged are left out; without any other, value and drop are None.

    Args:
        labels: Classes of all rows (``[rows]`` or ``[rows, batch]``); longer than the rows scored
            where the time ran out. Not used where a row tells another number of classes.

    Raises:
        DataError: A label is no class of the model.
    """
    if synthetic:
        errors = scores.relative_error[~np.isnan(scores.relative_error)]
        if not len(errors):
            return Accuracy(metric="relative_error", synthetic=True)
        value = float(errors.mean())
        interval = bootstrap_interval(errors, confidence=confidence, seed=seed)
        return Accuracy(
            metric="relative_error",
            value=value,
            drop=value,
            interval=interval,
            samples=len(errors),
            synthetic=True,
        )
    labels = _labels_of(scores, labels)
    judged = scores.reference_class != _NO_CLASS
    reference_class, variant_class = scores.reference_class[judged], scores.variant_class[judged]
    if len(judged) and labels is not None:
        if scores.classes and labels.max() >= scores.classes:
            raise DataError(
                f"The labels go up to {labels.max()}, and the model has {scores.classes} classes.",
                hint="Count classes from 0, in the order of the model's output.",
            )
        truth = labels[judged]
        if not len(truth):
            return Accuracy(metric="label_accuracy")
        right = variant_class == truth
        reference_right = reference_class == truth
        lost = int(np.sum(reference_right & ~right))
        won = int(np.sum(right & ~reference_right))
        return Accuracy(
            metric="label_accuracy",
            value=float(right.mean()),
            drop=(lost - won) / len(truth),
            interval=paired_interval(lost, won, len(truth), confidence=confidence),
            samples=len(truth),
        )
    if len(judged):
        if not len(variant_class):
            return Accuracy(metric="top1_agreement")
        agree = variant_class == reference_class
        return Accuracy(
            metric="top1_agreement",
            value=float(agree.mean()),
            drop=float(1 - agree.mean()),
            interval=wilson_interval(int(np.sum(~agree)), len(agree), confidence=confidence),
            samples=len(agree),
        )
    cosines = scores.cosine[~np.isnan(scores.cosine)]
    if not len(cosines):
        return Accuracy(metric="cosine")
    losses = 1 - cosines
    return Accuracy(
        metric="cosine",
        value=float(cosines.mean()),
        drop=float(losses.mean()),
        interval=bootstrap_interval(losses, confidence=confidence, seed=seed),
        samples=len(losses),
    )


def unjudged(scores: RowScores, accuracy: Accuracy) -> str:
    """How many rows ``accuracy``, judged from ``scores``, leaves out; empty where none is."""
    by_class = scores.output is not None and not accuracy.synthetic
    rows = len(scores.reference_class) if by_class else len(scores.cosine)
    if accuracy.samples == rows:
        return ""
    left_out = rows - accuracy.samples
    names = [scores.output] if by_class else sorted(scores.not_finite)
    outputs = f"output{'s' * (len(names) > 1)} {', '.join(repr(name) for name in names)}"
    why = "since the model itself answers NaN or infinity to"
    if accuracy.samples:
        return f"{left_out} of {rows} rows are left out of the accuracy, {why} them ({outputs})"
    return f"its accuracy is unknown, {why} all {rows} rows ({outputs})"


def _labels_of(scores: RowScores, labels: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """The label of each answer in ``scores``; None where a row has more or fewer than labels."""
    if labels is None:
        return None
    found = labels[: len(scores.cosine)].reshape(-1)
    return found if len(found) == len(scores.reference_class) else None


def labels_note(model: ModelInfo, scores: RowScores, labels: NDArray[np.int64]) -> str:
    """Which of several outputs the labels were held against, or that none was; empty for one."""
    if scores.output is None:
        return "the labels are not used, since no output has a score for each class"
    if _labels_of(scores, labels) is None:
        told, rows = len(scores.reference_class), len(scores.cosine)
        return (
            f"the labels are not used, since the output {scores.output!r} tells {told} classes for"
            f" {rows} rows of data"
        )
    several = len(model.outputs) > 1
    return f"the labels are compared with the output {scores.output!r}" if several else ""


def paired_interval(lost: int, won: int, rows: int, *, confidence: float) -> tuple[float, float]:
    """Interval of (lost − won) / rows for answers of two models on the same rows.

    Wald's interval after adding half a row to each of the four cells of the 2 × 2 table (Agresti
    and Min, 2005, "Simple improved confidence intervals for comparing matched proportions").

    Args:
        lost: Rows that only the reference answers rightly.
        won: Rows that only the variant answers rightly.
    """
    total = rows + 2
    b, c = lost + 0.5, won + 0.5
    middle = (b - c) / total
    half = _z(confidence) * math.sqrt(max(b + c - (b - c) ** 2 / total, 0.0)) / total
    return max(-1.0, middle - half), min(1.0, middle + half)


def wilson_interval(count: int, rows: int, *, confidence: float) -> tuple[float, float]:
    """Wilson's interval of the proportion ``count / rows`` (Wilson, 1927)."""
    z = _z(confidence)
    share = count / rows
    scale = 1 + z * z / rows
    middle = (share + z * z / (2 * rows)) / scale
    half = z * math.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap_interval(
    values: NDArray[np.float64], *, confidence: float, seed: int
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of ``values`` (1000 resamples of rows)."""
    rng = np.random.default_rng(seed)
    means = np.array([rng.choice(values, len(values)).mean() for _ in range(_RESAMPLES)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _decide(
    expected: NDArray[np.generic], answered: NDArray[np.generic]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The class of each row that the reference and the variant tell, as in :class:`RowScores`."""
    if expected.ndim != 2:
        return expected.reshape(-1).astype(np.int64), answered.reshape(-1).astype(np.int64)
    want, got = expected.astype(np.float64), answered.astype(np.float64)
    wanted = np.where(_not_finite(want), _NO_CLASS, np.argmax(want, axis=1))
    if want.shape != got.shape:
        return wanted, np.full(len(wanted), _NO_CLASS)
    return wanted, np.where(_broken(want, got), _NO_CLASS, np.argmax(got, axis=1))


def _not_finite(reference: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Rows that hold NaN or nothing finite; infinities beside numbers (masked scores) are usual."""
    nan = np.isnan(reference).any(axis=1)
    infinite = np.isinf(reference).all(axis=1)
    return np.asarray(nan | infinite if reference.shape[1] else nan)


def _broken(reference: NDArray[np.float64], variant: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Rows in which the variant gave NaN, or infinity for a number."""
    nan = np.isnan(variant) & ~np.isnan(reference)
    overflow = np.isinf(variant) & np.isfinite(reference)
    return np.asarray((nan | overflow).any(axis=1))


def _compare(
    expected: Mapping[str, NDArray[np.generic]],
    answered: Mapping[str, NDArray[np.generic]],
    rows: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], frozenset[str]]:
    """Worst cosine and relative error of each row over all outputs, as in :class:`RowScores`.

    The names are of the outputs by which some row cannot be judged. Of an output with a single
    number a row it is one less the relative error, for a cosine.
    """
    cosine = np.ones(rows)
    error = np.zeros(rows)
    not_finite = set()
    for name, reference in expected.items():
        split = rows if reference.ndim and reference.shape[0] == rows else 1
        want = reference.astype(np.float64).reshape(split, -1)
        got = answered[name].astype(np.float64).reshape(split, -1)
        if want.shape != got.shape:
            return np.zeros(rows), np.ones(rows), frozenset()
        broken, unknown = _broken(want, got), _not_finite(want)
        if unknown.any():
            not_finite.add(name)
        usable = np.isfinite(want)
        want = np.where(usable, want, 0.0)
        got = np.where(usable & np.isfinite(got), got, 0.0)
        norm_want = np.linalg.norm(want, axis=1)
        norm_got = np.linalg.norm(got, axis=1)
        distance = np.linalg.norm(want - got, axis=1)
        both = norm_want * norm_got
        similar = np.where(both > 0, (want * got).sum(axis=1) / np.where(both > 0, both, 1), 0.0)
        similar = np.where(distance == 0, 1.0, similar)
        relative = np.where(norm_want > 0, distance / np.where(norm_want > 0, norm_want, 1), 1.0)
        relative = np.where(distance == 0, 0.0, relative)
        if want.shape[1] == 1:  # the cosine of single numbers is their sign
            similar = 1.0 - np.minimum(relative, 1.0)
        # NaN stays where one output cannot be judged.
        cosine = np.minimum(cosine, np.where(unknown, np.nan, np.where(broken, 0.0, similar)))
        error = np.maximum(error, np.where(unknown, np.nan, np.where(broken, 1.0, relative)))
    return np.clip(cosine, -1, 1), error, frozenset(not_finite)
