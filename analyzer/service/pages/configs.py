"""The recommended ``config.pbtxt`` beside the baseline's, line by line."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import AnalyzerError
from analyzer.service.result import UNREADABLE, Entry, Result


@dataclass(frozen=True, slots=True)
class ConfigTexts:
    """Both texts; each line with whether the other one lacks it.

    Args:
        name: Whose the first is.
    """

    name: str
    recommended: list[tuple[str, bool]]
    baseline: list[tuple[str, bool]]


def config_texts(result: Result) -> ConfigTexts | None:
    """The two texts; None where one of them is not known."""
    entry, baseline = result.shown, result.baseline
    if entry is None or baseline is None:
        return None
    own, other = _text(result, entry), _text(result, baseline)
    if own is None or other is None:
        return None
    left, right = own.splitlines(), other.splitlines()
    same_left: set[int] = set()
    same_right: set[int] = set()
    for block in difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
        same_left.update(range(block.a, block.a + block.size))
        same_right.update(range(block.b, block.b + block.size))
    return ConfigTexts(
        name="recommended" if result.recommendation is not None else "closest",
        recommended=[(line, index not in same_left) for index, line in enumerate(left)],
        baseline=[(line, index not in same_right) for index, line in enumerate(right)],
    )


def _text(result: Result, entry: Entry) -> str | None:
    from analyzer.modelconfig.render import render_config

    configuration, model = entry.configuration, result.model
    if configuration is None:
        return None
    try:
        return render_config(
            ModelInfo(
                name=model.name,
                path="",
                sha256=model.sha256,
                batchable=model.batchable,
                inputs=tuple(TensorSpec(**tensor.model_dump()) for tensor in model.inputs),
                outputs=tuple(TensorSpec(**tensor.model_dump()) for tensor in model.outputs),
            ),
            configuration,
        )
    except (AnalyzerError, *UNREADABLE):
        return None
