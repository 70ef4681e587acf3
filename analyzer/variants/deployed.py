"""Reads a model that is deployed: what its graph leaves open, its configuration may tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from analyzer.domain.model import ModelInfo
from analyzer.errors import ModelError
from analyzer.variants.inspect import inspect_model

Shapes = Mapping[str, tuple[int, ...]]


def inspect_deployed(
    path: Path,
    told: Sequence[Shapes],
    *,
    given: Shapes | None = None,
    name: str | None = None,
    scratch: Path | None = None,
) -> ModelInfo:
    """:func:`~analyzer.variants.inspect.inspect_model` with the shapes that are known elsewhere.

    Args:
        told: Shapes of inputs as a configuration or a manifest has them, the likeliest first; used
            only where the graph and ``given`` leave a dimension open.
        given: Shapes by the user; they stand.

    Raises:
        ModelError: As ``inspect_model``, of what is not told: the first try's.
    """
    try:
        return inspect_model(path, input_shapes=given, name=name, scratch=scratch)
    except ModelError:
        for shapes in filter(None, told):
            try:
                return inspect_model(
                    path, input_shapes={**shapes, **(given or {})}, name=name, scratch=scratch
                )
            except ModelError:
                continue
        raise
