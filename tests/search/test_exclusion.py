"""Why a variant may not be recommended, and what to do about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Accuracy, Failure
from analyzer.search.build import BuiltVariants, _tell, exclusion

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


@pytest.mark.parametrize("considered", [True, False])
def test_how_a_variant_was_calibrated_is_told_where_it_is_considered(considered: bool) -> None:
    baseline = Configuration()
    int8 = Configuration(precision="int8", quantization="static")
    variant: Any = SimpleNamespace(key=int8.variant, notes=("calibrated on 4 rows",))
    itself: Any = SimpleNamespace(key=baseline.variant, notes=())
    refusal = Failure(
        configuration=int8, stage="build", reason="accuracy", message="int8-static is off."
    )
    built = BuiltVariants(
        variants={baseline.variant: itself, int8.variant: variant},
        excluded={} if considered else {int8.variant: refusal},
    )
    warnings: list[str] = []
    context: Any = SimpleNamespace(
        baseline=baseline,
        assets=SimpleNamespace(calibration_path="rows.npz"),
        log=SimpleNamespace(warnings=warnings, record=lambda failure, role: None),
        progress=SimpleNamespace(warn=lambda text: None),
    )
    _tell(context, built)
    assert warnings == (["int8-static: calibrated on 4 rows"] if considered else [])
