"""What the export of a study tells of the machine that it is for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from facts_example import example_facts

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.study import Pricing
from analyzer.export.study import export_study
from analyzer.variants.inspect import inspect_model

DIGITS = Path(__file__).parents[2] / "examples" / "digits.onnx"


@pytest.mark.parametrize(
    ("device", "devices", "said"), [("gpu", 4, True), ("gpu", 1, False), ("cpu", 4, False)]
)
def test_gpus_of_the_machine_that_the_export_leaves_idle_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Any, devices: int, said: bool
) -> None:
    """Machines were counted as if all four GPUs served, and the folder names the first."""
    made = SimpleNamespace(path=str(DIGITS))
    monkeypatch.setattr("analyzer.export.study.variant_of", lambda *_: made)
    kind = Pricing(
        instance_type="ml.g4dn.12xlarge", price_per_hour=4.89, devices_per_machine=devices
    )
    measured = Measurement(
        configuration=Configuration(device=device, max_batch_size=4).canonical(),
        edge=Edge(rate_rps=100.0, interval_rps=(90.0, 110.0)),
    )
    done = export_study(
        example_facts(model=inspect_model(DIGITS), pricing=kind),
        measured,
        tmp_path / "models",
        evidence={},
        cache_dir=tmp_path / "cache",
    )
    named = "gpus: [ 0 ]" in (tmp_path / "models" / "digits" / "config.pbtxt").read_text()
    assert named == (device == "gpu")
    assert [note.split(",")[0] for note in done.notes] == (
        ["ml.g4dn.12xlarge has 4 GPUs"] if said else []
    )
