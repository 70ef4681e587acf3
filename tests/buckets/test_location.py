"""Locations are spelled as Triton spells them, and hold no credentials."""

from __future__ import annotations

import pytest

from analyzer.buckets.location import Location, is_location, parse_location
from analyzer.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://models/a/b/", Location(scheme="s3", bucket="models", path="a/b")),
        ("s3://models", Location(scheme="s3", bucket="models")),
        (
            "s3://localhost:8333/models/a",
            Location(scheme="s3", bucket="models", path="a", endpoint="http://localhost:8333"),
        ),
        (
            "s3://https://minio.example:9000/models/a",
            Location(scheme="s3", bucket="models", path="a", endpoint="https://minio.example:9000"),
        ),
        ("gs://models/a", Location(scheme="gs", bucket="models", path="a")),
        ("az://models/a", Location(scheme="az", bucket="models", path="a")),
        (
            "as://account.blob.core.windows.net/models/a",
            Location(scheme="as", bucket="models", path="a", account="account"),
        ),
    ],
)
def test_a_location_is_read_and_written_as_triton_spells_it(text: str, expected: Location) -> None:
    found = parse_location(text, "--export")
    assert found == expected
    assert parse_location(str(found), "--export") == found


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3:///path",
        "ftp://host/path",
        "http://host/path",
        "as://account",
        "s3://models/../other",
        "s3://models/a b",
        "s3://127.0.0.1:99999/bucket/p",
        "s3://127.0.0.1:0/bucket/p",
        "s3://models/a%2fb",
    ],
)
def test_what_triton_could_not_read_is_refused(text: str) -> None:
    assert is_location(text)
    with pytest.raises(UsageError) as caught:
        parse_location(text, "--export")
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith("--export: ")
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    ["s3://key:hidden@models/a", "s3://models/a?X-Amz-Signature=hidden", "s3://models#hidden"],
)
def test_credentials_in_a_location_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_location(text, "--export")
    assert "hidden" not in caught.value.message + caught.value.hint


def test_paths_of_this_machine_are_no_locations() -> None:
    assert not any(map(is_location, ("models/a", "/models", "C:\\models", "s3:/models", "a:b")))
