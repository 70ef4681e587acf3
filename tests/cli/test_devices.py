"""Where a search runs: which GPUs and which libraries make one possible, and the sentences else."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.cli import devices, search_request
from analyzer.cli.search_run import _device
from analyzer.domain.configuration import DeviceKind, baseline_configuration
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.engine import backends, gpu_backends
from analyzer.engine.backends import usable_gpus
from analyzer.engine.loader import LoadSettings, read_model_config
from analyzer.errors import UsageError
from analyzer.hardware import gpus
from analyzer.hardware.fake_nvml import FakeGpu, FakeNvml
from analyzer.hardware.gpus import GpuIdentity
from analyzer.modelconfig.text import parse_config
from analyzer.spaces.loader import SpaceContext, load_space
from analyzer.store.records import StudyRecord
from analyzer.store.unfinished import unfinished

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes up GPUs and libraries."""

    def make(*, count: int = 1, cuda: bool = True, tensorrt: bool = False) -> None:
        nvml = FakeNvml([FakeGpu(uuid=f"GPU-{number}") for number in range(count)])
        real = gpus.nvml_session
        monkeypatch.setattr(gpus, "nvml_session", lambda library=None: real(library or nvml))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        import onnxruntime

        providers = ["CUDAExecutionProvider"] * cuda + ["CPUExecutionProvider"]
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
        find = importlib.util.find_spec

        def find_spec(name: str, *rest: Any) -> Any:
            return (object() if tensorrt else None) if name == "tensorrt" else find(name, *rest)

        for module in (gpu_backends, backends):
            monkeypatch.setattr(module, "find_spec", find_spec)

    return make


def device(wanted: str = "auto") -> tuple[str, str]:
    options: Any = SimpleNamespace(device=wanted)
    return _device(options)


def test_a_machine_with_tensorrt_alone_searches_on_the_gpu(machine: Machine) -> None:
    machine(cuda=False, tensorrt=True)
    assert device() == ("gpu", "tensorrt")
    assert device("gpu") == ("gpu", "tensorrt")
    assert devices.default_device() == "cpu"  # where Triton would put an ONNX model


def test_cuda_comes_first_and_the_cpu_is_left_where_it_is_asked_for(machine: Machine) -> None:
    machine(tensorrt=True)
    assert device() == ("gpu", "onnxruntime")
    assert device("cpu") == ("cpu", "onnxruntime")
    assert devices.default_device() == "gpu"


@pytest.mark.parametrize(
    ("made", "hidden", "said"),
    [
        ({"count": 0}, None, "NVML finds no NVIDIA GPU"),
        ({"cuda": False}, None, "Neither ONNX Runtime's CUDA provider nor TensorRT"),
        ({}, "", "CUDA_VISIBLE_DEVICES='' hides every GPU"),
    ],
)
def test_what_is_missing_is_named(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    made: dict[str, Any],
    hidden: str | None,
    said: str,
) -> None:
    machine(**made)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with pytest.raises(UsageError, match=f"--device gpu: {said}") as caught:
        device("gpu")
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert device() == ("cpu", "onnxruntime")


def test_with_tensorrt_alone_every_candidate_is_an_engine() -> None:
    space = load_space(
        "gpu",
        SpaceContext(device="gpu", cores=4, tensorrt=True, onnx_backend="tensorrt"),
    )
    found = {configuration.backend for configuration, _ in space.candidates().values()}
    assert found == {"tensorrt"}


def test_precisions_are_those_of_the_gpus_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        GpuIdentity(uuid="GPU-turing-0", index=0, compute_capability=(7, 5)),
        GpuIdentity(uuid="GPU-hopper-1", index=1, compute_capability=(9, 0)),
    )
    monkeypatch.setattr(gpus, "list_gpus", lambda *, nvml=None: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert search_request._compute_capability("gpu") == (7, 5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # the older one is hidden
    assert search_request._compute_capability("gpu") == (9, 0)
    assert search_request._compute_capability("cpu") is None


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_baseline_of_an_unfinished_study_is_on_its_device(device: DeviceKind) -> None:
    model = ModelInfo(name="m", path="", sha256="", batchable=True, inputs=(), outputs=())
    record = StudyRecord(
        name="s", model=model, sla=Sla(latency_budget_ms=50.0), options={"device": device}
    )
    wanted = baseline_configuration(batchable=True, device=device)
    assert unfinished(record).baseline_id == wanted.config_id


def test_each_backend_gets_the_gpus_that_it_can_use(machine: Machine, tmp_path: Any) -> None:
    machine(count=2, cuda=False, tensorrt=True)
    usable = usable_gpus(2)
    assert usable == {"tensorrt": (0, 1)}
    assert usable_gpus(0) == {}
    settings = LoadSettings(gpus=usable)
    for backend, kind in (("onnxruntime", "KIND_CPU"), ("tensorrt", "KIND_GPU")):
        (tmp_path / backend / "1").mkdir(parents=True)
        proto = parse_config(f'name: "{backend}" backend: "{backend}" max_batch_size: 4')
        config = read_model_config(tmp_path / backend, backend, settings, proto)
        [group] = config.instance_group
        assert f"kind: {kind}" in str(group)
