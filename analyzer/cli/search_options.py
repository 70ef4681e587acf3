"""The options of ``analyze search``, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.buckets.location import Location
from analyzer.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The command's options as click parsed them; names as in ``cli.search``."""

    model: Path | Location | None
    latency_budget: float
    percentile: float
    confidence: float
    target_rate: float | None
    objective: Any
    max_memory: int | None
    max_accuracy_drop: float
    precisions: tuple[str, ...] | None
    calibration_data: Path | None
    input_shapes: dict[str, tuple[int, ...]]
    space: str | None
    arrivals: str
    request_batch_size: int
    budget: float
    accept: Any
    max_trials: int | None
    sampler: Any
    server: str
    device: str
    workers: int | None
    ray_address: str | None
    instance_type: str | None
    instance_types: tuple[str, ...]
    price: float | None
    prices_file: Path | None
    store_url: str
    study: str | None
    resume: bool
    export_dir: Path | Location | None
    force: bool
    report_file: Path | None
    seed: int
    seed_given: bool
    executor: str
    as_json: bool
    verbose: bool
    quiet: bool
    started: float
    command: str

    @property
    def measures_here(self) -> bool:
        """Whether this machine is what is measured: no cluster's, and no server elsewhere."""
        return self.ray_address is None and "://" not in self.server

    def workers_at_once(self) -> int | None:
        """How many load tests may run at a time; None for one on each device.

        Raises:
            UsageError: More than one is asked for, on a server that runs already.
        """
        if "://" not in self.server:
            return self.workers
        if self.workers not in (None, 1):
            raise UsageError(
                f"--workers {self.workers}: --server {self.server} is one server, and takes one "
                "load test at a time: another would disturb what is measured.",
                hint="Leave --workers out, or let each worker start a server of its own (--server "
                "embedded or triton).",
            )
        return 1
