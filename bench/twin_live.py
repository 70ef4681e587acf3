"""How far the twin is off: its edges and latencies against what a real server does.

    python bench/twin_live.py measure --model digits --raw DIR [--server embedded|triton]
    python bench/twin_live.py report --raw DIR

``measure`` probes the variants of one model exactly as the search does and then measures, for a
spread of configurations, the edge and p99 at 0.3, 0.5 and 0.8 of it, each rate twice with the same
arrivals on servers of their own (the repeatability). It takes about four minutes a model and wants
the machine for itself; ``probe`` repeats its probes alone. ``report`` asks the twin for the same
figures, prints the errors, and writes
``bench/results/twin_live.json``. No load test of a configuration ever calibrates what is predicted
of it: the first error is that of probes alone, the second that of a search which has measured three
other configurations. Beside the first stand the model's part of it and the machine's drift, told
apart by the witness that watched while each edge was measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.report.wording import configuration_label
from benchlib.command import Command, cell, say, write_json
from benchlib.subjects import FP32, INT8, SUBJECTS, ServedSubject, configurations
from benchlib.twin_errors import compare, summary


def run_measure(options: argparse.Namespace) -> None:
    """Measures one model and keeps what it gave."""
    folder = options.raw
    folder.mkdir(parents=True, exist_ok=True)
    subject = ServedSubject.of(options.model, options.server, folder)
    part = f".{options.first}" if options.first else ""
    path = folder / f"{options.server}-{options.model}{part}.json"
    for key in (FP32, INT8):
        subject.assets.variant(key, subject.context)
    began = time.perf_counter()
    calibrations = subject.probe()
    probe_s = time.perf_counter() - began
    chosen = configurations(SUBJECTS[options.model].batch_share)[options.first :]
    twin = subject.twin(calibrations)
    starts = twin.edges(chosen)
    document: dict[str, Any] = {
        "probe_seconds": probe_s,
        "calibrations": {key.label: value.to_dict() for key, value in calibrations.items()},
        "measured": [],
    }
    for configuration, start in zip(chosen, starts, strict=True):
        if options.until and time.perf_counter() - began > options.until:
            break
        record = subject.measure(configuration, start, twin.server_model(configuration))
        document["measured"].append(record)
        label = configuration_label(configuration)
        say(f"{label}: twin {start}, measured {record['edge_rps']}")
    write_json(path, document)


def run_probe(options: argparse.Namespace) -> None:
    """Probes again what was measured, after the probes themselves were changed."""
    subject = ServedSubject.of(options.model, options.server, options.raw)
    path = options.raw / f"{options.server}-{options.model}.json"
    document = json.loads(path.read_text())
    began = time.perf_counter()
    calibrations = subject.probe()
    document["probe_seconds"] = time.perf_counter() - began
    document["calibrations"] = {key.label: value.to_dict() for key, value in calibrations.items()}
    write_json(path, document)


def _thinned(values: dict[str, Any]) -> dict[str, Any]:
    """Probes with at most 16 samples each: enough for ``bench/search.py``."""
    results = []
    for record in values["results"]:
        samples = np.array(record["samples_ms"])
        if len(samples) > 16:
            samples = np.quantile(samples, (np.arange(16) + 0.5) / 16)
        results.append(record | {"samples_ms": [round(float(value), 4) for value in samples]})
    return {"results": results}


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Evaluates everything that was measured."""
    runs: dict[str, Any] = {}
    for server, name in product(("embedded", "triton"), SUBJECTS):
        # A model's configurations may have been measured in parts, each with probes of its own.
        paths = sorted(options.raw.glob(f"{server}-{name}*.json"))
        documents = [json.loads(path.read_text()) for path in paths]
        if not documents:
            continue
        first = documents[0]
        subject = ServedSubject.of(name, server, options.raw)
        rows = [row for part in documents for row in compare(subject, part)]
        runs[f"{server} {name}"] = {
            "model": SUBJECTS[name].kind,
            "budget_ms": SUBJECTS[name].budget_ms,
            "probe_seconds": first["probe_seconds"],
            "probes": {key: len(value["results"]) for key, value in first["calibrations"].items()},
            "calibrations": {key: _thinned(value) for key, value in first["calibrations"].items()},
            "summary": summary(rows),
            "rows": rows,
        }
    return {"runs": runs, "all": summary([row for run in runs.values() for row in run["rows"]])}


def shown(document: dict[str, Any]) -> str:
    """Every configuration in a line, and the summaries."""
    lines = []
    for name, run in document["runs"].items():
        lines += ["", name, *map(_line, run["rows"]), _words(run["summary"])]
    return "\n".join([*lines, "", "all", _words(document["all"])])


def _line(row: dict[str, Any]) -> str:
    points = "  ".join(
        f"{p['share']}: {p['p99_ms']:.2f}/{p['again_ms']:.2f} twin {p['predicted_ms']:.2f}"
        for p in row["points"]
    )
    errors = f"{cell(row['edge_error'], '+.1%')} {cell(row.get('calibrated_error'), '+.1%')}"
    edge, twin = row["edge_rps"] or 0.0, row["predicted_rps"] or 0.0
    return f"  {row['configuration']:<40} {edge:8.1f} twin {twin:8.1f} {errors:>14}  {points}"


def _words(found: dict[str, Any]) -> str:
    return "  " + "  ".join(f"{key} {v:.3g}" for key, v in found.items() if v is not None)


def main() -> int:
    command = Command("twin_live", __doc__, timing=True, offline=("report",))
    command.argument("step", choices=("measure", "probe", "report"))
    command.argument("--model", choices=tuple(SUBJECTS), default="digits")
    command.argument("--server", choices=("embedded", "triton"), default="embedded")
    raw = Path(tempfile.gettempdir()) / "tritune-twin-live"
    command.argument("--raw", type=Path, default=raw, help="what was measured, a file a model")
    command.argument("--until", type=float, default=0.0, help="start no more after so long, s")
    command.argument("--first", type=int, default=0, help="begin with this configuration")
    options = command.start()
    if options.step == "report":
        return command.finish(options, report(options), shown)
    {"measure": run_measure, "probe": run_probe}[options.step](options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
