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


def test_what_a_gpu_tells_is_printed_where_it_tells(capsys: pytest.CaptureFixture[str]) -> None:
    _print([("tritune", row())])
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
    _print([("tritune", row(**told, validity={"valid": False, "reasons": [reason]}))])
    out, err = capsys.readouterr()
    cells = dict(line.rsplit("  ", 1) for line in out.splitlines() if "  " in line)
    cells = {title.strip(): cell.strip() for title, cell in cells.items()}
    assert cells["GPU memory, peak, bytes"] == "3221225472"
    assert cells["GPU utilization"] == "0.500"
    assert cells["energy, J per inference"] == "0.250"
    assert cells["GPU clock, MHz"] == "1980.000"
    assert cells["GPU clock held down by"] == "sw_power_cap, sync_boost"
    assert cells["valid"] == "no" and reason in err


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


def test_a_request_larger_than_the_largest_batch_is_refused(call: Call, folder: Path) -> None:
    """Exit code 1 as well, after a server that answered none of the warm-up."""
    options = ("--rate", "10/s", "--duration", "1s", "--request-batch-size", "5", "--json")
    answer = call("measure", str(EXAMPLES / "digits.onnx"), *options)
    assert answer.code == 2, answer
    assert "digits takes 4 inferences at most" in answer.document["error"]["message"]
