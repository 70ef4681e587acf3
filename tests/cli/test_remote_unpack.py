"""What a service's tar of a repository may put on the disk of whoever asked for it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from analyzer.cli.remote import _unpack
from analyzer.errors import AnalyzerError, UsageError


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


def test_the_models_of_a_repository_are_unpacked(tmp_path: Path) -> None:
    packed = tar_of(
        tmp_path / "r.tar",
        (member("digits", tarfile.DIRTYPE), b""),
        (member("digits/1/model.onnx"), b"weights"),
    )
    place = tmp_path / "models"
    assert _unpack(packed, place, force=False) == [place / "digits"]
    assert (place / "digits" / "1" / "model.onnx").read_bytes() == b"weights"
    assert [path.name for path in place.iterdir()] == ["digits"]
    with pytest.raises(UsageError, match="is there already"):
        _unpack(packed, place, force=False)
    (place / "digits" / "2").mkdir()
    assert _unpack(packed, place, force=True) == [place / "digits"]
    assert [path.name for path in (place / "digits").iterdir()] == ["1"], "replaced whole"


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
    with pytest.raises(AnalyzerError):
        _unpack(packed, tmp_path / "models", force=True)
    assert not (tmp_path / "outside.txt").exists()
    assert not (tmp_path / "models").exists()
