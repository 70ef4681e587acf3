"""Objects of a real S3 server, and what is told where it refuses."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

import pytest

from analyzer.buckets.bucket import PART_BYTES, Bucket, ChangedError
from analyzer.buckets.location import Location
from analyzer.errors import RepositoryError, UsageError


def test_objects_are_written_read_and_removed(bucket: Bucket, s3_server: Any) -> None:
    place = bucket.location.bucket
    bucket.put("a/config.pbtxt", b"text")
    assert s3_server.rclone("cat", f"real:{place}/repository/a/config.pbtxt") == "text"
    s3_server.rclone("copyto", __file__, f"real:{place}/repository/a/1/own")
    assert bucket.read("a/1/own")[0] == Path(__file__).read_bytes()
    assert set(bucket.list("a")) == {"a/config.pbtxt", "a/1/own"}
    bucket.delete(["a/config.pbtxt", "a/not-there"])
    assert s3_server.files(place) == ["repository/a/1/own"]


def test_an_object_is_written_only_if_it_is_the_one_that_was_read(bucket: Bucket) -> None:
    bucket.put_if("manifest", b"first", None)
    tag = bucket.read("manifest")[1]
    with pytest.raises(ChangedError):
        bucket.put_if("manifest", b"another's first", None)
    bucket.put_if("manifest", b"second", tag)
    with pytest.raises(ChangedError):
        bucket.put_if("manifest", b"another's second", tag)
    assert bucket.read("manifest")[0] == b"second"


def test_a_large_object_appears_when_it_is_finished_and_leaves_nothing_when_it_is_not(
    bucket: Bucket, s3_server: Any, tmp_path: Path
) -> None:
    place = bucket.location.bucket
    large = tmp_path / "large"
    large.write_bytes(os.urandom(2 * PART_BYTES + 1))
    upload = bucket.upload("large", large)
    assert bucket.list() == {} and len(s3_server.uploads(place)) == 1
    upload.abort()
    assert s3_server.uploads(place) == []
    upload = bucket.upload("large", large)
    upload.finish()
    upload.abort()
    bucket.download("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large.read_bytes()
    assert s3_server.files(place) == ["repository/large"]


def test_looking_whether_one_may_write_leaves_nothing(bucket: Bucket, s3_server: Any) -> None:
    bucket.check_writable()
    place = bucket.location.bucket
    assert s3_server.files(place) == [] and s3_server.uploads(place) == []


@pytest.mark.parametrize("fault", ["wrong secret", "may not write", "no bucket", "no server"])
def test_refusals_are_sentences_without_credentials(
    fault: str, s3_server: Any, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = bucket.location
    expected = {
        "wrong secret": "refuses the credentials",
        "may not write": "refuses the credentials",
        "no bucket": "is not there|no such bucket",
        "no server": "does not answer",
    }[fault]
    if fault == "wrong secret":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.reader[1])
    elif fault == "may not write":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.reader[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.reader[1])
    elif fault == "no bucket":
        location = s3_server.location("no-such-bucket")
    else:
        monkeypatch.setattr("analyzer.buckets.bucket._RETRIES", 0)
        location = type(location)(scheme="s3", bucket="models", endpoint="http://127.0.0.1:1")
    with pytest.raises(RepositoryError, match=expected) as caught:
        found = Bucket(location)
        found.list()
        found.check_writable()
    told = caught.value.hint + "".join(traceback.format_exception(caught.value))
    assert caught.value.exit_code == 2 and caught.value.hint
    for secret in (*s3_server.writer, *s3_server.reader, "StringToSign"):
        assert secret not in told


def test_a_port_that_the_library_would_panic_at_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("obstore", reason="The library for object stores is not installed")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:99999")
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL"):
        Bucket(Location(scheme="s3", bucket="models"))


def test_a_panic_of_the_library_is_told_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    obstore = pytest.importorskip("obstore", reason="The library is not installed")
    panic = type("PanicException", (BaseException,), {})

    def panics(*args: object) -> None:
        raise panic("called unwrap on an Err value")

    bucket = Bucket(Location(scheme="s3", bucket="models", endpoint="http://127.0.0.1:1"))
    monkeypatch.setattr(obstore, "get", panics)
    with pytest.raises(RepositoryError, match="cannot use its address"):
        bucket.read("a")
