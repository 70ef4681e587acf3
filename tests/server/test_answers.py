"""Answers that depend on the model: classes and their labels, scalars, ensembles."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from one_request import send


def write_model(root: Path, name: str, config: str) -> Path:
    """Puts a model without a file into a repository; returns its version's folder."""
    version = root / name / "1"
    version.mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    return version


def one_tensor(backend: str, datatype: str, dims: str = "-1") -> str:
    """A model whose only output is its only input."""
    tensor = f"data_type: TYPE_{datatype} dims: [{dims}] }}]"
    return f'backend: "{backend}"\ninput [{{ name: "X" {tensor}\noutput [{{ name: "Y" {tensor}'


@pytest.mark.parametrize(
    ("datatype", "data", "classes"),
    [
        ("INT64", [2**53, 2**53 + 1, 2**53 - 1], [1, 0, 2]),
        ("INT64", [-(2**63), 2**63 - 1, 0, -(2**63) + 1], [1, 2, 3, 0]),
        ("UINT64", [2**64 - 2, 2**64 - 1, 0], [1, 0, 2]),
        ("INT8", [-128, 127, 0, 127], [1, 3, 2, 0]),
        ("FP32", [1, 2, 2, 1, -1.5], [1, 2, 0, 3, 4]),
    ],
)
def test_classes_of_large_integers(
    repository: Path, start: Any, datatype: str, data: list[float], classes: list[int]
) -> None:
    """Integers were compared as floats, of which several are one beyond 2**53."""
    write_model(repository, "m", one_tensor("identity", datatype))
    addresses, _ = start()
    request = {
        "inputs": [{"name": "X", "shape": [len(data)], "datatype": datatype, "data": data}],
        "outputs": [{"name": "Y", "parameters": {"classification": len(data)}}],
    }
    status, _, body = send(addresses, "POST", "/v2/models/m/infer", request)
    assert status == 200
    found = [text.split(":") for text in json.loads(body)["outputs"][0]["data"]]
    assert [int(index) for _, index in found] == classes
    number = float if datatype == "FP32" else int
    assert [number(value) for value, _ in found] == [data[index] for index in classes]


def test_classes_of_what_is_no_number(repository: Path, start: Any) -> None:
    """They come last; Triton's sort leaves their place open."""
    write_model(repository, "m", one_tensor("identity", "FP32"))
    addresses, _ = start()
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "X",
                    "shape": [4],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": 16},
                }
            ],
            "outputs": [{"name": "Y", "parameters": {"classification": 4}}],
        }
    ).encode()
    body = head + struct.pack("<4f", float("nan"), -1, float("inf"), float("-inf"))
    answer = send(
        addresses,
        "POST",
        "/v2/models/m/infer",
        body,
        {"Inference-Header-Content-Length": str(len(head))},
    )[2]
    data = json.loads(answer)["outputs"][0]["data"]
    assert data == ["inf:2", "-1.000000:1", "-inf:3", "nan:0"]


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [{ name: "A" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "B" data_type: TYPE_FP32 dims: [2] %s }]
ensemble_scheduling { step [{ model_name: "%s" model_version: -1
  input_map { key: "%s" value: "A" } output_map { key: "%s" value: "B" } }] }
"""


def test_answers_of_ensembles(repository: Path, start: Any) -> None:
    """Their classes had no labels, and their responses no parameters."""
    member = "max_batch_size: 8\n" + one_tensor("identity", "FP32", "2")
    member = member.replace('name: "Y"', 'name: "Y" label_filename: "labels.txt"')
    write_model(repository, "member", member)
    write_model(repository, "inner", ENSEMBLE % ("", "member", "X", "Y"))
    write_model(repository, "outer", ENSEMBLE % ("", "inner", "A", "B"))
    write_model(repository, "own", ENSEMBLE % ('label_filename: "o.txt"', "member", "X", "Y"))
    (repository / "member" / "labels.txt").write_text("cat\ndog\n")
    (repository / "own" / "o.txt").write_text("left\nright\n")
    addresses, _ = start()

    def ask(model: str, request: dict[str, Any], action: str = "infer") -> dict[str, Any]:
        status, _, body = send(addresses, "POST", f"/v2/models/{model}/{action}", request)
        assert status == 200, body
        return json.loads(body)  # type: ignore[no-any-return]

    given = {"inputs": [{"name": "A", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
    classes = {"outputs": [{"name": "B", "parameters": {"classification": 1}}]}
    for model, label in (("inner", "dog"), ("outer", "dog"), ("own", "right")):
        assert ask(model, given | classes)["outputs"][0]["data"] == [f"2.000000:1:{label}"]
    none = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    assert ask("outer", given)["parameters"] == none
    for own in ({"sequence_id": 77, "sequence_start": True}, {"sequence_id": "s"}):
        assert ask("inner", given | {"parameters": own})["parameters"] == none | own
        inputs = [triton.InferInput("A", [1, 2], "FP32")]
        inputs[0].set_data_from_numpy(np.ones((1, 2), np.float32))
        with triton.InferenceServerClient(addresses.grpc) as client:
            found = client.infer("inner", inputs, **own).get_response().parameters
        assert {
            key: getattr(value, value.WhichOneof("parameter_choice"))
            for key, value in found.items()
        } == none | own
    assert ask("inner", {"A": [1, 2]}, "generate") == none | {
        "model_name": "inner",
        "model_version": "1",
        "B": [1, 2],
    }
    given["inputs"][0]["name"] = "X"
    assert "parameters" not in ask("member", given)


def test_a_scalar_output_has_one_element(repository: Path, start: Any) -> None:
    """Its shape was [] and not the configured one."""
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("ReduceSum", ["X"], ["Y"], keepdims=0)],
        "g",
        [info("X", onnx.TensorProto.FLOAT, ["n"])],
        [info("Y", onnx.TensorProto.FLOAT, [])],
    )
    config = one_tensor("onnxruntime", "FP32").replace(
        '"Y" data_type: TYPE_FP32 dims: [-1]', '"Y" data_type: TYPE_FP32 dims: [1]'
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, str(write_model(repository, "m", config) / "model.onnx"))
    addresses, _ = start()
    request = {"inputs": [{"name": "X", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}]}
    answer = json.loads(send(addresses, "POST", "/v2/models/m/infer", request)[2])["outputs"][0]
    assert (answer["shape"], answer["data"]) == ([1], [6.0])
