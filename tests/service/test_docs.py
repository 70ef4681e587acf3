"""What docs/service.md shows does what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.sqlite_alone

PAGE = Path(__file__).parents[2] / "docs" / "service.md"
HERE = "http://127.0.0.1:8040"


def blocks(language: str) -> list[str]:
    """The page's code blocks in a language; the empty one is the shell's."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a "model" whose result the examples print."""
    found = tmp_path / "here"
    found.mkdir()
    (found / "digits.onnx").write_text(json.dumps({"verdict": "found"}))
    return found


def test_the_python_example(
    client: httpx.Client, working: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = blocks("python")
    assert HERE in code
    # The scripted command's result has no recommendation.
    code = code.replace(HERE, str(client.base_url).rstrip("/")).replace(
        'result["recommendation"] and', 'result.get("recommendation") and'
    )
    with working():
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0 and done.stdout == "found None\n", done.stderr


def test_the_curl_examples(client: httpx.Client, working: Any, folder: Path) -> None:
    url = str(client.base_url).rstrip("/")

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"], cwd=folder, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    upload, submit, rest = (
        block.replace(HERE, url) for block in blocks("") if block.startswith("curl")
    )
    model = json.loads(run(upload))["id"]
    job = json.loads(run(submit.replace('"ID"', f'"{model}"')))["id"]
    with working():
        *ways, cancel = [line for line in rest.replace("JOB", job).splitlines() if line]
        told = [run(line) for line in ways]
    assert '"SUCCEEDED"' in told[0], "the stream ends with the job"
    assert json.loads(told[2])["verdict"] == "found"
    assert (folder / "repository" / "digits" / "config.pbtxt").is_file()
    assert json.loads(run(cancel))["status"] == 409, "it has ended"
