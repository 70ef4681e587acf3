"""How well the closed-loop twin predicts a recorded GPU landscape from a dozen of its rows.

    python bench/landscape.py --table FILE.csv [--rows 12] [--seeds 30] [--json]

Valid rows (Little's law within 5 %) are taken unmerged. Twelve of them, chosen where they inform
most, calibrate the twin and the residual on top of it; all other valid rows are predicted. What is
learned is the contention between instances and what idle ones cost. The seed decides which of the
replicates are taken. Writes ``bench/results/landscape.json``.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.errors import AnalyzerError
from analyzer.search.residual import ResidualModel
from benchlib import closed_loop as twin
from benchlib.command import Command
from benchlib.recorded import Landscape, read

THROUGHPUT_GOAL, LATENCY_GOAL = 0.05, 0.08


def one_seed(table: Landscape, rows: int, seed: int) -> dict[str, Any]:
    """Relative errors on the rows that did not calibrate."""
    points = table.points
    taken = twin.informative(points, rows, np.random.default_rng(seed))
    rest = np.setdiff1d(np.arange(len(points)), taken)
    fitted = twin.fit([points[i] for i in taken], table.throughput_ips[taken])
    alone = fitted.throughput_ips(points)
    model = ResidualModel(twin.features(points), local=(0.4,))
    model.learn(np.array(taken), np.log(table.throughput_ips[taken] / alone[taken]))
    corrected = alone * np.exp(model.predict(np.arange(len(points)))[0])
    in_flight = np.array([p.concurrency * p.request_batch_size for p in points])
    latency_ms = in_flight / corrected * 1e3
    throughput_error = np.abs(corrected / table.throughput_ips - 1.0)[rest]
    latency_error = np.abs(latency_ms / table.latency_ms_mean - 1.0)[rest]
    return {
        "seed": seed,
        "calibrated_on": [[points[i].instances, points[i].concurrency] for i in taken],
        "predicted_rows": len(rest),
        "throughput_error_median": float(np.median(throughput_error)),
        "throughput_error_p90": float(np.quantile(throughput_error, 0.9)),
        "latency_error_median": float(np.median(latency_error)),
        "latency_error_p90": float(np.quantile(latency_error, 0.9)),
        "throughput_error_median_twin_alone": float(
            np.median(np.abs(alone / table.throughput_ips - 1.0)[rest])
        ),
        "twin": asdict(fitted),
    }


def main() -> int:
    command = Command("landscape", __doc__, timing=False)
    command.argument("--table", type=Path, required=True, metavar="FILE.csv")
    command.argument("--rows", type=int, default=12, help="rows that calibrate")
    command.argument("--seeds", type=int, default=30)
    options = command.start()
    try:
        table = read(options.table, "99")
    except AnalyzerError as error:
        print(f"{error.message} {error.hint}".strip(), file=sys.stderr)
        return error.exit_code
    runs = [one_seed(table, options.rows, seed) for seed in range(options.seeds)]
    keys = [key for key in runs[0] if "_error_" in key]
    document = {
        "table": options.table.name,
        "rows": table.rows,
        "left_out": table.left_out,
        "calibration_rows": options.rows,
        "median_over_seeds": {key: float(np.median([run[key] for run in runs])) for key in keys},
        "worst_seed": {key: float(np.max([run[key] for run in runs])) for key in keys},
        "goals": {"throughput_error_median": THROUGHPUT_GOAL, "latency_error_median": LATENCY_GOAL},
        "runs": runs,
    }
    return command.finish(options, document, shown)


def shown(document: dict[str, Any]) -> str:
    """The errors in a few lines."""
    rows, left_out = document["rows"], document["left_out"]
    worst = document["worst_seed"]
    lines = [f"{rows} rows, {left_out} left out, {document['calibration_rows']} calibrate"]
    lines += [
        f"{key}: {value:.1%} (worst of {len(document['runs'])} seeds {worst[key]:.1%})"
        for key, value in document["median_over_seeds"].items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
