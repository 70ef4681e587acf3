"""The API keeps its own OpenAPI document: schemathesis sends what the document allows, and more."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from service_contract import environment, schemathesis

pytestmark = pytest.mark.sqlite_alone


# What an administrator may do; revoking would end the token that is used. Without the stateful
# phase: no link is left between these, and schemathesis calls that an error.
_ADMIN = (
    "--include-path-regex", "/(tokens|audit|session)", "--exclude-operation-id", "revoke",
    "--phases", "examples,coverage,fuzzing",
)  # fmt: skip


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("scope", "seconds", "more"),
    [
        pytest.param("write", 8, (), id="short"),
        pytest.param("write", 60, (), id="write", marks=pytest.mark.long),
        pytest.param("admin", 20, _ADMIN, id="admin", marks=pytest.mark.long),
    ],
)
def test_the_api_keeps_its_document(
    service: Any, tmp_path: Path, scope: Any, seconds: int, more: tuple[str, ...]
) -> None:
    if find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    token = service.token("fuzz", scope)
    client = service.client(token)
    url = str(client.base_url).rstrip("/")
    done = subprocess.run(
        schemathesis(url, token, seconds, 7, *more),
        capture_output=True, text=True, timeout=380, cwd=tmp_path, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert client.get("/healthz").status_code == 200
    assert client.get("/api/v1/session").status_code == 200, "its token was revoked"
