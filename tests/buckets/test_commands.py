"""The commands with locations: refusals are sentences with exit code 2, and show no keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from analyzer.buckets import bucket as buckets
from analyzer.buckets.bucket import Bucket
from analyzer.buckets.location import Location, parse_location
from analyzer.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
# One variant and two deployments: preparations of seconds.
SPACE = """
device: cpu
parameters:
  precision: [fp32]
  instance_count: [1, 2]
  intra_op_threads: [1]
  dynamic_batching: [false]
"""
OPTIONS = ("--latency-budget", "50ms", "--json", "--executor", "in-process")


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Any:
    """Runs a command that must be refused; what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path / "cache"))
    shutil.copy(EXAMPLES / "digits.onnx", tmp_path)

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as left:
            main([*arguments])
        told = capfd.readouterr()
        assert left.value.code == 2, told
        error = json.loads(told.out)["error"]
        assert error["message"] and error["hint"]
        assert not list(tmp_path.glob("*.db")), "a study was begun"
        return told.out + told.err

    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ftp://h/m.onnx",), "MODEL: 'ftp://h/m.onnx' is in no store"),
        (("digits.onnx", "--export", "s3://"), "--export: 's3://': there is no bucket in it"),
        (("digits.onnx", "--export", "s3://k:hidden@b/r"), "takes no credentials"),
        (("digits.onnx", "--export", "s3://127.0.0.1:1/b/r"), "does not answer"),
        (("s3://127.0.0.1:1/b/m.onnx",), "does not answer"),
    ],
)
def test_wrong_locations_are_refused_before_anything_begins(
    refusal: Any,
    credentials: None,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.setattr(buckets, "_RETRIES", 0)
    told = refusal("search", *arguments, *OPTIONS)
    assert words in told and "hidden" not in told


def test_a_location_is_a_model_without_the_word_search(
    refusal: Any, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_RETRIES", 0)
    assert "does not answer" in refusal("s3://127.0.0.1:1/b/m.onnx", *OPTIONS)


def test_a_place_that_may_not_be_written_is_refused_before_the_search(
    refusal: Any, bucket: Bucket, s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.reader[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.reader[1])
    told = refusal("search", "digits.onnx", "--export", str(bucket.location), *OPTIONS, "-v")
    assert "cannot be written: the store refuses the credentials" in told
    assert not any(secret in told for secret in s3_server.reader)


def test_a_model_that_is_there_needs_force(refusal: Any, bucket: Bucket) -> None:
    bucket.put("digits/config.pbtxt", b"")
    told = refusal("search", "digits.onnx", "--export", str(bucket.location), *OPTIONS)
    assert f"{bucket.location}/digits is there already" in told and "--force" in told


def test_a_machine_without_the_library_says_how_to_get_it(
    refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    told = refusal("search", "digits.onnx", "--export", "gs://models/repository", *OPTIONS)
    assert "tritune[buckets]" in told


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.timeout(300)
def test_a_search_from_a_store_into_a_store(
    bucket: Bucket,
    s3_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
) -> None:
    place = bucket.location.bucket
    s3_server.rclone("copy", str(EXAMPLES / "digits.onnx"), f"real:{place}/models")
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SPACE)
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as left:
        main(
            [
                "search",
                s3_server.url(place, "models/digits.onnx"),
                *("--export", str(bucket.location), "--report", "report.json"),
                *("--latency-budget", "100ms", "--percentile", "95", "--space", "small.yaml"),
                *("--executor", "in-process", "--budget", "20s", "--accept", "estimated"),
                *("--json", "-v"),
            ]
        )
    told = capfd.readouterr()
    assert left.value.code == 0, told
    names = {f"repository/digits/{name}" for name in ("1/model.onnx", "config.pbtxt")}
    assert names <= set(s3_server.files(place))
    with pytest.raises(SystemExit) as left:
        main(["export", "--repository", str(bucket.location), "--json"])
    assert left.value.code == 0
    done = json.loads(capfd.readouterr().out)
    # The same as the search has written: nothing is added.
    assert (done["path"], done["model"], done["version"]) == (str(bucket.location), "digits", 1)
    # No key in what was shown, nor in any file: database, report, cache.
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for secret in s3_server.writer:
        assert secret not in told.out + told.err and secret.encode() not in written
    manifest = bucket.read("digits/tritune.json")[0]
    assert not any(secret.encode() in manifest for secret in s3_server.writer)


def test_a_location_shown_is_one_that_can_be_given(s3_server: Any) -> None:
    location: Location = s3_server.location("models")
    assert parse_location(str(location), "--export") == location
