"""``/``, ``/jobs``, ``/compare``, ``/workers``: what pages show; their forms are in ``submit``."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response

from analyzer.report.gain_text import edge_text
from analyzer.report.wording import proven_rate
from analyzer.service import jobs, routes_jobs, routes_service
from analyzer.service.context import Context
from analyzer.service.event_stream import PAGE_JOBS
from analyzer.service.pages import access, login, submit
from analyzer.service.pages.configs import config_texts
from analyzer.service.pages.figures import comparison_rows, figures
from analyzer.service.pages.job import JobView, job_view, promise, result_of
from analyzer.service.pages.render import page, static_file
from analyzer.service.pages.told import page_router
from analyzer.service.pages.visitor import AnyVisitor
from analyzer.service.routes_jobs import JobId
from analyzer.service.schema import NUMBER_MAX
from analyzer.service.states import State
from analyzer.service.waiting import phases

_COMPARED_MAX = 6  # columns that fit beside each other
# What is said of a model's claim.
_CLAIMS = {
    "holds": "{} keeps what was claimed",
    "refuted": "{} does not keep what was claimed",
    "undecided": "It is not decided whether {} keeps what was claimed",
}


router = page_router()
# Before the jobs' own addresses: "new" is none of their ids.
router.include_router(submit.router)
router.include_router(access.router)
router.include_router(login.router)


@router.get("/")
def job_list(
    request: Request,
    context: Context,
    visitor: AnyVisitor,
    cursor: Annotated[int | None, Query(ge=1, le=NUMBER_MAX)] = None,
    state: State | Literal[""] | None = None,
    seen: str = "",
) -> Response:
    """The project's jobs, the newest first; the part that changes alone where htmx asks."""
    with context.database.reading() as connection:
        rows = jobs.list_jobs(
            connection,
            visitor.principal.project,
            before=cursor,
            limit=PAGE_JOBS + 1,
            state=state or None,  # "all" is the filter's empty one
        )
        shown = rows[:PAGE_JOBS]
        now = {row.id: phase for row, phase in zip(shown, phases(connection, *shown), strict=True)}
    told = repr([(row.id, row.state, row.events, now[row.id]) for row in shown])
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    renewed = "hx-request" in request.headers
    if renewed and seen == digest:
        return Response(status_code=204)
    return page(
        "jobs_rows.html.j2" if renewed else "jobs.html.j2",
        visitor,
        jobs=shown,
        phases=now,
        state=state,
        states=list(State),
        cursor=cursor,
        next=shown[-1].number if len(rows) > PAGE_JOBS else None,
        seen=digest,
    )


@router.get("/jobs/{job}")
def one_job(job: JobId, context: Context, visitor: AnyVisitor) -> Response:
    """One job: the answer first."""
    with context.database.reading() as connection:
        row = jobs.get_job(connection, visitor.principal.project, job)
        return page("job.html.j2", visitor, **_shown(job_view(connection, context.content, row)))


@router.get("/jobs/{job}/live")
def live(job: JobId, context: Context, visitor: AnyVisitor, seen: int) -> Response:
    """What has changed of a job that runs; nothing if its newest event is the one that was seen."""
    with context.database.reading() as connection:
        row = jobs.get_job(connection, visitor.principal.project, job)
        if row.events == seen:
            return Response(status_code=204)
        view = job_view(connection, context.content, row)
    if view.ended:
        return Response(headers={"HX-Refresh": "true"})
    return page("job_live.html.j2", visitor, **_shown(view))


@router.get("/compare")
def compare(request: Request, context: Context, visitor: AnyVisitor) -> Response:
    """Jobs beside each other."""
    names: list[str] = []
    columns: list[tuple[Any, dict[str, str]]] = []
    with context.database.reading() as connection:
        for item in list(dict.fromkeys(request.query_params.getlist("job")))[:_COMPARED_MAX]:
            row = jobs.get_job(connection, visitor.principal.project, item)
            result = result_of(connection, context.content, row)
            options = {
                f"{name} (asked)": str(text) for name, text in json.loads(row.options).items()
            }
            rows = dict(comparison_rows(result)) | options if result is not None else options
            names += [name for name in rows if name not in names]
            columns.append((row, rows))
    return page("compare.html.j2", visitor, columns=columns, names=names)


@router.get("/stream")
def stream(context: Context, visitor: AnyVisitor) -> Response:
    """Tells when the list of jobs, or who works, has changed."""
    return routes_jobs.event_stream(context, context.hub.follow_project(visitor.principal))


@router.get("/workers")
def workers(request: Request, context: Context, visitor: AnyVisitor) -> Response:
    """The workers, and what they measure now."""
    principal = visitor.principal
    found = routes_service.workers(context, principal).items
    measured = {}
    with context.database.reading() as connection:
        for item in found:
            if item.device.job is not None:
                job = jobs.get_job(connection, principal.project, item.device.job)
                measured[item.device.job] = (job.model_name, job.phase)
    renewed = "hx-request" in request.headers
    return page(
        "workers_rows.html.j2" if renewed else "workers.html.j2",
        visitor,
        workers=found,
        measured=measured,
    )


@router.get("/static/{digest}/{name}")
def static(digest: str, name: str) -> Response:
    """A file that pages load."""
    return static_file(digest, name)


def _shown(view: JobView) -> dict[str, Any]:
    title = _title(view)
    return {
        "view": view,
        "job": view.row,
        "title": title,
        "told": [line for line in view.told if line != f"{title}."],
        # A second click on a button makes no second job: 31 digits and the button's own.
        "key": uuid.uuid4().hex[:31],
        "result": view.result,
        "figures": figures(view.result, view.baseline) if view.result is not None else [],
        "configs": config_texts(view.result) if view.result is not None else None,
    }


def _title(view: JobView) -> str:
    """What a job's page says first."""
    name, result = view.row.model_name, view.result
    if view.row.state == State.FAILED:
        return f"The {view.row.kind} of {name} failed"
    if result is None or view.row.state != State.SUCCEEDED:
        return f"{view.row.kind.capitalize()} of {name}"
    sla, entry = promise(view.options, result), result.recommendation
    kept = sla.requirement
    if result.claim is not None and result.verdict in _CLAIMS:
        claimed = proven_rate(result.claim.rate_rps)
        return f"{_CLAIMS[result.verdict].format(name)}: {claimed}, {kept}"
    if entry is not None and entry.capacity_rps is not None:
        return f"{name} carries {proven_rate(entry.capacity_rps)}, {kept}"
    if entry is not None:
        return f"{name} is estimated to carry {edge_text(entry.edge, bounded=False)}, {kept}"
    if result.verdict == "infeasible" and view.told:
        # Two answers have that verdict: nothing keeps the promise, or nothing allowed was left.
        return view.told[0].removesuffix(".")
    return f"{name}: {result.verdict}"
