"""Every bench answers ``--help`` and is read in one sitting; make bench omits none in silence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
COMMANDS = sorted(BENCH.glob("*.py"))
OURS = [path for path in sorted(BENCH.rglob("*.py")) if ".work" not in path.parts]
LINES_MAX = 400


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_it_can_be_imported_and_explains_itself(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path), "--help"],
        capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {path.name}")


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_it_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES_MAX


def test_make_bench_runs_or_names_every_bench() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nbench: ")[1].split("\n\n")[0]
    named = set(re.findall(r"[a-z_]+", recipe))
    assert {path.stem for path in COMMANDS} <= named
