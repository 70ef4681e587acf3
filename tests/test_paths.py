"""What the user may not look into is told in a sentence, or taken for not there."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from facts_example import MODEL, example_facts

from analyzer.cli.main import _unexpected, _with_command
from analyzer.cli.preflight import check_export, check_export_of
from analyzer.domain.configuration import Configuration
from analyzer.errors import ModelError, RepositoryError, SpaceError, UsageError
from analyzer.export.claims import claim_of_repository
from analyzer.export.repository import export_repository
from analyzer.export.study import require_same_model
from analyzer.paths import barred, exists, is_dir, is_file
from analyzer.spaces.loader import SpaceContext, load_space
from analyzer.variants.inspect import inspect_model
from analyzer.variants.onnx_file import locate_onnx

EXAMPLES = Path(__file__).parents[1] / "examples"
LONG = "x" * 300


@pytest.fixture
def alice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like somebody else's with mode 0750; a fake, since nothing keeps root out."""
    folder = tmp_path / "alice"
    folder.mkdir()
    (folder / "m.onnx").write_bytes((EXAMPLES / "digits.onnx").read_bytes())

    def refuse(module: Any, name: str, *, itself: bool = False) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def guarded(path: Any, *rest: Any, **options: Any) -> Any:
            if f"{path}".startswith(f"{folder}/") or (itself and f"{path}" == f"{folder}"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *rest, **options)

        monkeypatch.setattr(module, name, guarded)

    refuse(os, "stat")
    refuse(os, "mkdir")
    refuse(os, "open", itself=True)
    refuse(io, "open")
    return folder


def test_nothing_is_seen_where_the_user_may_not_look(alice: Path) -> None:
    for path in (alice / "m.onnx", alice.parent / LONG, LONG, "a\0b", alice.parent / "gone"):
        assert not (exists(path) or is_file(path) or is_dir(path))
    assert exists(alice) and is_dir(alice) and not is_file(alice) and is_file(Path(__file__))
    assert barred(alice / "m.onnx") == "Permission denied"
    assert barred(LONG) == "File name too long"
    for path in (alice, alice.parent / "gone", f"{__file__}/below", "a\0b"):
        assert barred(path) == ""


def test_a_repository_that_may_not_be_written_is_refused(alice: Path) -> None:
    file = EXAMPLES / "digits.onnx"
    with pytest.raises(RepositoryError, match="cannot be written: Permission denied") as refused:
        export_repository(inspect_model(file), file, Configuration(), alice / "a" / "models")
    assert str(alice) in refused.value.message


def test_before_a_search_too(alice: Path) -> None:
    for place in (alice / "models", alice / "a" / "models", alice.parent / LONG):
        check_export_of("m", place, force=False)
    with pytest.raises(UsageError, match=f"nothing can be written to {alice}: Permission denied"):
        check_export(alice / "a" / "models")


def test_real_inputs_that_may_not_be_read_are_told_as_absent(alice: Path, tmp_path: Path) -> None:
    """``verify`` ended as a fault of the program."""
    file, data = EXAMPLES / "digits.onnx", str(alice / "d.npz")
    evidence = {
        "sla": {"latency_budget_ms": 50.0},
        "entry": {"capacity_rps": 10.0},
        "provenance": {"calibration_data": data},
    }
    export_repository(
        inspect_model(file), file, Configuration(), tmp_path / "models", evidence=evidence
    )
    claimed = claim_of_repository(tmp_path / "models", "digits")
    assert claimed.data_path is None
    assert claimed.notes[0].startswith(f"The study's real inputs are not at {data}:")


def test_a_repository_that_may_not_be_read_has_no_model(alice: Path) -> None:
    with pytest.raises(RepositoryError, match=r"no model 'm'|cannot be read"):
        claim_of_repository(alice / "models", "m")


def test_a_model_that_may_not_be_read_is_told_with_the_reason(alice: Path) -> None:
    path = alice / "m.onnx"
    with pytest.raises(ModelError, match=f"{path} cannot be looked at: Permission denied"):
        locate_onnx(path)
    with pytest.raises(ModelError, match=f"at {path} cannot be looked at: Permission denied"):
        require_same_model(example_facts(model=replace(MODEL, path=str(path))))
    with pytest.raises(ModelError, match="does not exist"):
        locate_onnx(alice.parent / "gone.onnx")
    with pytest.raises(ModelError, match="is no longer at"):
        require_same_model(example_facts(model=replace(MODEL, path=str(alice.parent / "gone"))))


def test_a_space_that_may_not_be_read_is_told_with_the_reason(alice: Path) -> None:
    here = SpaceContext(device="cpu", cores=2)
    with pytest.raises(SpaceError, match=r"s\.yaml cannot be read: .*Permission denied"):
        load_space(str(alice / "s.yaml"), here)
    with pytest.raises(SpaceError, match="File name too long"):
        load_space(LONG, here)


def test_a_first_word_that_may_not_be_looked_at_is_refused(alice: Path) -> None:
    with pytest.raises(UsageError, match=r"nor a model: Permission denied\."):
        _with_command([str(alice / "m.onnx")])
    with pytest.raises(UsageError, match=r"nor a model: there is no such file\."):
        _with_command([str(alice.parent / "m.onnx")])
    with pytest.raises(UsageError, match="nor a model file"):
        _with_command([LONG])


def test_what_is_met_anywhere_else_is_wrong_input() -> None:
    for number in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
        told = _unexpected(OSError(number, os.strerror(number), "/home/alice/d.npz"))
        assert told.exit_code == 2 and told.hint
        assert told.message == f"/home/alice/d.npz cannot be used: {os.strerror(number)}."
    for other in (PermissionError("no"), OSError(errno.EIO, "broken", "/x"), KeyError("x")):
        assert _unexpected(other).exit_code == 1
