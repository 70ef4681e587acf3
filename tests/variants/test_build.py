"""Variants are built in processes of their own, scored on held-out rows, and cached."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from analyzer.domain.configuration import VariantKey
from analyzer.domain.measurement import Accuracy
from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.errors import (
    AnalyzerError,
    BuildError,
    BuildTimeoutError,
    MissingPartError,
    TargetMemoryError,
)
from analyzer.hardware.memory_kills import MemoryKills
from analyzer.variants import build as build_module
from analyzer.variants import build_process, worker
from analyzer.variants.build import Variant, build_variant, build_variants
from analyzer.variants.inputs import CalibrationData, load_calibration, split_rows
from analyzer.variants.inspect import inspect_model
from analyzer.variants.native_half import computes_half
from analyzer.variants.slowdown import slowdown
from analyzer.variants.worker import BEGUN_FILE, BuildResult

FP32 = VariantKey(precision="fp32")
FP16 = VariantKey(precision="fp16")
STATIC = VariantKey(precision="int8", quantization="static")
DYNAMIC = VariantKey(precision="int8", quantization="dynamic")
Write = Callable[..., Path]
# A process takes two seconds to import what it needs: one does where their number is no matter.
ONE_PROCESS = 1


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.rglob("*"))


def operators(path: str) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.fixture(scope="module")
def digits(examples: Path) -> ModelInfo:
    return inspect_model(examples / "digits.onnx")


@pytest.fixture(scope="module")
def data(examples: Path, digits: ModelInfo) -> CalibrationData:
    return load_calibration(examples / "digits.npz", digits)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def built(digits: ModelInfo, data: CalibrationData, cache: Path) -> dict[VariantKey, Variant]:
    found = build_variants(digits, [FP32, FP16, STATIC, DYNAMIC], calibration=data, cache_dir=cache)
    for key, variant in found.items():
        assert isinstance(variant, Variant), (key, variant)
    return found  # type: ignore[return-value]


def test_fp32_is_the_model_itself(built: dict[VariantKey, Variant], digits: ModelInfo) -> None:
    variant = built[FP32]
    assert (variant.path, variant.sha256) == (digits.path, digits.sha256)
    assert variant.accuracy.metric == "label_accuracy" and variant.accuracy.interval == (0, 0)
    assert variant.accuracy.value is not None and variant.accuracy.value > 0.95


@pytest.mark.parametrize(
    ("key", "operator"), [(FP16, "Cast"), (STATIC, "DequantizeLinear"), (DYNAMIC, "MatMulInteger")]
)
def test_variants_keep_the_accuracy(
    built: dict[VariantKey, Variant], digits: ModelInfo, key: VariantKey, operator: str
) -> None:
    variant = built[key]
    assert operators(variant.path)[operator] > 0
    assert variant.accuracy.drop is not None and abs(variant.accuracy.drop) < 0.01
    assert variant.accuracy.interval is not None and variant.accuracy.interval[1] < 0.01
    assert variant.size_bytes < digits.size_bytes
    again = inspect_model(Path(variant.path))
    assert [(s.name, s.datatype, s.shape) for s in (*again.inputs, *again.outputs)] == [
        (s.name, s.datatype, s.shape) for s in (*digits.inputs, *digits.outputs)
    ]
    assert variant.sha256 == again.sha256


def test_accuracy_is_that_of_the_rows_that_did_not_calibrate(
    built: dict[VariantKey, Variant], data: CalibrationData
) -> None:
    _, scoring = split_rows(data.rows)
    assert data.labels is not None
    samples = built[STATIC].accuracy.samples
    assert 256 <= samples <= len(scoring) == 700
    scored = scoring[:samples]
    runtime = OrtRuntime(built[STATIC].path, intra_op_threads=1)
    logits = runtime.run({"image": data.inputs["image"][scored]})["logits"]
    value = float(np.mean(logits.argmax(axis=1) == data.labels[scored]))
    assert built[STATIC].accuracy.value == pytest.approx(value, abs=0.005)
    runtime.close()


@pytest.mark.parametrize("labelled", [True, False])
def test_the_model_itself_takes_one_inference_without_labels(
    digits: ModelInfo, data: CalibrationData, tmp_path: Path, labelled: bool
) -> None:
    """32 made-up rows of a model that takes a second were the whole budget."""
    rows = data if labelled else None
    accuracy = build_variant(digits, FP32, calibration=rows, cache_dir=tmp_path).accuracy
    assert (accuracy.drop, accuracy.interval) == (0.0, (0.0, 0.0))
    assert (accuracy.samples == 1) is not labelled
    assert accuracy.synthetic is not labelled
    # What it answered to that row is no other variant's reference.
    assert labelled or build_variant(digits, FP16, cache_dir=tmp_path).accuracy.samples > 1


def test_a_model_that_answers_nan_has_no_accuracy_and_says_so(
    write_model: Write, tmp_path: Path
) -> None:
    """Its own first row agreed with itself: 100 % of one sample."""
    path = write_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Sqrt", ["m"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["batch", 2])],
        [("y", TensorProto.FLOAT, ["batch", 2])],
        {"w": np.eye(2, dtype=np.float32)},
    )
    model = inspect_model(path)
    rows = np.random.default_rng(0).uniform(1.0, 2.0, (100, 2)).astype(np.float32)

    def build(bad: Any, **options: Any) -> dict[VariantKey, Variant | AnalyzerError]:
        inputs = rows.copy()
        inputs[bad] *= -1.0
        np.savez(tmp_path / "rows.npz", x=inputs)
        data = load_calibration(tmp_path / "rows.npz", model)
        keys, cache = [FP32, DYNAMIC], tmp_path / f"cache{len(options)}"
        return build_variants(
            model, keys, calibration=data, cache_dir=cache, cores=ONE_PROCESS, **options
        )

    _, scoring = split_rows(100)
    first = build(scoring[:1])
    itself, named = first[FP32], first[DYNAMIC]
    assert isinstance(itself, Variant) and isinstance(named, Variant)
    assert (itself.accuracy.value, itself.accuracy.drop) == (1.0, 0.0), "other rows tell it"
    assert named.accuracy.drop is not None and named.accuracy.drop < 0.5
    assert any("1 of " in note and "left out of the accuracy" in note for note in named.notes)

    every = build(slice(None))
    itself, named = every[FP32], every[DYNAMIC]
    assert isinstance(itself, Variant) and isinstance(named, Variant)
    assert itself.accuracy.value is itself.accuracy.drop is named.accuracy.drop is None
    assert any("its accuracy is unknown" in note for note in itself.notes)

    refusal = build(slice(None), faster_only=True)[DYNAMIC]
    if "gains nothing" not in str(refusal):  # which may be found first
        assert isinstance(refusal, BuildError) and "accuracy is unknown" in str(refusal)


def test_second_time_comes_from_the_cache(
    built: dict[VariantKey, Variant], digits: ModelInfo, data: CalibrationData, cache: Path
) -> None:
    for key in (FP32, STATIC, VariantKey(precision="fp16", backend="python")):
        again = build_variant(digits, key, calibration=data, cache_dir=cache)
        assert again.cached
        assert again.sha256 == built[VariantKey(precision=key.precision,
                                                quantization=key.quantization)].sha256  # fmt: skip


def test_a_variant_is_scored_on_its_own_backend_or_not_at_all(
    digits: ModelInfo, data: CalibrationData, tmp_path: Path
) -> None:
    """Scores of ONNX Runtime's say nothing of what another runtime would answer."""
    key = VariantKey(precision="fp16", backend="another")  # type: ignore[arg-type]
    with pytest.raises(AnalyzerError, match="Nothing here runs models of the backend 'another'"):
        build_variant(digits, key, calibration=data, cache_dir=tmp_path)


