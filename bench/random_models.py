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
from benchlib.drawn_models import Drawn, add_options, each_model
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
    add_options(command, models=8)
    command.argument("--verify", type=float, default=0.0, metavar="SECONDS")
    options = command.start()

    def searched(drawn: Drawn, seed: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return search_once(Path(folder), drawn.words, options.budget, seed, options.verify)

    runs = []
    for run in each_model(options, STEPS, searched):
        say(
            f"{run['model']} ({run['inference_ms']:.3g} ms, p99 within {run['budget_ms']:g} ms): "
            f"{run['verdict']} in {run['seconds']:.0f} s, {cell(run['capacity_rps'], ',.0f')} of "
            f"{cell(run['edge_rps'], ',.0f')}/s, claim: {run['verified'] or 'not measured again'}"
        )
        runs.append(run)
    return command.finish(options, {"summary": summary(runs), "runs": runs}, _shown)


if __name__ == "__main__":
    raise SystemExit(main())
