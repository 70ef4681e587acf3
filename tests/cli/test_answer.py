"""What a search ends with, from facts that were made up; model and export are real."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from analyzer.cli.answer import deliver
from analyzer.domain.study import StudyResult
from analyzer.errors import RepositoryError
from analyzer.variants.inspect import inspect_model

ROOT = Path(__file__).parents[2]


def _facts_example() -> ModuleType:
    path = ROOT / "tests" / "report" / "facts_example.py"
    spec = importlib.util.spec_from_file_location("facts_example_of_cli", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def facts() -> StudyResult:
    """A study that recommends its baseline, an fp32 configuration of the example model."""
    example = _facts_example()
    found = example.example_facts(
        model=inspect_model(ROOT / "examples" / "digits.onnx"),
        recommended_id=example.BASELINE.config_id,
        provenance={},
    )
    assert isinstance(found, StudyResult)
    return found


def options(folder: Path, *, force: bool, quiet: bool = False) -> Any:
    return SimpleNamespace(
        as_json=False, quiet=quiet, report_file=None, export_dir=folder / "models", force=force
    )


def test_the_export_replaces_another_configuration_only_with_force(
    facts: StudyResult, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = folder / "models" / "digits"
    (there / "1").mkdir(parents=True)
    (there / "config.pbtxt").write_text('name: "digits"')
    with pytest.raises(RepositoryError) as caught:
        deliver(options(folder, force=False), facts)
    assert "--force" in caught.value.hint and "is stored" in caught.value.hint
    assert not (there / "2").exists()
    capsys.readouterr()
    assert deliver(options(folder, force=True), facts) == "found"
    assert (there / "2" / "model.onnx").is_file() and (there / "1").is_dir()
    out, err = capsys.readouterr()
    assert "repository" in out and "was replaced" not in out
    assert "was replaced; older versions are still there" in err
    (there / "config.pbtxt").write_text('name: "digits"')
    deliver(options(folder, force=True, quiet=True), facts)
    assert capsys.readouterr().err == ""