def test_nothing_else_is_left_behind(
    built: dict[VariantKey, Variant], examples: Path, cache: Path
) -> None:
    assert not [name for name in names(cache) if name.startswith(".build")]
    assert {name for name in names(cache) if "." in name and not name.startswith(".lock")} == {
        "model.onnx", "variant.json", "answers.npz",
    }  # fmt: skip
    assert not [entry for entry in examples.iterdir() if "infer" in entry.name]


def test_made_up_inputs_give_a_numerical_error_only(linear_model: Write, tmp_path: Path) -> None:
    model = inspect_model(linear_model(external=True))
    cache = tmp_path / "cache"
    fp16 = build_variant(model, FP16, cache_dir=cache)
    assert fp16.accuracy.synthetic and fp16.accuracy.metric == "relative_error"
    assert fp16.accuracy.drop is not None and 0 < fp16.accuracy.drop < 0.002
    int8 = build_variant(model, STATIC, cache_dir=cache)
    assert "calibrated on made-up inputs" in int8.notes
    assert names(tmp_path)[:1] != [".build"] and len(list(tmp_path.iterdir())) == 3


def test_fixed_batch_variants(linear_model: Write, tmp_path: Path) -> None:
    model = inspect_model(linear_model(batch=3))
    keys = [FP32, FP16, STATIC, DYNAMIC]
    found = build_variants(model, keys, cache_dir=tmp_path / "cache", cores=ONE_PROCESS)
    for key, variant in found.items():
        assert isinstance(variant, Variant), (key, variant)
        assert variant.accuracy.drop is not None and variant.accuracy.drop < 0.1


