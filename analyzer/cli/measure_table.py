"""What ``analyze measure`` prints for people: a column for each generator of load."""

from __future__ import annotations

from typing import Any

import click

from analyzer.cli.streams import say
from analyzer.cli.studies import format_table


def print_rows(rows: list[tuple[str, dict[str, Any]]], *, quiet: bool = False) -> None:
    """Prints the results ``(generator, entry)``; to stderr why one is invalid, if not ``quiet``."""
    table: list[tuple[str, ...]] = [("", *(name for name, _ in rows))]

    def line(title: str, ours: Any, theirs: str) -> None:
        cells = []
        for name, row in rows:
            value = ours(row) if name == "tritune" else row.get(theirs)
            cells.append(_cell(value))
        table.append((title, *cells))

    line("throughput, inferences/s", lambda r: r["throughput_ips"], "throughput_ips")
    for key in ("mean", "p50", "p90", "p95", "p99"):
        line(
            f"latency {key}, ms",
            lambda r, key=key: r["latency_ms"][key],
            f"latency_ms_{key}",
        )
    line("requests", lambda r: r["requests"], "requests")
    line("errors", lambda r: r["errors"], "errors")
    if any(row.get("over_budget") is not None for _, row in rows):
        line("over budget", _over_budget, "")
    line("valid", lambda r: r["validity"]["valid"], "stable")
    own = rows[0][1] if rows[0][0] == "tritune" else {}
    for title, key in (
        ("GPU memory, peak, bytes", "gpu_memory_bytes_peak"),
        ("GPU utilization", "gpu_utilization"),
        ("power, W", "power_watts"),
        ("energy, J per inference", "energy_joules_per_inference"),
        ("GPU clock, MHz", "gpu_clock_mhz"),
    ):
        if own.get(key) is not None:
            line(title, lambda r, key=key: r[key], "")
    if own.get("gpu_clock_limits"):
        line("GPU clock held down by", lambda r: ", ".join(r["gpu_clock_limits"]), "")
    click.echo(format_table(table))
    for name, row in () if quiet else rows:
        if name == "tritune":
            if row["errors"] and None in row["latency_ms"].values():
                say(
                    "Note: requests that failed or never came back count as infinitely late; "
                    "a percentile among them is –."
                )
            for reason in row["validity"]["reasons"]:
                say(f"not valid: {reason}")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _over_budget(row: dict[str, Any]) -> str:
    share = row["over_budget"] / row["requests"] if row["requests"] else 0.0
    return f"{row['over_budget']} ({share:.2%})"
