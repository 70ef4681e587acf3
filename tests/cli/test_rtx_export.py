"""A study as an engine of TensorRT for RTX: compiled here, without a GPU, by the real library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli.export import export_with_evidence
from analyzer.cli.options import cache_dir
from analyzer.domain.configuration import Configuration, baseline_configuration
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.study import Explanation, Pricing, SearchSummary, StudyResult
from analyzer.errors import BuildError, RepositoryError, UsageError
from analyzer.store.records import StudyRecord
from analyzer.store.results import open_store
from analyzer.variants.inspect import inspect_model

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed (extra rtx)")

EXAMPLES = Path(__file__).parents[2] / "examples"
BASELINE = baseline_configuration(batchable=True)
DYNAMIC = Configuration(precision="int8", quantization="dynamic").canonical()


@pytest.fixture
def study(folder: Path) -> StudyResult:
    """Measured on a CPU: fp32, and int8 that only CPU kernels have."""
    edge = Edge(rate_rps=120.0, interval_rps=(110.0, 130.0))
    return StudyResult(
        name="digits-1",
        verdict="found",
        model=inspect_model(EXAMPLES / "digits.onnx"),
        sla=Sla(latency_budget_ms=50.0),
        arrivals="poisson",
        request_batch_size=1,
        server="embedded",
        outcomes=tuple(Measurement(configuration=c, edge=edge) for c in (BASELINE, DYNAMIC)),
        recommended_id=BASELINE.config_id,
        baseline_id=BASELINE.config_id,
        pricing=Pricing(),
        search=SearchSummary(sampler="twin"),
        explanation=Explanation(),
        provenance={"calibration_data": str(EXAMPLES / "digits.npz")},
    )


def test_an_engine_is_written_with_what_is_not_known_of_it(
    study: StudyResult, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in (1, 2):
        done = export_with_evidence(
            study, folder / "rtx", backend="tensorrt-rtx", compute_capabilities="8.6, 12.0,8.6"
        )
        assert (done.version, done.config_id) == (version, BASELINE.config_id)
        assert "were not measured: that needs an RTX GPU" in capsys.readouterr().err
    written = folder / "rtx" / "digits" / "2"
    engine = (written / "model.engine").read_bytes()
    facts = json.loads((written / "engine.json").read_text())
    assert facts["sha256"] == hashlib.sha256(engine).hexdigest()
    assert facts["compute_capabilities"] == ["8.6", "12.0"]
    assert facts["evidence"]["entry"]["edge_rps"] == 120.0
    assert any("not measured" in note for note in facts["notes"])
    assert sorted(path.name for path in written.iterdir()) == ["engine.json", "model.engine"]
    assert sorted(path.name for path in written.parent.iterdir()) == ["1", "2"]
    assert not list(cache_dir().glob(".build-*"))


def test_what_cannot_be_compiled_leaves_nothing(study: StudyResult, folder: Path) -> None:
    with pytest.raises(BuildError, match="DynamicQuantizeLinear"):
        export_with_evidence(
            replace(study, recommended_id=DYNAMIC.config_id),
            folder / "rtx",
            backend="tensorrt-rtx",
            compute_capabilities="8.6",
        )
    assert not (folder / "rtx" / "digits").exists()
    export_with_evidence(study, folder / "models")
    with pytest.raises(RepositoryError, match="is a model of a Triton repository"):
        export_with_evidence(
            study, folder / "models", backend="tensorrt-rtx", compute_capabilities="8.6"
        )


@pytest.mark.parametrize(
    ("backend", "named", "words"),
    [
        ("tensorrt-rtx", None, "none is named"),
        ("tensorrt-rtx", "8.6,sm_80", "knows no sm_80"),
        ("tensorrt-rtx", ",", "none is named"),
        ("auto", "8.6", "belongs to --backend tensorrt-rtx"),
    ],
)
def test_compute_capabilities_are_checked_first(
    study: StudyResult, folder: Path, backend: str, named: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        export_with_evidence(study, folder / "rtx", backend=backend, compute_capabilities=named)
    assert not (folder / "rtx").exists()


def test_the_command(study: StudyResult, folder: Path, call: Callable[..., Any]) -> None:
    with open_store("sqlite:///results.db") as store:
        store.create_study(StudyRecord(name=study.name, model=study.model, sla=study.sla))
        for outcome in study.outcomes:
            store.add_outcome(study.name, 0, {}, outcome)
        store.save_result(study)
    answer = call(
        "export", "--repository", "rtx", "--backend", "tensorrt-rtx",
        "--compute-capabilities", "8.9", "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.stderr
    assert answer.document["version"] == 1
    assert "not measured" in answer.stderr
    assert (folder / "rtx" / "digits" / "1" / "model.engine").stat().st_size > 100_000