def test_transformer_keeps_its_residual_stream_float(tmp_path: Path, write_model: Write) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("a", "b")}
    path = write_model(
        [
            helper.make_node("MatMul", ["x", "a"], ["p"]),
            helper.make_node("Add", ["x", "p"], ["r"]),
            helper.make_node("MatMul", ["r", "b"], ["q"]),
            helper.make_node("Add", ["r", "q"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 5, 8])],
        [("y", TensorProto.FLOAT, ["n", 5, 8])],
        weights,
    )
    variant = build_variant(inspect_model(path), STATIC, cache_dir=tmp_path / "cache")
    adds = [node for node in onnx.load(variant.path).graph.node if node.op_type == "Add"]
    assert [node.input[0] for node in adds] == ["x", "r"]


def test_nothing_to_do_is_said(write_model: Write, tmp_path: Path) -> None:
    path = write_model(
        [helper.make_node("Neg", ["x"], ["y"])],
        [("x", TensorProto.INT32, ["n", 4])],
        [("y", TensorProto.INT32, ["n", 4])],
    )
    found = build_variants(
        inspect_model(path), [FP16, STATIC, DYNAMIC], cache_dir=tmp_path / "c", cores=ONE_PROCESS
    )
    assert "nothing to convert" in str(found[FP16])
    for key in (STATIC, DYNAMIC):
        assert isinstance(found[key], BuildError) and "nothing to quantize" in str(found[key])
    assert [n for n in names(tmp_path / "c") if not n.startswith(".lock")] == []


def test_one_row_cannot_calibrate(digits: ModelInfo, data: CalibrationData, tmp_path: Path) -> None:
    one = CalibrationData(
        inputs={"image": data.inputs["image"][:1]}, labels=None, rows=1, sha256="one"
    )
    with pytest.raises(BuildError, match="needs rows to calibrate"):
        build_variant(digits, STATIC, calibration=one, cache_dir=tmp_path)


