"""Models that declare an output with a fixed number of rows and give one for each of a batch.

Converters of tree ensembles write ``[1]`` for labels. A Triton compares what a graph declares with
``config.pbtxt`` as it loads it, so it is corrected in a copy, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from analyzer.domain.model import ModelInfo
from analyzer.errors import ModelError, TargetMemoryError
from analyzer.variants.inputs import synthetic_inputs
from analyzer.variants.linked_weights import load_whole
from analyzer.variants.precision import save_shared_model
from analyzer.variants.shapes import Declared, unbatched_reasons
from analyzer.variants.try_model import try_model

_ROWS = 2  # of the trial; the real one comes with the data that is measured with
_TRIAL_S = 10.0  # a loop in a graph need not end


def outputs_in_the_way(inputs: Sequence[Declared], outputs: Sequence[Declared]) -> tuple[str, ...]:
    """The outputs whose fixed first dimension is all that keeps requests from being joined."""
    names = tuple(t.name for t in outputs if t.dims and isinstance(t.dims[0], int))
    opened = [
        replace(t, dims=(None, *t.dims[1:])) if t.name in names else t for t in outputs
    ]  # fmt: skip
    return () if unbatched_reasons(inputs, opened) else names


def with_open_rows(
    file: Path,
    external: Sequence[str],
    names: Sequence[str],
    target: Path,
    inspect: Callable[[Path], ModelInfo],
) -> ModelInfo | None:
    """The model at ``file`` with any number of rows in the outputs ``names``, kept at ``target``.

    None where a run on made-up inputs does not show that it gives a row for each of a batch.
    Several processes may write one target at once.

    Args:
        external: The files of its weights.
        inspect: What there is to know about a file; it corrects nothing, since some graphs have
            the fixed number whatever they declare.

    Raises:
        BuildError: ``target`` cannot be written.
    """
    if not target.is_file():
        _write(file, external, names, target)
    try:
        model = inspect(target)
        ran = model
        if model.batchable:
            ran, _ = try_model(model, synthetic_inputs(model, _ROWS, 0), _TRIAL_S)
    except (ModelError, TargetMemoryError):
        return None
    if not ran.batchable:
        return None
    shown = ", ".join(map(repr, names))
    note = (
        f"The model declares a fixed number of rows for {shown} and gives one for each of a batch:"
        " what is served declares that."
    )
    return replace(model, notes=(*model.notes, note))


def _write(file: Path, external: Sequence[str], names: Collection[str], target: Path) -> None:
    model = load_whole(file, external)
    for value in model.graph.output:
        if value.name in names:
            value.type.tensor_type.shape.dim[0].Clear()
    save_shared_model(model, target)
