"""The engine builder against a real library of NVIDIA's that needs no GPU: TensorRT for RTX.

Its parser, its builder and its bindings are those of TensorRT but for the name; what it compiles
cannot be loaded without an RTX GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import real_tensorrt
from analyzer.domain.configuration import VariantKey
from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.fake_cuda import FakeCuda
from analyzer.engine.runtimes.tensorrt_ import (
    TensorRtEngine,
    library_version,
    product,
    recording_logger,
)
from analyzer.errors import BuildError, TargetStartError
from analyzer.hardware.gpus import GpuIdentity
from analyzer.variants.inputs import load_calibration
from analyzer.variants.inspect import inspect_model
from analyzer.variants.precision import convert_fp16
from analyzer.variants.quantize import RowReader, quantize_dynamic, quantize_static
from analyzer.variants.rtx_build import build_rtx_engine
from analyzer.variants.tensorrt_build import (
    EngineOptions,
    build_engine,
    engine_facts,
    known_capabilities,
)

rtx = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed (extra rtx)")
pytestmark = pytest.mark.timeout(300)

OPTIONS = EngineOptions.for_batches((1, 8, 64))
AMPERE = "8.6"


@pytest.fixture(scope="module")
def digits(examples: Path) -> ModelInfo:
    return inspect_model(examples / "digits.onnx")


@pytest.fixture(scope="module")
def graphs(
    digits: ModelInfo, examples: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The graphs that are compiled at each precision."""
    folder = tmp_path_factory.mktemp("graphs")
    rows = load_calibration(examples / "digits.npz", digits).inputs
    source = Path(digits.path)
    found = {name: folder / f"{name}.onnx" for name in ("fp16", "int8", "uint8", "dynamic")}
    convert_fp16(source, found["fp16"])
    for name, backend in (("int8", "tensorrt"), ("uint8", "onnxruntime")):
        (work := folder / name).mkdir()
        reader = RowReader({key: array[:16] for key, array in rows.items()}, batchable=True)
        quantize_static(
            source,
            found[name],
            reader,
            external=(),
            backend=backend,
            work=work,  # type: ignore[arg-type]
        )
    (work := folder / "dynamic").mkdir()
    quantize_dynamic(source, found["dynamic"], external=(), work=work)
    return {"fp32": source, **found}


