"""What a service's tar of a repository may put on the disk of whoever asked for it."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from analyzer.cli.remote import _unpack
from analyzer.domain.configuration import Configuration
from analyzer.errors import ModelError, RepositoryError
from analyzer.export.manifest import read_manifest
from analyzer.export.repository import export_repository
from analyzer.service.archive import pack
from analyzer.variants.inspect import inspect_model

DIGITS = Path(__file__).parents[2] / "examples" / "digits.onnx"
SMALL = Configuration(max_batch_size=4, dynamic_batching=True, instance_count=2, intra_op_threads=1)


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(f"repository/{name}")
    made.type, made.linkname = kind, link
    return made


def exported_there(folder: Path, configuration: Configuration, study: str) -> Path:
    """The tar of a repository that a job has exported: each begins with a version 1."""
    repository = folder / study
    evidence = {"study": study}
    export_repository(inspect_model(DIGITS), DIGITS, configuration, repository, evidence=evidence)
    packed = folder / f"{study}.tar"
    pack(repository, "repository", packed)
    return packed


def test_an_exported_model_becomes_a_version_beside_those_that_are_there(tmp_path: Path) -> None:
    """``--force`` put the job's version 1 in the place of the whole folder."""
    place, other = tmp_path / "models", replace(SMALL, max_batch_size=8)
    first = exported_there(tmp_path, SMALL, "first")
    [done] = _unpack(first, place, force=False)
    assert (done.model, done.version) == ("digits", 1)
    assert [path.name for path in place.iterdir()] == ["digits"]
    [done] = _unpack(first, place, force=True)
    assert done.version == 1 and "already there" in done.notes[0], "the same is not added twice"
    config = (place / "digits" / "config.pbtxt").read_text()
    (place / "digits" / "labels.txt").write_text("0\n1\n")
    second = exported_there(tmp_path, other, "second")
    with pytest.raises(RepositoryError, match="another configuration"):
        _unpack(second, place, force=False)
    [done] = _unpack(second, place, force=True)
    assert done.version == 2 and "older versions are still there" in done.notes[0]
    names = sorted(path.name for path in (place / "digits").iterdir())
    assert names == ["1", "2", "config.pbtxt", "labels.txt", "tritune.json"]
    older, newer = (read_manifest(place, "digits", version) for version in (1, 2))
    assert older.config_text == config != newer.config_text
    assert newer.config_text == (place / "digits" / "config.pbtxt").read_text()
    assert [one.evidence["study"] for one in (older, newer)] == ["first", "second"]
    assert (older.config_id, newer.config_id) == (SMALL.config_id, other.config_id)
    assert older.changed_files() == ("config.pbtxt",) and newer.changed_files() == ()


@pytest.mark.parametrize(
    "wrong",
    [
        member("../outside.txt"),
        member("digits/../../outside.txt"),
        tarfile.TarInfo("elsewhere.txt"),
        member("digits/link", tarfile.SYMTYPE, "/etc"),
        member("digits/hard", tarfile.LNKTYPE, "/etc/passwd"),
        member("digits/pipe", tarfile.FIFOTYPE),
    ],
    ids=["above", "above a model", "no repository", "link", "hard link", "pipe"],
)
def test_nothing_lies_elsewhere_and_nothing_but_files_is_made(
    wrong: tarfile.TarInfo, tmp_path: Path
) -> None:
    packed = tar_of(tmp_path / "r.tar", (member("digits/1/model.onnx"), b"weights"), (wrong, b""))
    with pytest.raises(ModelError):
        _unpack(packed, tmp_path / "models", force=True)
    assert not (tmp_path / "outside.txt").exists()
    assert not (tmp_path / "models").exists()
