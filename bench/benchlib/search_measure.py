"""Measures a table for ``search.py``: the edge of every configuration of a space."""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.space import SearchSpace
from analyzer.errors import AnalyzerError
from analyzer.twin.calibration import VariantCalibration
from benchlib.command import say, write_json
from benchlib.search_tables import predictions, read_rows
from benchlib.subjects import FP32, INT8, SEED, ServedSubject

COLUMNS = (
    "model", "config_id", "predicted_rps", "saturation_rps", "edge_rps", "from_rps", "to_rps",
    "load_test_seconds", "work_us", "configuration",
)  # fmt: skip
# Rows of a configuration that is repeated.
REPEATS = 3


def measure_table(
    path: Path, model: str, space: SearchSpace, *, raw: Path, again: int, until_s: float
) -> None:
    """Measures what the file lacks, in an order drawn at random, and appends it to the file.

    Once every configuration has a row, ``again`` of them are measured twice more: half of these
    are the best, where errors decide what is best, the others are drawn at random.

    Args:
        raw: Keeps variants, inputs and probes; probes are run where it has none of the model.
        until_s: Starts no more after so many seconds.
    """
    began = time.perf_counter()
    raw.mkdir(parents=True, exist_ok=True)
    subject = ServedSubject.of(model, "embedded", raw)
    twin = subject.twin(_calibrations(subject, raw / f"embedded-{model}.json"))
    predicted, saturation = predictions(space, twin)
    candidates = {key: configuration for key, (configuration, _) in space.candidates().items()}
    fresh = not path.is_file()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
            file.flush()
        while (key := _next(path, candidates, again)) is not None:
            if time.perf_counter() - began > until_s:
                break
            edge, seconds = subject.edge(candidates[key], predicted[key] or None)
            low, high = edge.interval_rps
            writer.writerow(
                {
                    "model": model,
                    "config_id": key,
                    "predicted_rps": f"{predicted[key]:.2f}",
                    "saturation_rps": f"{saturation[key]:.2f}",
                    "edge_rps": f"{edge.at_least_rps or 0.0:.2f}",
                    "from_rps": f"{low or 0.0:.2f}",
                    "to_rps": f"{high or 0.0:.2f}",
                    "load_test_seconds": f"{seconds:.2f}",
                    "work_us": f"{edge.work_us:.3f}" if edge.work_us else "",
                    "configuration": json.dumps(candidates[key].to_dict()),
                }
            )
            file.flush()
            say(f"{len(read_rows(path))} rows, {time.perf_counter() - began:.0f} s")


def _next(path: Path, candidates: dict[str, Configuration], again: int) -> str | None:
    """The configuration to measure next; None where nothing is missing."""
    rows = read_rows(path)
    counts = Counter(row["config_id"] for row in rows)
    drawn = [str(key) for key in np.random.default_rng(SEED).permutation(sorted(candidates))]
    if lacking := [key for key in drawn if not counts[key]]:
        return lacking[0]
    first = {row["config_id"]: float(row["edge_rps"]) for row in reversed(rows)}
    best = sorted(drawn, key=lambda key: -first[key])[: again // 2]
    chosen = best + [key for key in drawn if key not in best][: again - again // 2]
    fewest = min((counts[key] for key in chosen), default=REPEATS)
    if fewest >= REPEATS:
        return None
    return next(key for key in chosen if counts[key] == fewest)


def _calibrations(subject: ServedSubject, path: Path) -> dict[VariantKey, VariantCalibration]:
    """The probes that ``twin_live.py`` left, or new ones, which are left in the same form."""
    if not path.is_file():
        began = time.perf_counter()
        try:
            found = subject.probe()
        except AnalyzerError as error:
            raise SystemExit(f"{error.message} {error.hint}") from error
        write_json(
            path,
            {
                "probe_seconds": time.perf_counter() - began,
                "calibrations": {key.label: value.to_dict() for key, value in found.items()},
                "measured": [],
            },
        )
        return found
    known = json.loads(path.read_text())["calibrations"]
    return {key: VariantCalibration.from_dict(key, known[key.label]) for key in (FP32, INT8)}
