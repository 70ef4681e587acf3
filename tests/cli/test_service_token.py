"""Where a token is good, as ``analyze service token create`` says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DEPLOYMENT = Path(__file__).parents[2] / "docs" / "deployment.md"
UNIT = Path(__file__).parents[2] / "deploy" / "service" / "tritune-service.service"


@pytest.mark.parametrize("own", [True, False])
def test_it_says_which_database_it_wrote_to(
    call: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    pytest.importorskip("alembic", reason="the extra service is not installed")
    if own:
        monkeypatch.setenv("TRITUNE_SERVICE_STORE", "sqlite:///elsewhere.db")
    answer = call("service", "token", "create", "--name", "ci", "--data", "data")
    assert answer.code == 0 and answer.stdout.startswith("tritune_")
    wrote = "elsewhere.db" if own else "data/service.db"
    assert (folder / wrote).is_file() and wrote in answer.stderr
    assert answer.stdout.strip() not in answer.stderr


def test_the_documented_command_has_the_units_environment() -> None:
    (file,) = (
        line.partition("=")[2]
        for line in UNIT.read_text(encoding="utf-8").splitlines()
        if line.startswith("EnvironmentFile=")
    )
    page = DEPLOYMENT.read_text(encoding="utf-8")
    (command,) = (block for block in page.split("```")[1::2] if "token create --data" in block)
    assert f"--property=EnvironmentFile={file} " in command
