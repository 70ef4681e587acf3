"""Every bench answers ``--help`` and is read in one sitting; make bench omits none in silence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
COMMANDS = sorted(BENCH.glob("*.py"))
OURS = [path for path in sorted(BENCH.rglob("*.py")) if ".work" not in path.parts]
LINES_MAX = 400
# Runs each file as a program in a child of one process that imported what others wrote: half a
# minute less than from scratch. Our own modules are imported anew in each.
HELPS = """
import gc, importlib, json, os, runpy, sys, tempfile, traceback
from contextlib import suppress

for name in ("numpy", "scipy.stats", "optuna.storages._rdb.models", "fastapi", "httpx", "psutil",
             "onnx", "tritonclient.grpc", "jinja2"):
    with suppress(ImportError):
        importlib.import_module(name)
gc.freeze()

def run(path):
    sys.argv, sys.path[0] = [path, "--help"], os.path.dirname(path)
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

for path in sys.argv[1:]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        if not (child := os.fork()):
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = run(path)
            sys.stdout.flush()
            os._exit(code)
        found = {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
        for name, file in (("stdout", out), ("stderr", err)):
            file.seek(0)
            found[name] = file.read()
    print(json.dumps({"name": os.path.basename(path), **found}), flush=True)
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, dict[str, Any]]:
    """What each bench answers to ``--help``: its exit code, and what it says."""
    done = subprocess.run(
        [sys.executable, "-c", HELPS, *map(str, COMMANDS)],
        capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_it_can_be_imported_and_explains_itself(
    helps: dict[str, dict[str, Any]], path: Path
) -> None:
    found = helps[path.name]
    assert found["code"] == 0, found["stderr"]
    assert found["stdout"].startswith(f"usage: {path.name}")


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_it_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES_MAX


def test_make_bench_runs_or_names_every_bench() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nbench: ")[1].split("\n\n")[0]
    named = set(re.findall(r"[a-z_]+", recipe))
    assert {path.stem for path in COMMANDS} <= named
