"""What a model directory's own configuration tells, and what of it is left out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from analyzer.cli import search_run
from analyzer.cli.models import as_it_runs, inspect_path
from analyzer.cli.search_options import SearchOptions
from analyzer.engine.loader import LoadSettings, load_versions, read_model_config
from analyzer.errors import AnalyzerError, ModelError, RepositoryError, UsageError
from analyzer.modelconfig.files import python_model
from analyzer.search.request import SearchRequest

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


@pytest.mark.parametrize(("batch", "dims"), [(4, "24"), (0, "-1, 24")])
def test_what_the_graph_leaves_open_its_configuration_tells(
    tmp_path: Path, save_open_model: Callable[[Path], None], batch: int, dims: str
) -> None:
    """An exported repository could not be measured or searched again without its options."""
    folder = tmp_path / "tokens"
    save_open_model(folder / "1" / "model.onnx")
    config = folder / "config.pbtxt"
    text = (
        f'backend: "onnxruntime" max_batch_size: {batch} '
        f'input {{ name: "tokens" data_type: TYPE_INT64 dims: [ {dims} ] }}'
    )
    if not batch:
        text += ' output { name: "y" data_type: TYPE_INT64 dims: [ -1 ] }'
    config.write_text(text)
    if batch:
        model, _ = inspect_path(folder, {})
        assert model.inputs[0].shape == (24,)
        model, _ = inspect_path(folder, {"tokens": (7,)})  # the user's word stands
        assert model.inputs[0].shape == (7,)
        config.write_text(text.replace("24", "-1"))
    with pytest.raises(ModelError, match="sequence"):
        inspect_path(folder, {})


def test_a_fixed_batch_in_the_configuration_is_not_taken_for_a_dimension(
    tmp_path: Path, save_open_model: Callable[[Path], None]
) -> None:
    folder = tmp_path / "tokens"
    save_open_model(folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(
        'backend: "onnxruntime" input { name: "tokens" data_type: TYPE_INT64 dims: [ 1, 24 ] }'
        ' output { name: "y" data_type: TYPE_INT64 dims: [ -1 ] }'
    )
    model, _ = inspect_path(folder, {})
    assert model.inputs[0].shape == (24,)


IO = (
    'input { name: "image" data_type: TYPE_FP32 dims: [ 1, 64, 64 ] } '
    'output { name: "logits" data_type: TYPE_FP32 dims: [ 10 ] } '
)


def _digits(tmp_path: Path, config: str, *versions: str) -> Path:
    folder = tmp_path / "digits"
    for version in versions or ("1",):
        (folder / version).mkdir(parents=True)
        shutil.copy(DIGITS, folder / version / "model.onnx")
    (folder / "config.pbtxt").write_text(config)
    return folder


def test_code_of_ones_own_is_not_replaced_by_the_graph_beside_it(tmp_path: Path) -> None:
    """The bare graph was certified and exported in the place of a service around it."""
    folder = _digits(tmp_path, 'backend: "python" max_batch_size: 8 ' + IO)
    code = folder / "1" / "model.py"
    code.write_text("class TritonPythonModel: pass")
    with pytest.raises(ModelError, match=r"code of its own \(model.py"):
        inspect_path(folder, {})
    exported = python_model()
    for text in (exported, re.sub(r"(tritune) \S+\.", r"\1 0.0.1.", exported, count=1)):
        code.write_text(text)
        _, baseline = inspect_path(folder, {})
        assert baseline is not None and baseline.backend == "python"
    code.write_text(exported + "# changed\n")
    with pytest.raises(ModelError, match="code of its own"):
        inspect_path(folder, {})


@pytest.mark.parametrize(
    ("config", "maximum"),
    [
        ("", 4),
        ("max_batch_size: 32", 32),
        ('backend: "onnxruntime"', 4),
        ('platform: "onnxruntime_onnx" max_batch_size: 32', 32),
        ('backend: "onnxruntime" instance_group { count: 1 kind: KIND_CPU }', 4),
    ],
)
def test_a_baseline_is_completed_as_the_server_does(
    tmp_path: Path, config: str, maximum: int
) -> None:
    _, baseline = inspect_path(_digits(tmp_path, config), {})
    assert baseline is not None and baseline.dynamic_batching
    assert (baseline.max_batch_size, baseline.preferred_batch_size) == (maximum, (maximum,))
    assert baseline.instance_count == (1 if "count" in config else 2)


def test_what_is_configured_whole_is_not_completed(tmp_path: Path) -> None:
    whole = IO.replace("[ 1,", "[ 2, 1,").replace("[ 10", "[ -1, 10")
    _, baseline = inspect_path(_digits(tmp_path, 'backend: "onnxruntime" ' + whole), {})
    assert baseline is not None and baseline.max_batch_size == 0


def test_the_version_that_is_served_is_read(tmp_path: Path) -> None:
    folder = _digits(tmp_path, "version_policy { specific { versions: [ 2, 1 ] } }", "1", "2", "10")
    (folder / "10" / "model.onnx").write_text("no graph")
    model, _ = inspect_path(folder, {})
    assert Path(model.path).parent.name == "2"
    assert any("version_policy" in note for note in model.notes)
    (folder / "config.pbtxt").write_text("version_policy { specific { versions: [ 7 ] } }")
    with pytest.raises(RepositoryError, match="version policy of model 'digits'"):
        inspect_path(folder, {})


def test_the_file_that_is_named_is_read(tmp_path: Path) -> None:
    folder = _digits(tmp_path, 'backend: "onnxruntime" default_model_filename: "net.onnx"')
    (folder / "1" / "net.onnx").write_bytes((folder / "1" / "model.onnx").read_bytes())
    (folder / "1" / "model.onnx").write_text("no graph")
    model, _ = inspect_path(folder, {})
    assert Path(model.path).name == "net.onnx"
    (folder / "1" / "net.onnx").unlink()
    with pytest.raises(ModelError, match=r"no net.onnx, which config.pbtxt names"):
        inspect_path(folder, {})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('name: "other" ' + IO, "unexpected directory name 'digits' for model 'other'"),
        (IO.replace("FP32", "FP16", 1), "'image' is TYPE_FP16 in the configuration and FP32"),
        (IO.replace('"image"', '"x"'), "unexpected inference input 'x', allowed inputs are: image"),
        (IO.replace('"logits"', '"y"'), "unexpected inference output 'y'"),
        ("instance_group { kind: KIND_CPU gpus: 0 }", "KIND_CPU but specifies one or more GPUs"),
        ('instance_group { profile: "1" }', "which only the TensorRT backend has"),
        (
            'optimization { execution_accelerators { cpu_execution_accelerator { name: "a" } } }',
            "unknown Execution Accelerator 'a'",
        ),
    ],
)
def test_what_a_server_refuses_is_refused(tmp_path: Path, config: str, said: str) -> None:
    folder = _digits(tmp_path, 'backend: "onnxruntime" max_batch_size: 4 ' + config)
    with pytest.raises(AnalyzerError, match=said) as refused:
        inspect_path(folder, {})
    assert refused.value.exit_code == 2 and refused.value.hint


def test_a_warm_up_that_a_server_refuses_is_refused(tmp_path: Path) -> None:
    """The folder was searched and measured, though no Triton loads it."""
    warmup = (
        'model_warmup { name: "w" batch_size: 1 inputs { key: "image" '
        "value { data_type: TYPE_FP32 dims: [ 1, 64, %d ] zero_data: true } } }"
    )
    folder = _digits(tmp_path, 'backend: "onnxruntime" ' + warmup % 64)
    inspect_path(folder, {})
    (folder / "config.pbtxt").write_text('backend: "onnxruntime" ' + warmup % 65)
    with pytest.raises(RepositoryError, match=r"Expected \[-1,1,64,64\], got \[1,1,64,65\]"):
        inspect_path(folder, {})


@pytest.mark.parametrize(
    "config", [None, "", 'backend: "onnxruntime"', 'platform: "onnxruntime_onnx"']
)
def test_a_file_of_another_name_is_not_served(tmp_path: Path, config: str | None) -> None:
    """It was searched, and no Triton finds it."""
    folder = _digits(tmp_path, config or "")
    if config is None:
        (folder / "config.pbtxt").unlink()
    (folder / "1" / "model.onnx").rename(folder / "1" / "net.onnx")
    with pytest.raises(ModelError, match=r"no model\.onnx, .*\(found: net\.onnx\)") as refused:
        inspect_path(folder, {})
    hint = refused.value.hint
    setting = hint[hint.index('backend: "onnxruntime"') :].removesuffix(" into config.pbtxt.")
    settings = LoadSettings()
    with pytest.raises(AnalyzerError, match=r"net\.onnx") as unloaded:
        read = read_model_config(folder, "digits", settings, None)
        load_versions(folder, read, settings, lambda *_: pytest.fail("no ensemble"))
    assert "model.onnx" in unloaded.value.message + unloaded.value.hint
    (folder / "config.pbtxt").write_text(setting)
    _, baseline = inspect_path(folder, {})
    assert baseline is not None


def test_inputs_that_a_sequence_batcher_gives_are_named(tmp_path: Path) -> None:
    """The folder's inputs were called wrong, which a server loads."""
    control = (
        'sequence_batching { control_input { name: "start" '
        "control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } "
        'state { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: [ 1 ] } }'
    )
    folder = _digits(tmp_path, 'backend: "onnxruntime" max_batch_size: 4 ' + IO + control)
    with pytest.raises(ModelError, match="sequence batcher gives the model 'start', 'h'"):
        inspect_path(folder, {})


