"""``/api/v1/workers``, and what stands outside the prefix: health and readiness."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from sqlalchemy import select

from analyzer.service.context import PROBLEMS, Context, Reader
from analyzer.service.documents import Device, WorkerDocument, WorkerList, stamp
from analyzer.service.metrics import Metrics
from analyzer.service.schema import DEVICES, JOBS, WORKERS, DatabaseTime

router = APIRouter(responses=PROBLEMS)
outside = APIRouter()


@router.get("/workers", response_model=WorkerList, tags=["workers"])
def workers(context: Context, principal: Reader) -> WorkerList:
    """The workers, and what each measures now; a job of another project is not named."""
    with context.database.reading() as connection:
        now: float = connection.execute(select(DatabaseTime())).scalar_one()
        rows = connection.execute(
            select(
                WORKERS,
                DEVICES,
                JOBS.c.id.label("job_id"),
                JOBS.c.project,
                JOBS.c.worker.label("measuring"),
            )
            .join(DEVICES, DEVICES.c.id == WORKERS.c.device)
            .outerjoin(JOBS, JOBS.c.number == DEVICES.c.job)
            .order_by(WORKERS.c.started_at)
        ).mappings()
        return WorkerList(
            items=[
                WorkerDocument(
                    id=row[WORKERS.c.id],
                    host=row[WORKERS.c.host],
                    pid=row[WORKERS.c.pid],
                    version=row[WORKERS.c.version],
                    device=Device(
                        id=row[DEVICES.c.id],
                        kind=row[DEVICES.c.kind],
                        host=row[DEVICES.c.host],
                        name=row[DEVICES.c.name],
                        job=row["job_id"]
                        if row[JOBS.c.project] == principal.project
                        and row["measuring"] == row[WORKERS.c.id]
                        else None,
                    ),
                    isolation=json.loads(row[WORKERS.c.isolation]),
                    alive=row[WORKERS.c.lease_until] > now,
                    started_at=stamp(row[WORKERS.c.started_at]),
                    seen_at=stamp(row[WORKERS.c.seen_at]),
                )
                for row in rows
            ]
        )


@outside.get("/healthz", response_class=PlainTextResponse, tags=["service"])
async def healthz() -> str:
    """This process answers, whatever its database does."""
    return "ok\n"


@outside.get("/readyz", tags=["service"], responses={503: PROBLEMS[503]})
def readyz(context: Context) -> Response:
    """This process reaches its database."""
    with context.database.reading() as connection:
        connection.execute(select(DatabaseTime()))
    return JSONResponse({"ready": True})


@outside.get("/metrics", response_class=PlainTextResponse, tags=["service"])
def metrics(request: Request) -> Response:
    """For Prometheus."""
    found: Metrics = request.app.state.metrics
    return Response(found.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
