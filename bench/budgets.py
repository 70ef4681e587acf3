"""How long searches take that were given a budget: asked and taken, with caches empty and full.

    python bench/budgets.py [--budgets 1s,3s,10s,20s,40s,60s,90s] [--models digits,slow] [--json]

Runs ``analyze`` on the digits of the examples, and on a text encoder that takes about half a second
for an inference. *Cold* runs have an empty cache folder, an empty store and an uncompiled twin;
*warm* ones have what the cold run with the largest budget left. The time is that of the whole
process, from its start to its exit. Goal: within 5 % of the budget, or a second where that is more;
a first proof may be completed within a quarter more, and the answer says so. An undecided answer
names the budget that suffices: a search from the same start is run with it. Writes
``bench/results/budgets.json``. It is a timing: nothing else may run on the machine.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.domain.units import parse_duration_s
from benchlib.command import ROOT, WORK, Command, say, table
from benchlib.models import write_encoder

BUDGETS = "1s,3s,10s,20s,40s,60s,90s"
# Half a second for each inference, on a machine with two cores.
_SLOW_TOKENS = 1536
_SLACK_SHARE = 0.05
_SLACK_S = 1.0
_OVERRUN_SHARE = 0.25
_TIMEOUT_S = 600.0


def main() -> int:
    command = Command("budgets", __doc__, timing=True)
    command.argument("--budgets", default=BUDGETS, help=f"comma-separated (default: {BUDGETS})")
    command.argument("--models", default="digits,slow", help="of digits and slow")
    options = command.start()
    asked = sorted(options.budgets.split(","), key=parse_duration_s)
    runs = []
    for name in options.models.split(","):
        model = subject(name)
        with tempfile.TemporaryDirectory(prefix="budgets-") as place:
            for side in ("cold", "warm"):
                for budget in asked:
                    # The warm runs have the folder of the last cold one.
                    folder = Path(place) / (budget if side == "cold" else asked[-1])
                    runs.append(run(name, side, model, budget, folder))
                    needed_s = runs[-1]["budget_needed_s"]
                    if needed_s and side == "cold":
                        enough = f"{math.ceil(needed_s)}s"
                        again = run(name, side, model, enough, Path(place) / f"{budget}-enough")
                        runs[-1]["with_that_budget"] = again["verdict"]
                    say(f"{runs[-1]}")
    return command.finish(options, {"runs": runs}, summary)


def subject(name: str) -> list[str]:
    """The arguments that name a model and its promise."""
    if name == "digits":
        data = ["--calibration-data", "examples/digits.npz"]
        return ["examples/digits.onnx", "--latency-budget", "50ms", *data]
    path = write_encoder(WORK / "slow-encoder.onnx", tokens=_SLOW_TOKENS)
    return [str(path), "--latency-budget", "3s"]


def run(name: str, side: str, model: list[str], budget: str, folder: Path) -> dict[str, Any]:
    """One search with its caches and its store in ``folder``."""
    environment = os.environ | {
        "TRITUNE_CACHE": f"{folder}/cache",
        "NUMBA_CACHE_DIR": f"{folder}/numba",
        "PYTHONPATH": str(ROOT),
    }
    store = ["--store", f"sqlite:///{folder}/results.db"]
    folder.mkdir(exist_ok=True)
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "analyzer.cli.main", *model, "--budget", budget, *store, "--json"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    taken_s = time.monotonic() - begun
    answer = json.loads(done.stdout) if done.stdout else {}
    warnings = answer.get("warnings", [])
    overrun = any("complete a first proof" in warning for warning in warnings)
    return {
        "model": name,
        "side": side,
        "budget_s": parse_duration_s(budget),
        "taken_s": round(taken_s, 2),
        "exit_code": done.returncode,
        "verdict": answer.get("verdict"),
        "budget_needed_s": answer.get("search", {}).get("budget_needed_s"),
        "overrun_said": overrun,
        "within": taken_s <= limit_s(parse_duration_s(budget), overrun=overrun),
        "warnings": warnings,
        "error": done.stderr[-300:] if done.returncode not in (0, 3, 4) else "",
    }


def limit_s(budget_s: float, *, overrun: bool) -> float:
    """The seconds that a command with this budget may take."""
    slack_s = max(_SLACK_SHARE * budget_s, _SLACK_S)
    return budget_s + slack_s + (_OVERRUN_SHARE * budget_s if overrun else 0.0)


def summary(document: Mapping[str, Any]) -> str:
    """Asked and taken, and how many were within the goal."""
    runs = document["runs"]
    rows = [
        (
            one["model"],
            one["side"],
            f"{one['budget_s']:g}",
            f"{one['taken_s']:.1f}",
            one["verdict"] or f"exit {one['exit_code']}",
            f"{one['budget_needed_s']:.0f}" if one["budget_needed_s"] else "",
            one.get("with_that_budget") or "",
            "yes" if one["within"] else "**no**",
        )
        for one in runs
    ]
    within = sum(one["within"] for one in runs)
    heads = (
        "model",
        "caches",
        "asked, s",
        "taken, s",
        "verdict",
        "budget needed, s",
        "with it",
        "within",
    )
    return table(heads, rows) + f"\n\n{within} of {len(runs)} within the goal."


if __name__ == "__main__":
    raise SystemExit(main())
