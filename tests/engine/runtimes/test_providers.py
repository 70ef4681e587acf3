"""Accelerators of ONNX Runtime: asked for as Triton does, and refused in words where they lack."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from analyzer.domain.configuration import Execution
from analyzer.engine.runtimes import providers
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.engine.runtimes.open import open_runtime
from analyzer.engine.runtimes.providers import (
    accelerators_here,
    check_started,
    configure_session,
    onnxruntime_versions,
)
from analyzer.errors import MissingPartError

DIGITS = Path("examples/digits.onnx").absolute()
OPENVINO = "OpenVINOExecutionProvider"


class Ort(SimpleNamespace):
    """ONNX Runtime's module with other providers: only what is asked of them is looked at."""

    def __init__(self, *available: str, **members: Any) -> None:
        super().__init__(
            GraphOptimizationLevel=onnxruntime.GraphOptimizationLevel,
            ExecutionMode=onnxruntime.ExecutionMode,
            __version__="1.99",
            get_available_providers=lambda: [*available, "CPUExecutionProvider"],
            **members,
        )


def configured(execution: Execution, *available: str, **more: Any) -> tuple[Any, Any]:
    options = onnxruntime.SessionOptions()
    return options, configure_session(Ort(*available), options, execution, **more)


def test_the_default_is_tritons() -> None:
    options, chosen = configured(Execution())
    assert chosen == ["CPUExecutionProvider"]
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL


@pytest.mark.parametrize(
    ("level", "name"),
    [(-1, "ORT_ENABLE_BASIC"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL")],
)
def test_settings_of_the_session(level: Any, name: str) -> None:
    execution = Execution(graph_level=level, execution_mode="parallel", inter_op_threads=3)
    options, _ = configured(execution)
    assert options.graph_optimization_level.name == name
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.inter_op_num_threads == 3


def test_a_session_with_other_settings_answers_the_same() -> None:
    import numpy as np

    image = {"image": np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(1, 1, 64, 64)}
    want = OrtRuntime(DIGITS).run(image)["logits"]
    for execution in (
        Execution(graph_level=2),
        Execution(execution_mode="parallel", inter_op_threads=2),
    ):
        got = OrtRuntime(DIGITS, execution=execution).run(image)["logits"]
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_openvino_gets_the_device_that_triton_gives_it() -> None:
    _, chosen = configured(Execution(accelerator="openvino"), OPENVINO)
    assert chosen == [(OPENVINO, {"device_type": "CPU"}), "CPUExecutionProvider"]


def test_tensorrt_comes_before_cuda_with_onnx_runtimes_names_of_its_options() -> None:
    _, chosen = configured(
        Execution(accelerator="tensorrt"),
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        device="gpu",
        device_id=1,
        accelerator_options={
            "precision_mode": "FP16",
            "max_workspace_size_bytes": "7",
            "trt_engine_cache_enable": "1",
        },
    )
    assert [p if isinstance(p, str) else p[0] for p in chosen] == [
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]
    assert chosen[0][1] == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "7",
        "trt_engine_cache_enable": "1",
        "device_id": "1",
    }


@pytest.mark.parametrize("accelerator", ["openvino", "tensorrt"])
def test_an_absent_provider_is_a_sentence_and_no_fallback(accelerator: Any) -> None:
    if accelerator in (*accelerators_here("cpu"), *accelerators_here("gpu")):
        pytest.skip(f"this ONNX Runtime has {accelerator}")
    with pytest.raises(MissingPartError, match=r"has no |offers no CPU") as caught:
        open_runtime(DIGITS, execution=Execution(accelerator=accelerator))
    assert accelerator in caught.value.hint


def test_a_session_that_fell_back_is_refused() -> None:
    session = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(MissingPartError, match=f"could not start {OPENVINO}"):
        check_started(session, Execution(accelerator="openvino"), device="cpu", path="m")
    with pytest.raises(MissingPartError, match="could not start CUDA"):
        check_started(session, Execution(), device="gpu", path="m")


def device(name: str, kind: str) -> Any:
    return SimpleNamespace(ep_name=OPENVINO, ep_metadata={"ov_device": kind}, name=name)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the plugin's package were installed; what it lists is the test's."""
    monkeypatch.setattr(providers, "find_spec", lambda name: SimpleNamespace(name=name))
    module = SimpleNamespace(get_library_path=lambda: "/plugin.so")
    monkeypatch.setattr(providers, "import_module", lambda name: module)


@pytest.mark.usefixtures("plugin")
def test_the_plugin_is_registered_once_and_its_cpu_is_taken() -> None:
    listed: list[Any] = []
    registered = []

    def register(name: str, path: str) -> None:
        registered.append((name, path))
        listed.extend([device("npu", "NPU"), device("cpu", "CPU")])

    ort = Ort(register_execution_provider_library=register, get_ep_devices=lambda: listed)
    added: list[Any] = []
    options = SimpleNamespace(add_provider_for_devices=lambda found, own: added.append(found))
    for _ in range(2):
        assert configure_session(ort, options, Execution(accelerator="openvino")) == []
    assert registered == [(OPENVINO, "/plugin.so")]
    assert [found[0].name for found in added] == ["cpu", "cpu"]


@pytest.mark.usefixtures("plugin")
def test_the_plugin_on_another_makers_cpu_is_a_sentence() -> None:
    ort = Ort(register_execution_provider_library=lambda name, path: None, get_ep_devices=list)
    with pytest.raises(MissingPartError, match="takes Intel's alone"):
        configure_session(ort, SimpleNamespace(), Execution(accelerator="openvino"))


@pytest.mark.usefixtures("plugin")
def test_a_plugin_that_does_not_fit_is_a_sentence() -> None:
    def register(name: str, path: str) -> None:
        raise RuntimeError("API version 99 is not supported")

    ort = Ort(register_execution_provider_library=register, get_ep_devices=list)
    with pytest.raises(MissingPartError, match="cannot load the OpenVINO plugin: API version"):
        configure_session(ort, SimpleNamespace(), Execution(accelerator="openvino"))


def test_cuda_graphs_of_an_engine_are_refused_here() -> None:
    with pytest.raises(MissingPartError, match="without CUDA graphs"):
        open_runtime(DIGITS, backend="tensorrt", execution=Execution(cuda_graphs=True))


def test_the_build_that_is_imported_is_the_one_that_is_told() -> None:
    assert onnxruntime.__version__ in onnxruntime_versions().values()


def test_cuda_searches_by_heuristics_and_loads_the_libraries_of_nvidias_packages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loaded = []

    def preload() -> None:
        loaded.append("here")
        print("Failed to load libcudnn.so.9")  # as ONNX Runtime does

    def providers_of(execution: Execution) -> dict[str, str]:
        ort = Ort("CUDAExecutionProvider", "CPUExecutionProvider")
        ort.preload_dlls = preload
        (name, own), _ = configure_session(
            ort, SimpleNamespace(), execution, device="gpu", device_id=1
        )
        assert name == "CUDAExecutionProvider"
        return dict(own)

    assert providers_of(Execution()) == {
        "device_id": "1",
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    assert providers_of(Execution(cudnn_search="exhaustive"))["cudnn_conv_algo_search"] == (
        "EXHAUSTIVE"
    )
    assert loaded == ["here"] * 2
    # Standard output is for answers alone.
    assert capsys.readouterr().out == ""
