"""config.pbtxt: rendered, parsed with Triton's own protobuf, and equal to the configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.configuration import Configuration, CudnnSearch, baseline_configuration
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import RepositoryError
from analyzer.modelconfig.render import (
    configuration_from_config,
    render_config,
    served_configuration,
)
from analyzer.modelconfig.text import parse_config
from analyzer.modelconfig.unexpressed import unexpressed_settings


def model(*, batchable: bool = True, **changes: object) -> ModelInfo:
    shape = (3, 8) if batchable else (2, 3, 8)
    values: dict[str, object] = {
        "name": "m",
        "path": "/models/m.onnx",
        "sha256": "0" * 64,
        "batchable": batchable,
        "inputs": (TensorSpec(name="x", datatype="FP32", shape=shape),),
        "outputs": (TensorSpec(name="y", datatype="FP32", shape=shape),),
    }
    return ModelInfo(**{**values, **changes})  # type: ignore[arg-type]


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    precision = draw(st.sampled_from(["fp32", "fp16", "int8"]))
    maximum = draw(st.integers(1, 128))
    preferred = draw(st.none() | st.lists(st.integers(1, maximum), max_size=4).map(tuple))
    device = draw(st.sampled_from(["cpu", "gpu"]))
    return Configuration(
        precision=precision,
        quantization=draw(st.sampled_from(["static", "dynamic"])) if precision == "int8" else None,
        backend=draw(st.sampled_from(["onnxruntime", "tensorrt", "python"])),
        device=device,
        max_batch_size=maximum,
        dynamic_batching=draw(st.booleans()),
        preferred_batch_size=preferred,
        max_queue_delay_us=draw(st.none() | st.integers(0, 10**12)),
        instance_count=draw(st.integers(1, 64)),
        intra_op_threads=draw(st.integers(0, 64)) if device == "cpu" else None,
        accelerator=draw(st.sampled_from([None, "openvino", "tensorrt"])),
        graph_level=draw(st.sampled_from([None, -1, 0, 1, 2])),
        execution_mode=draw(st.sampled_from([None, "sequential", "parallel"])),
        inter_op_threads=draw(st.none() | st.integers(0, 64)),
        cuda_graphs=draw(st.sampled_from([None, False, True])),
        pinned_memory=draw(st.sampled_from([None, False, True])),
        cudnn_search=draw(st.sampled_from([None, "heuristic", "exhaustive", "default"])),
    ).canonical()


@given(configurations())
def test_a_rendered_configuration_reads_back_equal(configuration: Configuration) -> None:
    if configuration.backend == "tensorrt" and configuration.device == "cpu":
        return  # TensorRT has no CPU
    text = render_config(model(), configuration)
    read = configuration_from_config(parse_config(text))
    assert read == configuration
    assert read.config_id == configuration.config_id


def test_the_baseline_reads_back_with_the_same_id() -> None:
    for batchable in (True, False):
        wanted = baseline_configuration(batchable=batchable)
        text = render_config(model(batchable=batchable), wanted)
        assert configuration_from_config(parse_config(text)).config_id == wanted.config_id


def test_an_empty_configuration_of_an_onnx_model_is_two_instances_of_onnx_runtimes_default() -> (
    None
):
    proto = parse_config(
        'name: "m" platform: "onnxruntime_onnx" max_batch_size: 4 dynamic_batching {}'
    )
    assert configuration_from_config(proto) == baseline_configuration(batchable=True)


def test_a_fixed_batch_is_served_with_full_dimensions_and_no_batching() -> None:
    text = render_config(model(batchable=False), Configuration(max_batch_size=0))
    proto = parse_config(text)
    assert proto.max_batch_size == 0
    assert list(proto.input[0].dims) == [2, 3, 8]
    assert not proto.HasField("dynamic_batching")


def test_batching_a_model_without_a_batch_axis_is_refused() -> None:
    with pytest.raises(RepositoryError, match="no batch axis"):
        render_config(model(batchable=False), Configuration(max_batch_size=8))


def test_a_batched_scalar_becomes_one_dimension_with_an_empty_reshape() -> None:
    scalar = (TensorSpec(name="s", datatype="FP32", shape=()),)
    output = parse_config(
        render_config(model(outputs=scalar), Configuration(max_batch_size=4))
    ).output[0]
    assert list(output.dims) == [1]
    assert output.HasField("reshape")
    assert list(output.reshape.shape) == []
    with pytest.raises(RepositoryError, match="scalar"):
        render_config(model(batchable=False, outputs=scalar), Configuration(max_batch_size=0))


def test_names_are_quoted() -> None:
    odd = 'a"b\\c{}\nü'
    tensors = (TensorSpec(name=odd, datatype="FP32", shape=(1,)),)
    proto = parse_config(render_config(model(inputs=tensors), Configuration(max_batch_size=1)))
    assert proto.input[0].name == odd


def test_every_input_and_output_is_written_so_that_triton_leaves_batching_off() -> None:
    text = render_config(model(), Configuration(max_batch_size=8, dynamic_batching=False))
    proto = parse_config(text)
    assert [t.name for t in proto.input] == ["x"]
    assert [t.name for t in proto.output] == ["y"]
    assert not proto.HasField("dynamic_batching")


def test_warm_up_runs_zeros_at_one_and_at_the_maximum() -> None:
    proto = parse_config(render_config(model(), Configuration(max_batch_size=8)))
    assert [(w.batch_size, w.inputs["x"].zero_data) for w in proto.model_warmup] == [
        (1, True),
        (8, True),
    ]
    assert not parse_config(
        render_config(model(), Configuration(max_batch_size=8), warmup=False)
    ).model_warmup


@pytest.mark.parametrize(("search", "number"), [(None, "1"), ("exhaustive", "0"), ("default", "2")])
def test_cudnn_searches_by_heuristics_unless_told_otherwise(
    search: CudnnSearch | None, number: str
) -> None:
    wanted = Configuration(device="gpu", max_batch_size=4, cudnn_search=search)
    proto = parse_config(render_config(model(), wanted))
    assert proto.parameters["cudnn_conv_algo_search"].string_value == number
    assert configuration_from_config(proto) == wanted.canonical()
    for without in (Configuration(), replace(wanted, backend="tensorrt")):
        parameters = parse_config(render_config(model(), without)).parameters
        assert "cudnn_conv_algo_search" not in parameters


def test_tritons_own_search_is_exhaustive_and_so_is_the_baselines() -> None:
    proto = parse_config(
        'name: "m" platform: "onnxruntime_onnx" max_batch_size: 4 dynamic_batching {} '
        "instance_group { kind: KIND_GPU }"
    )
    found = configuration_from_config(proto, gpus=(0,))
    assert found.cudnn_search == "exhaustive"
    assert found == baseline_configuration(batchable=True, device="gpu")
    text = 'parameters { key: "cudnn_conv_algo_search" value { string_value: "3" } }'
    with pytest.raises(RepositoryError, match="cudnn_conv_algo_search is 3"):
        configuration_from_config(parse_config(f'name: "m" backend: "onnxruntime" {text}'))


def test_on_a_gpu_every_batch_size_is_warmed_and_one_gpu_is_named() -> None:
    wanted = Configuration(device="gpu", max_batch_size=6, dynamic_batching=True, instance_count=3)
    proto = parse_config(render_config(model(), wanted))
    assert [w.batch_size for w in proto.model_warmup] == [1, 2, 3, 4, 5, 6]
    # Without gpus Triton starts the instances on each GPU of the machine.
    [group] = proto.instance_group
    assert (list(group.gpus), group.count) == ([0], 3)
    on_cpu = parse_config(render_config(model(), Configuration(max_batch_size=8)))
    assert not on_cpu.instance_group[0].gpus


def test_there_is_no_warm_up_where_zero_is_no_valid_index() -> None:
    table = (TensorSpec(name="x", datatype="INT64", shape=(4,), value_range=(1, 9)),)
    assert not parse_config(render_config(model(inputs=table), Configuration())).model_warmup


def test_tensorrt_without_batching_says_what_the_server_needs() -> None:
    on_gpu = Configuration(backend="tensorrt", device="gpu", max_batch_size=8)
    assert "--disable-auto-complete-config" in render_config(model(), on_gpu)


def test_another_backend_keeps_everything_else() -> None:
    wanted = Configuration(
        max_batch_size=8, dynamic_batching=True, instance_count=3, intra_op_threads=2
    )
    proto = parse_config(render_config(model(), wanted, backend="python", name="other"))
    assert (proto.name, proto.backend, proto.default_model_filename) == (
        "other",
        "python",
        "model.py",
    )
    assert configuration_from_config(proto) == served_configuration(wanted, "python")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend: "pytorch"', "pytorch"),
        (
            (
                'backend: "onnxruntime" '
                'parameters { key: "tritune_precision" value { string_value: "fp7" } }'
            ),
            "fp7",
        ),
        (
            (
                'backend: "python" '
                'parameters { key: "intra_op_thread_count" value { string_value: "x" } }'
            ),
            "'x'",
        ),
        (
            (
                'backend: "onnxruntime" '
                'parameters { key: "execution_mode" value { string_value: "2" } }'
            ),
            "execution_mode is 2",
        ),
        (
            'backend: "onnxruntime" max_batch_size: 4 dynamic_batching { preferred_batch_size: 9 }',
            "batching",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(RepositoryError, match=said):
        configuration_from_config(parse_config(text))


def test_openvino_is_written_as_tritons_onnxruntime_backend_reads_it() -> None:
    wanted = Configuration(
        accelerator="openvino", graph_level=1, execution_mode="parallel", inter_op_threads=3
    )
    proto = parse_config(render_config(model(), wanted))
    (accelerator,) = proto.optimization.execution_accelerators.cpu_execution_accelerator
    assert accelerator.name == "openvino" and not accelerator.parameters
    assert not proto.optimization.execution_accelerators.gpu_execution_accelerator
    assert proto.optimization.graph.level == 1
    told = {key: value.string_value for key, value in proto.parameters.items()}
    assert (told["execution_mode"], told["inter_op_thread_count"]) == ("1", "3")
    assert unexpressed_settings(proto) == ()


@pytest.mark.parametrize(
    ("precision", "mode"), [("fp32", "FP32"), ("fp16", "FP16"), ("int8", "INT8")]
)
def test_tensorrt_in_onnx_runtime_gets_its_mode_its_cache_and_every_batch_size(
    precision: str, mode: str
) -> None:
    wanted = Configuration(
        precision=precision,  # type: ignore[arg-type]
        quantization="static" if precision == "int8" else None,
        device="gpu",
        accelerator="tensorrt",
        max_batch_size=16,
        pinned_memory=False,
    )
    proto = parse_config(render_config(model(), wanted))
    (accelerator,) = proto.optimization.execution_accelerators.gpu_execution_accelerator
    told = dict(accelerator.parameters)
    assert told["precision_mode"] == mode
    assert told["trt_engine_cache_enable"] == "1" and told["trt_engine_cache_path"]
    shapes = {name: told[f"trt_profile_{name}_shapes"] for name in ("min", "opt", "max")}
    assert shapes == {"min": "x:1x3x8", "opt": "x:16x3x8", "max": "x:16x3x8"}
    assert not proto.optimization.input_pinned_memory.enable
    assert configuration_from_config(proto) == wanted.canonical()


def test_no_range_is_told_where_another_dimension_is_dynamic() -> None:
    wide = (TensorSpec(name="x", datatype="FP32", shape=(3, -1)),)
    wanted = Configuration(device="gpu", accelerator="tensorrt", max_batch_size=16)
    text = render_config(model(inputs=wide), wanted)
    assert "trt_engine_cache_enable" in text and "trt_profile" not in text


@pytest.mark.parametrize("name", ["input:0", "x,y"])
def test_no_range_is_told_of_a_name_that_onnx_runtime_takes_apart(name: str) -> None:
    """``input:0:1x3`` is read as a range of ``input``, of which there is none."""
    named = (TensorSpec(name=name, datatype="FP32", shape=(3, 8)),)
    wanted = Configuration(device="gpu", accelerator="tensorrt", max_batch_size=16)
    text = render_config(model(inputs=named), wanted)
    assert "trt_engine_cache_enable" in text and "trt_profile" not in text


def test_the_instance_type_that_it_is_for_is_not_told() -> None:
    """Exports of studies that compare types failed: what was read back had none."""
    wanted = Configuration(device="gpu", max_batch_size=8, instance_type="g5.xlarge")
    found = configuration_from_config(parse_config(render_config(model(), wanted)))
    assert found == replace(wanted, instance_type=None).canonical()


def test_cuda_graphs_are_the_tensorrt_backends() -> None:
    wanted = Configuration(backend="tensorrt", device="gpu", cuda_graphs=True)
    assert parse_config(render_config(model(), wanted)).optimization.cuda.graphs


def test_foreign_accelerators_are_named() -> None:
    text = (
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt"'
        ' parameters { key: "trt_dla_enable" value: "1" } } } }'
    )
    assert unexpressed_settings(parse_config(text)) == ("optimization.execution_accelerators",)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            (
                "dynamic_batching { preserve_ordering: true } response_cache { enable: true }"
                " instance_group { count: 1 } instance_group { count: 2 }"
            ),
            (
                "dynamic_batching.preserve_ordering",
                "response_cache",
                "instance_group (more than one)",
            ),
        ),
        ('input { name: "x" dims: [ 16, 16 ] reshape { shape: 256 } }', ("input.reshape",)),
        ('output { name: "y" label_filename: "labels.txt" }', ("output.label_filename",)),
        ('metric_tags { key: "team" value: "ml" }', ("metric_tags",)),
        ('parameters { key: "mine" value { string_value: "1" } }', ("parameters.mine",)),
        (
            'model_warmup { name: "w" inputs { key: "x" value { random_data: true } } }',
            ("model_warmup",),
        ),
        (
            'instance_group { host_policy: "numa0" rate_limiter { priority: 2 } }',
            ("instance_group.rate_limiter", "instance_group.host_policy"),
        ),
        ("instance_group { kind: KIND_GPU count: 1 gpus: [0, 1] }", ("instance_group.gpus",)),
        ("instance_group { gpus: 1 }", ("instance_group.gpus",)),
        ("instance_group { kind: KIND_GPU gpus: 0 }", ()),
        ("instance_group { kind: KIND_GPU }", ()),
        ("optimization { priority: PRIORITY_MAX }", ("optimization.priority",)),
        ("version_policy { all { } }", ("version_policy",)),
        ("sequence_batching { }", ("sequence_batching",)),
        ("dynamic_batching { default_queue_policy { } } response_cache { }", ()),
        ("version_policy { latest { num_versions: 1 } }", ()),
    ],
)
def test_settings_that_a_configuration_cannot_say_are_named(
    text: str, names: tuple[str, ...]
) -> None:
    """Labels, reshapes and tags were gone from what was exported, and nobody was told."""
    assert unexpressed_settings(parse_config(text)) == names


def test_of_what_is_exported_nothing_is_left_out() -> None:
    scalar = TensorSpec(name="s", datatype="FP32", shape=())
    text = render_config(model(outputs=(scalar,)), Configuration(max_batch_size=4))
    assert unexpressed_settings(parse_config(text)) == ()
