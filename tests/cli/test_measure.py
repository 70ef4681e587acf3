"""``analyze measure``: what it prints for people."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli.measure import _print

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
    _print([("tritune", row())])
    assert "over budget" not in capsys.readouterr().out
    _print([("tritune", row(over_budget=5)), ("perf_analyzer", {"latency_ms_p50": 2.0})])
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("over budget")]
    assert line.split() == ["over", "budget", "5", "(2.50%)", "–"]


def test_a_percentile_among_failures_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    none = dict.fromkeys(("p50", "p90", "p95", "p99")) | {"mean": 1196.0}
    _print([("tritune", row(errors=190, latency_ms=none))])
    out, err = capsys.readouterr()
    assert "None" not in out and "infinitely late" in err


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