def test_tensorrt_that_is_missing_is_named(digits: ModelInfo, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    try:
        import tensorrt  # noqa: F401

        pytest.skip("TensorRT is installed")
    except ImportError:
        pass
    with pytest.raises(MissingPartError, match="TensorRT cannot be imported"):
        build_variant(
            digits, VariantKey(precision="fp16", backend="tensorrt"), cache_dir=tmp_path / "c"
        )
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("starved", "kind", "told"),
    [
        ("no", BuildError, r"was killed by SIGKILL\.$"),
        ("perhaps", BuildError, "perhaps this one"),
        ("probably", TargetMemoryError, "probably for want of memory"),
    ],
)
def test_killed_builder_is_a_failure_and_leaves_nothing(
    starved: str,
    kind: type[AnalyzerError],
    told: str,
    digits: ModelInfo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryKills, "likely_since", lambda after, before: starved)

    class Killed(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(build_process.subprocess, "Popen", Killed)
    with pytest.raises(kind, match=told):
        build_variant(digits, FP16, cache_dir=tmp_path)
    assert names(tmp_path) == []


def test_time_limit_and_cancelling(digits: ModelInfo, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"took longer than 0\.01 s"):
        build_variant(digits, FP16, cache_dir=tmp_path, timeout_s=0.01)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(BuildError, match="cancelled"):
        build_variant(digits, FP16, cache_dir=tmp_path, cancelled=cancelled)
    assert names(tmp_path) == []


def test_a_process_that_dies_costs_one_variant(
    digits: ModelInfo, data: CalibrationData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Dying(subprocess.Popen[bytes]):
        def __init__(self, arguments: list[str], **options: Any) -> None:
            started.append(arguments[5:])
            super().__init__(arguments, **options)
            if len(started) == 1:
                os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(build_process.subprocess, "Popen", Dying)
    built = build_variants(digits, [FP16, FP32], calibration=data, cache_dir=tmp_path, cores=1)
    assert isinstance(built[FP16], BuildError)
    assert isinstance(built[FP32], Variant)
    assert [len(folders) for folders in started] == [2, 1]


def test_one_process_for_every_core(
    digits: ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.cpu_count() once started 64 builds in a container that may use two cores."""
    shares: list[int] = []

    def run(
        folders: Sequence[tuple[VariantKey, Path]], **_: object
    ) -> dict[VariantKey, AnalyzerError]:
        shares.append(len(folders))
        return {key: BuildError("not now") for key, _ in folders}

    monkeypatch.setattr(build_module, "run_builds", run)
    monkeypatch.setattr(build_module, "usable_cores", lambda: 3)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    keys = [FP32, FP16, STATIC, DYNAMIC]
    for cores, expected in ((1, [4]), (2, [2, 2]), (None, [2, 1, 1]), (64, [1, 1, 1, 1])):
        shares.clear()
        assert set(build_variants(digits, keys, cache_dir=tmp_path, cores=cores)) == set(keys)
        assert sorted(shares, reverse=True) == expected


def test_a_variant_that_is_slower_than_the_model_is_refused_and_remembered(
    digits: ModelInfo, data: CalibrationData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [DYNAMIC, FP32]
    first = build_variants(
        digits, keys, calibration=data, cache_dir=tmp_path, faster_only=True, cores=ONE_PROCESS
    )
    refusal = first[DYNAMIC]
    assert isinstance(first[FP32], Variant)
    if isinstance(refusal, Variant):
        pytest.skip("this machine multiplies bytes faster than floats")
    assert isinstance(refusal, BuildError) and "gains nothing" in refusal.message
    monkeypatch.setattr(build_process.subprocess, "Popen", None)
    again = build_variants(digits, keys, calibration=data, cache_dir=tmp_path, faster_only=True)
    assert str(again[DYNAMIC]) == str(refusal)


def test_fp16_is_not_built_where_it_would_be_computed_in_fp32(
    digits: ModelInfo, tmp_path: Path
) -> None:
    found = build_variants(digits, [FP16], cache_dir=tmp_path, faster_only=True)[FP16]
    if computes_half():
        pytest.skip("ONNX Runtime computes in float16 on this processor")
    assert isinstance(found, BuildError) and "no kernels" in str(found)
    named = build_variants(digits, [FP16], cache_dir=tmp_path)[FP16]
    assert isinstance(named, Variant), "who names it has it measured"


def test_the_most_promising_comes_first_and_an_engine_last() -> None:
    engine = VariantKey(precision="fp16", backend="tensorrt")
    keys = [engine, FP32, FP16, DYNAMIC, STATIC]

    def ordered(device: str, *, labelled: bool) -> list[VariantKey]:
        return sorted(keys, key=lambda key: build_module._turn(key, device, labelled=labelled))

    assert ordered("cpu", labelled=True) == [STATIC, DYNAMIC, FP16, FP32, engine]
    # Nothing to hold its answers against: one inference.
    assert ordered("cpu", labelled=False) == [FP32, STATIC, DYNAMIC, FP16, engine]
    assert ordered("gpu", labelled=True)[0] == FP16


def test_what_is_begun_in_time_may_be_ended(digits: ModelInfo, tmp_path: Path) -> None:
    """A busy machine costs the variants that come last, not the one that is half done."""
    found = build_variants(
        digits, [FP32, STATIC, FP16], cache_dir=tmp_path, cores=2, begin_s=0.0, timeout_s=120.0
    )
    assert isinstance(found[FP32], Variant), "the model itself is always begun"
    for key in (STATIC, FP16):
        assert isinstance(found[key], BuildTimeoutError) and "no time to begin" in str(found[key])
    cached = build_variants(digits, [FP32, FP16], cache_dir=tmp_path, begin_s=0.0, timeout_s=0.0)
    assert isinstance(cached[FP32], Variant) and isinstance(cached[FP16], BuildTimeoutError)


class Scripted:
    """A runtime whose executions take what it is told, in turn."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = itertools.cycle(seconds)
        self.rows: list[int] = []

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(next(self._seconds))
        self.rows.append(len(inputs["image"]))
        return inputs

    def close(self) -> None:
        pass


@pytest.mark.timing
def test_a_variant_is_refused_only_where_every_look_finds_it_slower(digits: ModelInfo) -> None:
    rows = {"image": np.zeros((9, 1, 64, 64))}
    assert slowdown(digits, rows, Scripted(0.005), Scripted(0.01)) == pytest.approx(2, rel=0.2)
    assert slowdown(digits, rows, Scripted(0.01), Scripted(0.005)) is None
    # As slow as the model on the whole; the machine was slow for one look at the model.
    noisy = Scripted(*[0.01] * 7, *[0.015] * 3)
    assert slowdown(digits, rows, noisy, Scripted(0.0105)) is None
    # Batches of a slow model would take much of a budget.
    slow = Scripted(0.06)
    assert slowdown(digits, rows, Scripted(0.06), slow) is not None
    assert slow.rows == [1] * 4


def test_a_few_rows_refuse_what_is_far_off_and_accept_nothing() -> None:
    def accuracy(samples: int, interval: tuple[float, float]) -> Accuracy:
        return Accuracy(
            metric="cosine",
            value=0.0,
            drop=0.0,
            interval=interval,
            samples=samples,
            synthetic=False,
        )

    assert worker._clear(accuracy(8, (0.2, 0.3)), 0.01)
    assert not worker._clear(accuracy(8, (0.0, 0.0)), 0.01)
    assert not worker._clear(accuracy(8, (0.008, 0.1)), 0.01)
    assert worker._clear(accuracy(32, (0.0, 0.007)), 0.01)


def test_a_refusal_is_forgotten_after_a_week_and_on_another_machine(
    digits: ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(
        folders: Sequence[tuple[VariantKey, Path]], **options: Any
    ) -> dict[VariantKey, BuildResult | AnalyzerError]:
        asked.extend(key for key, _ in folders)
        return {
            key: BuildResult(file=None, accuracy=None, seconds=1.0, refused="It gains nothing.")
            for key, _ in folders
        }

    def build() -> list[VariantKey]:
        asked.clear()
        found = build_variants(digits, [FP16], cache_dir=tmp_path, faster_only=True)
        assert isinstance(found[FP16], BuildError) and "gains nothing" in str(found[FP16])
        return list(asked)

    asked: list[VariantKey] = []
    monkeypatch.setattr(build_module, "run_builds", refuse)
    assert build() == [FP16]
    assert build() == []
    now = time.time()
    monkeypatch.setattr("analyzer.variants.cache.time.time", lambda: now + 8 * 86400)
    assert build() == [FP16]
    assert build() == []
    machine = build_module.inspect_machine()
    monkeypatch.setattr(build_module, "inspect_machine", lambda: replace(machine, cpu="another"))
    assert build() == [FP16]


def request_for(model: ModelInfo, key: VariantKey, data: CalibrationData | None) -> Any:
    return build_module.make_request(
        model, key, data, 0,
        device="cpu", confidence=0.95, drop_max=0.01, seed=0, reference_key="r", faster_only=False,
        threads=1,
    )  # fmt: skip


def test_a_calibration_that_the_time_ended_tells_its_rows(
    digits: ModelInfo, data: CalibrationData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "build"
    folder.mkdir()
    build_process.prepare(folder, request_for(digits, STATIC, data))
    result = worker.build(request_for(digits, STATIC, data), folder, calibrating_s=-1.0)
    assert result.hurried and "calibrated on 8 of 100 rows" in result.notes
    # 30 s are the most: no search would do better with a slow model.
    monkeypatch.setattr(worker, "CALIBRATING_SECONDS_MAX", -1.0)
    shutil.rmtree(folder)
    folder.mkdir()
    build_process.prepare(folder, request_for(digits, STATIC, data))
    result = worker.build(request_for(digits, STATIC, data), folder, calibrating_s=-1.0)
    assert not result.hurried and "calibrated on 8 of 100 rows" in result.notes


@pytest.mark.parametrize("refused", ["", "it loses accuracy"])
def test_what_was_calibrated_in_a_hurry_is_its_study_s_alone(
    digits: ModelInfo,
    data: CalibrationData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: str,
) -> None:
    """A search of a few seconds left a file of 8 rows, which every later one took.

    And what a study has measured stays what it exports, whatever other studies build.
    """
    builds: list[float] = []

    def run(
        folders: Sequence[tuple[VariantKey, Path]], *, begin_s: float, **_: Any
    ) -> dict[VariantKey, BuildResult | AnalyzerError]:
        builds.append(begin_s)
        ((key, folder),) = folders
        hurried = begin_s < 60.0
        (folder / "out" / "model.onnx").write_text(f"within {begin_s:g} s")
        result = BuildResult(
            file=None if refused and hurried else "model.onnx",
            accuracy=Accuracy(metric="cosine", value=1.0, drop=0.0),
            seconds=1.0,
            refused=refused if hurried else "",
            hurried=hurried,
        )
        return {key: result}

    def file_of(owner: str, begin_s: float = math.inf) -> str:
        found = build_variants(
            digits, [STATIC],
            calibration=data, cache_dir=tmp_path, begin_s=begin_s, owner=owner, faster_only=True,
        )[STATIC]  # fmt: skip
        return Path(found.path).read_text() if isinstance(found, Variant) else found.message

    monkeypatch.setattr(build_module, "run_builds", run)
    first, second = (refused or f"within {begin_s} s" for begin_s in (8, 16))
    assert file_of("first", 8.0) == file_of("first") == file_of("first", 90.0) == first
    assert file_of("second", 16.0) == second
    assert builds == [8.0, 16.0]
    assert file_of("third", 60.0) == file_of("fourth", 8.0) == "within 60 s"
    # What it has measured stays; of what was refused it measured nothing.
    assert file_of("first") == ("within 60 s" if refused else first)
    assert builds == [8.0, 16.0, 60.0]


def test_a_model_that_bears_few_rows_together_is_scored_and_quantized(
    write_model: Write, tmp_path: Path
) -> None:
    """Rows were scored by eights: "The model itself cannot be served", for want of one position."""
    path = write_model(
        [
            helper.make_node("Shape", ["x"], ["shape"], end=1),
            helper.make_node("Squeeze", ["shape"], ["rows"]),
            helper.make_node("Range", ["zero", "rows", "one"], ["indices"]),
            helper.make_node("Gather", ["positions", "indices"], ["own"]),
            helper.make_node("Add", ["x", "own"], ["a"]),
            helper.make_node("MatMul", ["a", "w"], ["logits"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 8])],
        [("logits", TensorProto.FLOAT, ["n", 8])],
        {
            "positions": np.zeros((4, 8), np.float32),
            "w": np.eye(8, dtype=np.float32),
            "zero": np.array(0, np.int64),
            "one": np.array(1, np.int64),
        },
    )
    model = inspect_model(path)
    assert model.batchable
    rows = np.random.default_rng(0).standard_normal((80, 8)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=rows, labels=rows.argmax(axis=1))
    found = build_variants(
        model, [FP32, STATIC, DYNAMIC],
        calibration=load_calibration(tmp_path / "rows.npz", model),
        cache_dir=tmp_path / "cache", cores=ONE_PROCESS,
    )  # fmt: skip
    for key, variant in found.items():
        assert isinstance(variant, Variant), (key, variant)
        assert variant.accuracy.metric == "label_accuracy"
        assert variant.accuracy.value is not None and variant.accuracy.value > 0.9
        assert variant.accuracy.samples >= 32


def test_a_death_is_told_of_the_variant_that_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process passes over what it has no time to begin; the first was blamed all the same."""
    folders = [(key, tmp_path / key.label) for key in (STATIC, DYNAMIC, FP32)]
    for _, folder in folders:
        folder.mkdir()
    codes = iter([1, 0])

    def run(waiting: Sequence[Path], *_: object) -> int:
        if len(waiting) == 3:
            (tmp_path / "fp32" / BEGUN_FILE).touch()
            (waiting[0] / "build.log").write_text("double free")
        return next(codes)

    monkeypatch.setattr(build_process, "_run", run)
    found = build_process.run_builds(
        folders, begin_s=0.0, timeout_s=60.0, cancelled=threading.Event()
    )
    death = found[FP32]
    assert isinstance(death, BuildError)
    assert death.message == "The process that built fp32 ended with code 1: double free"
    for key in (STATIC, DYNAMIC):
        assert isinstance(found[key], BuildTimeoutError) and "no time to begin" in str(found[key])


def test_what_is_begun_is_marked(digits: ModelInfo, tmp_path: Path) -> None:
    folders = [(FP16, tmp_path / "fp16"), (FP32, tmp_path / "fp32")]
    for key, folder in folders:
        folder.mkdir()
        build_process.prepare(folder, request_for(digits, key, None))
    build_process.run_builds(folders, begin_s=0.0, timeout_s=60.0, cancelled=threading.Event())
    assert [(folder / BEGUN_FILE).exists() for _, folder in folders] == [False, True]
