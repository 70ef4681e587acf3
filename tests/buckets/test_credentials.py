"""Credentials come from the provider's usual places."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.buckets import credentials
from analyzer.buckets.credentials import aws_settings, azure_settings
from analyzer.errors import MissingPartError, UsageError

CONFIG = """
[default]
region = eu-central-1
[profile team]
region = eu-west-1
[profile role]
role_arn = arn:aws:iam::1:role/x
"""
KEYS = """
[default]
aws_access_key_id = of-default
aws_secret_access_key = secret-of-default
[team]
aws_access_key_id = of-team
aws_secret_access_key = secret-of-team
aws_session_token = token-of-team
"""


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "home" / ".aws"
    folder.mkdir(parents=True)
    (folder / "config").write_text(CONFIG)
    (folder / "credentials").write_text(KEYS)
    return folder


def test_profiles_give_keys_and_region(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert aws_settings() == {
        "region": "eu-central-1",
        "access_key_id": "of-default",
        "secret_access_key": "secret-of-default",
    }
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    assert aws_settings() == {
        "access_key_id": "of-team",
        "secret_access_key": "secret-of-team",
        "session_token": "token-of-team",
    }


def test_the_environment_comes_before_profiles(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    assert aws_settings() == {}


def test_a_profile_that_gives_no_keys_is_told(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="no profile 'nobody'"):
        aws_settings()
    monkeypatch.setenv("AWS_PROFILE", "role")
    monkeypatch.setattr(credentials.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPartError, match="'role' has no keys"):
        aws_settings()


def test_a_broken_file_of_profiles_is_not_quoted(profiles: Path) -> None:
    (profiles / "credentials").write_text("aws_secret_access_key = hidden-key\n")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        aws_settings()
    assert "hidden-key" not in caught.value.message + caught.value.hint


def test_tritons_names_of_azures_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "tritons")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "key")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "the library's own")
    assert azure_settings() == {"account_name": "tritons"}
