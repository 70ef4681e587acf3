"""Executions that take other times under load than probes show, for benches in virtual time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.twin.service import ServiceTime

# The spread of log(under load / probed) over configurations, and the tail of execution times.
WRONG_BY = 0.2
TAIL_SHARE, TAIL_FACTOR = 0.01, 3.0
_RESIDUALS = 1000


def under_load(configuration: Configuration, service: ServiceTime) -> ServiceTime:
    """Service times that probes do not show, the same at each call.

    Longer or shorter by a factor for each configuration, and three times as long once in a hundred.
    """
    rng = np.random.default_rng(int(configuration.config_id, 16))
    factor = float(np.exp(rng.normal(0.0, WRONG_BY)))
    residuals = rng.lognormal(0.0, service.cv, _RESIDUALS)
    residuals[: round(TAIL_SHARE * _RESIDUALS)] *= TAIL_FACTOR
    return replace(
        service,
        service_ms=tuple(factor * ms for ms in service.service_ms),
        distribution="empirical",
        cv=0.0,
        residuals=tuple(np.sort(residuals)),
    )
