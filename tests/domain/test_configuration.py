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
    VariantKey,
    baseline_configuration,
)


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
    )


@given(configurations())
def test_the_document_holds_every_field_of_the_canonical_form_in_order(
    configuration: Configuration,
) -> None:
    document = configuration.to_dict()
    assert list(document) == [field.name for field in fields(Configuration)]
    plain = asdict(configuration.canonical())
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
