"""Why a variant may not be recommended, and what to do about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Accuracy, Failure
from analyzer.errors import InputError
from analyzer.search import build as build_module
from analyzer.search.build import BuiltVariants, _require_candidates, _tell, build, exclusion

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


@pytest.mark.parametrize("known", ["data", "named", "neither"])
def test_what_nobody_could_judge_is_not_built(known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantizing without data took half a minute of a search that could not recommend it."""
    baseline, fp16 = Configuration(), Configuration(precision="fp16")
    int8 = Configuration(precision="int8", quantization="dynamic")
    asked: list[VariantKey] = []

    def run(context: Any, keys: tuple[VariantKey, ...], seconds: float, **_: float) -> Any:
        asked.extend(keys)
        accuracy = Accuracy(metric="cosine", value=1.0, drop=0.0, interval=(0.0, 0.0))
        return {key: SimpleNamespace(key=key, accuracy=accuracy, notes=()) for key in keys}

    monkeypatch.setattr(build_module, "_run", run)
    told: list[str] = []
    data = "rows.npz" if known == "data" else None
    context: Any = SimpleNamespace(
        baseline=baseline,
        candidates={one.config_id: one for one in (baseline, fp16, int8)},
        request=SimpleNamespace(
            sla=SimpleNamespace(max_accuracy_drop=0.01),
            precisions_named=known == "named",
            calibration_path=data,
        ),
        assets=SimpleNamespace(calibration_path=data),
        log=SimpleNamespace(warnings=[], warn=told.append, record=lambda failure, role: None),
        plan=SimpleNamespace(preparation_left_s=30.0, left_before_s=lambda stage: 30.0),
        progress=SimpleNamespace(
            warn=told.append, phase=lambda name, seconds: None, detail=lambda text: None
        ),
    )
    built = build(context)
    assert set(asked) == {baseline.variant, fp16.variant} | (
        set() if known == "neither" else {int8.variant}
    )
    assert (int8.variant in built.excluded) is (known == "neither")
    sentence = "int8-dynamic is not considered: without real data nobody knows its accuracy."
    assert any(text.startswith(sentence) for text in told) is (known == "neither")


@pytest.mark.parametrize("reason", ["build", "accuracy"])
def test_a_precision_that_the_model_cannot_have_is_wrong_use_and_no_infeasible_promise(
    reason: str,
) -> None:
    half = Configuration(precision="fp16")
    failure = Failure(
        configuration=half, stage="build", reason=reason, message="It holds no float32 values."
    )
    context: Any = SimpleNamespace(candidates={half.config_id: half})
    built = BuiltVariants(excluded={half.variant: failure})
    if reason == "accuracy":
        _require_candidates(context, built)  # another limit may allow it
        return
    with pytest.raises(InputError, match="holds no float32 values"):
        _require_candidates(context, built)
