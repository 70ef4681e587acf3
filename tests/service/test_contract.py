"""The API keeps its own OpenAPI document: schemathesis sends what the document allows, and more."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """SQLite alone: what is tested here does not depend on the database."""
    return sqlite_url


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_api_keeps_its_document(service: Any, tmp_path: Path) -> None:
    if find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    token = service.token("fuzz", "write")
    client = service.client(token)
    url = str(client.base_url).rstrip("/")
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json",
            "--header", f"Authorization: Bearer {token}", "--max-time", "60", "--seed", "7",
            "--exclude-path-regex", "/events$", "--request-timeout", "20",
            # What a document cannot say: an upload must be a model, options have units.
            "--exclude-checks", "positive_data_acceptance",
        ],
        capture_output=True, text=True, timeout=380, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert client.get("/healthz").status_code == 200
