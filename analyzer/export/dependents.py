"""Who loses what when another version of a model is served: its clients, and ensembles of it."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

from analyzer.errors import AnalyzerError
from analyzer.modelconfig.repository import list_models
from analyzer.modelconfig.text import CONFIG_NAME, read_config


def replacement_notes(repository: Path, before: Path, after: Any, version: int) -> tuple[str, ...]:
    """What no longer works once ``after`` stands in place of ``before``; a sentence each.

    Args:
        repository: The folder in which ensembles may name the model.
        before: The ``config.pbtxt`` so far; one that cannot be read tells nothing.
        after: The new ``ModelConfig``.
        version: The version that it serves.
    """
    notes = []
    replaced, takes = _read(before), max(after.max_batch_size, 1)
    if replaced is not None and (took := _took(replaced, after)) > takes:
        said = "any number" if took == inf else f"{took:g}"
        notes.append(
            f"{after.name} takes requests of at most {takes} inferences now, where it took "
            f"{said}: larger ones are refused."
        )
    for ensemble in _ensembles_of(repository, after.name):
        place = f"The ensemble {ensemble.name} has {after.name} in it"
        if ensemble.max_batch_size > after.max_batch_size:
            notes.append(
                f"{place} and max_batch_size {ensemble.max_batch_size}: Triton does not load it "
                f"until that is at most {after.max_batch_size}."
            )
        pinned = {
            step.model_version
            for step in ensemble.ensemble_scheduling.step
            if step.model_name == after.name
        }
        notes += [
            f"{place}, version {other}, which is not served any more: Triton does not load it "
            f"until it names version {version} or -1."
            for other in sorted(pinned)
            if other > 0 and other != version
        ]
    return tuple(notes)


def _took(before: Any, after: Any) -> float:
    """Inferences of the largest request so far, infinite where the batch axis is one of the dims.

    That it was such an axis shows in ``after``, which batches.
    """
    open_axis = all(list(tensor.dims[:1]) == [-1] for tensor in before.input)
    if before.max_batch_size == 0 and before.input and open_axis and after.max_batch_size > 0:
        return inf
    return float(before.max_batch_size)


def _ensembles_of(repository: Path, member: str) -> Iterator[Any]:
    for name in list_models(repository):
        config = _read(repository / name / CONFIG_NAME)
        if config is None:
            continue
        config.name = config.name or name
        if any(step.model_name == member for step in config.ensemble_scheduling.step):
            yield config


def _read(path: Path) -> Any | None:
    try:
        return read_config(path)
    except AnalyzerError:
        return None
