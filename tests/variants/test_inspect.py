"""Inspection of good and bad models."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from analyzer.errors import MissingPartError, ModelError
from analyzer.variants.inputs import synthetic_inputs
from analyzer.variants.inspect import inspect_model
from analyzer.variants.onnx_file import default_name, locate_onnx
from analyzer.variants.try_model import as_unbatched, try_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Write = Callable[..., Path]


def relu(name: str = "relu") -> list[object]:
    return [helper.make_node("Relu", ["x"], ["y"], name=name)]


def test_digits_example(examples: Path) -> None:
    model = inspect_model(examples / "digits.onnx")
    assert (model.name, model.batchable, model.fixed_batch) == ("digits", True, None)
    assert [(i.name, i.datatype, i.shape) for i in model.inputs] == [("image", "FP32", (1, 64, 64))]
    assert [(o.name, o.shape) for o in model.outputs] == [("logits", (10,))]
    assert model.sha256 == hashlib.sha256((examples / "digits.onnx").read_bytes()).hexdigest()
    assert Path(model.path).is_absolute() and model.opset == 17 and model.external_files == ()


def test_fixed_batch_keeps_the_axis(linear_model: Write) -> None:
    model = inspect_model(linear_model(batch=3))
    assert not model.batchable and model.fixed_batch == 3
    assert model.inputs[0].shape == (3, 8) and model.outputs[0].shape == (3, 4)


def test_fixed_output_makes_a_model_unbatchable(write_model: Write) -> None:
    path = write_model(
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        [("x", FLOAT, ["batch", 8])],
        [("y", FLOAT, [])],
    )
    model = inspect_model(path)
    assert not model.batchable and model.fixed_batch == 1, "rows of data are requests"
    assert model.inputs[0].shape == (1, 8)


def test_output_shape_is_inferred(write_model: Write) -> None:
    path = write_model(relu(), [("x", FLOAT, ["n", 8])], [("y", FLOAT, None)])
    model = inspect_model(path)
    assert model.batchable and model.outputs[0].shape == (8,)


def test_dynamic_dimensions_need_shapes(write_model: Write) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    dims = ["batch", 3, "height", None]
    path = write_model(nodes, [("a", FLOAT, dims), ("b", FLOAT, dims)], [("y", FLOAT, dims)])
    with pytest.raises(ModelError, match=r"Dimension 2 \(height\) of the input 'a'") as caught:
        inspect_model(path)
    assert "--input-shape a:3,N,N" in caught.value.hint
    with pytest.raises(ModelError, match="Dimension 3 of the input 'b'"):
        inspect_model(path, input_shapes={"a": (3, 20, 30)})
    model = inspect_model(path, input_shapes={"a": (3, 20, 30), "b": (3, 20, 30)})
    assert [spec.shape for spec in model.inputs] == [(3, 20, 30)] * 2
    assert model.outputs[0].shape[:2] == (3, 20)


def test_named_dimension_is_given_once(write_model: Write) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    dims = ["batch", "tokens"]
    path = write_model(nodes, [("a", FLOAT, dims), ("b", FLOAT, dims)], [("y", FLOAT, dims)])
    model = inspect_model(path, input_shapes={"b": (7,)})
    assert [spec.shape for spec in model.inputs] == [(7,), (7,)]
    assert model.outputs[0].shape == (7,)
    with pytest.raises(ModelError, match="does not fit"):
        inspect_model(path, input_shapes={"a": (7,), "b": (8,)})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (8,)}, "no input of the model"),
        ({"x": (9,)}, "does not fit the input's shape 8"),
        ({"x": (8, 8)}, "has 2 dimensions"),
    ],
)
def test_given_shapes_are_checked(
    linear_model: Write, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        inspect_model(linear_model(), input_shapes=shapes)


def test_fixed_batch_with_dynamic_rest(write_model: Write) -> None:
    path = write_model(relu(), [("x", FLOAT, [2, "t"])], [("y", FLOAT, [2, "t"])])
    with pytest.raises(ModelError, match="--input-shape") as caught:
        try:
            inspect_model(path)
        except ModelError as error:
            raise ModelError(error.hint) from error
    assert "x:N" in str(caught.value)
    model = inspect_model(path, input_shapes={"x": (5,)})
    assert model.inputs[0].shape == (2, 5) and model.fixed_batch == 2


def test_external_weights(linear_model: Write) -> None:
    path = linear_model(external=True)
    data = path.with_name("model.onnx.data")
    model = inspect_model(path)
    assert model.external_files == ("model.onnx.data",)
    assert model.size_bytes == path.stat().st_size + data.stat().st_size
    content = bytearray(data.read_bytes())
    content[5] ^= 1
    data.write_bytes(content)
    assert inspect_model(path).sha256 != model.sha256
    data.write_bytes(content[:-4])
    with pytest.raises(ModelError, match=r"truncated: it has 124 bytes and the model needs 128"):
        inspect_model(path)
    data.unlink()
    with pytest.raises(ModelError, match=r"'w' in 'model.onnx.data', which is not beside it"):
        inspect_model(path)


def test_string_input_is_refused(write_model: Write) -> None:
    path = write_model(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.STRING, ["n", 1])],
        [("y", TensorProto.STRING, ["n", 1])],
    )
    with pytest.raises(ModelError, match="input 'x' holds strings"):
        inspect_model(path)


def test_strings_are_told_before_what_their_operators_lack(write_model: Write) -> None:
    """Text pipelines name a locale, and the machine may not have it: no reason to install one."""
    lower = helper.make_node(
        "StringNormalizer", ["x"], ["y"], case_change_action="LOWER", locale="xx_XX.none"
    )
    strings = TensorProto.STRING
    path = write_model([lower], [("x", strings, [None])], [("y", strings, [None])])
    with pytest.raises(ModelError, match="input 'x' holds strings"):
        inspect_model(path)


def test_random_numbers_are_told(write_model: Write) -> None:
    """Every variant was told as 100 % wrong, and nothing said that the model itself differs."""
    inputs, outputs = [("x", TensorProto.FLOAT, ["n", 4])], [("y", TensorProto.FLOAT, ["n", 4])]
    sample = [helper.make_node("RandomNormalLike", ["x"], ["y"])]
    (note,) = inspect_model(write_model(sample, inputs, outputs)).notes
    assert note.startswith("The model draws random numbers (RandomNormalLike): two answers")


@pytest.mark.parametrize("of", ["sequence", "map"])
def test_what_is_no_tensor_is_refused_with_what_helps(
    tmp_path: Path, write_model: Write, of: str
) -> None:
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    if of == "map":
        node = helper.make_node(
            "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
        )
    path = write_model([node], [("x", TensorProto.FLOAT, ["n", 2])], [("y", TensorProto.FLOAT, [])])
    model = onnx.load(path)
    kind = model.graph.output[0].type.sequence_type.elem_type
    if of == "map":
        kind.map_type.key_type = TensorProto.INT64
        kind.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
        model.opset_import.add(domain="ai.onnx.ml", version=3)
    else:
        kind.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"The output 'y' has the type seq\(") as caught:
        inspect_model(path)
    assert ("ZipMap" in caught.value.hint) == (of == "map")


@pytest.mark.parametrize("datatype", [("FLOAT16", "FP16"), ("INT8", "INT8"), ("BOOL", "BOOL")])
def test_other_types(write_model: Write, datatype: tuple[str, str]) -> None:
    kind = getattr(TensorProto, datatype[0])
    path = write_model(
        [helper.make_node("Identity", ["x"], ["y"])], [("x", kind, ["n", 4])], [("y", kind, None)]
    )
    model = inspect_model(path)
    assert model.inputs[0].datatype == datatype[1] and model.inputs[0].value_range is None


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"name,value\n1,2\n" * 50, "no ONNX file"), (None, "does not exist")],
)
def test_unreadable_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        inspect_model(path)
    assert caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.999])
def test_truncated_file(tmp_path: Path, examples: Path, share: float) -> None:
    whole = (examples / "digits.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"truncated|no ONNX file"):
        inspect_model(path)


def test_too_little_memory_is_not_told_as_a_broken_model(
    examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(onnx, "load", load)
    with pytest.raises(MissingPartError, match="does not fit into this machine's memory"):
        inspect_model(examples / "digits.onnx")


@pytest.mark.parametrize(("domain", "name"), [("", "Foo"), ("my.domain", "my.domain:Foo")])
def test_unsupported_operator_is_named(write_model: Write, domain: str, name: str) -> None:
    path = write_model(
        [helper.make_node("Foo", ["x"], ["y"], domain=domain)],
        [("x", FLOAT, ["n", 4])],
        [("y", FLOAT, ["n", 4])],
        domains=(domain,) if domain else (),
    )
    with pytest.raises(ModelError, match=f"uses the operator {name}, which"):
        inspect_model(path)


def test_model_directory(tmp_path: Path, linear_model: Write) -> None:
    source = linear_model()
    model = tmp_path / "my model"
    for version in ("2", "10", "010", "draft"):
        (model / version).mkdir(parents=True)
        shutil.copy(source, model / version / "model.onnx")
    (model / "config.pbtxt").write_text("")
    assert locate_onnx(model) == model / "10" / "model.onnx"
    assert inspect_model(model).name == "my_model"
    assert default_name(model / "10" / "model.onnx") == "my_model"
    (model / "10" / "resnet.onnx").touch()
    assert default_name(model / "10" / "resnet.onnx") == "resnet", "a folder called by a number"


@pytest.mark.parametrize(
    ("stem", "name"),
    [("naïve café", "naive_cafe"), ("my model (2)", "my_model_2"), ("...", "model")],
)
def test_names_are_latin(stem: str, name: str) -> None:
    assert default_name(Path(f"{stem}.onnx")) == name


def test_names_in_other_letters_stay_different() -> None:
    """Both were called "model", and one replaced the other in a repository."""
    names = {default_name(Path(f"{stem}.onnx")) for stem in ("модель", "другая", "模型", "ø_net")}
    assert len(names) == 4 and all(re.fullmatch(r"(model|net)_[0-9a-f]{6}", n) for n in names)
    # й as one letter and as two
    assert default_name(Path("\u0439.onnx")) == default_name(Path("\u0438\u0306.onnx"))


def test_a_repository_is_no_model_and_its_models_are_proposed(
    tmp_path: Path, linear_model: Write
) -> None:
    source = linear_model()
    repository = tmp_path / "models"
    for name in ("b", "a"):
        (repository / name / "1").mkdir(parents=True)
        shutil.copy(source, repository / name / "1" / "model.onnx")
    with pytest.raises(ModelError, match="is a repository") as caught:
        inspect_model(repository)
    assert f"like {repository / 'a'} (there are 2)" in caught.value.hint


@pytest.mark.parametrize(("what", "version"), [("opset", 99), ("the IR version", 60)])
def test_a_model_of_the_future_is_told_as_that(
    linear_model: Write, what: str, version: int
) -> None:
    """A path in C++ was shown, and the advice was to check the export."""
    path = linear_model()
    model = onnx.load(str(path))
    if what == "opset":
        model.opset_import[0].version = version
    else:
        model.ir_version = version
    onnx.save(model, str(path))
    with pytest.raises(ModelError, match=f"has {what} {version}, which is newer than") as caught:
        inspect_model(path)
    assert "_src" not in caught.value.message and "or lower" in caught.value.hint


def test_directory_without_model(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.plan").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"holds no ONNX file \(found: model.plan\)"):
        inspect_model(tmp_path / "m")


def test_a_path_that_is_no_text_is_told_with_the_locale(linear_model: Write) -> None:
    """ONNX Runtime said "incompatible constructor arguments", and a new export was advised."""
    good = linear_model()
    path = good.with_name(os.fsdecode(b"mod\xe8le.onnx"))
    try:
        good.rename(path)
    except OSError:
        pytest.skip("the file system takes no such name")
    with pytest.raises(ModelError, match=r"mod\\xe8le.onnx has bytes that are no text") as caught:
        inspect_model(path)
    assert "LC_ALL=C.UTF-8" in caught.value.hint and str(caught.value).isprintable()


def test_as_unbatched(linear_model: Write) -> None:
    model = as_unbatched(inspect_model(linear_model()))
    assert not model.batchable and model.inputs[0].shape == (1, 8)
    assert as_unbatched(model) is model


@pytest.mark.parametrize(
    ("target", "batchable", "output"),
    [([-1, 8], True, (8,)), ([1, 8], False, (1, 8)), ([-1, 4], False, (-1, 4))],
)
def test_batch_axis_that_is_none_is_found_out(
    write_model: Write, target: list[int], batchable: bool, output: tuple[int, ...]
) -> None:
    # Shape inference does not see through Neg, so the declared axes look like a batch.
    nodes = [
        helper.make_node("Neg", ["minus_target"], ["target"]),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    path = write_model(
        nodes,
        [("x", FLOAT, ["batch", 8])],
        [("y", FLOAT, ["rows", target[1]])],
        {"minus_target": -np.array(target, np.int64)},
    )
    model = inspect_model(path)
    assert model.batchable
    tried, _ = try_model(model, synthetic_inputs(model, 2, 0))
    assert tried.batchable == batchable
    assert tried.inputs[0].shape == ((8,) if batchable else (1, 8))
    assert tried.outputs[0].shape == output


def over_rows(write_model: Write, nodes: list[object], weights: dict[str, np.ndarray]) -> Path:
    return write_model(nodes, [("x", FLOAT, ["n", 8])], [("y", FLOAT, ["n", 8])], weights)


@pytest.mark.parametrize(
    ("operator", "attributes", "weights", "independent"),
    [
        ("Softmax", {"axis": 1}, {}, True),
        ("Softmax", {"axis": 0}, {}, False),
        ("CumSum", {}, {"axis": np.array(0, np.int64)}, False),
        ("Bernoulli", {}, {}, True),  # random, whatever stands beside it
    ],
)
def test_rows_that_depend_on_each_other_are_no_batch(
    write_model: Write,
    operator: str,
    attributes: dict[str, int],
    weights: dict[str, np.ndarray],
    independent: bool,
) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["p"]),
        helper.make_node(operator, ["p", *weights], ["y"], **attributes),
    ]
    model = inspect_model(over_rows(write_model, nodes, weights))
    tried, _ = try_model(model, synthetic_inputs(model, 2, 0))
    assert tried.batchable == independent
    said = "the answer to a request ('y') depends on the other requests of its batch"
    notes = [note for note in tried.notes if "draws random numbers" not in note]
    assert [said in note for note in notes] == ([] if independent else [True])


def test_sizes_that_are_given_are_told_to_be_fixed(write_model: Write) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    path = write_model(nodes, [("x", FLOAT, ["n", "t", 4])], [("y", FLOAT, ["n", "t", 4])])
    (note,) = inspect_model(path, input_shapes={"x": (24, 4)}).notes
    assert note == "Only the given sizes are measured and exported: 'x' [24, 4]."
    fixed = write_model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])])
    assert not inspect_model(fixed, input_shapes={"x": (4,)}).notes


def test_types_without_a_kernel_are_told_as_that(write_model: Write) -> None:
    """It was "an operator that ONNX Runtime does not have", and a newer opset was advised."""
    tensors = [(name, TensorProto.BFLOAT16, ["n", "n"]) for name in ("x", "z", "y")]
    gemm = helper.make_node("Gemm", ["x", "z"], ["y"])
    with pytest.raises(ModelError, match="Gemm in a version or with types") as caught:
        inspect_model(write_model([gemm], tensors[:2], tensors[2:]))
    assert "float16" in caught.value.hint


def test_a_batch_normalization_in_training_mode_is_no_batch(write_model: Write) -> None:
    ones = {name: np.ones(8, np.float32) for name in ("scale", "bias", "mean", "var")}
    outputs = ["y", "new_mean", "new_var"]
    node = helper.make_node("BatchNormalization", ["x", *ones], outputs, training_mode=1)
    model = inspect_model(over_rows(write_model, [node], ones))
    assert not model.batchable and "BatchNormalization computes over the whole" in model.notes[0]


def test_a_size_that_the_data_decides_is_not_fixed_by_one_row(write_model: Write) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["indices"]),
        helper.make_node("Transpose", ["indices"], ["y"]),
    ]
    path = write_model(nodes, [("x", FLOAT, ["n", 8])], [("y", TensorProto.INT64, ["m", 2])])
    model = inspect_model(path)
    tried, _ = try_model(model, synthetic_inputs(model, 2, 0))
    assert not tried.batchable and tried.outputs[0].shape == (-1, 2)


def test_model_that_loads_and_does_not_run(write_model: Write) -> None:
    path = write_model(
        [helper.make_node("Reshape", ["x", "target"], ["y"])],
        [("x", FLOAT, ["batch", 8])],
        [("y", FLOAT, ["rows", 5])],
        {"target": np.array([-1, 5], np.int64)},
    )
    model = inspect_model(path)
    with pytest.raises(ModelError, match="loads and does not run"):
        try_model(model, synthetic_inputs(model, 2, 0))


def gather(*middle: object, index: str, table: str = "table", axis: int = 0) -> list[object]:
    return [*middle, helper.make_node("Gather", [table, index], ["y"], axis=axis)]


@pytest.mark.parametrize(
    ("nodes", "weights", "expected"),
    [
        (gather(index="ids"), {}, (0, 49)),
        (gather(helper.make_node("Cast", ["ids"], ["i"], to=TensorProto.INT32), index="i"), {},
         (0, 49)),
        (gather(helper.make_node("Add", ["ids", "two"], ["i"]), index="i"),
         {"two": np.int64(2)}, (0, 47)),
        (gather(helper.make_node("Sub", ["ids", "two"], ["i"]), index="i"),
         {"two": np.int64(2)}, (2, 51)),
        (gather(helper.make_node("Identity", ["table"], ["t"]), index="ids", table="t"), {},
         (0, 49)),
        (gather(helper.make_node("Mul", ["ids", "two"], ["i"]), index="i"),
         {"two": np.int64(2)}, (0, 1)),
        ([helper.make_node("OneHot", ["ids", "depth", "ends"], ["y"])],
         {"depth": np.int64(9), "ends": np.array([0, 1], np.float32)}, (0, 8)),
        ([helper.make_node("Expand", ["classes", "shape"], ["wide"]),
          helper.make_node("Unsqueeze", ["ids", "last"], ["i"]),
          helper.make_node("Equal", ["i", "wide"], ["hot"]),
          helper.make_node("Cast", ["hot"], ["y"], to=FLOAT)],
         {"classes": np.arange(257), "shape": np.array([1, 6, 257]), "last": np.array([2])},
         (0, 256)),
    ],
)  # fmt: skip
def test_range_of_table_indices(
    write_model: Write, nodes: list[object], weights: dict[str, np.ndarray], expected: object
) -> None:
    weights = {"table": np.zeros((50, 4), np.float32), **weights}
    path = write_model(nodes, [("ids", INT64, ["n", 6])], [("y", FLOAT, None)], weights)
    assert inspect_model(path).inputs[0].value_range == expected


@pytest.mark.parametrize("compared", [np.inf, -np.inf, np.nan, 1e300])
def test_a_comparison_with_what_is_no_integer_says_nothing(
    write_model: Write, compared: float
) -> None:
    """An infinity ended the inspection, and a float64 beyond the integers the made-up inputs."""
    nodes = [
        helper.make_node("Equal", ["rate", "compared"], ["same"]),
        helper.make_node("Cast", ["same"], ["y"], to=FLOAT),
    ]
    kind = TensorProto.DOUBLE
    weights = {"compared": np.array([compared])}
    path = write_model(nodes, [("rate", kind, [1])], [("y", FLOAT, [1])], weights)
    assert inspect_model(path).inputs[0].value_range is None
    nodes += [
        helper.make_node("Equal", ["rate", "known"], ["also"]),
        helper.make_node("Cast", ["also"], ["z"], to=FLOAT),
    ]
    weights["known"] = np.array([16000.0])
    outputs = [("y", FLOAT, [1]), ("z", FLOAT, [1])]
    path = write_model(nodes, [("rate", kind, [1])], outputs, weights)
    model = inspect_model(path)
    assert model.inputs[0].value_range == (16000, 16000)
    assert (synthetic_inputs(model, 2, 0)["rate"] == 16000).all()


def test_shortest_table_decides_and_shapes_are_no_values(write_model: Write) -> None:
    nodes = [
        helper.make_node("Gather", ["long", "ids"], ["a"]),
        helper.make_node("Gather", ["short", "ids"], ["b"]),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["tiny", "shape"], ["c"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    weights = {
        "long": np.zeros((50, 4), np.float32),
        "short": np.zeros((20, 4), np.float32),
        "tiny": np.zeros((900, 4), np.float32),
    }
    inputs = [("ids", INT64, ["n", 6]), ("mask", INT64, ["n", 6])]
    path = write_model(nodes, inputs, [("y", FLOAT, None), ("c", FLOAT, None)], weights)
    by_name = {spec.name: spec.value_range for spec in inspect_model(path).inputs}
    assert by_name == {"ids": (0, 19), "mask": (0, 1)}


def test_a_half_precision_model_is_told_what_fp32_means(tmp_path: Path) -> None:
    """It was "served as fp32", and nobody knew whether it was converted."""
    for name, kind in (("half", np.float16), ("float", np.float32)):
        elem = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        graph = helper.make_graph(
            [helper.make_node("Add", ["x", "one"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", elem, ["N", 4])],
            [helper.make_tensor_value_info("y", elem, ["N", 4])],
            [numpy_helper.from_array(np.ones(4, kind), "one")],
        )
        imports = [helper.make_opsetid("", 17)]
        onnx.save(
            helper.make_model(graph, opset_imports=imports, ir_version=8),
            str(tmp_path / f"{name}.onnx"),
        )
    (note,) = inspect_model(tmp_path / "half.onnx").notes
    assert "weights are fp16" in note and "as it is" in note
    assert not inspect_model(tmp_path / "float.onnx").notes
