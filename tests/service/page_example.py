"""Jobs in every state that a page shows, put into a service's database as a worker would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import insert

from analyzer.service import folder, jobs
from analyzer.service.context import ServiceContext
from analyzer.service.queue import Claim, Device, Queue
from analyzer.service.rows import upsert
from analyzer.service.schema import ARTIFACTS, TRIALS
from analyzer.service.states import Change

DEVICE = Device(id="here/cpu", kind="cpu", host="here", name="2 cores")


def trial(number: int, **fields: Any) -> dict[str, Any]:
    """A trial as a worker stores it."""
    return {
        "number": number, "trial_number": number, "role": "trial", "state": "measured",
        "config_id": f"{number:012x}", "variant": "int8-static", "reason": None, "message": None,
        "edge_rps": 300.0 + 40 * number, "capacity_rps": None, "certificate": None,
        "latency_ms_sla": 8.0 + 5 * number, "memory_bytes_peak": 75_000_000,
    } | fields  # fmt: skip


TRIALS_EXAMPLE = (
    trial(0, role="baseline", variant="fp32", edge_rps=130.0, latency_ms_sla=41.0),
    *(trial(number) for number in range(1, 8)),
    trial(8, latency_ms_sla=None),
    trial(
        9, state="failed", reason="out_of_memory", message="It needed 9 GiB.", edge_rps=None,
        latency_ms_sla=None, memory_bytes_peak=None,
    ),
)  # fmt: skip


class Example:
    """Makes jobs of one project.

    Args:
        worker: Name of the worker that runs them.
    """

    def __init__(
        self, context: ServiceContext, *, project: str = "default", worker: str = "here-1"
    ) -> None:
        self.context = context
        self.project = project
        self.queue = Queue(context.database, worker, DEVICE, lease_s=600)
        self.queue.enrol(pid=1, version="0.1.0", isolation={"network": True})

    def queued(
        self,
        name: str = "digits",
        *,
        actor: str = "ann",
        kind: str = "search",
        source_job: str | None = None,
        **options: Any,
    ) -> str:
        """A job that waits; its id."""
        with self.context.database.writing() as connection:
            row = jobs.create_job(
                connection,
                project=self.project,
                actor=actor,
                kind=kind,
                model="ab" * 32,
                model_name=name,
                options={"latency_budget": "50ms"} | options,
                study=None,
                source_job=source_job,
                device="auto",
            )
        return str(row.id)

    def running(
        self,
        name: str = "digits",
        *,
        trials: Sequence[Mapping[str, Any]] = TRIALS_EXAMPLE,
        log: str = "[  0.0s] inspecting the model (about 2 s)\n",
        phase: str = "measuring",
        **fields: Any,
    ) -> Claim:
        """A job that a worker holds."""
        self.queued(name, **fields)
        claim = self.queue.claim()
        assert claim is not None
        self.queue.say(claim, [("log", {"text": log}), ("phase", {"phase": phase})])
        self.measure(claim, trials)
        return claim

    def measure(self, claim: Claim, trials: Sequence[Mapping[str, Any]]) -> None:
        """Stores trials."""
        with self.queue.writing(claim) as connection:
            for item in trials:
                values = {"job": claim.number, "number": item["number"], "body": json.dumps(item)}
                upsert(connection, TRIALS, values, update=("body",))
        self.queue.say(claim, [("trial", dict(item)) for item in trials])

    def ended(
        self,
        name: str = "digits",
        *,
        result: Mapping[str, Any] | None = None,
        change: Change = Change.SUCCEED,
        ending: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> str:
        """A job that has ended; its id."""
        claim = self.running(name, **fields)
        content = self.context.content
        files = {folder.REPORT: b"<p>report", folder.REPOSITORY: b"tar"} if result else {}
        if result is not None:
            files[folder.RESULT] = json.dumps(result).encode()
        with self.queue.writing(claim) as connection:
            for file, data in files.items():
                with content.incoming() as incoming:
                    incoming.write(data)
                    staged = incoming.finish()
                    content.keep(connection, staged)
                connection.execute(
                    insert(ARTIFACTS).values(
                        job=claim.number,
                        name=file,
                        sha256=staged.sha256,
                        size_bytes=staged.size_bytes,
                    )
                )
            verdict = {"verdict": str(result["verdict"])[:16]} if result else {}
            self.queue.finish(connection, claim, change, verdict | dict(ending or {}))
        return claim.id
