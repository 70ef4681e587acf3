"""A study that measured an engine: its export and its claims are about that engine alone."""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from analyzer.cli import search_request, verify
from analyzer.cli.export import export_with_evidence
from analyzer.cli.options import cache_dir
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import (
    Certificate,
    Edge,
    Failure,
    Measurement,
)
from analyzer.domain.sla import Sla
from analyzer.domain.study import Explanation, MeasuredEngine, Pricing, SearchSummary, StudyResult
from analyzer.domain.workload import Poisson
from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt
from analyzer.errors import BuildError, MissingPartError, RepositoryError
from analyzer.export.claims import claim_of_repository, claim_of_study
from analyzer.hardware import gpu_lock
from analyzer.hardware.gpus import GpuIdentity
from analyzer.measure.jobs import WorkerContext
from analyzer.measure.plan import LoadPlan
from analyzer.measure.tasks import Assets, MeasureTask
from analyzer.targets.triton_install import TritonInstall
from analyzer.targets.triton_tensorrt import tensorrt_of
from analyzer.variants import build as build_module
from analyzer.variants.build import Variant, build_variant
from analyzer.variants.inspect import inspect_model
from analyzer.variants.tensorrt_build import EngineOptions

GPU = GpuIdentity(uuid="GPU-1", name="NVIDIA A10", compute_capability=(8, 6))
CONFIGURATION = Configuration(
    backend="tensorrt", device="gpu", max_batch_size=64, dynamic_batching=True
).canonical()


@pytest.fixture
def engine(fake_tensorrt: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Variant:
    """What the search built and measured: for batches up to 64."""
    monkeypatch.setattr(build_module, "first_gpu", lambda: GPU)
    monkeypatch.setattr(gpu_lock, "_FOLDER", folder)
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["x_doubled"], name="double")],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("x_doubled", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(np.array(2.0, np.float32), "two")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "double.onnx"))
    return build_variant(
        inspect_model(folder / "double.onnx"),
        CONFIGURATION.variant,
        cache_dir=cache_dir(),
        engine=EngineOptions.for_batches((1, 64)),
    )


@pytest.fixture
def study(engine: Variant, folder: Path) -> StudyResult:
    assert engine.engine is not None
    certificate = Certificate(
        verdict="PASS", requests=900, over_budget=0, effective_requests=900.0,
        confidence=0.95, mlperf="PASS",
    )  # fmt: skip
    edge = Edge(rate_rps=120.0, interval_rps=(110.0, 130.0))
    measured = Measurement(
        configuration=CONFIGURATION, edge=edge, capacity_rps=100.0, certificate=certificate
    )
    return StudyResult(
        name="double-1",
        verdict="found",
        model=inspect_model(folder / "double.onnx"),
        sla=Sla(latency_budget_ms=50.0),
        arrivals="poisson",
        request_batch_size=1,
        server="embedded",
        outcomes=(measured,),
        recommended_id=CONFIGURATION.config_id,
        baseline_id=CONFIGURATION.config_id,
        pricing=Pricing(),
        search=SearchSummary(sampler="twin"),
        explanation=Explanation(),
        provenance={},
        engines=(
            MeasuredEngine(
                label="fp32 tensorrt",
                entry=engine.entry,
                sha256=engine.sha256,
                tensorrt=engine.engine.tensorrt,
                gpu=engine.engine.gpu,
                compute_capability=engine.engine.compute_capability,
            ),
        ),
    )


