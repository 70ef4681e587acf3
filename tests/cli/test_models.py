"""What a model directory's own configuration tells, and what of it is left out."""

from __future__ import annotations

import shutil
from pathlib import Path

from analyzer.cli.models import inspect_path

DIGITS = Path(__file__).parents[2] / "examples" / "digits.onnx"


def test_settings_that_are_not_measured_are_noted(tmp_path: Path) -> None:
    """A baseline without its sequence batcher or cache is another server: nobody was told."""
    folder = tmp_path / "digits"
    (folder / "1").mkdir(parents=True)
    shutil.copy(DIGITS, folder / "1" / "model.onnx")
    config = 'backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }'
    (folder / "config.pbtxt").write_text(config)
    plain, baseline = inspect_path(folder, {})
    assert baseline is not None and baseline.max_batch_size == 8
    (folder / "config.pbtxt").write_text(config + " response_cache { enable: true }")
    noted, same = inspect_path(folder, {})
    assert same == baseline
    (note,) = set(noted.notes) - set(plain.notes)
    assert "response_cache" in note
