"""Made-up inputs are valid; real ones are checked before they are used."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import DataError
from analyzer.variants.inputs import load_calibration, split_rows, synthetic_inputs


def make_model(*inputs: TensorSpec, batchable: bool = True, batch: int | None = None) -> ModelInfo:
    return ModelInfo(
        name="m",
        path="m.onnx",
        sha256="0" * 64,
        batchable=batchable,
        fixed_batch=batch,
        inputs=inputs,
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(2,)),),
    )


def spec(
    name: str = "x", datatype: str = "FP32", shape: tuple[int, ...] = (3,), **more: Any
) -> Any:
    return TensorSpec(name=name, datatype=datatype, shape=shape, **more)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_synthetic_inputs_are_valid_and_repeatable() -> None:
    model = make_model(
        spec("image", "FP16", (2, 2)),
        spec("ids", "INT64", (5,), value_range=(2, 9)),
        spec("attention_mask", "INT64", (5,), value_range=(0, 1)),
        spec("pixels", "UINT8", (64,)),
        spec("flag", "BOOL", ()),
    )
    rows = synthetic_inputs(model, 50, seed=1)
    assert {name: array.shape for name, array in rows.items()} == {
        "image": (50, 2, 2), "ids": (50, 5), "attention_mask": (50, 5), "pixels": (50, 64),
        "flag": (50,),
    }  # fmt: skip
    assert rows["image"].dtype == np.float16 and rows["pixels"].dtype == np.uint8
    assert (rows["ids"].min(), rows["ids"].max()) == (2, 9)
    assert (rows["attention_mask"] == 1).all() and rows["pixels"].max() > 200
    again = synthetic_inputs(model, 50, seed=1)
    assert all((rows[name] == again[name]).all() for name in rows)
    assert (synthetic_inputs(model, 50, seed=2)["ids"] != rows["ids"]).any()


def test_nothing_is_padding_in_what_is_made_up() -> None:
    """Torch's masks of padding hide what they mark: every answer was NaN, no variant comparable."""
    names = ("attention_mask", "src_key_padding_mask", "is_pad", "valid")
    model = make_model(*(spec(name, "BOOL") for name in names), spec("padding_mask", "INT64"))
    rows = synthetic_inputs(model, 2, seed=0)
    assert {name: int(array.max()) for name, array in rows.items()} == {
        "attention_mask": 1, "src_key_padding_mask": 0, "is_pad": 0, "valid": 1, "padding_mask": 0,
    }  # fmt: skip


def test_masks_of_floats_are_masks() -> None:
    """They were normal numbers, by which a graph weights what a mask should keep or hide."""
    names = ("mask", "padding_mask", "masked_latents", "x")
    rows = synthetic_inputs(make_model(*(spec(name, "FP32", (4,)) for name in names)), 3, seed=0)
    assert (rows["mask"] == 1).all() and (rows["padding_mask"] == 0).all()
    assert len(np.unique(rows["masked_latents"])) == len(np.unique(rows["x"])) == 12


@given(st.integers(1, 5000), st.integers(0, 5))
def test_no_row_calibrates_and_scores(rows: int, seed: int) -> None:
    calibrating, scoring = split_rows(rows, seed=seed)
    assert sorted([*calibrating, *scoring]) == list(range(rows))
    assert len(scoring) >= 1 and len(calibrating) <= 128
    assert len(calibrating) >= 1 or rows == 1


def test_calibration_casts_safely(tmp_path: Path) -> None:
    images = np.arange(12, dtype=np.uint8).reshape(4, 3)
    path = save(tmp_path / "c.npz", x=images, labels=np.array([0, 1, 1, 0]))
    data = load_calibration(path, make_model(spec()))
    assert data.rows == 4 and data.labels is not None and data.labels.dtype == np.int64
    assert data.inputs["x"].dtype == np.float32 and (data.inputs["x"] == images).all()
    other = save(tmp_path / "d.npz", x=images, labels=np.array([0, 1, 1, 1]))
    assert load_calibration(other, make_model(spec())).sha256 != data.sha256


