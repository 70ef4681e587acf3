"""Model folders whose instances need a GPU, and those that take one where it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli import devices
from analyzer.cli.models import baseline_on, inspect_path
from analyzer.hardware.gpus import visible_gpus

DIGITS = Path(__file__).parents[2] / "examples" / "digits.onnx"


def _digits(tmp_path: Path, groups: str) -> Path:
    folder = tmp_path / "models" / "digits"
    (folder / "1").mkdir(parents=True)
    shutil.copy(DIGITS, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text('platform: "onnxruntime_onnx" ' + groups)
    return folder


@pytest.mark.skipif(bool(visible_gpus()), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("groups", "asks"),
    [
        ("instance_group { kind: KIND_GPU }", "KIND_GPU"),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }", "KIND_GPU"),
        ("instance_group { gpus: 0 }", "gpus"),
    ],
)
@pytest.mark.parametrize("command", ["search", "cpu", "measure", "verify"])
def test_a_folder_that_needs_a_gpu_is_refused_at_once(
    tmp_path: Path, call: Callable[..., Any], groups: str, asks: str, command: str
) -> None:
    """The search told it at its end, of the baseline alone."""
    folder = _digits(tmp_path, groups)
    search = (str(folder), "--latency-budget", "50ms", "--budget", "20s", "--json")
    arguments = {
        "search": search,
        "cpu": (*search, "--device", "cpu"),
        "measure": ("measure", str(folder), "--rate", "10/s", "--duration", "1s", "--json"),
        "verify": (
            *("verify", "--repository", str(folder.parent), "--model", "digits", "--json"),
            *("--latency-budget", "50ms", "--target-rate", "10/s"),
        ),
    }[command]
    answer = call(*arguments)
    error = json.loads(answer.stdout)["error"]
    assert answer.code == 2
    assert f"{folder / 'config.pbtxt'}: instance_group asks for a GPU ({asks})" in error["message"]
    why = "--device cpu keeps" if command == "cpu" else "NVML finds no NVIDIA GPU"
    assert why in error["message"]
    assert "leave kind and gpus out" in error["hint"]
    assert not list(tmp_path.rglob("*.db"))  # nothing was begun


@pytest.mark.parametrize("groups", ["", "instance_group { count: 3 }"])
def test_instances_without_a_kind_are_where_models_run(tmp_path: Path, groups: str) -> None:
    """They were taken for the CPU's on a GPU, too: another baseline than Triton runs there."""
    folder = _digits(tmp_path, groups)
    devices.check_instances(folder, "cpu", devices.why_on_cpu)
    model, on_cpu = inspect_path(folder, {})
    _, on_gpu = inspect_path(folder, {}, "gpu")
    assert on_cpu is not None and on_gpu is not None
    assert (on_cpu.device, on_cpu.instance_count) == ("cpu", 3 if groups else 2)
    assert (on_gpu.device, on_gpu.instance_count) == ("gpu", 3 if groups else 1)
    assert baseline_on(folder, model, on_cpu, "gpu") == on_gpu
    assert baseline_on(folder, model, on_cpu, "cpu") == on_cpu


def test_instances_on_the_cpu_stay_there(tmp_path: Path) -> None:
    folder = _digits(tmp_path, "instance_group { kind: KIND_CPU }")
    _, baseline = inspect_path(folder, {}, "gpu")
    assert baseline is not None and baseline.device == "cpu"
