"""The demo's search again and again: with empty caches, with warm ones, beside a busy neighbour.

    python bench/demos.py [--runs 20] [--only cold|warm|neighbour] [--budget 60] [--again]
    python bench/demos.py --model encoder --verify 30      # and its claims, measured again

Each run is a whole command (``analyze examples/digits.onnx --latency-budget 50ms --budget 60s``
with the example's data), as a user starts it. *Cold*: no variants, probes or compiled simulator are
there. *Warm*: all of them are. *Neighbour*: warm, while another process keeps one core busy in
bursts of 0.1 to 10 s, half of the time. Goals: all cold and warm runs found, 19 of 20 beside the
neighbour; at most 75 s; certified share of the edge at least 0.6 in the median.

``--verify`` measures each certified claim again by ``analyze verify`` on a restarted embedded
server, for so many seconds; goal: of 60 claims on three models at least 57 hold. Runs are kept in
``bench/.work/demos`` until ``--again``, so that a bench may be run in parts; the results have a
summary for each model, kind and budget that was run, those of earlier calls included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchlib.command import WORK, Command, cell, say, table
from benchlib.models import write_encoder, write_perceptron
from benchlib.real_triton import Steps
from benchlib.whole_searches import TITLES, search_once, summary, summary_row

KINDS = ("cold", "warm", "neighbour")
MODELS = ("digits", "encoder", "perceptron")
FOLDER = WORK / "demos"
STEPS = Steps(FOLDER)
USUAL_S = 60.0
# Bursts and pauses of the same lengths: busy half of the time.
NEIGHBOUR = """
import math, os, random, time
parent = os.getppid()
while os.getppid() == parent:
    length = math.exp(random.uniform(math.log(0.1), math.log(10.0)))
    until = time.monotonic() + length
    while time.monotonic() < until:
        pass
    time.sleep(length)
"""


@contextmanager
def neighbour() -> Iterator[None]:
    """A process that keeps one core busy in bursts."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def promise(model: str) -> list[str]:
    """The model's file, its latency budget, and its calibration data."""
    if model == "digits":
        data = ["--calibration-data", "examples/digits.npz"]
        return ["examples/digits.onnx", "--latency-budget", "50ms", *data]
    if model == "encoder":
        path = write_encoder(FOLDER / "encoder.onnx", tokens=128)
        return [str(path), "--latency-budget", "100ms"]
    path = write_perceptron(FOLDER / "perceptron.onnx", (1024, 1024, 1024, 1024))
    return [str(path), "--latency-budget", "60ms"]


def step_name(kind: str, model: str, budget_s: float) -> str:
    """What the runs of a kind are kept as."""
    return f"{model}-{kind}" + ("" if budget_s == USUAL_S else f"-{budget_s:g}s")


def run_kind(
    kind: str, model: str, runs: int, budget_s: float, verify_s: float
) -> list[dict[str, Any]]:
    """``runs`` demos of one kind, those of earlier calls among them."""
    step = step_name(kind, model, budget_s)
    found = list(STEPS.load(step, default=[]))
    warm = FOLDER / "warm"
    if kind != "cold" and len(found) < runs:
        search_once(warm, promise(model), USUAL_S, 10_000)
    for number in range(len(found), runs):
        with tempfile.TemporaryDirectory() as cold:
            folder = Path(cold) if kind == "cold" else warm
            if kind == "neighbour":
                with neighbour():
                    result = search_once(folder, promise(model), budget_s, number, verify_s)
            else:
                result = search_once(folder, promise(model), budget_s, number, verify_s)
        say(
            f"{step} {number + 1}/{runs}: {result['verdict']} in {result['seconds']:.0f} s, "
            f"{cell(result['capacity_rps'], ',.0f')} of {cell(result['edge_rps'], ',.0f')}/s, "
            f"claim: {result['verified'] or 'not measured again'}"
        )
        found.append(result)
        STEPS.save(step, found)
    return found[:runs]


def _shown(document: dict[str, Any]) -> str:
    rows = [[kind, *summary_row(found)] for kind, found in document["summary"].items()]
    return table(["model, caches, budget", *TITLES], rows)


def main() -> int:
    """Runs the bench; returns the exit code."""
    command = Command("demos", __doc__, timing=True)
    command.argument("--runs", type=int, default=20, metavar="N", help="of each kind")
    command.argument("--only", choices=KINDS)
    command.argument("--model", choices=MODELS, default="digits")
    command.argument("--budget", type=float, default=USUAL_S, metavar="SECONDS")
    command.argument("--verify", type=float, default=0.0, metavar="SECONDS")
    command.argument("--again", action="store_true", help="forget the runs of earlier calls")
    options = command.start()
    runs = json.loads(options.out.read_text())["runs"] if options.out.is_file() else {}
    for kind in [options.only] if options.only else KINDS:
        step = step_name(kind, options.model, options.budget)
        if options.again:
            STEPS.forget(step)
        runs[step] = run_kind(kind, options.model, options.runs, options.budget, options.verify)
    summaries = {step: summary(found) for step, found in runs.items()}
    return command.finish(options, {"summary": summaries, "runs": runs}, _shown)


if __name__ == "__main__":
    raise SystemExit(main())
