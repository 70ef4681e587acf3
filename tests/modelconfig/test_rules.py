"""Triton's defaults, checks and instance groups (docs/triton-semantics.md, section 1)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from analyzer.errors import RepositoryError
from analyzer.modelconfig.rules import (
    OnnxTensor,
    autocomplete_onnx,
    expand_instances,
    finish,
    normalize_instance_groups,
    prepare,
    select_versions,
    validate_instance_groups,
)
from analyzer.modelconfig.text import config_from_json, config_to_json, parse_config

IO = (
    'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } '
    'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } '
)
ONNX = 'name: "m" backend: "onnxruntime" '


def prepared(text: str, *, gpus: tuple[int, ...] = (), files: tuple[str, ...] = ()) -> Any:
    proto = parse_config(text)
    prepare(proto, directory_name="m", version_files=files, gpus=gpus)
    return proto


def test_an_empty_configuration_is_recognised_by_its_file() -> None:
    proto = prepared("", files=("model.onnx",))
    assert (proto.name, proto.backend, proto.platform) == ("m", "onnxruntime", "onnxruntime_onnx")
    assert proto.default_model_filename == "model.onnx"
    assert prepared("", files=("model.py",)).backend == "python"
    assert prepared("", files=("model.plan", "model.onnx")).backend == "tensorrt"
    assert prepared('platform: "tensorrt_plan"').backend == "tensorrt"
    # Seen of a real server: a backend without a platform of its own goes with any.
    assert prepared('platform: "tensorrt_plan" backend: "python"').backend == "python"
    assert prepared('platform: "onnxruntime_onnx" backend: "mine"').backend == "mine"


def test_version_policy_preferred_sizes_and_pinned_memory_get_their_defaults() -> None:
    proto = prepared(ONNX + "max_batch_size: 8 dynamic_batching {}")
    assert proto.version_policy.latest.num_versions == 1
    assert list(proto.dynamic_batching.preferred_batch_size) == [8]
    assert proto.optimization.input_pinned_memory.enable
    assert proto.optimization.output_pinned_memory.enable
    assert list(prepared(ONNX + "dynamic_batching {}").dynamic_batching.preferred_batch_size) == []


def test_instances_default_to_two_on_a_cpu_with_onnx_runtime() -> None:
    assert [i.name for i in expand_instances(prepared(ONNX))] == ["m_0", "m_1"]
    assert [i.name for i in expand_instances(prepared('name: "m" backend: "python"'))] == ["m_0"]
    [group] = prepared(ONNX, gpus=(0,)).instance_group
    assert (group.count, list(group.gpus)) == (1, [0])


def test_groups_are_named_and_expanded_over_gpus() -> None:
    text = (
        ONNX + "instance_group { count: 2 gpus: [0, 1] kind: KIND_GPU } "
        "instance_group { kind: KIND_CPU }"
    )
    instances = expand_instances(prepared(text, gpus=(0, 1)))
    assert [i.name for i in instances] == ["m_0_0", "m_0_1", "m_0_2", "m_0_3", "m_1_0", "m_1_1"]
    assert [i.device_id for i in instances] == [0, 0, 1, 1, 0, 0]
    assert [i.host_policy for i in instances] == ["gpu_0"] * 2 + ["gpu_1"] * 2 + ["cpu"] * 2


def test_kind_auto_is_a_gpu_only_if_every_listed_one_is_usable() -> None:
    for listed, gpus, expected in (
        ("[0]", (0,), "gpu"),
        ("[0, 7]", (0,), "cpu"),
        ("[]", (), "cpu"),
    ):
        proto = parse_config(f"{ONNX} instance_group {{ gpus: {listed} }}")
        normalize_instance_groups(proto, gpus=gpus)
        assert expand_instances(proto)[0].kind == expected


@pytest.mark.parametrize(
    "text",
    [
        "instance_group { kind: KIND_GPU }",
        "instance_group { kind: KIND_GPU gpus: 3 }",
        "instance_group { kind: KIND_CPU gpus: 0 }",
        'instance_group { kind: KIND_CPU profile: "0" }',
    ],
)
def test_impossible_instance_groups_are_rejected(text: str) -> None:
    proto = parse_config(ONNX + text)
    normalize_instance_groups(proto)
    with pytest.raises(RepositoryError):
        validate_instance_groups(proto)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name: "other" backend: "python"', "directory name"),
        ('name: "m"', "unexpected platform type"),
        ('name: "m" platform: "tensorrt_plan" backend: "onnxruntime"', "pair"),
        ('name: "m" platform: "unheard_of" backend: "onnxruntime"', "pair"),
        (ONNX + "max_batch_size: -1", "non-negative"),
        (ONNX + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }", "positive"),
        (ONNX + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }", "<= max batch"),
        (ONNX + "dynamic_batching { priority_levels: 2 }", r"range \[1, 2\]"),
        (ONNX + "dynamic_batching { priority_levels: 2 default_priority_level: 3 }", "range"),
        (
            ONNX + "dynamic_batching { priority_levels: 2 default_priority_level: 1"
            " priority_queue_policy { key: 3 value {} } }",
            "priority queue policy",
        ),
        (
            ONNX + "dynamic_batching { preserve_ordering: true priority_levels: 2 "
            "default_priority_level: 1 }",
            "Only one priority level",
        ),
        (
            ONNX + "dynamic_batching { preserve_ordering: true default_queue_policy"
            " { timeout_action: DELAY default_timeout_microseconds: 5 } }",
            "DELAY",
        ),
        (ONNX + "sequence_batching { direct { minimum_slot_utilization: 1.5 } }", "utilization"),
        (ONNX + "response_cache { enable: true } sequence_batching {}", "sequence"),
        ('name: "m" platform: "ensemble"', "ensemble scheduling must be set"),
        (ONNX + "ensemble_scheduling {}", "not ensemble"),
    ],
)
def test_triton_rejects(text: str, said: str) -> None:
    with pytest.raises(RepositoryError, match=said):
        prepared(text)


@pytest.mark.parametrize(
    "text",
    [
        'input { data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }',
        'input { name: "x" dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }',
        'input { name: "x" data_type: TYPE_FP32 } output { name: "y" data_type: TYPE_FP32 }',
        IO.replace("[ 4 ]", "[ 0 ]"),
        IO.replace("[ 4 ]", "[ -2 ]"),
        IO.replace("dims: [ 4 ] }", "dims: [ 4 ] reshape { shape: [ 2, 3 ] } }"),
        IO.replace("dims: [ 4 ] }", "dims: [ 1 ] reshape { } }"),
        IO.replace("dims: [ 4 ] }", "dims: [ 4 ] format: FORMAT_NCHW }", 1),
        IO.replace("dims: [ 4 ] }", "dims: [ 4 ] is_shape_tensor: true }"),
    ],
)
def test_impossible_tensors_are_rejected(text: str) -> None:
    proto = prepared(ONNX + text)
    with pytest.raises(RepositoryError):
        finish(proto, directory_name="m")


def test_reshapes_with_equal_stretches_are_accepted() -> None:
    proto = prepared(
        ONNX + IO.replace("[ 4 ] }", "[ 4, -1, 6 ] reshape { shape: [2, 2, -1, 3, 2] } }")
    )
    finish(proto, directory_name="m")


def tensors(*shapes: tuple[int, ...]) -> tuple[OnnxTensor, ...]:
    return tuple(OnnxTensor(name=f"t{i}", datatype="FP32", shape=s) for i, s in enumerate(shapes))


def test_autocomplete_batches_what_can_be_batched() -> None:
    proto = prepared(ONNX)
    autocomplete_onnx(proto, tensors((-1, 3)), tensors((-1,)))
    finish(proto, directory_name="m")
    assert proto.max_batch_size == 4
    assert list(proto.dynamic_batching.preferred_batch_size) == [4]
    assert [list(t.dims) for t in (*proto.input, *proto.output)] == [[3], [1]]
    assert proto.output[0].HasField("reshape")


def test_autocomplete_leaves_alone_what_is_configured() -> None:
    proto = prepared(ONNX + IO + "max_batch_size: 8")
    before = proto.SerializeToString(deterministic=True)
    autocomplete_onnx(proto, tensors((-1, 4)), tensors((-1, 4)))
    assert proto.SerializeToString(deterministic=True) == before


def test_autocomplete_keeps_a_maximum_of_one_unbatched_and_a_chosen_scheduler() -> None:
    proto = prepared(ONNX + "max_batch_size: 1")
    autocomplete_onnx(proto, tensors((-1, 4)), tensors((-1, 4)))
    assert proto.WhichOneof("scheduling_choice") is None
    proto = prepared(ONNX + "max_batch_size: 2 sequence_batching {}")
    autocomplete_onnx(proto, tensors((-1, 4)), tensors((-1, 4)))
    assert proto.WhichOneof("scheduling_choice") == "sequence_batching"


def test_autocomplete_of_a_fixed_batch() -> None:
    proto = prepared(ONNX)
    autocomplete_onnx(proto, tensors((1, 4)), tensors((1, 4)))
    assert proto.max_batch_size == 0
    assert list(proto.input[0].dims) == [1, 4]
    with pytest.raises(RepositoryError, match="does not support batching"):
        autocomplete_onnx(prepared(ONNX + "max_batch_size: 2"), tensors((1, 4)), tensors((-1,)))


def test_version_policies() -> None:
    def chosen(policy: str) -> tuple[int, ...]:
        return select_versions(prepared(f"{ONNX} {policy}"), [10, 2, 9])

    assert chosen("") == (10,)
    assert chosen("version_policy { latest { num_versions: 2 } }") == (9, 10)
    assert chosen("version_policy { latest { num_versions: 9 } }") == (2, 9, 10)
    assert chosen("version_policy { all {} }") == (2, 9, 10)
    assert chosen("version_policy { specific { versions: [9, 2, 7] } }") == (2, 9)
    for none in ("version_policy { latest {} }", "version_policy { specific { versions: 3 } }"):
        with pytest.raises(RepositoryError, match="version"):
            chosen(none)


def test_json_prints_every_primitive_and_integers_as_numbers() -> None:
    proto = prepared(ONNX + IO + "max_batch_size: 4 dynamic_batching {} response_cache {}")
    printed = config_to_json(proto)
    assert printed["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    assert printed["response_cache"] == {"enable": False}
    assert printed["input"][0]["data_type"] == "TYPE_FP32"
    assert printed["input"][0]["dims"] == [4]
    assert printed["version_policy"] == {"latest": {"num_versions": 1}}
    assert "sequence_batching" not in printed
    assert printed["parameters"] == {}
    assert config_from_json(printed) == proto


def test_json_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(RepositoryError, match="inputs"):
        config_from_json('{"inputs": []}')
    assert (
        config_from_json('{"instance_group": [{"kind": "kind_cpu"}]}').instance_group[0].kind == 2
    )


STEP = """{ model_name: "a" model_version: -1 input_map { key: "x" value: "X" }
  output_map { key: "y" value: "Y" } }"""
ENSEMBLE = """name: "m" platform: "ensemble"
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
ensemble_scheduling { step [%s] }"""
TWO = """{ model_name: "b" model_version: -1 input_map { key: "x" value: "%s" }
  output_map { key: "y" value: "%s" } }"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENSEMBLE % "", "must specify 'step' for ensemble 'm'"),
        (
            ENSEMBLE % STEP + "optimization { priority: PRIORITY_MAX }",
            "optimization should not be specified for ensemble 'm'",
        ),
        (
            ENSEMBLE % STEP + 'model_warmup [{ name: "w" batch_size: 1 }]',
            "model_warmup can not be specified for ensemble 'm'",
        ),
        (ENSEMBLE % STEP.replace('model_name: "a"', ""), "must specify 'model_name' in step 0 of"),
        (
            (ENSEMBLE % STEP).replace('output_map { key: "y" value: "Y" }', ""),
            "must specify 'output_map' in step 0 of ensemble 'm'",
        ),
        (
            ENSEMBLE % STEP + 'input [{ name: "Z" data_type: TYPE_FP32 dims: [2] }]',
            "ensemble input 'Z' for ensemble m' is not used",
        ),
        (
            ENSEMBLE % STEP + 'output [{ name: "Z" data_type: TYPE_FP32 dims: [2] }]',
            "ensemble output 'Z' for ensemble m' is not used",
        ),
        (
            ENSEMBLE % STEP.replace("output_map", 'output_map { key: "z" value: "s" } output_map'),
            "ensemble tensor 's' is unused in ensemble 'm'",
        ),
        (
            ENSEMBLE % f"{STEP}, {STEP}",
            "tensor 'Y' can appear in an output map only once for ensemble 'm' step 1",
        ),
        (
            ENSEMBLE % (STEP.replace('"Y"', '"s"') + "," + TWO % ("t", "Y")),
            "output 'Y' for ensemble 'm' is not produced",
        ),
        (ENSEMBLE % (STEP + "," + TWO % ("Y", "X")), "'X' of ensemble 'm' is an input and comes"),
        (ENSEMBLE % (STEP + "," + TWO % ("t", "t")), "tensor 't' is unused in ensemble 'm'"),
    ],
)
def test_ensembles_that_cannot_run(text: str, said: str) -> None:
    """Those whose tensors lead nowhere were loaded, where Triton refuses."""
    with pytest.raises(RepositoryError, match=re.escape(said)):
        prepared(text)


def test_ensembles_that_can_run() -> None:
    prepared(ENSEMBLE % STEP)
    # In whatever order the steps are listed; an output may be an input of a step, too.
    steps = TWO % ("Y", "Z") + "," + STEP
    text = ENSEMBLE % steps + 'output [{ name: "Z" data_type: TYPE_FP32 dims: [2] }]'
    prepared(text)
