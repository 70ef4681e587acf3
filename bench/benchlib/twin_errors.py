"""What ``twin_live.py`` measured beside what the twin says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Backend, Configuration
from analyzer.domain.twin_error import twin_errors
from analyzer.domain.workload import draw_arrivals_s
from analyzer.measure.plan import STREAM_EDGE
from analyzer.report.wording import configuration_label
from analyzer.search.residual import ResidualModel
from analyzer.search.screening import features
from analyzer.stats.percentiles import nearest_rank
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.twin import Twin
from benchlib.subjects import FP32, INT8, SEED, ServedSubject

# Live trials of other configurations that a prediction may have learned from.
LIVE_TRIALS = 3


def compare(subject: ServedSubject, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Predicted against measured, configuration by configuration."""
    # The real Triton here has the python backend alone.
    backend: Backend = "python" if subject.server == "triton" else "onnxruntime"
    calibrations = {
        replace(key, backend=backend): VariantCalibration.from_dict(key, values)
        for key in (FP32, INT8)
        if (values := document["calibrations"].get(key.label))
    }
    twin = subject.twin(calibrations)
    rows = []
    measured = document["measured"]
    for record in measured:
        configuration = replace(Configuration.from_dict(record["configuration"]), backend=backend)
        predicted = twin.edges([configuration])[0]
        edge = record["edge_rps"]
        # Without an upper end the search ran out of time below the edge.
        pinned = bool(edge and record["edge_interval_rps"][1])
        points = []
        for point in record["points"]:
            p99 = _predicted_p99(subject, twin, configuration, point)
            if p99 is None or point["p99_ms"] is None or point["again"]["p99_ms"] is None:
                continue
            points.append(
                {
                    "share": point["share"],
                    "p99_ms": point["p99_ms"],
                    "again_ms": point["again"]["p99_ms"],
                    "predicted_ms": p99,
                    "error": p99 / np.sqrt(point["p99_ms"] * point["again"]["p99_ms"]) - 1,
                    "repeatability": abs(point["again"]["p99_ms"] / point["p99_ms"] - 1),
                }
            )
        rows.append(
            {
                "configuration": configuration_label(configuration),
                "edge_rps": edge,
                "predicted_rps": predicted,
                "edge_pinned": pinned,
                "edge_error": predicted / edge - 1 if predicted and pinned else None,
                "points": points,
            }
        )
    split = twin_errors(
        [
            (row["predicted_rps"], row["edge_rps"], record.get("work_us"))
            for row, record in zip(rows, measured, strict=True)
        ]
    )
    for row, error in zip(rows, split, strict=True):
        told = error is not None and row["edge_pinned"]
        row["model_error"] = error.model if error is not None and told else None
        row["drift"] = error.drift if error is not None and told else None
    coordinates = np.array(
        [features(Configuration.from_dict(r["configuration"])) for r in measured]
    )
    for at, row in enumerate(rows):
        row["calibrated_rps"] = _calibrated(coordinates, rows, at)
        if row["calibrated_rps"] and row["edge_pinned"]:
            row["calibrated_error"] = row["calibrated_rps"] / row["edge_rps"] - 1
    return rows


def _calibrated(points: NDArray[np.float64], rows: list[dict[str, Any]], at: int) -> float | None:
    """The prediction as a search has it that has measured ``LIVE_TRIALS`` other configurations.

    What they teach is the residual that the search learns; the row itself is never among
    them.
    """
    others = [(at + step) % len(rows) for step in range(1, len(rows))]
    others = [i for i in others if rows[i]["edge_error"] is not None][:LIVE_TRIALS]
    if not rows[at]["predicted_rps"] or len(others) < LIVE_TRIALS:
        return None
    model = ResidualModel(points)
    ratios = [np.log(rows[i]["edge_rps"] / rows[i]["predicted_rps"]) for i in others]
    model.learn(np.array(others), np.array(ratios))
    return float(rows[at]["predicted_rps"] * np.exp(model.predict(np.array([at]))[0][0]))


def _predicted_p99(
    subject: ServedSubject, twin: Twin, configuration: Configuration, point: dict[str, Any]
) -> float | None:
    """The twin's p99 on the very arrivals of the run: what differs is the server alone."""
    from analyzer.twin.simulator import OpenWorkload

    candidate = twin.server_model(configuration)
    if candidate is None:
        return None
    rng = np.random.default_rng([SEED, STREAM_EDGE, 0])
    arrivals_s = draw_arrivals_s(
        subject.load.arrivals, rate_rps=point["rate_rps"], count=point["requests"], rng=rng
    )
    workload = OpenWorkload(
        arrival_ns=(arrivals_s * 1e9).astype(np.int64), batch_size=np.array([1])
    )
    # Several draws of the service times' noise; their mean is what the twin expects.
    runs = (candidate.simulate(workload, seed=seed) for seed in range(8))
    found = [nearest_rank(run.latency_ms(), 99.0) for run in runs]
    values = [value for value in found if value is not None]
    return float(np.mean(values)) if values else None


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and 90th percentile of the errors, and how many of p99 keep the goal."""
    edges = [abs(row["edge_error"]) for row in rows if row["edge_error"] is not None]
    calibrated = [abs(row["calibrated_error"]) for row in rows if "calibrated_error" in row]
    models = [abs(row["model_error"]) for row in rows if row["model_error"] is not None]
    drifts = [abs(row["drift"]) for row in rows if row["drift"] is not None]
    points = [point for row in rows for point in row["points"]]
    errors = [abs(point["error"]) for point in points]
    repeat = [point["repeatability"] for point in points]
    limit = max(0.05, 1.5 * float(np.median(repeat))) if repeat else 0.05

    def quantile(values: list[float], share: float) -> float | None:
        return float(np.quantile(values, share)) if values else None

    return {
        "configurations": len(rows),
        "edges_compared": len(edges),
        "edge_error_median": quantile(edges, 0.5),
        "edge_error_p90": quantile(edges, 0.9),
        "edge_model_error_median": quantile(models, 0.5),
        "edge_model_error_p90": quantile(models, 0.9),
        "edge_drift_median": quantile(drifts, 0.5),
        "edge_drift_p90": quantile(drifts, 0.9),
        "edge_error_after_trials_median": quantile(calibrated, 0.5),
        "edge_error_after_trials_p90": quantile(calibrated, 0.9),
        "p99_error_median": quantile(errors, 0.5),
        "p99_error_p90": quantile(errors, 0.9),
        "repeatability_median": quantile(repeat, 0.5),
        "repeatability_p90": quantile(repeat, 0.9),
        "p99_limit": limit,
        "p99_within_limit": float(np.mean([e <= limit for e in errors])) if errors else None,
    }
