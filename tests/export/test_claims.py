"""A claim of a repository is about the version that Triton serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.domain.configuration import Configuration
from analyzer.errors import RepositoryError
from analyzer.export.claims import claim_of_repository
from analyzer.export.repository import export_repository
from analyzer.variants.inspect import inspect_model

DIGITS = Path(__file__).parents[2] / "examples" / "digits.onnx"
EVIDENCE = {"sla": {"latency_budget_ms": 50.0}, "entry": {"capacity_rps": 10.0}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a model that was exported twice."""
    for study in ("a", "b"):
        export_repository(
            inspect_model(DIGITS),
            DIGITS,
            Configuration(max_batch_size=4),
            tmp_path / "models",
            evidence=EVIDENCE | {"study": study},
        )
    return tmp_path / "models" / "digits"


def test_the_newest_version_is_claimed(model: Path) -> None:
    claimed = claim_of_repository(model.parent, "digits")
    assert claimed.exported == model / "2" and not claimed.notes


def test_a_newer_version_by_hand_is_not_what_was_claimed(model: Path) -> None:
    """``verify`` loaded version 2, and said that the claim holds of what Triton serves."""
    (model / "3").mkdir()
    (model / "3" / "model.onnx").write_bytes(DIGITS.read_bytes())
    with pytest.raises(RepositoryError, match=r"Triton serves version 3 of .* is 2") as refused:
        claim_of_repository(model.parent, "digits")
    assert refused.value.exit_code == 2 and "version_policy" in refused.value.hint
    config = model / "config.pbtxt"
    policy = "version_policy { specific { versions: [ %d ] } }"
    text = config.read_text()
    latest = "version_policy { latest { num_versions: 1 } }"
    assert latest in text
    config.write_text(text.replace(latest, policy % 2))
    assert claim_of_repository(model.parent, "digits").exported == model / "2"
    config.write_text(text.replace(latest, policy % 1))
    with pytest.raises(RepositoryError, match="Triton serves version 1 of"):
        claim_of_repository(model.parent, "digits")
