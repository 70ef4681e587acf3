"""TensorRT engines as variants: what they are built for, when, and which one counts.

Against the fake, in the real child processes; an engine of the fake doubles its inputs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from analyzer.domain.configuration import VariantKey
from analyzer.domain.model import ModelInfo
from analyzer.errors import AnalyzerError, BuildError, MissingPartError
from analyzer.hardware import gpu_lock
from analyzer.hardware.gpus import GpuIdentity
from analyzer.variants import build as build_module
from analyzer.variants.build import Variant, build_variant, build_variants, stored_variant
from analyzer.variants.inspect import inspect_model
from analyzer.variants.tensorrt_build import EngineOptions

ENGINE = VariantKey(precision="fp32", backend="tensorrt")
HALF_ENGINE = VariantKey(precision="fp16", backend="tensorrt")
GPU = GpuIdentity(uuid="GPU-1", name="NVIDIA A10", compute_capability=(8, 6))

pytestmark = pytest.mark.usefixtures("fake_tensorrt")


@pytest.fixture
def model(write_model: Callable[..., Path]) -> ModelInfo:
    """Doubles ``x``, as the fake's engines do."""
    path = write_model(
        [helper.make_node("Mul", ["x", "two"], ["x_doubled"], name="double")],
        [("x", TensorProto.FLOAT, ["batch", 3])],
        [("x_doubled", TensorProto.FLOAT, ["batch", 3])],
        {"two": np.array(2.0, np.float32)},
    )
    return inspect_model(path)


@pytest.fixture(autouse=True)
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "first_gpu", lambda: GPU)
    monkeypatch.setattr(gpu_lock, "_FOLDER", tmp_path)


@pytest.mark.parametrize(
    ("sizes", "profile"),
    [
        # Requests of two inferences: a warm-up runs 1 all the same.
        ((2, 16), [[1, 3], [16, 3], [16, 3]]),
        # A maximum of 4: eight rows at a time are scored.
        ((1, 4), [[1, 3], [4, 3], [8, 3]]),
        ((1, 8, 64), [[1, 3], [8, 3], [64, 3]]),
    ],
)
def test_an_engine_runs_everything_from_one_to_the_largest_batch(
    model: ModelInfo, tmp_path: Path, sizes: tuple[int, ...], profile: list[list[int]]
) -> None:
    options = EngineOptions.for_batches(sizes)
    variant = build_variant(model, ENGINE, cache_dir=tmp_path / "c", engine=options)
    plan = json.loads(Path(variant.path).read_text())
    assert plan["profiles"] == [{"x": profile}]
    # It was scored, which runs 8 rows at once and the rest.
    assert variant.accuracy.value is not None


def test_the_measured_engine_is_found_again_byte_for_byte_or_not_at_all(
    model: ModelInfo, tmp_path: Path
) -> None:
    cache = tmp_path / "c"
    built = build_variant(model, ENGINE, cache_dir=cache, engine=EngineOptions.for_batches((1, 64)))
    again = stored_variant(model, ENGINE, cache_dir=cache, entry=built.entry, sha256=built.sha256)
    assert (again.path, again.sha256, again.cached) == (built.path, built.sha256, True)
    with pytest.raises(BuildError, match="no longer in"):
        stored_variant(model, ENGINE, cache_dir=cache, entry=built.entry, sha256="0" * 64)
    Path(built.path).write_bytes(b"another")
    with pytest.raises(BuildError, match="one that is built anew would be another"):
        stored_variant(model, ENGINE, cache_dir=cache, entry=built.entry, sha256=built.sha256)


def test_an_engine_belongs_to_one_model_of_gpu_and_one_tensorrt(
    model: ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_variant(model, ENGINE, cache_dir=tmp_path / "c")
    assert first.engine is not None
    assert (first.engine.tensorrt, first.engine.gpu) == ("11.4.0", "NVIDIA A10")
    assert first.engine.compute_capability == "8.6"

    def entry() -> str:
        return build_variant(model, ENGINE, cache_dir=tmp_path / "c").entry

    # Another one of the same model.
    monkeypatch.setattr(build_module, "first_gpu", lambda: replace(GPU, uuid="GPU-2", index=1))
    assert entry() == first.entry
    entries = {first.entry}
    for other in (
        replace(GPU, name="NVIDIA L4", compute_capability=(8, 9)),
        # A hybrid model, whose parts differ in what they can compute.
        replace(GPU, compute_capability=(8, 7)),
    ):
        monkeypatch.setattr(build_module, "first_gpu", lambda other=other: other)
        entries.add(entry())
    monkeypatch.setattr(build_module, "first_gpu", lambda: GPU)
    monkeypatch.setattr("analyzer.variants.tensorrt_build.library_version", lambda trt: "11.4.1")
    entries.add(entry())
    assert len(entries) == 4


def test_without_a_gpu_nothing_is_started(
    model: ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> GpuIdentity:
        raise MissingPartError("NVML finds no NVIDIA GPU on this machine.")

    monkeypatch.setattr(build_module, "first_gpu", none)
    with pytest.raises(MissingPartError, match="no NVIDIA GPU"):
        build_variant(model, ENGINE, cache_dir=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_engines_are_built_one_at_a_time_after_everything_else(
    model: ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[list[VariantKey]] = []
    beside: list[int] = []
    lock = threading.Lock()

    def run(
        folders: Sequence[tuple[VariantKey, Path]], **_: object
    ) -> dict[VariantKey, AnalyzerError]:
        keys = [key for key, _ in folders]
        with lock:
            running.append(keys)
        threading.Event().wait(0.05)
        with lock:
            if any(key.backend == "tensorrt" for key in keys):
                beside.append(len(running))
            running.remove(keys)
        return {key: BuildError("not now") for key in keys}

    monkeypatch.setattr(build_module, "run_builds", run)
    graphs = [VariantKey(precision="fp32"), VariantKey(precision="fp16")]
    keys = [ENGINE, HALF_ENGINE, *graphs]
    assert set(build_variants(model, keys, cache_dir=tmp_path, cores=16)) == set(keys)
    # Both in one process, one after the other, and nothing beside them.
    assert beside == [1]


def test_a_build_waits_for_what_is_measured(
    model: ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_lock, "_FOLDER", Path("/tmp"))  # as in the child process
    gpu = replace(GPU, uuid=f"GPU-test-{tmp_path.name}-{id(tmp_path)}")
    monkeypatch.setattr(build_module, "first_gpu", lambda: gpu)
    try:
        with (
            gpu_lock.measuring_on(gpu),
            pytest.raises(BuildError, match="took longer than"),
        ):
            build_variant(model, ENGINE, cache_dir=tmp_path / "c", timeout_s=4.0)
        built = build_variant(model, ENGINE, cache_dir=tmp_path / "c")
        assert isinstance(built, Variant)
    finally:
        Path(f"/tmp/tritune-gpu-{gpu.uuid}.lock").unlink()
