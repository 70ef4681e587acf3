"""What ``analyze verify`` sends: fresh arrivals, and rows that it leaves nothing of behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli.options import seed_or_drawn
from analyzer.cli.verify import _measure
from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.domain.sla import Sla
from analyzer.domain.study import Claim
from analyzer.export.claims import ClaimedModel


def test_made_up_rows_are_one_file_and_arrivals_are_others_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each verification left a file of its own in the cache, of up to 256 MiB."""
    spec = TensorSpec(name="x", datatype="FP32", shape=(4,))
    subject = ClaimedModel(
        claim=Claim(
            source="study s", model="m", configuration=Configuration(), rate_rps=10.0,
            sla=Sla(latency_budget_ms=10.0), arrivals="poisson", request_batch_size=1,
        ),
        model=ModelInfo(
            name="m", path="m", sha256="0" * 64, batchable=True, inputs=(spec,), outputs=(spec,)
        ),
        model_path=tmp_path / "m.onnx",
    )  # fmt: skip
    seeds: list[int] = []

    def verified(_: Any, plan: Any, *__: Any, **___: Any) -> None:
        seeds.append(plan.load.seed)

    monkeypatch.setattr("analyzer.measure.verify.verify_claim", verified)
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path / "cache"))
    values = {"budget": 60.0, "server": "embedded", "store_url": ""}
    for _ in range(3):
        own = values | {"seed": seed_or_drawn(None)}
        _measure(subject, own, started=time.monotonic(), quiet=True)
    assert len(set(seeds)) == 3
    assert len(list((tmp_path / "cache").rglob("*.npz"))) == 1