def test_a_model_that_does_not_run_two_requests_is_searched_one_at_a_time(
    folder: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first dimension is dynamic by its own word, and a reshape inside holds one row."""
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "one"], ["row"]),
            helper.make_node("MatMul", ["row", "w"], ["y"]),
        ],
        "baked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [
            numpy_helper.from_array(np.array([1, 8]), "one"),
            numpy_helper.from_array(np.ones((8, 4), np.float32), "w"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "baked.onnx")
    seen: list[SearchRequest] = []

    def search(options: SearchOptions, request: SearchRequest, *others: Any) -> None:
        seen.append(request)
        raise UsageError("seen")

    monkeypatch.setattr(search_run, "_search", search)
    words = ("--latency-budget", "50ms", "--executor", "in-process")
    assert call("search", "baked.onnx", *words).code == 2
    (request,) = seen
    assert not request.model.batchable
    sizes = {found.max_batch_size for found, _ in request.space.candidates().values()}
    assert sizes == {0}


def _classifier(folder: Path, config: str) -> Path:
    """A folder with a graph that also gives its input's sizes and a table, as exporters do."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["probs"], axis=1),
            helper.make_node("Shape", ["x"], ["sizes"]),
            helper.make_node("Identity", ["w"], ["table"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [
            helper.make_tensor_value_info("probs", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("sizes", TensorProto.INT64, [2]),
            helper.make_tensor_value_info("table", TensorProto.FLOAT, [8, 4]),
        ],
        [numpy_helper.from_array(np.ones((8, 4), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    version = folder / "classifier" / "1"
    version.mkdir(parents=True)
    onnx.save_model(
        model,
        str(version / "model.onnx"),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    (version.parent / "config.pbtxt").write_text(
        f'backend: "onnxruntime" {config} input {{ name: "x" data_type: TYPE_FP32 dims: [ 8 ] }} '
        'output { name: "probs" data_type: TYPE_FP32 dims: [ 4 ] }'
    )
    return version.parent


def test_outputs_that_a_folder_does_not_declare_are_left_out(
    folder: Path, call: Callable[..., Any]
) -> None:
    """A search ended after its whole budget: no batch axis, but max_batch_size is 8."""
    path = _classifier(folder, "max_batch_size: 8 dynamic_batching { }")
    model, baseline = inspect_path(path, {})
    assert model.batchable and model.name == "classifier"
    assert [tensor.name for tensor in model.outputs] == ["probs"]
    assert baseline is not None and baseline.max_batch_size == 8
    (note,) = model.notes
    assert note == "Only the outputs that config.pbtxt declares are served: 'probs'."
    outputs = [value.name for value in onnx.load(model.path).graph.output]
    assert outputs == ["probs"], "the file that is served and exported"
    assert inspect_path(path, {})[0] == model
    answer = call("measure", str(path), "--concurrency", "2", "--duration", "0.3s", "--json")
    assert answer.code == 0 and answer.document["errors"] == 0, answer


def test_a_model_that_proves_to_be_no_batch_is_served_without_batches(tmp_path: Path) -> None:
    path = _classifier(tmp_path, "max_batch_size: 8 dynamic_batching { }")
    file = path / "1" / "model.onnx"
    graph = onnx.load(str(file))
    (softmax,) = (node for node in graph.graph.node if node.op_type == "Softmax")
    softmax.attribute[0].i = 0
    onnx.save(graph, str(file))
    model, configuration = inspect_path(path, {})
    assert model.batchable
    ran, served, inference_s = as_it_runs(model, configuration, None)
    assert not ran.batchable and inference_s > 0
    assert served is not None and (served.max_batch_size, served.dynamic_batching) == (0, False)


@pytest.mark.parametrize(
    ("precision", "parameters"),
    [
        ("int8", {"tritune_precision": "int8", "tritune_quantization": "static"}),
        ("fp16", {"tritune_precision": "fp16"}),
        ("fp32", {"tritune_precision": "fp32"}),
    ],
)
def test_a_folder_that_was_exported_is_searched_as_it_is(
    folder: Path,
    call: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    parameters: dict[str, str],
) -> None:
    """Its file was quantized again for the baseline; without real data that ended in a fault."""
    written = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '
        for key, value in parameters.items()
    )
    path = _digits(
        folder, 'backend: "onnxruntime" max_batch_size: 8 dynamic_batching { } ' + written
    )
    seen: list[Any] = []

    def make_context(request: SearchRequest, *, baseline: Any, **others: Any) -> None:
        seen.append(baseline)
        raise UsageError("seen")

    monkeypatch.setattr("analyzer.search.context.make_context", make_context)
    answer = call("search", str(path), "--latency-budget", "50ms", "--executor", "in-process")
    assert answer.code == 2, answer.stderr
    (baseline,) = seen
    assert (baseline.precision, baseline.quantization, baseline.max_batch_size) == ("fp32", None, 8)
    said = f"config.pbtxt says that the file is {precision} already"
    assert (said in " ".join(answer.stderr.split())) is (precision != "fp32")
    # What is there is measured, and verified, as the server has it.
    assert inspect_path(path, {})[1].precision == precision
