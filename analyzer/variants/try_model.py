"""Whether a model really runs as it is declared: on one row, on two, and on each as if alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.errors import ModelError, TargetError, TargetMemoryError

_ONE_ROW_NOTE = (
    "Served unbatched: the first dimension is declared dynamic, but the graph works for one row"
    " only."
)
# Of an output's largest value: by how much a row's answer may differ with other rows beside it.
# Kernels sum in another order, and int8 activations may be scaled over the whole batch.
_ROUNDING = 0.1


def try_model(model: ModelInfo, rows: Tensors) -> tuple[ModelInfo, float]:
    """``model`` as it really runs, tried on two rows of inputs (``[rows, *shape]``).

    Some graphs declare a dynamic first dimension and hold a reshape to one row, and in some a row's
    answer depends on the rows beside it (a softmax over axis 0): both come back as models that
    cannot be batched (:func:`as_unbatched`).

    Returns:
        The model, and the seconds that one inference took.

    Raises:
        ModelError: It does not even run one row; made-up inputs may be the reason.
        TargetMemoryError: It runs out of memory.
    """
    runtime: OrtRuntime | None = None
    try:
        runtime = OrtRuntime(model.path)
        two_rows = model.batchable and len(next(iter(rows.values()))) >= 2
        # Of two the second: in a scan over the rows the first does not see the other.
        lead = slice(int(two_rows), int(two_rows) + 1) if model.batchable else 0
        # The ellipsis keeps a scalar an array.
        begun = time.perf_counter()
        one = runtime.run({name: array[lead, ...] for name, array in rows.items()})
        inference_s = time.perf_counter() - begun
        if not two_rows:
            return model, inference_s
        pair = {name: array[:2] for name, array in rows.items()}
        shapes = {name: array.shape for name, array in one.items()}
        begun = time.perf_counter()
        try:
            two = runtime.run(pair)
        except TargetMemoryError:
            raise
        except TargetError:
            return as_unbatched(model, shapes), inference_s
        # The first run makes room for what the others use again.
        inference_s = min(inference_s, (time.perf_counter() - begun) / 2)
        for output, shape in shapes.items():
            if two[output].shape != (2, *shape[1:]):
                return as_unbatched(model, shapes, note=_shape_note(output)), inference_s
        second = {name: array[1:] for name, array in two.items()}
        # A model that draws random numbers answers otherwise at every run.
        if (name := _differing(one, second)) and not _differing(two, runtime.run(pair)):
            return as_unbatched(model, shapes, note=_others_note(name)), inference_s
        return model, inference_s
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


def _differing(first: Tensors, second: Tensors) -> str | None:
    """The first output that differs by more than rounding; whole numbers tell none of that."""
    for name, expected in first.items():
        if not np.issubdtype(expected.dtype, np.floating) or not expected.size:
            continue
        before, after = expected.astype(np.float64), second[name].astype(np.float64)
        with np.errstate(invalid="ignore"):
            if np.max(np.abs(after - before)) > _ROUNDING * np.max(np.abs(before)):
                return name
    return None


def _shape_note(output: str) -> str:
    return f"Served unbatched: the output {output!r} has not one row for each of a batch."


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
    """
    if not model.batchable:
        return model
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
        outputs=tuple(replace(spec, shape=shape(spec.name, spec.shape)) for spec in model.outputs),
    )
