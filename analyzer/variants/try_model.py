"""Whether a model really runs as it is declared: row by row, and on the same rows together."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.errors import ModelError, TargetError, TargetMemoryError
from analyzer.variants.first_axis import hint_of_rows
from analyzer.variants.inputs import is_mask, synthetic_inputs
from analyzer.variants.row_answers import FLOAT, differing, tolerance_of, varying
from analyzer.variants.tries import apart, rows_max

_ONE_ROW_NOTE = (
    "Served unbatched: the first dimension is declared dynamic, but the graph works for one row"
    " only."
)
# So many rows are tried, fewer where that takes longer or needs larger arrays than this.
_ROWS_MAX = 8
_SECONDS_MAX = 0.2
# So much longer where the graph leaves the size of an output open: it may follow from the values of
# a row, and two rows may have the same by chance.
_SECONDS_OPEN_MAX = 2.0
# With fewer different rows of real data made-up ones are tried too.
_REAL_ROWS_MIN = 4
# Where real data repeats itself, no more rows than these are looked at for different ones.
_ROWS_LOOKED_AT_MAX = 64


def rows_to_try(model: ModelInfo, real: Tensors | None) -> Tensors:
    """Inputs ``[rows, *shape]`` for :func:`try_model`: up to 8 rows, no two of them equal.

    Equal rows do not show whether one sees the other, nor do zeros in many graphs.

    Args:
        real: Real inputs, of which rows from the first to the last are taken; made-up ones are
            added where fewer than 4 differ.
    """
    elements = sum(math.prod(spec.shape) for spec in model.inputs)
    most = min(_ROWS_MAX, rows_max(elements))
    if real is None:
        return _different(synthetic_inputs(model, most, 0), most)
    found = _different(real, most)
    count = _rows_in(found)
    if not model.batchable or count >= min(_REAL_ROWS_MIN, most):
        return found
    made_up = synthetic_inputs(model, most - count, 0)
    return {name: np.concatenate([array, made_up[name]]) for name, array in found.items()}


def try_model(
    model: ModelInfo, rows: Tensors, seconds_max: float = math.inf, *, made_up: bool = False
) -> tuple[ModelInfo, float]:
    """``model`` as it really runs, tried on rows of inputs (``[rows, *shape]``).

    Some graphs declare a dynamic first dimension and hold a reshape to one row, and in some a row's
    answer depends on the rows beside it (a softmax over axis 0): both come back as models that
    cannot be batched (:func:`as_unbatched`). Two rows are tried, each alone and both together, and
    more where one takes little time, or the graph leaves the size of an output open; the first of
    them comes twice then. Rows that do not run alone are passed over. Masks that are the same
    throughout these rows are then mixed: a graph may drop the rows that they leave out. A
    model that reads integers is tried with zeros as well, which its warm-up would be made of.

    Args:
        seconds_max: That all of it may take; a loop in a graph need not end.
        made_up: Whether ``rows`` are what requests will be made of, so that every one must run.

    Returns:
        The model, and the seconds that one inference took.

    Raises:
        ModelError: It does not even run the first row, or one of those that are made up for it. Or
            it did not end in time.
        TargetMemoryError: It runs out of memory.
    """
    runtime: OrtRuntime | None = None
    try:
        runtime = OrtRuntime(model.path)
        work = partial(_tried, runtime, model, rows, made_up=made_up)
        return apart(work, runtime.stop, seconds_max)
    except TargetMemoryError:
        raise
    except TargetError as error:
        raise ModelError(
            f"The model loads and does not run: {error.message}",
            hint="If its inputs need special values, give real ones with --calibration-data;"
            " check --input-shape otherwise.",
        ) from error
    finally:
        if runtime is not None:
            runtime.close()


def _tried(
    runtime: OrtRuntime, model: ModelInfo, rows: Tensors, *, made_up: bool
) -> tuple[ModelInfo, float]:
    if not model.batchable:
        begun = time.perf_counter()
        # The ellipsis keeps a scalar an array.
        one = {name: array[0, ...] for name, array in rows.items()}
        runtime.run(one)
        inference_s = time.perf_counter() - begun
        return replace(model, refuses_zeros=_refuses_zeros(runtime, one)), inference_s
    open_ = any(size < 0 for spec in model.outputs for size in spec.shape)
    seconds_max = _SECONDS_OPEN_MAX if open_ else _SECONDS_MAX
    answers, inference_s, more = _answers_alone(runtime, rows, seconds_max, all_run=made_up)
    model = replace(model, refuses_zeros=_refuses_zeros(runtime, _batch(rows, [0])))
    note = _why_no_batch(runtime, model, rows, answers, more=more)
    masks = [] if note else _constant_masks(model, rows)
    if masks:
        rows = _mixed(rows, masks)
        answers, *_ = _answers_alone(runtime, rows, _SECONDS_MAX, known={0: answers[0]})
        if len(answers) > 1:
            note = _why_no_batch(runtime, model, rows, answers, masks, more=more)
    if note:
        model = as_unbatched(model, _shapes_of(answers), note=note)
    return model, inference_s


def _refuses_zeros(runtime: OrtRuntime, feeds: Tensors) -> bool:
    """Whether the model fails on zeros in the form of ``feeds``, which it runs.

    Only integers make one fail: categories that it does not know, divisors.
    """
    if all(array.dtype.kind == "f" for array in feeds.values()):
        return False
    try:
        runtime.run({name: np.zeros_like(array) for name, array in feeds.items()})
    except TargetMemoryError:
        raise
    except TargetError:
        return True
    return False


def _constant_masks(model: ModelInfo, rows: Tensors) -> list[str]:
    """The inputs of ``model`` that are masks and hold nothing but 1, or nothing but 0."""
    masks = [spec.name for spec in model.inputs if is_mask(spec)]
    return [name for name in masks if (rows[name] == 0).all() or (rows[name] == 1).all()]


def _mixed(rows: Tensors, masks: Sequence[str]) -> Tensors:
    """Three rows: the first as it is, and two with other values at places of their ``masks``.

    These are the second half, and every second place; a mask of a single value is another one.
    """
    found = dict(_batch(rows, [row % _rows_in(rows) for row in range(3)]))
    for name in masks:
        mask = found[name].copy()
        values = mask.reshape(3, -1)
        size = values.shape[1]
        values[1, size // 2 :] = 1 - values[1, size // 2 :].astype(np.uint8)
        alternating = slice(min(1, size - 1), None, 2)
        values[2, alternating] = 1 - values[2, alternating].astype(np.uint8)
        found[name] = mask
    return found


def _shapes_of(answers: Mapping[int, Tensors]) -> dict[str, tuple[int, ...]]:
    """The outputs' shapes for a row alone; -1 where rows have other sizes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for answer in answers.values():
        for name, array in answer.items():
            seen = shapes.setdefault(name, array.shape)
            if len(seen) == array.ndim:
                pairs = zip(seen, array.shape, strict=True)
                shapes[name] = tuple(size if size == other else -1 for size, other in pairs)
    return shapes