def test_what_was_measured_is_exported_byte_for_byte_and_verified(
    study: StudyResult,
    engine: Variant,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The machine that exports needs neither a GPU nor TensorRT.
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.delattr(build_module, "run_builds")
    export_with_evidence(study, folder / "models")
    exported = folder / "models" / "double" / "1" / "model.plan"
    assert exported.read_bytes() == Path(engine.path).read_bytes()
    assert json.loads(exported.read_bytes())["profiles"] == [{"x": [[1, 3], [64, 3], [64, 3]]}]
    assert "runs on TensorRT 11.4.0, NVIDIA A10 (compute capability 8.6)" in capsys.readouterr().err
    measurement = study.outcomes[0]
    assert isinstance(measurement, Measurement)
    subject = claim_of_study(study, measurement, cache_dir())
    assert subject.model_path == Path(engine.path)
    assert not subject.notes
    told = replace(study, provenance={"calibration_data": str(folder / "gone.npz")})
    (note,) = claim_of_study(told, measurement, cache_dir()).notes
    assert "gone.npz: requests carry made-up ones" in note
    again = claim_of_repository(folder / "models", "double")
    assert (again.model_path, again.tensorrt) == (exported, "11.4.0")
    assert (again.model.inputs, again.model.batchable) == (study.model.inputs, True)


def test_an_engine_that_is_gone_is_not_replaced_by_another(
    study: StudyResult, engine: Variant, folder: Path
) -> None:
    Path(engine.path).unlink()
    with pytest.raises(BuildError, match="no longer in"):
        export_with_evidence(study, folder / "models")
    with pytest.raises(BuildError, match="does not say which fp32 tensorrt engine"):
        export_with_evidence(replace(study, engines=()), folder / "models")
    assert not (folder / "models").exists()


def test_each_instance_type_has_an_engine_of_its_own(
    study: StudyResult, engine: Variant, folder: Path
) -> None:
    """Both of one label: a study that compares types measures one on each."""
    (own,) = study.engines
    other = replace(own, entry="0" * 24, gpu="NVIDIA L4", instance_type="g6.xlarge")
    both = replace(study, engines=(other, own))
    export_with_evidence(both, folder / "models")
    exported = folder / "models" / "double" / "1" / "model.plan"
    assert exported.read_bytes() == Path(engine.path).read_bytes()
    measurement = study.outcomes[0]
    assert isinstance(measurement, Measurement)
    elsewhere = replace(CONFIGURATION, instance_type="g6.xlarge")
    with pytest.raises(BuildError, match="no longer in"):
        claim_of_study(both, replace(measurement, configuration=elsewhere), cache_dir())


def test_a_repository_without_the_engines_tensors_is_refused_in_words(
    study: StudyResult, folder: Path
) -> None:
    export_with_evidence(study, folder / "models")
    manifest = folder / "models" / "double" / "tritune.json"
    document = json.loads(manifest.read_text())
    del document["versions"]["1"]["evidence"]["model"]
    manifest.write_text(json.dumps(document))
    with pytest.raises(RepositoryError, match="does not say what the inputs of its engine are"):
        claim_of_repository(folder / "models", "double")


def test_no_engine_is_built_while_a_claim_is_measured(
    study: StudyResult, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> str:
        with (folder / "tritune-gpu-GPU-1.lock").open() as lock:
            with pytest.raises(BlockingIOError):  # a build would wait
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # another measurement would not
        return "measured"

    monkeypatch.setattr("analyzer.hardware.gpus.first_gpu", lambda: GPU)
    monkeypatch.setattr("analyzer.measure.verify.verify_claim", measured)
    monkeypatch.setattr(verify, "_twin", lambda *_: None)
    measurement = study.outcomes[0]
    assert isinstance(measurement, Measurement)
    subject = claim_of_study(study, measurement, cache_dir())
    values = {"seed": 1, "server": "embedded", "budget": 1.0, "store_url": ""}
    assert verify._measure(subject, values, started=time.monotonic(), quiet=True) == "measured"


@pytest.fixture
def triton(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], TritonInstall]:
    """A Triton installation with a TensorRT of some version."""

    def install(version: str) -> TritonInstall:
        library = folder / "triton" / "lib"
        library.mkdir(parents=True, exist_ok=True)
        for old in library.iterdir():
            old.unlink()
        (library / f"libnvinfer.so.{version}").touch()
        (library / "libnvinfer.so.10").symlink_to(library / f"libnvinfer.so.{version}")
        found = TritonInstall(
            executable=folder / "triton" / "bin" / "tritonserver",
            source="a test",
            backend_dir=folder / "triton" / "backends",
            backends=("onnxruntime", "tensorrt"),
        )
        for place in ("targets.triton_install", "measure.tasks"):
            monkeypatch.setattr(f"analyzer.{place}.require_triton", lambda: found)
        return found

    return install


def test_a_triton_with_another_tensorrt_is_refused_with_both_versions(
    triton: Callable[[str], TritonInstall], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", make_tensorrt(version="10.9.0.34"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    told: list[str] = []
    assert tensorrt_of(triton("10.3.0")) == "10.3.0"
    assert not search_request._tensorrt("triton", told.append)
    assert "TensorRT 10.3.0" in told[0] and "TensorRT 10.9.0.34" in told[0]
    claimed = SimpleNamespace(tensorrt="10.9.0.34", exported_for="tensorrt")
    with pytest.raises(MissingPartError, match=r"10\.3\.0.*10\.9\.0\.34"):
        verify._engine_notes(claimed, "triton")  # type: ignore[arg-type]
    assert not verify._engine_notes(claimed, "embedded")  # type: ignore[arg-type]
    triton("10.9.0")
    assert search_request._tensorrt("triton", told.append) and len(told) == 1
    assert not verify._engine_notes(claimed, "triton")  # type: ignore[arg-type]


def test_a_workers_triton_with_another_tensorrt_is_refused_with_both_versions(
    study: StudyResult, triton: Callable[[str], TritonInstall]
) -> None:
    """On a cluster it is another machine's than that of the command."""
    triton("10.3.0")
    task = MeasureTask(
        server="triton",
        assets=Assets(model=study.model, engines=study.engines),
        configuration=CONFIGURATION,
        load=LoadPlan(sla=study.sla, arrivals=Poisson()),
    )
    context = WorkerContext(
        worker_id="gpu-0", device="gpu", gpu=None, cores=1, cache_dir=cache_dir(), node="worker"
    )
    failure = task(context).outcome
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.reason) == ("start", "missing")
    assert "TensorRT 10.3.0" in failure.message and "TensorRT 11.4.0" in failure.message


def test_a_triton_elsewhere_is_told_which_tensorrt_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", make_tensorrt(version="10.9.0.34"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    said = "TensorRT 10.9.0.34; grpc://gpu:8001 can load them only if it runs the same version."
    told: list[str] = []
    assert search_request._tensorrt("grpc://gpu:8001", told.append)
    assert len(told) == 1 and said in told[0]
    claimed: Any = SimpleNamespace(tensorrt="10.9.0.34", exported_for="tensorrt")
    (note,) = verify._engine_notes(claimed, "grpc://gpu:8001")
    assert said in note
    assert not verify._engine_notes(claimed, "embedded")
    python: Any = SimpleNamespace(tensorrt="", exported_for="python")
    (note,) = verify._engine_notes(python, "embedded")
    assert "runs the graph itself" in note and not verify._engine_notes(python, "triton")
    assert search_request._tensorrt("embedded", told.append) and len(told) == 1
