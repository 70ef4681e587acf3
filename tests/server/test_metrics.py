"""Prometheus metrics and statistics after a known sequence of requests."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

IDENTITY = """
backend: "identity"
max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
instance_group [{ count: 1 kind: KIND_CPU }]
dynamic_batching {}
"""


def scrape(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        lines = answer.read().decode().splitlines()
    values, helped, typed = {}, [], []
    for line in lines:
        if head := re.fullmatch(r"# (HELP|TYPE) (nv_[a-z_]+) (.+)", line):
            (helped if head[1] == "HELP" else typed).append(head[2])
            assert head[1] == "HELP" or head[3] in ("counter", "gauge")
            continue
        name, value = line.rsplit(" ", 1)
        values[name] = float(value)
    # Samples are named as their family, as in Triton: counters without "_total".
    assert helped == typed and {name.partition("{")[0] for name in values} == set(typed)
    return values


def test_tags_of_a_model_are_labels(repository: Path, start: Any) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    tags = 'metric_tags { key: "team" value: "ml" }'
    (repository / "m" / "config.pbtxt").write_text(IDENTITY + tags)
    addresses, _ = start()
    assert scrape(addresses.metrics)['nv_inference_count{_team="ml",model="m",version="1"}'] == 0


def test_counters_after_a_sequence(repository: Path, start: Any) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(IDENTITY)
    addresses, _ = start()
    with triton.InferenceServerClient(addresses.grpc) as client:
        for size in (1, 3, 3):
            given = triton.InferInput("X", [size, 2], "FP32")
            given.set_data_from_numpy(np.zeros((size, 2), np.float32))
            client.infer("m", [given])
        wrong = triton.InferInput("X", [1, 3], "FP32")
        wrong.set_data_from_numpy(np.zeros((1, 3), np.float32))
        with pytest.raises(InferenceServerException):
            client.infer("m", [wrong])
        stats = client.get_inference_statistics("m").model_stats[0]
    assert (stats.inference_count, stats.execution_count) == (7, 3)
    assert stats.inference_stats.success.count == 3
    assert stats.inference_stats.fail.count == 0  # wrong requests touch no counter
    for part in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert getattr(stats.inference_stats, part).count == 3
    parts = sum(
        getattr(stats.inference_stats, part).ns
        for part in ("queue", "compute_input", "compute_infer", "compute_output")
    )
    assert parts <= stats.inference_stats.success.ns
    assert [(b.batch_size, b.compute_infer.count) for b in stats.batch_stats] == [(1, 1), (3, 2)]
    assert stats.last_inference > 0

    values = scrape(addresses.metrics)
    labels = '{model="m",version="1"}'
    assert values[f"nv_inference_request_success{labels}"] == 3
    assert values[f"nv_inference_count{labels}"] == 7
    assert values[f"nv_inference_exec_count{labels}"] == 3
    assert values[f"nv_inference_pending_request_count{labels}"] == 0
    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        key = f'nv_inference_request_failure{{model="m",reason="{reason}",version="1"}}'
        assert values[key] == 0
    assert values["nv_cpu_memory_total_bytes"] >= values["nv_cpu_memory_used_bytes"] > 0
    assert 0 <= values["nv_cpu_utilization"] <= 1
