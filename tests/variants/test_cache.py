"""The cache: whole entries or none, whoever else is building."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from analyzer.errors import BuildError
from analyzer.variants import cache


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def put(folder: Path, key: str, content: bytes) -> Path:
    with cache.building(folder) as work:
        (work / "out").mkdir()
        (work / "out" / "model.onnx").write_bytes(content)
        return cache.publish(folder, key, work / "out", {"file": "model.onnx"})


def test_round_trip_leaves_nothing_else(tmp_path: Path) -> None:
    final = put(tmp_path / "c", "k", b"weights")
    found = cache.load_entry(tmp_path / "c", "k")
    assert found is not None and found[0] == final and found[1]["file"] == "model.onnx"
    assert names(tmp_path / "c") == ["k"]
    assert cache.load_entry(tmp_path / "c", "other") is None


@pytest.mark.parametrize("damage", ["flip", "remove", "record"])
def test_damaged_entry_is_removed(tmp_path: Path, damage: str) -> None:
    final = put(tmp_path, "k", b"weights")
    if damage == "flip":
        (final / "model.onnx").write_bytes(b"Weights")
    elif damage == "remove":
        (final / "model.onnx").unlink()
    else:
        (final / "variant.json").write_text("[")
    assert cache.load_entry(tmp_path, "k") is None
    assert not final.exists()
    put(tmp_path, "k", b"weights")
    assert cache.load_entry(tmp_path, "k") is not None


def test_several_builders_of_one_entry(tmp_path: Path) -> None:
    threads = [threading.Thread(target=put, args=(tmp_path, "k", b"x" * 1000)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(tmp_path) == ["k"] and cache.load_entry(tmp_path, "k") is not None


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), cache.building(tmp_path) as work:
        (work / "half").write_bytes(b"x")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_stale_builds_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".build-old", tmp_path / ".build-new"
    old.mkdir()
    new.mkdir()
    two_days_ago = time.time() - 2 * 86400
    os.utime(old, (two_days_ago, two_days_ago))
    with cache.building(tmp_path):
        pass
    assert names(tmp_path) == [".build-new"]


def test_unwritable_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot be written"), cache.building(tmp_path / "file"):
        pass


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BuildError, match="is full; nothing half-written"):
        put(tmp_path, "k", b"x")
    assert names(tmp_path) == []
