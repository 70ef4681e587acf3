"""The table of ``scheduling.py`` in ``docs/scheduling.md``."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchlib.command import table

PAIRS = (("triton", "virtual"), ("triton", "embedded"), ("embedded", "virtual"))
FIGURES = ("throughput_ips", "batch_size_mean", "latency_ms_p50", "latency_ms_p99")


def page_table(document: dict[str, Any]) -> str:
    """Every combination as a row of Markdown, and what all of it comes to."""
    titles = ("configuration, load", "overhead ms", "mean batch", "items/s", "p50 ms", "p99 ms",
              "misses")  # fmt: skip
    rows = []
    for entry in (c for c in document["combinations"].values() if "places" in c):
        places = entry["places"]
        cells = []
        for key, digits in (
            ("batch_size_mean", 2),
            ("throughput_ips", 1),
            ("latency_ms_p50", 1),
            ("latency_ms_p99", 1),
        ):
            if entry["load"]["overload"] and key.startswith("latency"):
                cells.append("–")
                continue
            order = ("triton", "embedded", "virtual")
            values = (f"{places[p][key]:.{digits}f}" if p in places else "–" for p in order)
            cells.append(" / ".join(values))
        missed = [
            f"{pair} {key.removeprefix('latency_ms_')} {c['deviation'][key]:+.1%}"
            for pair, c in entry["comparisons"].items()
            for key in c["missed"]
        ]
        name = entry["name"].replace(" | ", "; ")
        http = " (HTTP)" if entry["protocol"] == "http" else ""
        overhead = f"{entry['overhead_ms']['triton']:.2f}"
        rows.append([f"{name}{http}", overhead, *cells, "; ".join(missed) or "–"])
    return "\n".join([table(titles, rows), "", *summary_lines(document)])


def summary_lines(document: dict[str, Any]) -> list[str]:
    """What all of it comes to, as lines of Markdown."""
    entries = list(document["combinations"].values())
    found = [c for c in entries if "places" in c]
    runs = sum(c["runs"] for c in found)
    invalid = sum(len(c["invalid"]) for c in found)
    left_out = len(entries) - len(found)
    counts = (
        f"{len(found)} combinations, {runs} runs, {invalid} of them repeated since their generator "
        f"was invalid; {left_out} combinations were left out for that."
    )
    lines = [
        counts,
        "",
        "| pair | combinations | within all bounds | worst: items/s | mean batch | p50 | p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    for a, b in PAIRS:
        held = [(c, c["comparisons"][f"{a}-{b}"]) for c in found if f"{a}-{b}" in c["comparisons"]]
        cells = []
        for key in FIGURES:
            latency = key.startswith("latency")
            values = [
                c["places"][a][key] - c["places"][b][key] if latency else h["deviation"][key]
                for c, h in held
                if key in h["deviation"]
            ]
            worst = max(values, key=abs, default=0.0)
            cells.append(f"{worst:+.2f} ms" if latency else f"{worst:+.1%}")
        good = sum(not h["missed"] for _, h in held)
        lines.append(f"| {a} against {b} | {len(held)} | {good} | {' | '.join(cells)} |")
    spreads = []
    for key in FIGURES:
        values = [
            max(r[key] for r in c["triton_runs"]) / min(r[key] for r in c["triton_runs"]) - 1
            for c in found
            if len(c["triton_runs"]) > 1
            and not (c["load"]["overload"] and key.startswith("latency"))
        ]
        if values:
            short = key.removeprefix("latency_ms_").replace("_", " ")
            spreads.append(f"{short} {np.median(values):.1%} (at most {max(values):.1%})")
    return [*lines, "", f"Two runs of the real server differ, median: {', '.join(spreads)}."]
