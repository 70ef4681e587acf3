"""``/jobs/new`` and what is asked of a job: every form that makes or changes one."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from fastapi import Path, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from analyzer.service import jobs, routes_jobs, uploads
from analyzer.service.context import Context, ServiceContext
from analyzer.service.documents import NewJob
from analyzer.service.names import upload_name
from analyzer.service.pages.multipart import MultipartForm
from analyzer.service.pages.render import page
from analyzer.service.pages.told import go_to, page_router
from analyzer.service.pages.visitor import AForm, AnyVisitor, Visitor
from analyzer.service.problems import Problem, invalid
from analyzer.service.routes_jobs import JobId
from analyzer.service.routes_uploads import store_upload

router = page_router()
#: Whose body holds files.
UPLOAD = "/jobs/new"
_UPLOADS_SHOWN = 30  # that one can choose from; the newest
_KEY = re.compile(r"[0-9a-f]{32}")
#: The options that have a field of their own.
FIELDS = (
    "latency_budget", "percentile", "target_rate", "objective", "budget", "price", "max_memory",
    "max_accuracy_drop", "precisions", "device", "accept", "seed",
)  # fmt: skip
# Fields that a problem's pointer may name.
_MARKED = frozenset({*FIELDS, "model", "calibration_data", "arrivals", "more"})
_POINTERS = {
    "model": "/model", "data": "/options/calibration_data", "trace": "/options/arrivals",
}  # fmt: skip
_FILES = {"model": "model", "data": "calibration", "trace": "scenario"}


@router.get(UPLOAD)
def form(context: Context, visitor: AnyVisitor) -> Response:
    """A model, a promise, go."""
    visitor.principal.require("write")
    return _form(context, visitor, {"key": uuid.uuid4().hex}, None)


@router.post(UPLOAD)
async def submit(request: Request, context: Context, visitor: AnyVisitor) -> Response:
    """Uploads what the form brings, and makes the job."""
    fields: dict[str, str] = {}
    try:
        visitor.principal.require("write")
        await _read(request, context, visitor, fields)
        body = _body(fields)
        return _made(
            await routes_jobs.checked_and_made(context, visitor.principal, _key(fields), body)
        )
    except Problem as problem:
        if problem.code in ("csrf", "scope", "form"):
            raise
        return await run_in_threadpool(_form, context, visitor, fields, problem)


async def _read(
    request: Request, context: ServiceContext, visitor: Visitor, fields: dict[str, str]
) -> None:
    """The form's fields, and of each file that came the id under which it is stored.

    Raises:
        Problem: A file cannot be used, or the form not be read. The first kind is raised when all
            fields are there.
    """
    refused: Problem | None = None
    trusted = False  # the word comes first in our form: nothing is stored for another one
    async for part in MultipartForm(request).parts():
        if part.filename is None:
            fields[part.name] = await part.text()
            if part.name == "csrf":
                visitor.check(fields.pop("csrf"))
                trusted = True
            continue
        if not trusted:
            visitor.check("")
        if part.filename and part.name in _FILES:
            name = upload_name(PurePath(part.filename.replace("\\", "/")).stem)
            try:
                stored = await store_upload(
                    _FILES[part.name], name, part, context, visitor.principal
                )
            except Problem as problem:
                if problem.status != 422:
                    raise
                problem.pointer = _POINTERS[part.name]
                refused = refused or problem
                continue
            fields[part.name] = stored["id"]
    if not trusted:
        visitor.check("")
    if refused is not None:
        raise refused


def _body(fields: Mapping[str, str]) -> NewJob:
    """The search that a form asks for.

    Raises:
        Problem: It cannot be read as one.
    """
    options: dict[str, Any] = {name: fields[name] for name in FIELDS if fields.get(name)}
    if fields.get("data"):
        options["calibration_data"] = fields["data"]
    if fields.get("trace"):
        options["arrivals"] = f"trace:{fields['trace']}"
    for line in fields.get("more", "").splitlines():
        name, separator, value = line.strip().removeprefix("--").partition("=")
        if name and not separator:
            raise invalid(
                f"{line.strip()[:100]!r}: write a further option as name=value.",
                pointer="/options/more",
            )
        name = name.strip().replace("-", "_")
        if name == "input_shape":  # one for each input
            options.setdefault(name, []).append(value.strip())
        elif name in options:
            raise invalid(
                f"The option {name} is given twice: among the further options, and above.",
                pointer="/options/more",
                hint="Leave one of the two out.",
            )
        elif name:
            options[name] = value.strip()
    model = fields.get("model") or fields.get("uploaded")
    if not model:
        raise invalid(
            "A model is missing.",
            hint="Choose an ONNX file or a model directory (tar), or one that is here.",
            pointer="/model",
        )
    try:
        return NewJob(kind="search", model=model, options=options)
    except ValidationError as error:
        raise invalid("The form cannot be read as a job.") from error


def _form(
    context: ServiceContext,
    visitor: Visitor,
    fields: Mapping[str, str],
    problem: Problem | None,
) -> Response:
    with context.database.reading() as connection:
        project = visitor.principal.project
        models = uploads.list_uploads(connection, project, "model")[:_UPLOADS_SHOWN]
    return page(
        "new.html.j2",
        visitor,
        status=problem.status if problem else 200,
        fields=dict(fields) | ({"key": uuid.uuid4().hex} if problem else {}),
        models=models,
        chosen=fields.get("model") or fields.get("uploaded") or "",
        problem=problem,
        here_are=_MARKED,
        limit=context.limits.upload_bytes_max,
    )


@router.post("/jobs/{job}/clone")
def clone(job: JobId, context: Context, form: AForm) -> Response:
    """The same job once more."""
    form.visitor.principal.require("write")
    return _made(routes_jobs.clone(job, context, form.visitor.principal, _key(form.fields)))


@router.post("/jobs/{job}/verify")
def verify(job: JobId, context: Context, form: AForm) -> Response:
    """Measures what a search has certified again."""
    form.visitor.principal.require("write")
    body = NewJob(kind="verify", job=job)
    key = _key(form.fields)
    return _made(routes_jobs.made(context, form.visitor.principal, key, body))


@router.post("/jobs/{job}/continue")
def go_on(job: JobId, context: Context, form: AForm) -> Response:
    """A new job on the same study."""
    visitor = form.visitor
    visitor.principal.require("write")
    with context.database.reading() as connection:
        row = jobs.get_job(connection, visitor.principal.project, job)
    options = {name: value for name, value in json.loads(row.options).items() if name != "study"}
    body = NewJob(kind="search", job=job, options=options)
    return _made(routes_jobs.made(context, visitor.principal, _key(form.fields), body))


@router.post("/jobs/{job}/delete")
def delete(job: JobId, context: Context, form: AForm) -> Response:
    """Removes a job that has ended."""
    form.visitor.principal.require("write")
    routes_jobs.delete(job, context, form.visitor.principal)
    return go_to("/")


@router.post("/jobs/{job}/{change}")
def ask(
    job: JobId,
    change: Annotated[Literal["pause", "resume", "cancel"], Path()],
    context: Context,
    form: AForm,
) -> Response:
    """Pauses, resumes or cancels a job."""
    form.visitor.principal.require("write")
    done = {"pause": routes_jobs.pause, "resume": routes_jobs.resume, "cancel": routes_jobs.cancel}
    done[change](job, context, form.visitor.principal)
    return go_to(f"/jobs/{job}")


def _key(fields: Mapping[str, str]) -> str | None:
    """The ``Idempotency-Key`` of a form, so that a second click makes no second job."""
    return key if _KEY.fullmatch(key := fields.get("key", "")) else None


def _made(response: Any) -> Response:
    """To the page of the job that a creation answered with."""
    return go_to(f"/jobs/{json.loads(response.body)['id']}")
