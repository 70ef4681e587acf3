"""Equal deployments have one document and one id, whatever way they were spelled."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from itertools import product
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.configuration import (
    PRECISIONS,
    Backend,
    Configuration,
    Execution,
    VariantKey,
    baseline_configuration,
)

EXECUTION = {field.name for field in fields(Execution)}


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    precision = draw(st.sampled_from(["fp32", "fp16", "int8"]))
    max_batch_size = draw(st.integers(0, 64))
    sizes = st.lists(st.integers(1, max(max_batch_size, 1)), max_size=4)
    return Configuration(
        precision=precision,
        quantization=draw(st.sampled_from(["static", "dynamic", None]))
        if precision == "int8"
        else None,
        backend=draw(st.sampled_from(["onnxruntime", "tensorrt", "python"])),
        device=draw(st.sampled_from(["cpu", "gpu"])),
        max_batch_size=max_batch_size,
        dynamic_batching=draw(st.booleans()),
        preferred_batch_size=draw(st.none() | sizes.map(tuple)),
        max_queue_delay_us=draw(st.none() | st.integers(0, 10**6)),
        instance_count=draw(st.integers(1, 8)),
        intra_op_threads=draw(st.none() | st.integers(0, 8)),
        accelerator=draw(st.sampled_from([None, "openvino", "tensorrt"])),
        graph_level=draw(st.sampled_from([None, -1, 0, 1, 2])),
        execution_mode=draw(st.sampled_from([None, "sequential", "parallel"])),
        inter_op_threads=draw(st.none() | st.integers(0, 8)),
        cuda_graphs=draw(st.sampled_from([None, False, True])),
        pinned_memory=draw(st.sampled_from([None, False, True])),
        cudnn_search=draw(st.sampled_from([None, "heuristic", "exhaustive", "default"])),
    )


@given(configurations())
def test_the_document_holds_every_field_of_the_canonical_form_in_order(
    configuration: Configuration,
) -> None:
    document = configuration.to_dict()
    plain = {
        name: value
        for name, value in asdict(configuration.canonical()).items()
        if value is not None or name not in (*EXECUTION, "instance_type")
    }
    assert json.dumps(document) == json.dumps(plain)  # a tuple and a list look the same there
    preferred = document["preferred_batch_size"]
    assert preferred is None or type(preferred) is list
    assert Configuration.from_dict(document) == configuration.canonical()


@given(configurations())
def test_the_id_is_the_hash_that_the_contract_names(configuration: Configuration) -> None:
    text = json.dumps(configuration.to_dict(), sort_keys=True, separators=(",", ":"))
    assert configuration.config_id == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert configuration.config_id == configuration.canonical().config_id


def test_ids_of_stored_studies_stay_valid() -> None:
    assert baseline_configuration(batchable=True).config_id == "9cd4db416345"
    assert (
        Configuration(precision="fp16", device="gpu", backend="tensorrt").config_id
        == "8ea37954e6a5"
    )


def test_a_batch_of_the_baseline_holds_a_request() -> None:
    """A server refuses requests that are larger than its max_batch_size."""
    sizes = [
        baseline_configuration(batchable=True, request_batch_size=size).max_batch_size
        for size in (1, 4, 8)
    ]
    assert sizes == [4, 4, 8]


def test_the_warm_up_of_a_large_batch_is_short() -> None:
    """On a GPU it had a size each: in Triton half a million requests before the model was ready."""
    sizes = Configuration(device="gpu", max_batch_size=1024).warmup_batch_sizes
    assert sizes == (*range(1, 65), 128, 256, 512, 1024)
    largest = Configuration(device="gpu", max_batch_size=2**31 - 1).warmup_batch_sizes
    assert len(largest) < 100 and largest[-1] == 2**31 - 1
    preferred = Configuration(
        device="gpu", max_batch_size=300, dynamic_batching=True, preferred_batch_size=(100, 200)
    )
    assert preferred.warmup_batch_sizes == (*range(1, 65), 100, 128, 200, 256, 300)


@given(st.integers(0, 64))
def test_every_batch_that_the_shipped_spaces_form_is_warm_on_a_gpu(largest: int) -> None:
    sizes = Configuration(device="gpu", max_batch_size=largest).warmup_batch_sizes
    assert sizes == tuple(range(1, max(largest, 1) + 1))


def test_settings_of_the_execution_that_have_no_effect_are_gone() -> None:
    plain = Configuration(intra_op_threads=2)
    for nothing in (
        {"accelerator": "tensorrt"},  # it has no CPU
        {"graph_level": 0},
        {"execution_mode": "sequential", "inter_op_threads": 4},
        {"cuda_graphs": True},
        {"pinned_memory": False},
        {"cudnn_search": "exhaustive"},
    ):
        spelled = Configuration(intra_op_threads=2, **nothing)  # type: ignore[arg-type]
        assert spelled.config_id == plain.config_id, nothing
    openvino = Configuration(intra_op_threads=2, accelerator="openvino")
    assert openvino.canonical().intra_op_threads == 0
    assert openvino.config_id == Configuration(accelerator="openvino").config_id
    engine = Configuration(device="gpu", backend="tensorrt", cuda_graphs=True, graph_level=1)
    assert engine.execution == Execution(cuda_graphs=True)


def test_what_executes_a_file_otherwise_is_another_variant() -> None:
    assert VariantKey(precision="int8", quantization="static").label == "int8-static"
    openvino = Configuration(accelerator="openvino", graph_level=1).variant
    assert openvino.label == "fp32+openvino+graph level 1"
    assert openvino != Configuration().variant


def test_a_document_is_the_callers_to_change() -> None:
    configuration = baseline_configuration(batchable=True)
    configuration.to_dict()["preferred_batch_size"].append(99)
    assert configuration.to_dict()["preferred_batch_size"] == [4]


def test_no_two_variants_have_the_same_label() -> None:
    keys = {
        VariantKey(precision=precision, quantization=quantization, backend=backend)
        for precision, quantization, backend in product(
            PRECISIONS, (None, "static", "dynamic"), get_args(Backend)
        )
    }
    assert len({key.label for key in keys}) == len(keys)
    assert VariantKey(precision="fp32").label == "fp32"