def test_single_array_may_have_any_name_and_rows_are_bounded(tmp_path: Path) -> None:
    path = save(tmp_path / "c.npz", whatever=np.zeros((40, 3)), labels=np.zeros(40, int))
    data = load_calibration(path, make_model(spec()), rows_max=10)
    assert data.rows == 10 and data.labels is not None and len(data.labels) == 10


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((4, 2))}, r"'x' has the shape \(4, 2\), and \(rows, 3\) is needed"),
        ({"x": np.zeros(())}, r"has the shape \(\)"),
        ({"x": np.zeros((0, 3))}, "has no rows"),
        ({"x": np.full((4, 3), np.nan)}, "NaN or infinity in row 0"),
        ({"x": np.array([["a", "b", "c"]])}, "has the type <U1"),
        ({"x": np.zeros((4, 3), complex)}, "has the type complex128"),
        ({"x": np.full((4, 3), 1e300)}, "row 0 that FP32 cannot hold"),
        ({"x": np.zeros((4, 3)), "z": np.zeros(4)}, "'z', which is no input"),
        ({"labels": np.zeros(4, int)}, "no array for the input 'x'"),
        ({"x": np.zeros((4, 3)), "labels": np.zeros(5, int)}, r"'labels' has the shape \(5,\)"),
        ({"x": np.zeros((4, 3)), "labels": np.zeros((4, 9), int)}, "'labels' has the shape"),
        ({"x": np.zeros((4, 3)), "labels": np.int64(3)}, r"shape \(\), and \(4,\) is needed"),
        ({"x": np.zeros((4, 3)), "labels": np.nan}, r"shape \(\), and \(4,\) is needed"),
        ({"x": np.zeros((4, 3)), "labels": np.full(4, 0.5)}, "class numbers are needed"),
        ({"x": np.zeros((4, 3)), "labels": np.array([0, 1, np.inf, 0])}, "infinity in row 2"),
        ({"x": np.zeros((4, 3)), "labels": np.full(4, 1e300)}, "which is no class number"),
        ({"x": np.zeros((4, 3)), "labels": np.array([0, 1, -1, 0])}, "negative class"),
        ({"x": np.zeros((4, 3)), "labels": np.array([0, 1, 2, 0])}, "'y' has 2 classes"),
        ({"x": np.array([[object()] * 3])}, "'x' holds Python objects, not numbers"),
    ],
)
def test_bad_calibration(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = save(tmp_path / "c.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load_calibration(path, make_model(spec()))
    assert str(path) in caught.value.message and caught.value.hint


def test_a_cast_that_would_lose_the_values_is_not_advised(tmp_path: Path) -> None:
    """Pixels that were scaled to 0…1 are all 0 as integers."""
    model = make_model(spec(datatype="UINT8"))
    for array, advice in ((np.full((4, 3), 0.7), "no whole numbers"), (np.ones((4, 3)), "astype")):
        with pytest.raises(DataError, match="has the type float64") as caught:
            load_calibration(save(tmp_path / "c.npz", x=array), model)
        assert advice in caught.value.hint


@pytest.mark.parametrize("saved", [(4,), (4, 1)])
@pytest.mark.parametrize("asked", [(), (1,)])
def test_one_number_for_each_example_fits_with_an_axis_or_without(
    tmp_path: Path, saved: tuple[int, ...], asked: tuple[int, ...]
) -> None:
    """A graph's lengths are [rows], a server's [rows, 1]: one file serves a search and measure."""
    model = make_model(spec("lengths", "INT64", asked))
    data = load_calibration(save(tmp_path / "c.npz", lengths=np.arange(4).reshape(saved)), model)
    assert data.inputs["lengths"].shape == (4, *asked)
    assert data.inputs["lengths"].ravel().tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match="is needed"):
        load_calibration(save(tmp_path / "d.npz", lengths=np.array(3)), model)


def test_values_that_the_type_cannot_hold_are_refused(tmp_path: Path) -> None:
    model = make_model(spec("ids", "INT32", (2,)), spec("m", "INT32"))
    arrays = {"ids": np.array([[0, 9], [2**40, 1]]), "m": np.full((2, 3), 7)}
    with pytest.raises(DataError, match="value in row 1 that INT32 cannot hold"):
        load_calibration(save(tmp_path / "c.npz", **arrays), model)
    with pytest.raises(DataError, match="different numbers of rows"):
        load_calibration(
            save(tmp_path / "c.npz", ids=np.zeros((2, 2), int), m=np.zeros((3, 3), int)), model
        )


def test_unreadable_files(tmp_path: Path) -> None:
    model = make_model(spec())
    with pytest.raises(DataError, match="does not exist"):
        load_calibration(tmp_path / "none.npz", model)
    for text in ("a,b\n", "", "PK"):
        (tmp_path / "text.npz").write_text(text)
        with pytest.raises(DataError, match=r"text\.npz is no \.npz file\.$") as caught:
            load_calibration(tmp_path / "text.npz", model)
        assert "numpy.savez(FILE, x=…, labels=…)" in caught.value.hint
        assert "pickle" not in caught.value.message + caught.value.hint
    whole = save(tmp_path / "c.npz", x=np.random.default_rng(0).random((100, 3))).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cannot be read as \.npz"):
        load_calibration(tmp_path / "cut.npz", model)
    with (tmp_path / "one.npz").open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(DataError, match="one array without a name"):
        load_calibration(tmp_path / "one.npz", model)
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(DataError, match=r"'notes\.txt' is no array"):
        load_calibration(tmp_path / "zip.npz", model)


@pytest.mark.parametrize(
    ("method", "place"),
    # The type of the first block, which none has; the properties behind the version of LZMA.
    [(zipfile.ZIP_DEFLATED, 0), (zipfile.ZIP_LZMA, 4)],
)
def test_damaged_compressed_files_are_told(tmp_path: Path, method: int, place: int) -> None:
    """As a fault of the program, with a traceback."""
    whole, damaged = tmp_path / "c.npz", tmp_path / "damaged.npz"
    plain = save(tmp_path / "plain.npz", x=np.arange(12.0).reshape(4, 3))
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(whole, "w", method) as target:
        target.writestr("x.npy", source.read("x.npy"))
    assert load_calibration(whole, make_model(spec())).rows == 4
    content = bytearray(whole.read_bytes())
    content[30 + len("x.npy") + place] = 0xFF  # behind the header of the first member
    damaged.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged\.npz cannot be read as \.npz"):
        load_calibration(damaged, make_model(spec()))


def test_a_lone_array_is_told_by_its_own_name(tmp_path: Path) -> None:
    path = save(tmp_path / "c.npz", foo=np.zeros((4, 2)))
    with pytest.raises(DataError) as caught:
        load_calibration(path, make_model(spec("image")))
    assert "the array 'foo' (the only one, so taken for the input 'image')" in caught.value.message
    two = make_model(spec("input:0"), spec("mask"))
    with pytest.raises(DataError, match=r"no array for the input 'input:0' .*foo") as caught:
        load_calibration(path, two)
    assert "numpy.savez(FILE, **{'input:0': …}, mask=…)" in caught.value.hint


def test_fixed_batch_takes_single_examples(tmp_path: Path) -> None:
    model = make_model(spec(shape=(4, 3)), batchable=False, batch=4)
    examples = np.arange(30, dtype=np.float32).reshape(10, 3)
    path = save(tmp_path / "c.npz", x=examples, labels=np.arange(10) % 2)
    data = load_calibration(path, model)
    assert data.rows == 2 and data.inputs["x"].shape == (2, 4, 3)
    assert data.labels is not None and (data.labels == np.arange(8).reshape(2, 4) % 2).all()
    whole = save(tmp_path / "w.npz", x=examples[:8].reshape(2, 4, 3))
    assert (load_calibration(whole, model).inputs["x"] == data.inputs["x"]).all()
    assert "4 of its rows make one request" in data.notes[0]
    assert not load_calibration(whole, model).notes


def test_rows_of_a_fixed_batch_are_told_as_the_file_counts_them(tmp_path: Path) -> None:
    model = make_model(spec(shape=(4, 3)), batchable=False, batch=4)
    examples = np.zeros((12, 3))
    examples[7, 1] = np.nan
    with pytest.raises(DataError, match="NaN or infinity in row 7"):
        load_calibration(save(tmp_path / "c.npz", x=examples), model)
    with pytest.raises(DataError, match="has 3 rows, and one request of this model holds 4"):
        load_calibration(save(tmp_path / "d.npz", x=np.zeros((3, 3))), model)
    labels = np.zeros((3, 2), int)
    with pytest.raises(DataError, match=r"'labels' has the shape \(3, 2\), and \(12,\) is needed"):
        load_calibration(save(tmp_path / "e.npz", x=np.zeros((12, 3)), labels=labels), model)


def test_a_length_that_is_taken_for_no_dimension_is_told_with_its_option(tmp_path: Path) -> None:
    path = save(tmp_path / "c.npz", x=np.zeros((5, 64, 3)))
    with pytest.raises(DataError) as caught:
        load_calibration(path, make_model(spec()))
    assert "add --input-shape x:64,3." in caught.value.hint


def test_labels_for_another_number_of_classes_than_a_request_tells(tmp_path: Path) -> None:
    """A class for each of 20 steps, and one label for all: an IndexError ended the search."""
    path = save(tmp_path / "c.npz", x=np.zeros((6, 20, 3)), labels=np.zeros(6, int))

    def model(first: int) -> ModelInfo:
        output = TensorSpec(name="y", datatype="FP32", shape=(first, 5))
        return replace(make_model(spec(shape=(20, 3)), batchable=False), outputs=(output,))

    with pytest.raises(DataError, match=r"gives each request 1 class number, .*'y' tells 20") as e:
        load_calibration(path, model(20))
    assert "Leave the labels out" in e.value.hint
    for first in (1, -1):  # what is open, nobody knows before it runs
        assert load_calibration(path, model(first)).labels is not None
