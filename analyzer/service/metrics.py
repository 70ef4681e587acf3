"""What Prometheus scrapes: requests of this process, and jobs and workers of the database.

No name of a project, a model or a user is in it: who reaches ``/metrics`` learns numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from sqlalchemy import func, select

from analyzer.service.event_stream import EventHub
from analyzer.service.schema import JOBS, OBJECTS, WORKERS, DatabaseTime
from analyzer.service.states import State
from analyzer.store.database import Database


class Metrics:
    """The metrics of one process."""

    def __init__(self, database: Database, hub: EventHub) -> None:
        self._database = database
        self._hub = hub
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tritune_service_requests",
            "Requests answered by this process.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "tritune_service_request_seconds",
            "From a request's headers to the end of its answer.",
            ["method", "route"],
            registry=self._registry,
        )
        self._registry.register(self)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Notes a request; ``route`` is its pattern, not its path."""
        # Any word may be sent as a method: each would be a series of its own.
        method = method if method in ("GET", "HEAD", "POST", "DELETE") else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def describe(self) -> list[Metric]:
        """Prometheus's: nothing is asked of the database when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What the database says now."""
        with self._database.reading() as connection:
            states = {
                row.state: row.jobs
                for row in connection.execute(
                    select(JOBS.c.state, func.count().label("jobs")).group_by(JOBS.c.state)
                )
            }
            waiting = connection.execute(
                select(DatabaseTime() - func.min(JOBS.c.created_at)).where(
                    JOBS.c.state == State.QUEUED
                )
            ).scalar_one()
            workers = connection.execute(
                select(func.count()).where(WORKERS.c.lease_until > DatabaseTime())
            ).scalar_one()
            stored = connection.execute(
                select(func.coalesce(func.sum(OBJECTS.c.size_bytes), 0))
            ).scalar_one()
        jobs = GaugeMetricFamily("tritune_service_jobs", "Jobs by state.", labels=["state"])
        for state in State:
            jobs.add_metric([state], states.get(state, 0))
        yield jobs
        for name, what, value in (
            ("queue_age_seconds", "Age of the oldest job that waits.", waiting or 0.0),
            ("workers", "Workers that answer.", workers),
            ("stored_bytes", "Bytes of all stored files.", stored),
            ("event_streams", "Clients that watch events of this process.", self._hub.streams),
        ):
            yield GaugeMetricFamily(f"tritune_service_{name}", what, value=float(value))

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)
