"""What is taken of a model's folder in an object store; real stores are in ``tests/buckets``."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.buckets.location import Location
from analyzer.engine.warmup import check_warmup
from analyzer.modelconfig.text import read_config
from analyzer.variants import fetch

CONFIG = b"""
name: "m" backend: "onnxruntime" max_batch_size: 2
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
model_warmup {
  name: "w" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "x.bin" } }
}
"""
OBJECTS = {
    "config.pbtxt": CONFIG,
    "1/model.onnx": b"old",
    "2/model.onnx": b"new",
    "2/../../outside": b"",
    "warmup/x.bin": bytes(12),
    "warmup/../../outside": b"",
    "notes.txt": b"",
}


class FakeBucket:
    """A bucket that holds ``OBJECTS``."""

    def __init__(self, location: Location, *, error: type[Exception]) -> None:
        pass

    def list(self) -> dict[str, None]:
        return dict.fromkeys(OBJECTS)

    def download(self, name: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(OBJECTS[name])


def test_the_files_of_a_warm_up_come_with_its_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder was refused as if Triton refused it: there was no file 'x.bin'."""
    monkeypatch.setattr(fetch, "Bucket", FakeBucket)
    fetched = fetch.fetch_model(Location(scheme="s3", bucket="b", path="models/m"), tmp_path)
    files = {file.relative_to(fetched).as_posix() for file in fetched.rglob("*") if file.is_file()}
    assert files == {"config.pbtxt", "2/model.onnx", "warmup/x.bin"}
    assert not list(tmp_path.rglob("outside"))
    check_warmup(read_config(fetched / "config.pbtxt"), fetched)
