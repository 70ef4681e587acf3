"""Whole searches on models and latency budgets that are drawn at random.

    python bench/random_models.py [--models 8] [--seed 1] [--budget 60] [--verify 30] [--again]

Perceptrons, convolutional networks and tables of embeddings in turn, from some hundredths of a
millisecond for an inference to tenths of a second; the latency budget is 5 to 300 times one
inference on one thread. No data is given, so that int8 is named for every second model. Each search
is a whole command with empty caches; ``--verify`` measures its claim again on a restarted embedded
server. Runs are kept in ``bench/.work/random_models`` until ``--again``, so that it may be run in
parts. Goals: all found, with a gain, in the budget.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchlib.command import WORK, Command, cell, say, table
from benchlib.drawn_models import draw
from benchlib.real_triton import Steps
from benchlib.whole_searches import TITLES, search_once, summary, summary_row

STEPS = Steps(WORK / "random_models")


def _shown(document: dict[str, Any]) -> str:
    rows = [
        [
            run["model"],
            cell(run["inference_ms"], ".3g"),
            cell(run["budget_ms"], "g"),
            str(run["verdict"]),
            cell(run["seconds"], ".0f"),
            cell(run["capacity_rps"], ",.0f"),
            cell(run["edge_rps"], ",.0f"),
            cell(run["certified_share"], ".2f"),
            cell(run["baseline_edge_rps"], ",.0f"),
            cell(run["speedup"], ".2f"),
            run["verified"] or "–",
        ]
        for run in document["runs"]
    ]
    titles = [
        "model", "inference ms", "budget ms", "verdict", "s", "certified 1/s", "edge 1/s", "share",
        "baseline's edge", "gain", "claim again",
    ]  # fmt: skip
    return table(titles, rows) + "\n\n" + table(TITLES, [summary_row(document["summary"])])


def main() -> int:
    """Runs the bench; returns the exit code."""
    command = Command("random_models", __doc__, timing=True)
    command.argument("--models", type=int, default=8, metavar="N")
    command.argument("--seed", type=int, default=1, metavar="N", help="of the first model")
    command.argument("--budget", type=float, default=60.0, metavar="SECONDS")
    command.argument("--verify", type=float, default=0.0, metavar="SECONDS")
    command.argument("--again", action="store_true", help="forget the runs of earlier calls")
    options = command.start()
    runs = []
    for seed in range(options.seed, options.seed + options.models):
        step = f"{seed}-{options.budget:g}s"
        if options.again:
            STEPS.forget(step)
        run = STEPS.load(step, default={})
        if not run:
            drawn = draw(seed)
            with tempfile.TemporaryDirectory() as folder:
                run = search_once(Path(folder), drawn.words, options.budget, seed, options.verify)
            run |= {
                "model": drawn.path.stem + (" int8" if drawn.int8 else ""),
                "inference_ms": drawn.inference_ms,
                "budget_ms": drawn.budget_ms,
            }
            STEPS.save(step, run)
        say(
            f"{run['model']} ({run['inference_ms']:.3g} ms, p99 within {run['budget_ms']:g} ms): "
            f"{run['verdict']} in {run['seconds']:.0f} s, {cell(run['capacity_rps'], ',.0f')} of "
            f"{cell(run['edge_rps'], ',.0f')}/s, claim: {run['verified'] or 'not measured again'}"
        )
        runs.append(run)
    return command.finish(options, {"summary": summary(runs), "runs": runs}, _shown)


if __name__ == "__main__":
    raise SystemExit(main())
