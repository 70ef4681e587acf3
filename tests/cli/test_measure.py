"""``analyze measure``: what it prints for people."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.cli.measure import measure as measure_command
from analyzer.cli.measure_table import print_rows
from analyzer.domain.model import TensorSpec
from analyzer.errors import UsageError
from analyzer.measure.plan import REQUESTS_MIN
from analyzer.modelconfig.text import parse_config
from analyzer.targets.endpoint import EndpointModel, describe_model

Call = Callable[..., Any]
EXAMPLES = Path(__file__).parents[2] / "examples"


def row(**values: Any) -> dict[str, Any]:
    latency = dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 1.5)
    return {
        "throughput_ips": 10.0,
        "latency_ms": latency,
        "requests": 200,
        "errors": 0,
        "over_budget": None,
        "validity": {"valid": True, "reasons": []},
        **values,
    }


def test_requests_over_the_budget_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """--latency-budget "counts requests over it", and the table did not tell the count."""
    print_rows([("tritune", row())])
    assert "over budget" not in capsys.readouterr().out
    print_rows([("tritune", row(over_budget=5)), ("perf_analyzer", {"latency_ms_p50": 2.0})])
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("over budget")]
    assert line.split() == ["over", "budget", "5", "(2.50%)", "–"]


def test_what_a_gpu_tells_is_printed_where_it_tells(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([("tritune", row())])
    assert "GPU" not in capsys.readouterr().out
    told = {
        "gpu_memory_bytes_peak": 3 << 30,
        "gpu_utilization": 0.5,
        "power_watts": 400.0,
        "energy_joules_per_inference": 0.25,
        "gpu_clock_mhz": 1980.0,
        "gpu_clock_limits": ["sw_power_cap", "sync_boost"],
    }
    reason = "the GPU throttled in 34% of the run (hw_slowdown)"
    invalid = [("tritune", row(**told, validity={"valid": False, "reasons": [reason]}))]
    print_rows(invalid)
    out, err = capsys.readouterr()
    cells = dict(line.rsplit("  ", 1) for line in out.splitlines() if "  " in line)
    cells = {title.strip(): cell.strip() for title, cell in cells.items()}
    assert cells["GPU memory, peak, bytes"] == "3221225472"
    assert cells["GPU utilization"] == "0.500"
    assert cells["energy, J per inference"] == "0.250"
    assert cells["GPU clock, MHz"] == "1980.000"
    assert cells["GPU clock held down by"] == "sw_power_cap, sync_boost"
    assert cells["valid"] == "no" and reason in err
    print_rows(invalid, quiet=True)
    assert capsys.readouterr() == (out, "")


def test_a_percentile_among_failures_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    none = dict.fromkeys(("p50", "p90", "p95", "p99")) | {"mean": 1196.0}
    print_rows([("tritune", row(errors=190, latency_ms=none))])
    out, err = capsys.readouterr()
    assert "None" not in out and "infinitely late" in err
    print_rows([("tritune", row(errors=190, latency_ms=none))], quiet=True)
    assert capsys.readouterr() == (out, "")


def test_a_model_without_batches_takes_no_request_of_several(call: Call, folder: Path) -> None:
    """It ended with exit code 1: "Not one of 11232 warm-up requests was answered."."""
    import onnx

    model = onnx.load(str(EXAMPLES / "digits.onnx"))
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, str(folder / "one.onnx"))
    options = ("--rate", "10/s", "--duration", "1s", "--request-batch-size", "4", "--json")
    answer = call("measure", "one.onnx", *options)
    assert answer.code == 2, answer
    assert "cannot be batched" in answer.document["error"]["message"]


def test_a_request_larger_than_the_largest_batch_is_refused(call: Call, folder: Path) -> None:
    """Exit code 1 as well, after a server that answered none of the warm-up."""
    options = ("--rate", "10/s", "--duration", "1s", "--request-batch-size", "5", "--json")
    answer = call("measure", str(EXAMPLES / "digits.onnx"), *options)
    assert answer.code == 2, answer
    assert "digits takes 4 inferences at most" in answer.document["error"]["message"]


@pytest.mark.parametrize(
    ("datatype", "shape", "options", "said"),
    [
        ("BYTES", (2,), (), "'x' of m holds strings"),
        ("FP32", (4,), ("--input-shape", "z:4"), "no input of that name"),
        ("FP32", (4,), ("--input-shape", "x:5"), "x:5 does not fit the input's shape [4]"),
        ("FP32", (4, -1), ("--input-shape", "x:4"), "x:4 does not fit"),
        ("FP32", (4, -1), (), "dynamic dimensions"),
    ],
)
def test_an_endpoints_inputs_are_checked_before_anything_is_sent(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    datatype: str,
    shape: tuple[int, ...],
    options: tuple[str, ...],
    said: str,
) -> None:
    """Exit code 1: KeyError 'BYTES', or "Not one of 443 warm-up requests was answered."."""
    tensor = TensorSpec(name="x", datatype=datatype, shape=shape)
    model = EndpointModel(name="m", inputs=(tensor,), outputs=(), batchable=True, max_batch_size=8)
    endpoint = SimpleNamespace(ready=lambda _: True, model=lambda _: model, close=lambda: None)
    monkeypatch.setattr("analyzer.targets.address.open_endpoint", lambda _: endpoint)
    answer = call(
        "measure", "http://localhost:8000", "--model", "m", "--rate", "9/s", *options, "--json"
    )
    assert answer.code == 2, answer
    assert said in answer.document["error"]["message"] and answer.document["error"]["hint"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("sequence_batching { }", "m takes sequences of requests"),
        ("model_transaction_policy { decoupled: true }", "m streams replies (decoupled)"),
    ],
)
def test_a_model_that_answers_no_single_request_is_named(
    call: Call, monkeypatch: pytest.MonkeyPatch, config: str, said: str
) -> None:
    """Exit code 1, "Not one of 2384 warm-up requests was answered", and advice on its inputs."""
    metadata = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}]}
    served = SimpleNamespace(config=lambda _: parse_config(config, where="config.pbtxt"))
    model = describe_model(served, "m", metadata)  # type: ignore[arg-type]
    endpoint = SimpleNamespace(ready=lambda _: True, model=lambda _: model, close=lambda: None)
    monkeypatch.setattr("analyzer.targets.address.open_endpoint", lambda _: endpoint)
    answer = call("measure", "http://localhost:8000", "--model", "m", "--rate", "9/s", "--json")
    assert answer.code == 2, answer
    assert said in answer.document["error"]["message"]


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is started, and the load test ends with an error where it would begin."""

    class Session:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def warm_up(self, **_: object) -> None:
            raise UsageError("It begins.", hint="Stop.")

    monkeypatch.setattr("analyzer.targets.open.open_target", lambda *_, **__: nullcontext())
    monkeypatch.setattr("analyzer.measure.live_session.LiveSession", Session)


