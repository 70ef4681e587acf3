"""Why a variant may not be recommended, and what to do about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.domain.configuration import VariantKey
from analyzer.domain.measurement import Accuracy
from analyzer.search.build import exclusion

FP16 = VariantKey(precision="fp16", quantization=None, backend="onnxruntime")


def request(limit: float = 0.01) -> Any:
    return SimpleNamespace(sla=SimpleNamespace(max_accuracy_drop=limit), precisions_named=False)


@pytest.mark.parametrize(("drop", "rows_help"), [(0.0, True), (0.02, False)])
def test_few_rows_are_told_apart_from_a_real_loss(drop: float, rows_help: bool) -> None:
    accuracy = Accuracy(metric="top1_agreement", value=1 - drop, drop=drop, interval=(-0.01, 0.03))
    reason = exclusion(accuracy, FP16, request())
    assert "fp16 is not considered: it may lose 0.0300 of top1_agreement" in reason
    assert f"seen: {drop:.4f}, limit 0.01" in reason
    assert ("More rows" in reason) is rows_help
    assert exclusion(accuracy, FP16, request(limit=0.05)) == ""
