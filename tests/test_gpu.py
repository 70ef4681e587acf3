"""What only a machine with an NVIDIA GPU can show. ``make test-gpu``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent
DIGITS = ROOT / "examples" / "digits.onnx"


@pytest.fixture(scope="module", autouse=True)
def _needs_a_gpu() -> None:
    from analyzer.hardware.machine import inspect_machine

    if not inspect_machine().gpus:
        pytest.skip("NVML finds no NVIDIA GPU on this machine")
    from analyzer.engine.gpu_backends import gpu_backends

    if not gpu_backends():
        pytest.skip("neither ONNX Runtime's CUDA provider nor TensorRT is here (tritune[gpu])")


def test_cuda_answers_like_the_cpu() -> None:
    from analyzer.engine.gpu_backends import gpu_backends
    from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime

    if "onnxruntime" not in gpu_backends():
        pytest.skip("this ONNX Runtime does not run on the GPU (install tritune[gpu])")
    rows = {"image": np.random.default_rng(0).standard_normal((8, 1, 64, 64), np.float32)}
    on_cpu = OrtRuntime(DIGITS, device="cpu").run(rows)["logits"]
    on_gpu = OrtRuntime(DIGITS, device="gpu").run(rows)["logits"]
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-2, atol=1e-2)


def test_a_tensorrt_engine_answers_like_the_cpu(tmp_path: Path) -> None:
    tensorrt = pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    if not hasattr(tensorrt, "Builder"):
        pytest.skip("this TensorRT has no builder")
    from analyzer.domain.configuration import VariantKey
    from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
    from analyzer.engine.runtimes.tensorrt_ import TensorRtRuntime
    from analyzer.variants.build import build_variant
    from analyzer.variants.inspect import inspect_model

    model = inspect_model(DIGITS)
    engine = build_variant(
        model,
        VariantKey(precision="fp16", backend="tensorrt"),
        cache_dir=tmp_path,
        device="gpu",
    )
    rows = {"image": np.random.default_rng(0).standard_normal((4, 1, 64, 64), np.float32)}
    on_cpu = OrtRuntime(DIGITS, device="cpu").run(rows)["logits"]
    on_gpu = TensorRtRuntime(engine.path).run(rows)["logits"]
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=5e-2, atol=5e-2)


@pytest.mark.timing
def test_a_whole_search_on_the_gpu_finds_and_measures_its_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "analyzer.cli.main", "search", str(DIGITS), "--device", "gpu",
         "--latency-budget", "20ms", "--budget", "90s", "--json",
         "--calibration-data", str(ROOT / "examples" / "digits.npz")],
        cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    entry = json.loads(done.stdout)["recommendation"]
    assert entry["config"]["device"] == "gpu"
    assert entry["gpu_memory_bytes_peak"] > 0
    assert entry["gpu_memory_source"] in ("process", "device")