def _answers_alone(
    runtime: OrtRuntime,
    rows: Tensors,
    seconds_max: float,
    *,
    known: Mapping[int, Tensors] | None = None,
    all_run: bool = False,
) -> tuple[dict[int, Tensors], float, bool]:
    """The outputs for each row alone, of as many rows as there is time for, and one's seconds.

    Also whether there is time for more than two.

    Args:
        seconds_max: For all rows alone, and once more together; two are tried in any case.
        known: Answers that need no run.
        all_run: Whether every row must run.

    Raises:
        TargetError: The first row does not run, or one that must.
    """
    answers = dict(known or {})
    inference_s = math.inf
    affordable = 2
    for row in range(_rows_in(rows)):
        if row in answers:
            continue
        if row >= affordable:
            break
        begun = time.perf_counter()
        try:
            answers[row] = runtime.run(_batch(rows, [row]))
        except TargetMemoryError:
            raise
        except TargetError:
            if row == 0 or all_run:
                raise
            continue
        # The first run makes room for what the others use again.
        inference_s = min(inference_s, time.perf_counter() - begun)
        elements = sum(array.size for array in answers[row].values())
        affordable = int(seconds_max / 2 / max(inference_s, 1e-6))
        affordable = max(2, min(affordable, rows_max(elements)))
    return answers, inference_s, affordable > 2


