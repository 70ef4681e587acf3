"""How the twin's errors on a measured table divide into parts: maximum likelihood.

The model is that of the virtual tables, log(measured / predicted) = common bias + a part for each
variant, deployment, batch size of a deployment and configuration, and besides these two parts that
are the measuring's own: drift, correlated over neighbouring rows of the file, and independent
noise, which repeated configurations tell from the rest. Rows more than three robust standard
deviations from the median of their deployment, where the machine stood still, count as three.
Sources: Patterson and Thompson, Recovery of inter-block information (1971), for the likelihood
without the bias; Searle, Casella and McCulloch, Variance Components (1992).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize

from analyzer.domain.configuration import Configuration
from benchlib.search_tables import groups_of, read_rows

Floats = NDArray[np.float64]

PARTS = ("variant", "deployment", "batching", "own")
# Rows after which drift is forgotten to 1/e; 5 and 30 give the same parts.
DRIFT_ROWS = 10.0
_OUTLIER = 3.0
# What twice the log-likelihood may lose at a one-sided limit of 95 %: chi-square of one degree of
# freedom, at 90 %.
_LIMIT_LOSS, _LIMIT_MAX = 2.706 / 2.0, 0.3
# Bounds and start of a standard deviation's logarithm: below 0.2 % a part is nothing.
_RANGE, _START = (math.log(0.002), math.log(1.0)), math.log(0.05)


def estimate(path: Path) -> dict[str, Any]:
    """Standard deviations of the logarithm by part, and what each part adds to the likelihood.

    Where configurations are repeated, also the one-sided upper limit, 95 %, of their own part.
    """
    rows = [row for row in read_rows(path) if float(row["edge_rps"]) > 0]
    configurations = [Configuration.from_dict(json.loads(row["configuration"])) for row in rows]
    errors = np.array([math.log(float(r["edge_rps"]) / float(r["predicted_rps"])) for r in rows])
    keys = [groups_of(configuration) for configuration in configurations]
    errors = _without_outliers(errors, [key["deployment"] for key in keys])
    order = np.arange(len(rows))
    shared = {
        part: np.array([[a[part] == b[part] for b in keys] for a in keys], dtype=np.float64)
        for part in PARTS
    }
    shared["drift"] = np.exp(-np.abs(order[:, None] - order) / DRIFT_ROWS)
    repeated = len({row["config_id"] for row in rows}) < len(rows)
    # Without repetitions noise and the configuration's own part are one.
    parts = [part for part in shared if repeated or part != "own"]
    everything, likelihood = _fit(errors, shared, parts)
    gains = {}
    for part in PARTS:
        if part in parts:
            less = _fit(errors, shared, [other for other in parts if other != part])[1]
            gains[part] = likelihood - less
    own_at_most = None
    if repeated:
        rest = [part for part in parts if part != "own"]

        def above(own: float) -> float:
            fixed = own**2 * shared["own"]
            return likelihood - _LIMIT_LOSS - _fit(errors, shared, rest, fixed=fixed)[1]

        own_at_most = round(brentq(above, everything["own"], _LIMIT_MAX, xtol=1e-3), 3)
    return {
        "rows": len(rows),
        "configurations": len({row["config_id"] for row in rows}),
        "standard_deviation": everything,
        "own_at_most": own_at_most,
        "log_likelihood_gain": gains,
    }


def _without_outliers(errors: Floats, deployments: list[Any]) -> Floats:
    kept = errors.copy()
    for deployment in set(deployments):
        rows = np.array([other == deployment for other in deployments])
        middle = np.median(errors[rows])
        spread = np.median(np.abs(errors[rows] - middle)) / 0.6745
        kept[rows] = np.clip(errors[rows], middle - _OUTLIER * spread, middle + _OUTLIER * spread)
    return kept


def _fit(
    errors: Floats, shared: dict[str, Floats], parts: list[str], *, fixed: Floats | float = 0.0
) -> tuple[dict[str, float], float]:
    """Standard deviations, the noise's too, and the restricted log-likelihood.

    Args:
        fixed: Covariance of what is not estimated.
    """
    count = len(errors)
    ones = np.ones(count)

    def negative(logs: Floats) -> float:
        variances = np.exp(2.0 * logs)
        covariance = sum(
            (variance * shared[part] for variance, part in zip(variances, parts, strict=False)),
            variances[-1] * np.eye(count) + fixed,
        )
        root = np.linalg.cholesky(covariance)
        half = np.linalg.solve(root, np.stack([errors, ones], axis=1))
        precision = half[:, 1] @ half[:, 1]
        rest = half[:, 0] - (half[:, 0] @ half[:, 1]) / precision * half[:, 1]
        return float(0.5 * rest @ rest + np.log(np.diag(root)).sum() + 0.5 * math.log(precision))

    found = minimize(
        negative,
        np.full(len(parts) + 1, _START),
        method="L-BFGS-B",
        bounds=[_RANGE] * (len(parts) + 1),
    )
    named = zip((*parts, "noise"), np.exp(found.x), strict=True)
    return {part: round(float(value), 4) for part, value in named}, -float(found.fun)
