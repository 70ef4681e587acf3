"""The engine builder against the fake: what it asks of TensorRT and what it says of failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt
from analyzer.errors import BuildError, MissingPartError, TargetMemoryError
from analyzer.variants.tensorrt_build import EngineOptions, build_engine

OPTIONS = EngineOptions(batch_size_usual=4, batch_size_max=16, workspace_bytes=1 << 30)


def make_model(*, batchable: bool = True, shape: tuple[int, ...] = (3,)) -> ModelInfo:
    return ModelInfo(
        name="m", path="m", sha256="0" * 64, batchable=batchable,
        inputs=(TensorSpec(name="x", datatype="FP32", shape=shape),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=shape),),
    )  # fmt: skip


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"graph")

    def run(trt: Any, model: ModelInfo | None = None, **options: Any) -> dict[str, Any]:
        target = tmp_path / "model.plan"
        notes = build_engine(graph, model or make_model(), target, OPTIONS, trt=trt, **options)
        return {**json.loads(target.read_bytes()), "notes": notes}

    return run


@pytest.mark.parametrize("version", ["10.9.0", "11.4.0"])
def test_profile_limit_and_typing(build: Callable[..., dict[str, Any]], version: str) -> None:
    plan = build(make_tensorrt(version=version))
    assert plan["profiles"] == [{"x": [[1, 3], [4, 3], [16, 3]]}]
    assert plan["limits"] == {"workspace": 1 << 30}
    assert plan["flags"] == 1 << 1
    assert plan["notes"] == (f"compiled by TensorRT {version}",)


def test_plugins_are_registered_before_the_parser_reads(
    build: Callable[..., dict[str, Any]],
) -> None:
    trt = make_tensorrt()
    build(trt)
    assert trt.calls == ["init_libnvinfer_plugins", "parse_from_file"]


def test_version_without_the_flag(build: Callable[..., dict[str, Any]]) -> None:
    trt = make_tensorrt(version="12.0.0")
    trt.NetworkDefinitionCreationFlag = SimpleNamespace()
    assert build(trt)["flags"] == 0


def test_shapes_of_unbatched_models(build: Callable[..., dict[str, Any]]) -> None:
    model = make_model(batchable=False, shape=(2, 3))
    assert build(make_tensorrt(), model)["profiles"] == [{"x": [[2, 3]] * 3}]
    static = build(make_tensorrt(inputs={"x": (2, 3)}), model)
    assert static["profiles"] == []


def test_timing_cache_is_kept(build: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    cache = tmp_path / "timing.cache"
    build(make_tensorrt(), timing_cache=cache)
    build(make_tensorrt(), timing_cache=cache)
    assert cache.read_bytes() == b"+1+1"
    cache.write_bytes(b"foreign")
    assert "started afresh" in build(make_tensorrt(), timing_cache=cache)["notes"][0]
    assert cache.read_bytes() == b"+1"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "model.onnx", "model.plan", "timing.cache",
    ]  # fmt: skip


def test_failures_say_why(build: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"cannot read model\.onnx: no importer for Foo"):
        build(make_tensorrt(parse_errors=("no importer for Foo",)))
    with pytest.raises(BuildError, match=r"cannot compile model\.onnx: no kernel"):
        build(make_tensorrt(build_error="no kernel"))
    with pytest.raises(TargetMemoryError, match="too little memory to compile"):
        build(make_tensorrt(build_error="Error Code 2: OutOfMemory (Requested size was 8 bytes.)"))
    with pytest.raises(MissingPartError, match="CUDA initialization failure"):
        build(make_tensorrt(starts=False))
    lean = make_tensorrt()
    del lean.Builder
    with pytest.raises(MissingPartError, match="has no Builder"):
        build(lean)
    assert not (tmp_path / "model.plan").exists()
