"""Staging folders: removed when their export was killed, and where a rename reaches the place."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.export.atomic import (
    STAGING_PREFIX,
    copy_durably,
    make_readable,
    put_in_place,
    staging_folder,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def staged_in(*folders: Path) -> list[str]:
    return sorted(p.name for folder in folders for p in folder.glob(f"{STAGING_PREFIX}*"))


def test_what_killed_exports_left_is_removed(tmp_path: Path, repository: Path) -> None:
    """For ever it lay there, in a mounted repository as a model that Triton cannot load."""
    for place in (tmp_path, repository):
        (place / f"{STAGING_PREFIX}left" / "m" / "1").mkdir(parents=True)
    (repository / ".tritune-mine").mkdir()
    with staging_folder(repository) as own:
        assert staged_in(tmp_path, repository) == [own.name]
    assert staged_in(tmp_path, repository) == []
    assert (repository / ".tritune-mine").is_dir()


def test_what_another_export_uses_stays(tmp_path: Path, repository: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with staging_folder(repository) as first:
        (first / "m").mkdir()
        with staging_folder(other) as second:
            assert first.parent == second.parent == tmp_path
            assert (first / "m").is_dir()
        with staging_folder(repository):
            assert (first / "m").is_dir()
    assert staged_in(tmp_path, repository, other) == []


def test_a_model_that_was_moved_away_stays(repository: Path) -> None:
    """Killed between two renames, where folders cannot be exchanged: it is the only copy."""
    moved = repository / f"{STAGING_PREFIX}left" / "m.old" / "1"
    moved.mkdir(parents=True)
    with staging_folder(repository):
        pass
    assert moved.is_dir()


def test_one_that_is_removed_before_it_is_locked_is_made_again(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = tempfile.mkdtemp, []

    def removed_once(**options: object) -> str:
        made.append(real(**options))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", removed_once)
    with staging_folder(repository) as own:
        assert own == Path(made[1]) and own.is_dir()


@pytest.mark.parametrize("nested", [False, True])
def test_staging_is_where_a_rename_reaches_the_repository(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    """Of one file system, mounted once more inside: st_dev is the same, and a rename fails."""
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if nested and (repository in self.parents) != (repository in target.parents):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(self))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with staging_folder(repository) as own:
        assert own.parent == (repository if nested else tmp_path)
        copy_durably(b"x", own / "m" / "1" / "model.onnx")
        put_in_place(own / "m", repository / "m")
    assert (repository / "m" / "1" / "model.onnx").read_bytes() == b"x"
    assert staged_in(tmp_path, repository) == []


def test_a_repository_that_may_not_be_written_is_an_error(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(self: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(PermissionError), staging_folder(repository):
        pass
    assert staged_in(repository.parent, repository) == []


@pytest.mark.usefixtures("strict_umask")
def test_folders_are_readable_whatever_the_umask(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    copy_durably(b"x", private / "m" / "1" / "parts" / "weights.bin")
    for folder in ("m", "m/1", "m/1/parts"):
        assert mode(private / folder) == 0o755
    assert mode(private / "m/1/parts/weights.bin") == 0o644
    assert mode(private) == 0o700, "one that is there stays as it is"


def test_what_a_folder_inherits_of_its_parent_stays(tmp_path: Path) -> None:
    """A team's folder: who belongs to its group may write."""
    before = os.umask(0o002)
    try:
        tmp_path.chmod(0o2775)
        make_readable(tmp_path / "models")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "models").stat().st_mode) == 0o2775
