"""Reads recorded landscapes: tables with the columns of Model Analyzer's server-side results."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analyzer.errors import DataError
from analyzer.stats.validity import LITTLE_TOLERANCE
from benchlib.closed_loop import LoadPoint

_NEEDED = ("instance_count", "concurrency", "throughput_ips", "latency_ms_mean")
_BATCH_COLUMNS = ("request_batch_size", "client_batch_size", "batch_size", "batch")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Landscape:
    """Valid rows. Arrays have the shape (n,).

    Args:
        points: Configuration and load of each row.
        throughput_ips: Inferences per second.
        latency_ms_mean: Mean latency.
        latency_ms_sla: Latency at the percentile asked for.
        rows: Rows of the file.
        left_out: Rows that break Little's law by more than 5 %, or lack a throughput or latency.
    """

    points: tuple[LoadPoint, ...]
    throughput_ips: NDArray[np.float64]
    latency_ms_mean: NDArray[np.float64]
    latency_ms_sla: NDArray[np.float64]
    rows: int
    left_out: int


def read(path: Path, percentile: str) -> Landscape:
    """Returns the valid rows of a table, unmerged.

    Args:
        path: A CSV file with a header.
        percentile: As written in the column's name: ``99`` for ``latency_ms_p99``.

    Raises:
        DataError: The file, a column or a number is missing or wrong.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            records = list(reader)
            columns = tuple(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"Cannot read the table {path}: {error}.", hint="Give a CSV file."
        ) from error
    sla_column = f"latency_ms_p{percentile}"
    for column in (*_NEEDED, sla_column):
        if column not in columns:
            raise DataError(
                f"The table {path} has no column {column!r}.",
                hint=f"Its columns are: {', '.join(columns) or 'none'}.",
            )
    points, values = [], []
    for line, record in enumerate(records, start=2):
        point = _point(path, line, record)
        row = [_number(path, line, record, c) for c in ("throughput_ips", "latency_ms_mean")]
        row.append(_number(path, line, record, sla_column))
        in_flight = point.concurrency * point.request_batch_size
        if not all(np.isfinite(row)) or min(row) <= 0:
            continue
        # Little's law: throughput times mean latency is what is in flight.
        if abs(row[0] * row[1] / 1e3 / in_flight - 1.0) <= LITTLE_TOLERANCE:
            points.append(point)
            values.append(row)
    if not points:
        raise DataError(
            f"The table {path} has no valid row among {len(records)}.",
            hint="Valid rows obey Little's law: throughput × mean latency = concurrency × batch.",
        )
    array = np.array(values, dtype=np.float64)
    return Landscape(
        points=tuple(points),
        throughput_ips=array[:, 0],
        latency_ms_mean=array[:, 1],
        latency_ms_sla=array[:, 2],
        rows=len(records),
        left_out=len(records) - len(points),
    )


def merged(landscape: Landscape) -> Landscape:
    """Returns one row per configuration and load, in the order of first appearance: medians."""
    members: dict[LoadPoint, list[int]] = defaultdict(list)
    for index, point in enumerate(landscape.points):
        members[point].append(index)

    def medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([np.median(values[rows]) for rows in members.values()])

    return Landscape(
        points=tuple(members),
        throughput_ips=medians(landscape.throughput_ips),
        latency_ms_mean=medians(landscape.latency_ms_mean),
        latency_ms_sla=medians(landscape.latency_ms_sla),
        rows=landscape.rows,
        left_out=landscape.left_out,
    )


def _point(path: Path, line: int, record: dict[str, str]) -> LoadPoint:
    # Model Analyzer numbers its variants (MODEL_config_7): the number is no setting.
    variant = re.sub(r"_config_(default|\d+)$", "", (record.get("variant") or "").strip())
    batches = [c for c in _BATCH_COLUMNS if (record.get(c) or "").strip()]
    dynamic = (record.get("dynamic_batching") or "").strip().lower()
    if dynamic not in _TRUE | _FALSE:
        raise DataError(
            f"The table {path}, line {line}: dynamic_batching is {dynamic!r}.", hint="Write 0 or 1."
        )
    largest = (record.get("max_batch_size") or "").strip()
    return LoadPoint(
        group="/".join(filter(None, ((record.get("model") or "").strip(), variant))),
        instances=_whole(path, line, record, "instance_count"),
        concurrency=_whole(path, line, record, "concurrency"),
        max_batch_size=_whole(path, line, record, "max_batch_size", least=0) if largest else 1,
        dynamic_batching=dynamic in _TRUE,
        request_batch_size=_whole(path, line, record, batches[0]) if batches else 1,
    )


def _number(path: Path, line: int, record: dict[str, str], column: str) -> float:
    text = (record.get(column) or "").strip()
    try:
        return float(text) if text else float("nan")
    except ValueError as error:
        raise DataError(
            f"The table {path}, line {line}: {column} is {text!r}.", hint="Write a number."
        ) from error


def _whole(path: Path, line: int, record: dict[str, str], column: str, *, least: int = 1) -> int:
    value = _number(path, line, record, column)
    if not (np.isfinite(value) and value == int(value) and value >= least):
        raise DataError(
            f"The table {path}, line {line}: {column} is {record.get(column)!r}.",
            hint=f"Write a whole number, at least {least}.",
        )
    return int(value)
