"""OpenVINO on the CPU for real, in processes whose ONNX Runtime has it (``make tools``)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from analyzer.domain.configuration import Backend, Configuration, Execution, VariantKey
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.engine.tensor_file import read_tensors, write_tensors
from analyzer.errors import AnalyzerError
from analyzer.export.repository import export_repository
from analyzer.hardware.processes import is_running
from analyzer.load.generator import run_closed_loop
from analyzer.measure.probe import ProbedModel, run_probes
from analyzer.modelconfig.files import model_files
from analyzer.targets.endpoint_target import local_target
from analyzer.targets.open import open_target
from analyzer.targets.triton_install import TritonInstall
from analyzer.targets.triton_server import TritonServer
from analyzer.twin.probes import Probe
from analyzer.variants.build import build_variant
from analyzer.variants.inspect import inspect_model
from benchlib.own_server import own_server

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits.onnx"
OPENVINO = ROOT / ".tools" / "openvino"
SERVED = Configuration(
    accelerator="openvino", max_batch_size=8, dynamic_batching=True, instance_count=2
)


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of this process import the ONNX Runtime that has OpenVINO."""
    if not (OPENVINO / "onnxruntime").is_dir():
        pytest.skip("there is no ONNX Runtime with OpenVINO in .tools (make tools fetches one)")
    path = os.pathsep.join(filter(None, (str(OPENVINO), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rows = np.load(ROOT / "examples" / "digits.npz")["image"][:16].astype(np.float32)
    write_tensors(tmp_path / "images.npz", {"image": rows})
    return tmp_path / "images.npz"


def loads_openvino(pids: tuple[int, ...]) -> bool:
    """Whether one of the processes has OpenVINO's CPU kernels in its memory."""
    return any("libopenvino_intel_cpu" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)


def answers_as_the_default_provider(address: str, images: Path) -> None:
    """Asks a server for each image and holds the answers against ONNX Runtime's own kernels."""
    from tritonclient import grpc as client

    session = OrtRuntime(DIGITS)
    rows = read_tensors(images)["image"]
    with client.InferenceServerClient(address) as asking:
        for size in (1, 3, 8):
            tensor = client.InferInput("image", rows[:size].shape, "FP32")
            tensor.set_data_from_numpy(rows[:size])
            got = asking.infer("digits", [tensor]).as_numpy("logits")
            want = session.run({"image": rows[:size]})["logits"]
            np.testing.assert_allclose(got, want, atol=1e-3)


@pytest.mark.usefixtures("openvino")
def test_the_embedded_server_runs_it(images: Path) -> None:
    model = inspect_model(DIGITS)
    with open_target(
        "embedded", model=model, model_path=DIGITS, inputs_path=images, configuration=SERVED
    ) as target:
        with target.connect() as connection:
            run = run_closed_loop(connection, 4, 1, requests=40)
        assert (run.log.status == 0).all()
        pids = tuple(target.pids)
        assert loads_openvino(pids)
    assert not any(is_running(pid) for pid in pids)
    plain = Configuration(max_batch_size=8, instance_count=1)
    with open_target(
        "embedded", model=model, model_path=DIGITS, inputs_path=images, configuration=plain
    ) as target:
        assert not loads_openvino(tuple(target.pids))


@pytest.mark.usefixtures("openvino")
def test_probes_and_builds_use_it(images: Path, tmp_path: Path) -> None:
    execution = Execution(accelerator="openvino")
    model = ProbedModel(
        path=DIGITS,
        backend="onnxruntime",
        execution=execution,
        accelerator_options={},
        size_bytes=1 << 20,
        probes=(Probe(threads=0, busy=1, batch=1, seconds=0.05),),
    )
    (results,) = run_probes(
        [model],
        device="cpu",
        batchable=True,
        inputs_path=images,
        batch_ms_max=1000.0,
        seconds_max=20.0,
    )
    assert results[0].samples_ms
    key = VariantKey(precision="fp32", execution=execution)
    built = build_variant(inspect_model(DIGITS), key, cache_dir=tmp_path)
    assert Path(built.path) == DIGITS and built.key == key
    # Other kernels, so not the very same numbers; scored on made-up rows.
    assert built.accuracy.synthetic and built.accuracy.value < 1e-3


def test_without_it_the_server_says_what_is_missing(images: Path) -> None:
    from analyzer.engine.runtimes.providers import accelerators_here

    if accelerators_here("cpu"):
        pytest.skip("this environment's own ONNX Runtime has OpenVINO")
    target = open_target(
        "embedded",
        model=inspect_model(DIGITS),
        model_path=DIGITS,
        inputs_path=images,
        configuration=SERVED,
    )
    with pytest.raises(AnalyzerError, match="OpenVINO") as caught, target:
        pass
    assert "tritune[openvino]" in caught.value.hint


@pytest.mark.usefixtures("openvino")
def test_an_exported_repository_is_loaded_by_our_server(images: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    export_repository(inspect_model(DIGITS), DIGITS, SERVED, repository)
    with own_server(repository, "--exit-on-error") as server:
        answers_as_the_default_provider(server.grpc, images)
        assert loads_openvino((server.process.pid,))


@pytest.mark.triton
@pytest.mark.parametrize("backend", ["onnxruntime", "python"])
@pytest.mark.usefixtures("openvino")
def test_a_real_triton_runs_it_natively_and_in_its_python_backend(
    images: Path, triton_install: TritonInstall, backend: Backend
) -> None:
    if backend not in triton_install.backends:
        pytest.skip(f"the Triton here has no {backend} backend, and takes none in Python")
    model = inspect_model(DIGITS)
    rows = read_tensors(images)
    files = model_files(model, DIGITS, SERVED, backend=backend)
    assert ('platform: "onnxruntime_onnx"' in files.config_text) == (backend == "onnxruntime")
    assert "cpu_execution_accelerator" in files.config_text
    with TritonServer(triton_install) as server, local_target(server, files, rows, model=model):
        answers_as_the_default_provider(server.grpc_address, images)
        assert loads_openvino(server.pids)