class Watched:
    """The real module, which keeps what its builder was asked to do."""

    def __init__(self) -> None:
        watched = self
        self.network: Any = None
        self.config: Any = None
        self.profile: Any = None

        class Builder(rtx.Builder):  # type: ignore[misc, name-defined]
            def create_network(self, flags: int) -> Any:
                watched.network = super().create_network(flags)
                return watched.network

            def create_builder_config(self) -> Any:
                watched.config = super().create_builder_config()
                return watched.config

            def create_optimization_profile(self) -> Any:
                watched.profile = super().create_optimization_profile()
                return watched.profile

        self.module = SimpleNamespace(**{**vars(rtx), "Builder": Builder})

    def types(self, kind: Any) -> set[str]:
        """Types of the outputs of the layers of a kind."""
        layers = [self.network.get_layer(i) for i in range(self.network.num_layers)]
        return {layer.get_output(0).dtype.name for layer in layers if layer.type == kind}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_every_precision_compiles_as_the_graph_has_it(
    digits: ModelInfo, graphs: dict[str, Path], tmp_path: Path, precision: str
) -> None:
    watched = Watched()
    target = tmp_path / "model.plan"
    notes = build_engine(graphs[precision], digits, target, OPTIONS, trt=watched.module)
    assert notes == (f"compiled by TensorRT for RTX {rtx.__version__}",)
    assert target.stat().st_size > 100_000
    network = watched.network
    assert network.get_flag(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    expected = "HALF" if precision == "fp16" else "FLOAT"
    assert watched.types(rtx.LayerType.CONVOLUTION) == {expected}
    assert watched.types(rtx.LayerType.QUANTIZE) == ({"INT8"} if precision == "int8" else set())
    # Inputs and outputs stay what they are, so that nobody has to convert.
    assert {network.get_input(0).dtype, network.get_output(0).dtype} == {rtx.float32}
    assert watched.config.num_optimization_profiles == 1
    shape = (1, 64, 64)
    assert watched.profile.get_shape("image") == [(1, *shape), (8, *shape), (64, *shape)]
    limit = watched.config.get_memory_pool_limit(rtx.MemoryPoolType.WORKSPACE)
    assert limit == OPTIONS.workspace_bytes


def test_a_dynamic_network_needs_its_profile(
    digits: ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test before this one shows that the library took it."""
    monkeypatch.setattr("analyzer.variants.tensorrt_build._add_profile", lambda *_: None)
    with pytest.raises(BuildError, match="optimization profile"):
        build_engine(Path(digits.path), digits, tmp_path / "p", OPTIONS, trt=rtx)


# The library keeps the calls and does nothing in them: without a GPU no kernel is timed.
@pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX:DeprecationWarning")
def test_a_timing_cache_is_written_and_taken_again(digits: ModelInfo, tmp_path: Path) -> None:
    cache = tmp_path / "timing.cache"
    for content in (None, b"foreign"):
        if content is not None:
            cache.write_bytes(content)
        for _ in range(2):
            build_engine(
                Path(digits.path), digits, tmp_path / "p", OPTIONS, timing_cache=cache, trt=rtx
            )
            assert cache.stat().st_size > len(b"foreign")


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        # A bias in int32, and in the graph for the CPU's dynamic kernels their own operators.
        ("uint8", r"DequantizeLinear \(head_bias_DequantizeLinear\): .*Int32"),
        ("dynamic", r"DynamicQuantizeLinear \(.*\): "),
    ],
)
def test_graphs_for_cpu_kernels_are_refused_in_words(
    digits: ModelInfo, graphs: dict[str, Path], tmp_path: Path, graph: str, words: str
) -> None:
    with pytest.raises(BuildError, match=f"cannot read {graph}.onnx: {words}"):
        build_engine(graphs[graph], digits, tmp_path / "model.plan", OPTIONS, trt=rtx)
    assert not (tmp_path / "model.plan").exists()


def test_an_operator_that_is_not_known_is_named(
    write_model: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_model(
        [helper.make_node("Frobnicate", ["x"], ["y"], domain="acme", name="f")],
        [("x", TensorProto.FLOAT, ["batch", 3])],
        [("y", TensorProto.FLOAT, ["batch", 3])],
        domains=("acme",),
    )
    model = ModelInfo(name="m", path=str(path), sha256="", batchable=True, inputs=(), outputs=())
    with pytest.raises(BuildError, match=r"Frobnicate \(f\): .*Plugin not found"):
        build_engine(path, model, tmp_path / "p", OPTIONS, trt=rtx)


def test_compute_capabilities_are_chosen_and_refused(digits: ModelInfo, tmp_path: Path) -> None:
    known = known_capabilities(rtx)
    assert {"7.5", "8.6", "8.9", "12.0"} <= set(known)
    key = VariantKey(precision="fp32")

    def build(*names: str) -> tuple[str, ...]:
        options = EngineOptions(compute_capabilities=names)
        return build_rtx_engine(
            digits, key, tmp_path / "e", options,
            calibration=None, cache_dir=tmp_path / "c", timeout_s=120.0,
        )  # fmt: skip

    assert build("8.6", "12.0") == (f"compiled by TensorRT for RTX {rtx.__version__}",)
    assert (tmp_path / "e").stat().st_size > 100_000
    with pytest.raises(BuildError, match=r"nothing for compute capability 9\.9"):
        build("9.9")
    # Turing cannot multiply matrices of fp32 there, and the library says so.
    with pytest.raises(BuildError, match="Turing"):
        build("7.5")
    assert not list((tmp_path / "c").iterdir())


def test_int8_weights_take_a_byte_each_beside_a_fixed_part(
    tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    """Static int8 of a small convolutional model is no smaller than fp32, and no fault of ours.

    Its kernels are in the engine; they take the same room whatever the weights take.
    """

    def sizes(width: int) -> dict[str, int]:
        rng = np.random.default_rng(width)
        weights = rng.standard_normal((2, width, width, 3, 3), np.float32) / (3 * width**0.5)
        path = write_model(
            [
                helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1] * 4, name="first"),
                helper.make_node("Relu", ["a"], ["b"], name="relu"),
                helper.make_node("Conv", ["b", "w1"], ["y"], pads=[1] * 4, name="second"),
            ],
            [("x", TensorProto.FLOAT, ["batch", width, 8, 8])],
            [("y", TensorProto.FLOAT, ["batch", width, 8, 8])],
            {"w0": weights[0], "w1": weights[1]},
            name=f"conv{width}.onnx",
        )
        model = inspect_model(path)
        quantized = tmp_path / f"int8-{width}.onnx"
        (work := tmp_path / f"work-{width}").mkdir()
        rows = {"x": rng.standard_normal((8, width, 8, 8), np.float32)}
        reader = RowReader(rows, batchable=True)
        quantize_static(path, quantized, reader, external=(), backend="tensorrt", work=work)
        found = {"weights": weights.size}
        for name, graph in (("fp32", path), ("int8", quantized)):
            build_engine(graph, model, tmp_path / "p", OPTIONS, trt=rtx)
            found[name] = (tmp_path / "p").stat().st_size
        return found

    small, large = sizes(64), sizes(192)
    more = large["weights"] - small["weights"]
    assert (large["fp32"] - small["fp32"]) / more == pytest.approx(4.0, rel=0.05)
    assert (large["int8"] - small["int8"]) / more == pytest.approx(1.0, rel=0.1)
    fixed = small["int8"] - small["weights"]
    assert fixed > small["weights"]


def test_the_fake_fits_the_real_module() -> None:
    assert real_tensorrt.disagreements(rtx) == []


def test_the_version_is_the_librarys() -> None:
    assert library_version(rtx) == rtx.__version__
    facts = engine_facts(GpuIdentity(uuid="GPU-1", name="RTX 4090"), trt=rtx)
    assert (facts.tensorrt, facts.gpu, facts.compute_capability) == (
        rtx.__version__, "RTX 4090", "",
    )  # fmt: skip
    assert product(rtx) == f"TensorRT for RTX {rtx.__version__}"


def test_an_engine_is_inspected_as_far_as_a_machine_without_a_gpu_can(
    digits: ModelInfo, tmp_path: Path
) -> None:
    """Its header: what inspects layers wants an engine that is loaded."""
    runtime = rtx.Runtime(recording_logger(rtx))
    malformed = int(rtx.EngineInvalidityDiagnostics.MALFORMED_ENGINE)
    plan = tmp_path / "p"
    for capabilities in ((), (AMPERE, "12.0")):
        options = replace(OPTIONS, compute_capabilities=capabilities)
        build_engine(Path(digits.path), digits, plan, options, trt=rtx)
        _, faults = runtime.get_engine_validity(plan.read_bytes())
        assert not faults & malformed
    for damaged in (b"no plan at all", bytes(plan.stat().st_size)):
        validity, faults = runtime.get_engine_validity(damaged)
        assert validity == rtx.EngineValidity.INVALID and faults & malformed


def test_without_a_driver_an_engine_is_not_loaded_and_that_is_said(
    digits: ModelInfo, tmp_path: Path
) -> None:
    from analyzer.hardware.machine import inspect_machine

    if inspect_machine().gpus:
        pytest.skip("this machine has a GPU")
    plan = tmp_path / "model.plan"
    build_engine(Path(digits.path), digits, plan, OPTIONS, trt=rtx)
    for content in (plan.read_bytes(), b"no plan at all"):
        plan.write_bytes(content)
        with pytest.raises(TargetStartError, match="cannot be loaded by TensorRT for RTX"):
            TensorRtEngine(plan, trt=rtx, cudart=FakeCuda())
