"""What another batch size than the last costs on a GPU: recorded load tests beside the twin.

    python bench/gpu_changes.py

Needs no GPU: it reads ``bench/tables/gpu_digits.json``, which has the probes of a search on an H100
and the load tests of two. For each the mean time of an execution and the mean batch, as measured,
as the twin has them, and as it would have them without the cost of changes; then the edges that
the twin expects of some configurations from those probes. Writes
``bench/results/gpu_changes.json`` and a table in ``docs/gpu.md``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from benchlib.command import ROOT, Command, put_into_page, table
from benchlib.gpu_changes import compare, expected_edges

PAGE = ROOT / "docs" / "gpu.md"


def main() -> int:
    command = Command("gpu_changes", __doc__, timing=False)
    options = command.start()
    found = [asdict(each) for each in compare()]
    errors = {
        way: [abs(each[way][0] / each["recorded"]["execution_ms_mean"] - 1.0) for each in found]
        for way in ("with_changes", "without_changes")
    }
    summary = {
        f"{way}_error": {"median": float(np.median(each)), "worst": float(np.max(each))}
        for way, each in errors.items()
    }
    document = {"runs": found, "summary": summary, "edges_rps": expected_edges()}
    put_into_page(PAGE, "gpu_changes", _shown(document))
    return command.finish(options, document, _shown)


def _shown(document: dict[str, Any]) -> str:
    rows = [
        (
            each["label"],
            f"{each['recorded']['offered_rps']:,.0f}/s",
            f"{each['recorded']['over_budget'] / each['recorded']['requests']:.2%}",
            f"{each['recorded']['execution_ms_mean']:.2f} ({each['recorded']['batch_size_mean']})",
            f"{each['with_changes'][0]:.2f} ({each['with_changes'][1]:.1f})",
            f"{each['without_changes'][0]:.2f} ({each['without_changes'][1]:.1f})",
        )
        for each in document["runs"]
    ]
    heads = (
        "configuration", "offered", "late", "execution, ms (batch)", "twin", "without changes",
    )  # fmt: skip
    with_changes, without = (
        document["summary"][f"{way}_error"] for way in ("with_changes", "without_changes")
    )
    edges = ", ".join(f"{label} {rps:,.0f}" for label, rps in document["edges_rps"].items())
    return (
        f"{table(heads, rows)}\n\nMean time of an execution: the twin is off by"
        f" {with_changes['median']:.0%} in the median, {with_changes['worst']:.0%} at worst;"
        f" without the cost of changes by {without['median']:.0%} and {without['worst']:.0%}."
        f"\n\nEdges that it expects (99 % within 20 ms, no delay), 1/s: {edges}."
    )


if __name__ == "__main__":
    raise SystemExit(main())