def _why_no_batch(
    runtime: OrtRuntime,
    model: ModelInfo,
    rows: Tensors,
    answers: Mapping[int, Tensors],
    masks: Sequence[str] = (),
    *,
    more: bool,
) -> str:
    """Why rows with these ``answers`` cannot be one batch; empty where nothing speaks against it.

    Args:
        masks: The inputs that were mixed, where it is these that decide.
        more: Whether there is time for one row more, the first once again.

    Raises:
        TargetMemoryError: Two rows do not fit into memory.
    """
    chosen = list(answers)
    if more or len(chosen) == 1:
        # What drops a row that comes twice (NonMaxSuppression, Unique) shows itself by that.
        chosen.append(chosen[0])
    together: Tensors | None = None
    if len(chosen) > 2:
        # A table of positions may end before, which is no reason against smaller batches.
        with suppress(TargetError):
            together = runtime.run(_batch(rows, chosen))
    if together is None:
        chosen = chosen[:2]
        try:
            together = runtime.run(_batch(rows, chosen))
        except TargetMemoryError:
            raise
        except TargetError:
            if masks:
                return f"Served unbatched: rows with other {_named(masks)} do not run together."
            return _ONE_ROW_NOTE
    for name, array in together.items():
        shapes = {answers[row][name].shape for row in chosen}
        if shapes != {(1, *array.shape[1:])} or array.shape[:1] != (len(chosen),):
            if masks:
                return (
                    f"Served unbatched: the values of {_named(masks)} decide the size of the output"
                    f" {name!r}."
                )
            return f"Served unbatched: the output {name!r} has not one row for each of a batch."
    expected = {name: np.concatenate([answers[row][name] for row in chosen]) for name in together}
    if not differing(expected, together, FLOAT):
        return ""
    tolerance = tolerance_of(model.path)
    dependent = differing(expected, together, tolerance)
    if dependent:
        dependent -= varying(together, runtime.run(_batch(rows, chosen)), tolerance)
    output = next((name for name in together if name in dependent), None)
    return _others_note(output) if output is not None else ""


def _named(inputs: Sequence[str]) -> str:
    return ", ".join(map(repr, inputs))


def _batch(rows: Tensors, chosen: Sequence[int]) -> Tensors:
    return {name: array[chosen] for name, array in rows.items()}


def _rows_in(rows: Tensors) -> int:
    return len(next(iter(rows.values())))


def _different(rows: Tensors, most: int) -> Tensors:
    """Up to ``most`` of ``rows``, no two of them equal, from the first to the last."""
    count = _rows_in(rows)
    found: dict[bytes, int] = {}
    for row in np.unique(np.linspace(0, count - 1, min(count, _ROWS_LOOKED_AT_MAX)).astype(int)):
        found.setdefault(b"".join(array[row].tobytes() for array in rows.values()), int(row))
    chosen = sorted(found.values())
    places = np.unique(np.linspace(0, len(chosen) - 1, min(most, len(chosen))).astype(int))
    return _batch(rows, [chosen[place] for place in places])


def _others_note(output: str) -> str:
    return (
        f"Served unbatched: the answer to a request ({output!r}) depends on the other requests of"
        " its batch, as that of a graph does which computes over axis 0."
    )


def as_unbatched(
    model: ModelInfo,
    outputs: Mapping[str, tuple[int, ...]] | None = None,
    *,
    note: str = _ONE_ROW_NOTE,
) -> ModelInfo:
    """``model`` as one that cannot be batched, every request holding one row.

    Args:
        outputs: Shapes of the outputs for one row, where they are known. A first dimension other
            than 1 stays open, since the data may decide it (as in NonZero).
        note: Why.

    Raises:
        ModelError: A first dimension is a length by its name, so its size must be given; not where
            only one row runs.
    """
    if not model.batchable:
        return model
    if note != _ONE_ROW_NOTE:
        note = f"{note} {hint_of_rows(model, note.removeprefix('Served unbatched: '))}"
    seen = outputs or {}

    def shape(name: str, declared: tuple[int, ...]) -> tuple[int, ...]:
        first, *others = seen.get(name, (1, *declared))
        return (first if first == 1 else -1, *others)

    return replace(
        model,
        batchable=False,
        fixed_batch=1,
        notes=(*model.notes, note),
        inputs=tuple(replace(spec, shape=(1, *spec.shape)) for spec in model.inputs),
        outputs=tuple(
            replace(spec, shape=shape(spec.name, spec.shape), declared=(-1, *spec.graph_shape))
            for spec in model.outputs
        ),
    )
