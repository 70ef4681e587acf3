"""``/api/v1/jobs``: made, listed, watched, changed, fetched."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from sqlalchemy import Connection, Row, select
from starlette.background import BackgroundTask

from analyzer.service import audit, folder, jobs, states
from analyzer.service.auth import Principal
from analyzer.service.context import (
    PROBLEMS,
    Context,
    IdempotencyKey,
    Reader,
    ServiceContext,
    Writer,
)
from analyzer.service.documents import (
    JOB_ID,
    Job,
    JobList,
    NewJob,
    TrialList,
    job_document,
    listed_job,
)
from analyzer.service.idempotency import forget, idempotent, is_answered, request_hash
from analyzer.service.job_checks import (
    check_fit,
    check_goes_on,
    check_shapes_given,
    check_study,
    check_trace,
    check_workers,
)
from analyzer.service.options import JobOptions, check_options
from analyzer.service.problems import Problem, conflict, invalid
from analyzer.service.schema import ARTIFACTS, JOBS, NUMBER_MAX
from analyzer.service.states import TERMINAL, Change, State
from analyzer.service.uploads import check_room, get_upload, lock_project
from analyzer.service.waiting import phases

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=PROBLEMS)

JobId = Annotated[str, Path(pattern=JOB_ID, description="The job's id.")]
_READ_BYTES = 1 << 18  # of a file at a time: a choice
_ARTIFACTS = {
    folder.REPORT: "text/html; charset=utf-8",
    folder.REPOSITORY: "application/x-tar",
    folder.MANIFEST: "application/json",
    folder.STUDY: "application/vnd.sqlite3",
}
ArtifactName = Literal["report.html", "repository.tar", "manifest.json", "study.db"]


@router.post("", status_code=201, response_model=Job)
async def create(
    body: NewJob, context: Context, principal: Writer, idempotency_key: IdempotencyKey = None
) -> JSONResponse:
    """Hands a job in; it waits until a worker takes it."""
    return await checked_and_made(context, principal, idempotency_key, body)


async def checked_and_made(
    context: ServiceContext, principal: Principal, key: str | None, body: NewJob
) -> JSONResponse:
    """A new job, whose files were looked at together.

    Raises:
        Problem: It cannot be made.
    """
    model = await run_in_threadpool(_model_to_fit, context, principal, key, body)
    if model is not None:
        await check_fit(context.inspector, context.content, model, body.options)
    return await run_in_threadpool(made, context, principal, key, body)


def made(
    context: ServiceContext, principal: Principal, key: str | None, body: NewJob
) -> JSONResponse:
    """A new job, whose files are known to go together."""
    request = request_hash("POST /jobs", body.model_dump(mode="json"))
    return _created(context, principal, key, request, body)


def _model_to_fit(
    context: ServiceContext, principal: Principal, key: str | None, body: NewJob
) -> str | None:
    """The model of a search, where it and the data are the project's; else None.

    None as well where the job was made before, under the same key.
    """
    if body.kind != "search":
        return None
    options = check_options(body.kind, body.options, context.limits)
    with context.database.reading() as connection:
        if is_answered(connection, principal.project, key):
            return None
        try:
            source = _source(connection, principal.project, body)
            model = body.model or (source.model if source is not None else None)
            if model is not None:
                get_upload(connection, principal.project, "model", model)
            if options.calibration is not None:
                get_upload(connection, principal.project, "calibration", options.calibration)
        except Problem:
            return None  # which is told where the job is made
    return model


@router.post("/{job}/clone", status_code=201, response_model=Job)
def clone(
    job: JobId, context: Context, principal: Writer, idempotency_key: IdempotencyKey = None
) -> JSONResponse:
    """The same job once more, from the beginning."""
    with context.database.reading() as connection:
        row = jobs.get_job(connection, principal.project, job)
    # From the beginning is another study, where the job did not go on with one.
    options = json.loads(row.options)
    if row.source_job is None:
        options.pop("study", None)
    body = NewJob(kind=row.kind, model=row.model, job=row.source_job, options=options)
    return _created(context, principal, idempotency_key, request_hash(f"clone {job}", None), body)


def _created(
    context: ServiceContext, principal: Principal, key: str | None, request: str, body: NewJob
) -> JSONResponse:
    with idempotent(context.database, principal.project, key, request) as slot:
        if slot.stored is not None:
            status, document = slot.stored
        else:
            options = check_options(body.kind, body.options, context.limits)
            row = _insert(slot.connection, context, principal, body, options)
            shown = phases(slot.connection, row)
            status, document = 201, job_document(row, *shown).model_dump(mode="json")
            audit.note(
                slot.connection, principal.project, principal.actor, "job.create", row.id,
                kind=row.kind, model=row.model, options=body.options,
            )  # fmt: skip
            slot.done(status, document)
    return JSONResponse(
        document, status_code=status, headers={"Location": f"/api/v1/jobs/{document['id']}"}
    )


def _insert(
    connection: Connection,
    context: ServiceContext,
    principal: Principal,
    body: NewJob,
    options: JobOptions,
) -> Row[Any]:
    project = principal.project
    lock_project(connection, project)
    if jobs.open_jobs(connection, project) >= context.limits.open_jobs_max:
        raise Problem(
            429,
            "too_many_jobs",
            f"The project has {context.limits.open_jobs_max} jobs that have not ended.",
            hint="Wait until some end, or cancel them.",
        )
    # How much a job leaves is known at its end alone, and then it is kept.
    check_room(connection, project, 0, context.limits)
    source = _source(connection, project, body)
    model = body.model or (source.model if source is not None else None)
    if model is None:
        raise invalid("Neither a model nor a job is given.", pointer="/model")
    if source is not None and source.model != model:
        raise conflict("source", "The job is about another model.", hint="Leave 'model' out.")
    upload = None
    model_name, device = "", options.device
    if body.kind == "search":  # what is verified is in a repository: its model may be gone
        upload = get_upload(connection, project, "model", model)
        model_name = upload.name
    for kind, named in (("calibration", options.calibration), ("scenario", options.trace)):
        if named is not None:
            found = get_upload(connection, project, kind, named)
            if kind == "scenario":
                check_trace(found, body.options)
    going_on = source if body.kind == "search" else None
    if upload is not None:
        check_shapes_given(upload, body.options)
        check_study(connection, project, options, going_on)
        check_workers(connection, options)
    if going_on is not None:
        check_goes_on(connection, going_on, body.options)
    if source is not None:
        # A study and a repository go on under the name that they have, and where they were made.
        model_name = source.model_name
        device = source.device if device == "auto" else device
    return jobs.create_job(
        connection,
        project=project,
        actor=principal.actor,
        kind=body.kind,
        model=model,
        model_name=model_name,
        options=body.options,
        study=going_on.study if going_on is not None else options.study,
        source_job=source.id if source is not None else None,
        device=device,
    )


def _source(connection: Connection, project: str, body: NewJob) -> Row[Any] | None:
    """The job that the new one is about: named, or for ``verify`` the newest that fits."""
    if body.job is not None:
        return jobs.source_of(connection, project, body.kind, body.job)
    if body.kind != "verify" or body.model is None:
        return None
    get_upload(connection, project, "model", body.model)
    newest = connection.execute(
        select(JOBS)
        .join(ARTIFACTS, ARTIFACTS.c.job == JOBS.c.number)
        .where(
            JOBS.c.project == project,
            JOBS.c.model == body.model,
            JOBS.c.state == State.SUCCEEDED,
            ARTIFACTS.c.name == folder.REPOSITORY,
        )
        .order_by(JOBS.c.number.desc())
        .limit(1)
    ).first()
    if newest is None:
        raise conflict(
            "source",
            "No search of this model has exported a repository yet.",
            hint="Run a search first, or name one as 'job'.",
        )
    return newest


@router.get("", response_model=JobList)
def list_(
    context: Context,
    principal: Reader,
    cursor: Annotated[int | None, Query(ge=1, le=NUMBER_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    state: State | None = None,
    study: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9._-]{1,160}$")] = None,
) -> Response:
    """The project's jobs, the newest first, without the ends of their logs."""
    with context.database.reading() as connection:
        rows = jobs.list_jobs(
            connection, principal.project, before=cursor, limit=limit + 1, state=state, study=study
        )
        page = rows[:limit]
        shown = phases(connection, *page)
    document = JobList(
        items=[listed_job(*found) for found in zip(page, shown, strict=True)],
        next=str(page[-1].number) if len(rows) > limit else None,
    )
    # As it is: FastAPI would check and copy each job once more, which takes longer than the rest.
    return Response(document.model_dump_json(), media_type="application/json")


