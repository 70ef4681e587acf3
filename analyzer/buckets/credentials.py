"""Where the credentials of an object store come from: its provider's usual places.

The library reads the variables of the environment and asks the machine's own identity (web
identity, containers, instances). What it does not read is added here: AWS profiles, and the names
of Azure's variables that Triton uses. Nothing of this is kept, logged or shown.
"""

from __future__ import annotations

import configparser
import importlib.util
import os
from pathlib import Path
from typing import Any

from analyzer.errors import MissingPartError, UsageError

# Sources other than profiles that AWS's tools ask before them, or that stand for a role.
_AWS_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
# Triton's names, and the library's.
_AZURE_VARIABLES = {
    "account_name": ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"),
    "account_key": ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
}


def aws_settings() -> dict[str, Any]:
    """Settings of the chosen AWS profile for ``obstore``; empty where none is needed or there.

    Keys in the environment come before profiles, as with AWS's own tools. A profile without keys of
    its own (single sign-on, roles, processes) needs boto3, which knows them all.

    Raises:
        UsageError: ``AWS_PROFILE`` names a profile that is not there, or a file cannot be read.
        MissingPartError: The profile has no keys, and boto3 is not installed.
    """
    if any(os.environ.get(name) for name in _AWS_VARIABLES):
        return {}
    named = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    profile = named or "default"
    values = {
        **_section("AWS_CONFIG_FILE", "config", (profile, f"profile {profile}")),
        **_section("AWS_SHARED_CREDENTIALS_FILE", "credentials", (profile,)),
    }
    if not values:
        if named:
            raise UsageError(
                f"AWS_PROFILE: there is no profile {named!r}.",
                hint="aws configure list-profiles names those of this machine.",
            )
        return {}
    region = {"region": values["region"]} if _region_is_open(values) else {}
    if "aws_access_key_id" in values and "aws_secret_access_key" in values:
        token = values.get("aws_session_token")
        return {
            **region,
            "access_key_id": values["aws_access_key_id"],
            "secret_access_key": values["aws_secret_access_key"],
            **({"session_token": token} if token else {}),
        }
    if not named and not any(key.startswith(("sso_", "role_", "credential_")) for key in values):
        return region
    if importlib.util.find_spec("boto3") is None:
        raise MissingPartError(
            f"The AWS profile {profile!r} has no keys of its own.",
            hint="Install boto3, which signs in by single sign-on, roles and processes; or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    from obstore.auth.boto3 import Boto3CredentialProvider

    return {**region, "credential_provider": Boto3CredentialProvider()}


def _region_is_open(values: dict[str, str]) -> bool:
    given = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return "region" in values and not given


def _section(variable: str, filename: str, names: tuple[str, ...]) -> dict[str, str]:
    """The values of the first of the sections ``names`` in one of AWS's two files."""
    path = Path(os.environ.get(variable) or Path.home() / ".aws" / filename)
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        # What the parser says would quote the line, which may hold a key.
        raise UsageError(
            f"{path} cannot be read as a file of AWS profiles.", hint="Correct it, or move it away."
        ) from None
    return next((dict(parser[name]) for name in names if parser.has_section(name)), {})


def azure_settings() -> dict[str, str]:
    """Account and key from the variables that Triton reads, where the library's are not set."""
    return {
        key: os.environ[tritons]
        for key, (tritons, own) in _AZURE_VARIABLES.items()
        if os.environ.get(tritons) and not os.environ.get(own)
    }
