"""The examples: the committed files, and the script that writes encoders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from analyzer.variants.inputs import load_calibration, synthetic_inputs
from analyzer.variants.inspect import inspect_model
from analyzer.variants.try_model import try_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def write_encoder(path: Path, *options: str) -> Path:
    command = [sys.executable, str(EXAMPLES / "make_text_encoder.py"), str(path), *options]
    subprocess.run(command, check=True, capture_output=True)
    return path


def test_digits_are_small_and_fit_together() -> None:
    for name in ("digits.onnx", "digits.npz"):
        assert (EXAMPLES / name).stat().st_size < 1 << 20
    model = inspect_model(EXAMPLES / "digits.onnx")
    data = load_calibration(EXAMPLES / "digits.npz", model)
    assert data.rows == 800 and data.labels is not None
    assert np.bincount(data.labels).min() > 50


@pytest.mark.long
def test_digits_script_writes_the_committed_network(tmp_path: Path) -> None:
    import onnxruntime

    subprocess.run(
        [sys.executable, str(EXAMPLES / "make_digits.py"), str(tmp_path)],
        check=True,
        capture_output=True,
    )
    images = np.load(EXAMPLES / "digits.npz")["image"]
    np.testing.assert_array_equal(np.load(tmp_path / "digits.npz")["image"], images)
    answers = [
        onnxruntime.InferenceSession(
            str(folder / "digits.onnx"), providers=["CPUExecutionProvider"]
        ).run(None, {"image": images[:50].astype(np.float32)})[0]
        for folder in (EXAMPLES, tmp_path)
    ]
    np.testing.assert_allclose(answers[0], answers[1], atol=0.05)


@pytest.mark.parametrize(
    ("options", "shape", "output"),
    [
        (("--classes", "5"), (16,), ("logits", (5,))),
        (("--dynamic-tokens", "--external"), (7,), ("embedding", (32,))),
        (("--batch", "2"), (2, 16), ("embedding", (2, 32))),
    ],
)
def test_encoders_of_any_shape_run(
    tmp_path: Path, options: tuple[str, ...], shape: tuple[int, ...], output: tuple[str, object]
) -> None:
    size = ("--layers", "1", "--hidden", "32", "--heads", "2", "--tokens", "16", "--vocab", "100")
    path = write_encoder(tmp_path / "encoder.onnx", *size, *options)
    given = {"input_ids": (7,)} if "--dynamic-tokens" in options else None
    model = inspect_model(path, input_shapes=given)
    assert [spec.shape for spec in model.inputs] == [shape, shape]
    assert model.inputs[0].value_range == (0, 99)
    assert [(spec.name, spec.shape) for spec in model.outputs] == [output]
    assert bool(model.external_files) == ("--external" in options)
    assert try_model(model, synthetic_inputs(model, 2, 0))[0] == model