@router.get("/{job}", response_model=Job)
def get(job: JobId, context: Context, principal: Reader) -> Job:
    """One job."""
    with context.database.reading() as connection:
        row = jobs.get_job(connection, principal.project, job)
        return job_document(row, *phases(connection, row))


@router.delete("/{job}", status_code=204)
def delete(job: JobId, context: Context, principal: Writer) -> Response:
    """Removes a job that has ended, with its trials, log and artifacts."""
    with context.database.writing() as connection:
        jobs.delete_job(connection, principal.project, job)
        forget(connection, principal.project, job)
        audit.note(connection, principal.project, principal.actor, "job.delete", job)
    return Response(status_code=204)


@router.post("/{job}/cancel", response_model=Job)
def cancel(job: JobId, context: Context, principal: Writer) -> Job:
    """Ends a job without a result: at once while it waits, within seconds while it runs."""
    return _ask(context, principal, job, Change.CANCEL)


@router.post("/{job}/pause", response_model=Job)
def pause(job: JobId, context: Context, principal: Writer) -> Job:
    """Stops a job; what it measured is kept, and it goes on there when it is resumed."""
    return _ask(context, principal, job, Change.PAUSE)


@router.post("/{job}/resume", response_model=Job)
def resume(job: JobId, context: Context, principal: Writer) -> Job:
    """Queues a paused job again."""
    return _ask(context, principal, job, Change.RESUME)


