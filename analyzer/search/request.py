"""What a search is asked to do, with every option resolved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import PRECISIONS, DeviceKind
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.domain.space import SearchSpace
from analyzer.domain.study import Acceptance, Pricing
from analyzer.domain.workload import ArrivalProcess, request_batch_sizes
from analyzer.search.samplers import SamplerName


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """One search.

    Args:
        study: Its name in the store.
        precisions: Those that may be recommended, and ``precisions_named`` whether the user named
            them: without real data int8 is recommended only then.
        calibration_path: Real inputs; None for made-up ones.
        budget_s: Wall time of the command, start and exit included, seconds.
        trials_max: Upper limit of measured configurations; None for no limit.
        server: ``embedded``, ``triton`` or an endpoint's URL.
        request_batch_size: Inferences of each request; a trace with sizes of its own has those.
        accept: ``estimated`` lets the best candidate be recommended without a proof.
        seed: Root of every random number.
        inference_s: What one inference took when the model was tried, seconds; 0 if unknown.
    """

    study: str
    model: ModelInfo
    sla: Sla
    space: SearchSpace
    precisions: tuple[str, ...] = PRECISIONS
    precisions_named: bool = False
    calibration_path: Path | None = None
    arrivals: ArrivalProcess
    request_batch_size: int = 1
    budget_s: float = 300.0
    trials_max: int | None = None
    sampler: SamplerName = "twin"
    server: str = "embedded"
    device: DeviceKind = "cpu"
    pricing: Pricing = Pricing()
    accept: Acceptance = "certified"
    seed: int = 0
    inference_s: float = 0.0
    provenance: dict[str, Any]

    @property
    def part(self) -> str:
        """What its trials, engines and samplers are kept under: one part for each instance type."""
        kind = self.space.instance_type
        return f"{self.study}@{kind}" if kind else self.study

    @property
    def batch_sizes(self) -> NDArray[np.int64]:
        """Inferences of the requests, as :func:`request_batch_sizes` without a count."""
        return request_batch_sizes(self.arrivals, self.request_batch_size)

    @property
    def enough_rps(self) -> float | None:
        """The rate of a device beyond which a machine is no cheaper; None without one."""
        enough_rps = self.sla.enough_rps
        return enough_rps and enough_rps / self.pricing.devices_per_machine


class Progress(Protocol):
    """Where a search tells what it is doing."""

    def phase(self, name: str, expected_s: float) -> None:
        """A new phase begins and is expected to take so long."""

    def detail(self, text: str) -> None:
        """What is being done now."""

    def warn(self, text: str) -> None:
        """A sentence that qualifies the result."""


class SilentProgress:
    """Tells nobody."""

    def phase(self, name: str, expected_s: float) -> None:
        pass

    def detail(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass
