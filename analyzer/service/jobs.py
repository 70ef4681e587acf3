"""Jobs as rows: made, found, listed, changed by their users, removed.

Each function works in the caller's transaction. What a page needs of jobs is here, too:
:func:`list_jobs`, :func:`get_job`, :func:`trials_of`, :func:`events_after`, :func:`artifact_of`
and :func:`log_of` return rows and plain objects.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from analyzer.service import states
from analyzer.service.content import let_go
from analyzer.service.names import own_study_name
from analyzer.service.problems import conflict, not_found
from analyzer.service.progress import TAIL_MAX
from analyzer.service.schema import ARTIFACTS, EVENTS, JOBS, TRIALS, DatabaseTime
from analyzer.service.states import Change, Lifecycle, State

JobRow = Row[Any]
_FIRST_PHASE = "waiting for a worker"
# What a job that was cancelled has not, whatever its run came to.
_OF_ANSWERS = frozenset({"verdict", "reason", "message", "hint", "failing_trial"})
_LOG_EVENTS = 80  # of the end of a log; each is half a second of it
# The end of a log is three quarters of a job's bytes.
_LISTED = tuple(column for column in JOBS.c if column is not JOBS.c.log_tail)


def create_job(
    connection: Connection,
    *,
    project: str,
    actor: str,
    kind: str,
    model: str,
    model_name: str,
    options: Mapping[str, Any],
    study: str | None,
    source_job: str | None,
    device: str,
) -> JobRow:
    """A new job, queued.

    Args:
        model: The upload's SHA-256.
        options: As the user gave them, already checked.
        study: Its name; None for one made of the model's name and the job's id.
        source_job: Id of the job whose study it goes on with, or verifies.
        device: ``auto``, ``cpu`` or ``gpu``.
    """
    own = uuid.uuid4().hex
    first = Lifecycle()
    number: int = connection.execute(
        insert(JOBS)
        .values(
            id=own,
            project=project,
            kind=kind,
            model=model,
            model_name=model_name,
            options=json.dumps(options),
            study=study or own_study_name(model_name, own),
            source_job=source_job,
            device=device,
            state=first.state,
            attempt=first.attempt,
            losses=first.losses,
            phase=_FIRST_PHASE,
            events=0,
            log_bytes=0,
            created_at=DatabaseTime(),
            created_by=actor,
        )
        .returning(JOBS.c.number)
    ).scalar_one()
    add_events(connection, number, first.attempt, [("state", _state_body(first, actor=actor))])
    return connection.execute(select(JOBS).where(JOBS.c.number == number)).one()


def get_job(connection: Connection, project: str, job: str, *, lock: bool = False) -> JobRow:
    """The job with this id.

    Args:
        lock: Whether to hold its row until the transaction ends.

    Raises:
        Problem: 404: there is none in this project.
    """
    found = find_job(connection, project, job, lock=lock)
    if found is None:
        raise not_found(f"job {job[:64]!r}")
    return found


def find_job(
    connection: Connection, project: str, job: str, *, lock: bool = False
) -> JobRow | None:
    """As :func:`get_job`; None if there is none in this project."""
    query = select(JOBS).where(JOBS.c.id == job, JOBS.c.project == project)
    return connection.execute(query.with_for_update() if lock else query).one_or_none()


def list_jobs(
    connection: Connection,
    project: str,
    *,
    before: int | None = None,
    limit: int = 50,
    state: str | None = None,
    study: str | None = None,
) -> Sequence[JobRow]:
    """Jobs of a project, the newest first, without ``log_tail``.

    Args:
        before: Only jobs with a smaller number (the last one's of the page before).
        state: Only jobs in this state.
        study: Only jobs of the study of that name.
    """
    query = select(*_LISTED).where(JOBS.c.project == project).order_by(JOBS.c.number.desc())
    if before is not None:
        query = query.where(JOBS.c.number < before)
    if state is not None:
        query = query.where(JOBS.c.state == state)
    if study is not None:
        query = query.where(JOBS.c.study == study)
    return connection.execute(query.limit(limit)).all()


def open_jobs(connection: Connection, project: str) -> int:
    """How many jobs of a project have not ended."""
    count = select(func.count()).where(JOBS.c.project == project, JOBS.c.finished_at.is_(None))
    return int(connection.execute(count).scalar_one())


def lifecycle_of(row: JobRow) -> Lifecycle:
    """Where the job is."""
    return Lifecycle(State(row.state), row.attempt, row.losses)


def change_job(
    connection: Connection,
    row: JobRow,
    change: Change,
    *,
    actor: str = "",
    fields: Mapping[str, Any] | None = None,
) -> Lifecycle:
    """Applies ``change`` to a job whose row is locked, with an event that tells it.

    Args:
        actor: Who did it, for the event; empty for the service itself.
        fields: Further columns to set.

    Raises:
        NotAllowed: The job is in no state for it.
    """
    after = states.apply(lifecycle_of(row), change)
    values: dict[str, Any] = {
        "state": after.state,
        "attempt": after.attempt,
        "losses": after.losses,
        **(fields or {}),
    }
    if after.state is State.QUEUED:
        values["phase"] = _FIRST_PHASE
    elif after.state not in states.HELD:
        values.setdefault("phase", after.state.lower())
    if after.state not in states.HELD:
        values |= {"worker": None, "lease_until": None}
    if after.state in states.TERMINAL:
        values["finished_at"] = DatabaseTime()
    if after.state is State.CANCELLED:
        values = {name: value for name, value in values.items() if name not in _OF_ANSWERS}
    if after.state is State.FAILED and change is Change.LOSE:
        values |= {
            "reason": "lost",
            "message": f"Its worker stopped answering {after.losses} times while it ran.",
            "hint": "Look at the workers' logs and memory before it is started again.",
            "log_tail": log_end(connection, row.number, TAIL_MAX),
            "failing_trial": failing_trial(connection, row.number),
        }
    connection.execute(update(JOBS).where(JOBS.c.number == row.number).values(**values))
    body = _state_body(
        after,
        actor=actor,
        reason=values.get("reason"),
        message=values.get("message"),
        verdict=values.get("verdict"),
        worker=row.worker if change is Change.LOSE else None,
    )
    add_events(connection, row.number, after.attempt, [("state", body)])
    return after


def ask(connection: Connection, project: str, job: str, change: Change, *, actor: str) -> JobRow:
    """A user's pause, resume or cancel; what is asked for already is no error.

    Raises:
        Problem: 404: no such job; 409: it is in no state for it.
    """
    row = get_job(connection, project, job, lock=True)
    already = {
        Change.CANCEL: (State.CANCELLING, State.CANCELLED),
        Change.PAUSE: (State.PAUSING, State.PAUSED),
        Change.RESUME: (State.QUEUED, State.RUNNING),
    }[change]
    if row.state not in already:
        try:
            change_job(connection, row, change, actor=actor)
        except states.NotAllowed as error:
            raise conflict(
                "state",
                str(error),
                hint=f"Possible now: {', '.join(sorted(_user_changes(error.state))) or 'nothing'}.",
            ) from error
    return get_job(connection, project, job)


def _user_changes(state: State) -> set[str]:
    return set(states.changes(state) & {Change.PAUSE, Change.RESUME, Change.CANCEL})


def delete_job(connection: Connection, project: str, job: str) -> JobRow:
    """Removes a job that has ended, with all that belongs to it; returns the row it was.

    Raises:
        Problem: 404: no such job; 409: it has not ended, or one that has not goes on with it.
    """
    row = get_job(connection, project, job, lock=True)
    if row.state not in states.TERMINAL:
        raise conflict("state", f"The job is {row.state}.", hint="Cancel it first.")
    needs = select(JOBS.c.id).where(
        JOBS.c.project == project, JOBS.c.source_job == job, JOBS.c.finished_at.is_(None)
    )
    if (using := connection.execute(needs.limit(1)).first()) is not None:
        raise conflict(
            "in_use", f"The job {using.id} needs it.", hint="Wait for its end, or cancel it."
        )
    let_go(connection, select(ARTIFACTS.c.sha256).where(ARTIFACTS.c.job == row.number))
    for table in (EVENTS, TRIALS, ARTIFACTS):
        connection.execute(delete(table).where(table.c.job == row.number))
    connection.execute(delete(JOBS).where(JOBS.c.number == row.number))
    return row


def add_events(
    connection: Connection,
    number: int,
    attempt: int,
    found: Sequence[tuple[str, Mapping[str, Any]]],
) -> int:
    """Appends events (kind, body) to a job's; returns the number of the newest.

    Updating the job's row first makes others wait: numbers are in the order of committing.
    """
    newest: int = connection.execute(
        update(JOBS)
        .where(JOBS.c.number == number)
        .values(events=JOBS.c.events + len(found))
        .returning(JOBS.c.events)
    ).scalar_one()
    first = newest - len(found) + 1
    if found:
        connection.execute(
            insert(EVENTS).values(
                [
                    {
                        "job": number,
                        "number": first + index,
                        "attempt": attempt,
                        "kind": kind,
                        "body": json.dumps(body),
                        "at": DatabaseTime(),
                    }
                    for index, (kind, body) in enumerate(found)
                ]
            )
        )
    return newest


def events_after(
    connection: Connection, number: int, after: int, limit: int = 500
) -> Sequence[Row[Any]]:
    """Events of the job with this number (not id), in order, from behind the one ``after``."""
    return connection.execute(
        select(EVENTS)
        .where(EVENTS.c.job == number, EVENTS.c.number > after)
        .order_by(EVENTS.c.number)
        .limit(limit)
    ).all()


def log_of(connection: Connection, number: int) -> str:
    """What the job's command said on standard error, over all attempts."""
    rows = connection.execute(
        select(EVENTS.c.body)
        .where(EVENTS.c.job == number, EVENTS.c.kind == "log")
        .order_by(EVENTS.c.number)
    )
    return "".join(json.loads(body)["text"] for body in rows.scalars())


def log_end(connection: Connection, number: int, characters: int) -> str:
    """At most so many characters of the log's end."""
    bodies = connection.execute(
        select(EVENTS.c.body)
        .where(EVENTS.c.job == number, EVENTS.c.kind == "log")
        .order_by(EVENTS.c.number.desc())
        .limit(_LOG_EVENTS)
    ).scalars()
    text = "".join(json.loads(body)["text"] for body in reversed(bodies.all()))
    return text[-characters:]


def failing_trial(connection: Connection, number: int) -> str | None:
    """The newest trial that failed, as JSON."""
    bodies = connection.execute(
        select(TRIALS.c.body).where(TRIALS.c.job == number).order_by(TRIALS.c.number.desc())
    ).scalars()
    found: str | None = next((b for b in bodies if json.loads(b)["state"] == "failed"), None)
    return found


def trials_of(connection: Connection, number: int) -> list[dict[str, Any]]:
    """The trials of the job, as :meth:`~analyzer.service.folder.JobFolder.trials` has them."""
    rows = connection.execute(
        select(TRIALS.c.body).where(TRIALS.c.job == number).order_by(TRIALS.c.number)
    )
    return [json.loads(body) for body in rows.scalars()]


def artifact_of(connection: Connection, number: int, name: str) -> Row[Any] | None:
    """The artifact of that name; None if the job has none."""
    return connection.execute(
        select(ARTIFACTS).where(ARTIFACTS.c.job == number, ARTIFACTS.c.name == name)
    ).one_or_none()


def artifact_names(connection: Connection, number: int) -> Sequence[str]:
    """What the job has to fetch."""
    return (
        connection.execute(
            select(ARTIFACTS.c.name).where(ARTIFACTS.c.job == number).order_by(ARTIFACTS.c.name)
        )
        .scalars()
        .all()
    )


def source_of(connection: Connection, project: str, kind: str, job: str) -> JobRow:
    """The job that a new one of ``kind`` goes on with, or verifies.

    Of one that measured nothing the new one begins the study anew, under its name; or it goes on
    with what an earlier job of that study measured.

    Raises:
        Problem: It cannot be used for that.
    """
    row = get_job(connection, project, job)
    if row.kind != "search":
        raise conflict("source", f"The job {job} is no search.", hint="Name a search.")
    if row.state not in states.TERMINAL:
        raise conflict(
            "source",
            f"The job {job} has not ended, it is {row.state}.",
            hint="Wait for its end, or name another job.",
        )
    if kind == "search":
        return _newest_with_study(connection, row) or row
    if artifact_of(connection, row.number, "repository.tar") is None:
        raise conflict("source", f"The job {job} exported nothing.", hint="Name another job.")
    return row


def _newest_with_study(connection: Connection, row: JobRow) -> JobRow | None:
    """The newest ended job of the row's study that has left it: its own, if it measured anything.

    None if no job of that study measured anything.
    """
    return connection.execute(
        select(JOBS)
        .join(ARTIFACTS, ARTIFACTS.c.job == JOBS.c.number)
        .where(
            JOBS.c.project == row.project,
            JOBS.c.study == row.study,
            JOBS.c.finished_at.is_not(None),
            JOBS.c.number <= row.number,
            ARTIFACTS.c.name == "study.db",
        )
        .order_by(JOBS.c.number.desc())
        .limit(1)
    ).first()


def has_study(connection: Connection, project: str, study: str) -> bool:
    """Whether a job of the project has a study of that name."""
    query = select(JOBS.c.id).where(JOBS.c.project == project, JOBS.c.study == study)
    return connection.execute(query.limit(1)).first() is not None


def _state_body(job: Lifecycle, **more: str | None) -> dict[str, Any]:
    return {"state": job.state, "attempt": job.attempt} | {k: v for k, v in more.items() if v}