@pytest.mark.usefixtures("unserved")
def test_a_test_longer_than_its_duration_says_so_before_it_begins(call: Call) -> None:
    """Twenty requests at 0.5/s took 40 s without a word, with --duration 1s."""
    model = str(EXAMPLES / "digits.onnx")
    long = ("measure", model, "--rate", "0.5/s", "--duration", "1s")
    told = call(*long).stderr
    note, begun = told.index(f"{REQUESTS_MIN} requests at least"), told.index("It begins.")
    assert note < begun and "about 40s at this rate" in told and "--duration 1s" in told
    silent = (
        (*long, "--quiet"),
        ("measure", model, "--rate", "20/s", "--duration", "1s"),
        ("measure", model, "--concurrency", "1", "--duration", "1s"),
    )
    for arguments in silent:
        told = call(*arguments).stderr
        assert "It begins." in told and "at least" not in told, arguments
    (duration,) = (option for option in measure_command.params if option.name == "duration")
    assert f"{REQUESTS_MIN} requests at least" in (getattr(duration, "help", None) or "")


@pytest.mark.usefixtures("unserved")
def test_the_name_of_an_endpoints_model_means_nothing_to_a_local_one(call: Call) -> None:
    """``--model foo`` was ignored without a word."""
    options = ("measure", str(EXAMPLES / "digits.onnx"), "--concurrency", "1")
    told = call(*options, "--model", "foo").stderr
    assert "Note: --model foo is ignored" in told and "(digits)" in told
    for arguments in ((*options, "--model", "digits"), (*options, "--model", "foo", "-q")):
        assert "Note" not in call(*arguments).stderr


def write_graph(file: Path, nodes: list[Any], output: tuple[int, list[Any]]) -> str:
    """A model from ``x`` [n, 4] to ``y``; the nodes may read the table ``t`` [3, 2]."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", *output)],
        [numpy_helper.from_array(np.ones((3, 2), np.float32), "t")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(file))
    return str(file)


def test_rows_that_depend_on_each_other_are_measured_one_at_a_time(
    call: Call, folder: Path
) -> None:
    """They were batched, and a batch of four was taken, where a search finds that out."""
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    model = write_graph(folder / "softmax.onnx", nodes, (TensorProto.FLOAT, ["n", 4]))
    options = ("measure", model, "--concurrency", "2", "--duration", "0.3s")
    told = call(*options)
    assert told.code == 0 and "Note: Served unbatched: the answer to a request" in told.stderr
    refused = call(*options, "--request-batch-size", "4")
    assert refused.code == 2 and "cannot be batched" in refused.stderr


def test_why_requests_fail_is_told(call: Call, folder: Path) -> None:
    """A table said how many failed, and nothing why."""
    import numpy as np
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], axes=[1], keepdims=0),
        helper.make_node("Cast", ["most"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["t", "index"], ["y"]),
    ]
    model = write_graph(folder / "rows.onnx", nodes, (TensorProto.FLOAT, ["n", 2]))
    rows = np.zeros((16, 4), np.float32)
    rows[8:] = 9
    np.savez(folder / "rows.npz", x=rows)
    options = ("--concurrency", "1", "--duration", "0.3s", "--calibration-data", "rows.npz")
    told = call("measure", model, *options)
    assert told.code == 0, told
    assert "Requests failed, the first with:" in told.stderr and "infinitely late" in told.stderr
    assert "idx=9 must be within" in told.stderr and "[E:onnxruntime" not in told.stderr
    silent = call("measure", model, *options, "--quiet").stderr
    assert "Requests failed" not in silent and "infinitely late" not in silent


@pytest.mark.parametrize("given", [("--rate", "0.00001/s"), ("--rate", "1/s", "--duration", "25h")])
def test_a_load_test_of_more_than_a_day_is_refused(call: Call, given: tuple[str, ...]) -> None:
    answer = call("measure", str(EXAMPLES / "digits.onnx"), *given, "--json")
    assert answer.code == 2, answer
    assert "A day is the most" in answer.document["error"]["hint"]