def _ask(context: ServiceContext, principal: Principal, job: str, change: Change) -> Job:
    with context.database.writing() as connection:
        row = jobs.ask(connection, principal.project, job, change, actor=principal.actor)
        audit.note(connection, principal.project, principal.actor, f"job.{change}", job)
    return job_document(row)


@router.get("/{job}/trials", response_model=TrialList)
def trials(job: JobId, context: Context, principal: Reader) -> TrialList:
    """What the job has measured so far."""
    with context.database.reading() as connection:
        row = jobs.get_job(connection, principal.project, job)
        return TrialList(trials=jobs.trials_of(connection, row.number))


@router.get(
    "/{job}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Events as they come."},
        204: {"description": "The job has ended, and there is nothing behind that event."},
    },
)
def events(
    job: JobId,
    context: Context,
    principal: Reader,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,18}$")] = None,
    after: Annotated[int, Query(ge=0, lt=10**18)] = 0,
) -> Response:
    """The job's events (state, phase, detail, trial, log), from behind ``Last-Event-ID``.

    ``after`` stands for it where a client cannot send it at first (a browser's ``EventSource``).
    The stream ends with the job, or with the token.
    """
    newest = int(last_event_id or after)
    row = _row(context, principal, job)
    if row.state in states.TERMINAL and row.events <= newest:
        return Response(status_code=204)
    return event_stream(context, context.hub.follow(row.number, newest, principal))


def event_stream(context: ServiceContext, events: AsyncIterator[bytes]) -> Response:
    """Events as a response.

    Raises:
        Problem: 503: there are too many streams.
    """
    if context.hub.full:
        raise Problem(
            503, "too_many_streams", "Too many clients watch events now.",
            hint="Ask for the job itself now and then.", headers={"Retry-After": "10"},
        )  # fmt: skip
    return StreamingResponse(
        events,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.get("/{job}/log", response_class=PlainTextResponse)
def log(job: JobId, context: Context, principal: Reader) -> str:
    """What the job's command said."""
    with context.database.reading() as connection:
        row = jobs.get_job(connection, principal.project, job)
        return jobs.log_of(connection, row.number)


@router.get(
    "/{job}/result",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {"application/json": {"schema": {"type": "object"}}},
            "description": "The result.",
        }
    },
)
def result(job: JobId, context: Context, principal: Reader) -> Response:
    """What ``analyze search --json`` (or ``verify --json``) prints; 409 where there is none yet."""
    return _content(context, principal, job, folder.RESULT, "application/json")


@router.get(
    "/{job}/artifacts/{name}",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {kind.partition(";")[0]: {} for kind in _ARTIFACTS.values()},
            "description": "The file.",
        }
    },
)
def artifact(job: JobId, name: ArtifactName, context: Context, principal: Reader) -> Response:
    """A file that the job has left; 409 where it has left none of that name, or not yet."""
    return _content(context, principal, job, name, _ARTIFACTS[name])


def _content(
    context: ServiceContext, principal: Principal, job: str, name: str, media_type: str
) -> Response:
    with context.database.reading() as connection:
        row = jobs.get_job(connection, principal.project, job)
        found = jobs.artifact_of(connection, row.number, name)
    if found is None:
        # Not 404: who asks with a wrong id has made a mistake, who asks early has not.
        ended = row.state in TERMINAL
        raise conflict(
            "no_artifact",
            f"The job is {row.state} and has left no {name}.",
            hint="" if ended else "Wait for its end.",
        )
    stream = context.content.open(found.sha256)
    return StreamingResponse(
        _pieces(stream),
        media_type=media_type,
        # Also where the client goes before the end, or asks for the headers alone.
        background=BackgroundTask(stream.close),
        headers={
            "Content-Length": str(found.size_bytes),
            "ETag": f'"{found.sha256}"',
            "Content-Disposition": f'attachment; filename="{name}"',
            # A report is made of what users uploaded: a browser must not run it as this site's.
            "Content-Security-Policy": "sandbox allow-scripts",
        },
    )


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while data := stream.read(_READ_BYTES):
            yield data


def _row(context: ServiceContext, principal: Principal, job: str) -> Row[Any]:
    with context.database.reading() as connection:
        return jobs.get_job(connection, principal.project, job)
