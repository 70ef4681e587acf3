"""Weights behind links: ONNX Runtime reads them, and ONNX itself refuses to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from analyzer.domain.configuration import VariantKey
from analyzer.errors import ModelError
from analyzer.variants.build import Variant, build_variants
from analyzer.variants.declared_outputs import with_outputs
from analyzer.variants.inputs import load_calibration
from analyzer.variants.inspect import inspect_model
from analyzer.variants.linked_weights import load_whole

Write = Callable[..., Path]
DATA = "model.onnx.data"


def hugging_face(model: Path, cache: Path) -> Path:
    """``model`` as the Hugging Face cache keeps it."""
    blobs, snapshot = cache / "blobs", cache / "snapshots" / "rev"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, name in enumerate((model.name, DATA)):
        shutil.copy(model.with_name(name), blobs / f"hash{number}")
        (snapshot / name).symlink_to(f"../../blobs/hash{number}")
    return snapshot / model.name


def hard_links(model: Path, folder: Path) -> Path:
    folder.mkdir()
    for name in (model.name, DATA):
        (folder / name).hardlink_to(model.with_name(name))
    return folder / model.name


@pytest.mark.parametrize("linked", [hugging_face, hard_links])
def test_every_variant_is_built_of_weights_behind_links(
    linked: Callable[[Path, Path], Path], linear_model: Write, tmp_path: Path
) -> None:
    """ONNX refused them, so that only fp32 was left, with three notes about a ValidationError."""
    path = linked(linear_model(external=True), tmp_path / "linked")
    model = inspect_model(path)
    assert model.path == str(path) and model.external_files == (DATA,)
    rows = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=rows)
    keys = [
        VariantKey(precision="fp16", backend="onnxruntime"),
        VariantKey(precision="int8", quantization="static", backend="onnxruntime"),
        VariantKey(precision="int8", quantization="dynamic", backend="onnxruntime"),
    ]
    data = load_calibration(tmp_path / "rows.npz", model)
    built = build_variants(model, keys, calibration=data, cache_dir=tmp_path / "cache")
    assert all(isinstance(variant, Variant) for variant in built.values()), built


def test_a_linked_model_whose_weights_lie_beside_the_target(
    linear_model: Write, tmp_path: Path
) -> None:
    path = hugging_face(linear_model(external=True), tmp_path / "cache")
    (tmp_path / "links" / "more").mkdir(parents=True)
    (tmp_path / "links" / "first.onnx").symlink_to(path)
    link = tmp_path / "links" / "more" / "second.onnx"
    link.symlink_to("../first.onnx")
    model = inspect_model(link)
    assert (model.name, Path(model.path)) == ("second", path)
    assert model.sha256 == inspect_model(path).sha256
    path.with_name(DATA).unlink()
    with pytest.raises(ModelError, match=r"second\.onnx keeps .* not beside it"):
        inspect_model(link)


def test_graphs_that_are_rewritten_are_read_through_links(
    write_model: Write, tmp_path: Path
) -> None:
    path = write_model(
        [
            onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
            onnx.helper.make_node("ReduceMax", ["y"], ["top"], keepdims=0),
        ],
        [("x", onnx.TensorProto.FLOAT, ["n", 8])],
        [("y", onnx.TensorProto.FLOAT, ["n", 4]), ("top", onnx.TensorProto.FLOAT, [])],
        {"w": np.ones((8, 4), np.float32)},
        external=True,
    )
    path = hugging_face(path, tmp_path / "cache")
    served = with_outputs(path, ["y"], tmp_path / "scratch")
    assert served != path and inspect_model(served).batchable
    assert with_outputs(path, ["y", "top"], tmp_path / "scratch") == path
    whole = load_whole(path, (DATA,))
    assert len(whole.graph.initializer[0].raw_data) == 128
    scalar = inspect_model(path, input_shapes={"x": (3, 8)}, scratch=tmp_path / "scratch")
    assert any("Triton serves no scalars" in note for note in scalar.notes)
