"""What the service allows a project and a request; the operator sets those of the options."""

from __future__ import annotations

from dataclasses import dataclass

INSPECTION_S = 60.0
"""Seconds in which an upload, or a job's files together, are looked at: reading the largest model
that is allowed takes seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Bounds that the server sets, whatever a client asks for.

    The defaults are choices, wide enough for a team and narrow enough that a mistake (a budget of
    days, a model of a terabyte) is refused.

    Args:
        budget_s_max: Of one job, as its option ``budget``.
        trials_max: Of one job, as its option ``max_trials``.
        workers_max: Load tests at a time of one job, as its option ``workers``.
        upload_bytes_max: Of one file.
        stored_bytes_max: Of all files that a project has uploaded, and that its jobs have left.
        variants_bytes_max: Of one model's variants that are kept from job to job; 0 for none.
        open_jobs_max: Jobs of a project that have not ended.
        memory_bytes_max: Address space of each process of a job; None for no limit.
        file_bytes_max: Of one file that a job writes.
        log_bytes_max: Of one job's log; what comes later is not kept, apart from its end.
        body_bytes_max: Of a request's body that is no upload.
        event_streams_max: Of one process, at a time.
        endpoints: Tritons that jobs may measure (``grpc://HOST:PORT``), in lower case.
        buckets: Places in object stores that jobs may export to, or below (``s3://BUCKET/PATH``).
    """

    budget_s_max: float = 3600.0
    trials_max: int = 10_000
    workers_max: int = 16
    upload_bytes_max: int = 2 << 30
    stored_bytes_max: int = 64 << 30
    variants_bytes_max: int = 8 << 30
    open_jobs_max: int = 1000
    memory_bytes_max: int | None = None
    file_bytes_max: int = 8 << 30
    log_bytes_max: int = 1 << 20
    body_bytes_max: int = 1 << 20
    event_streams_max: int = 500
    endpoints: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()

    def of_processes(self) -> dict[str, int]:
        """Resource limits of a job's processes, by their names in :mod:`resource`."""
        found = {"RLIMIT_FSIZE": self.file_bytes_max, "RLIMIT_CORE": 0}
        if self.memory_bytes_max is not None:
            found["RLIMIT_AS"] = self.memory_bytes_max
        return found
