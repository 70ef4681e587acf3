"""The results store: studies, outcomes, raw requests, verifications and cached calibrations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from analyzer.domain.load_test import RequestLog
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.model import ModelInfo
from analyzer.domain.study import StudyResult, StudyStatus, Verification
from analyzer.errors import StoreError
from analyzer.store import codec, rows, schema
from analyzer.store import engine as engines
from analyzer.store.blobs import pack_log, thinned, unpack_log
from analyzer.store.database import Database, no_collection, open_database
from analyzer.store.records import StoredOutcome, StoredResult, StudyRecord, StudySummary, TrialRow
from analyzer.store.unfinished import unfinished

# Names are numbered, and so many commands may race for one; rows are read in parts.
_NAME_ATTEMPTS = 50
_MODEL_IN_NAME = 90  # characters; the command takes names of studies of 100
_READ_CHUNK = 2000


def open_store(
    url: str, *, create: bool = True, busy_timeout_s: float = engines.BUSY_TIMEOUT_S
) -> ResultStore:
    """The store at ``url``, its tables made or upgraded.

    Args:
        create: Whether an absent SQLite file is made; otherwise it is an error.
        busy_timeout_s: How long to wait for another program's lock.

    Raises:
        StoreError: The database cannot be reached, used or written, or is newer than this version.
        MissingPartError: PostgreSQL's driver is not installed.
    """
    return ResultStore(open_database(url, create=create, busy_timeout_s=busy_timeout_s))


class ResultStore:
    """Studies in one database. Each method is one transaction; safe to use from several threads.

    Only the driver of a search writes. Whatever a method returned from is committed: a process that
    is killed later loses nothing.

    Whatever takes the name of a study raises:
        StoreError: There is no such study.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection."""
        self._database.close()

    def at_close(self, call: Callable[[], None]) -> None:
        """Has ``call`` called when the store is closed."""
        self._database.at_close(call)

    @property
    def place(self) -> str:
        """Where the database is, for people: a path, or a URL without its password."""
        return self._database.place

    def url_for_optuna(self) -> str:
        """The URL of the same database for Optuna's ``RDBStorage``, the password included."""
        return self._database.url.render_as_string(hide_password=False)

    def engine_kwargs_for_optuna(self) -> dict[str, Any]:
        """What goes with it, so that Optuna too waits for another study's lock."""
        if self._database.sqlite:
            return {"connect_args": {"timeout": engines.BUSY_TIMEOUT_S}}
        arguments = engines.postgres_arguments(self._database.url)
        return {"pool_pre_ping": True, "connect_args": arguments}

    # --- studies ---------------------------------------------------------------------------------

    def create_study(self, record: StudyRecord) -> StudyRecord:
        """The study as it was stored: named and stamped if it was not yet.

        Raises:
            StoreError: A study of that name exists.
        """
        stamped = replace(record, started_at=record.started_at or _now())
        for _ in range(_NAME_ATTEMPTS):
            name = record.name or self.next_study_name(record.model.name)
            named = replace(stamped, name=name)
            try:
                with self._database.writing() as connection:
                    connection.execute(insert(schema.STUDIES).values(**rows.study_row(named)))
            except IntegrityError as error:
                if record.name:
                    raise StoreError(
                        f"A study named {name!r} exists already in {self.place}.",
                        hint=f"Go on with it (--study {name} --resume), or choose another name.",
                    ) from error
                continue  # another program took the number first
            return named
        raise StoreError(
            f"No free name for a study of {record.model.name!r} in {self.place} after "
            f"{_NAME_ATTEMPTS} attempts.",
            hint="Give one with --study NAME.",
        )

    def next_study_name(self, model_name: str) -> str:
        """``digits-1``, ``digits-2``, …: the number after the highest in use; of a long name the
        beginning."""
        name = schema.STUDIES.c.name
        prefix = f"{model_name[:_MODEL_IN_NAME]}-"
        with self._database.reading() as connection:
            taken = connection.execute(
                select(name).where(name.startswith(prefix, autoescape=True))
            ).scalars()
            tails = [text.removeprefix(prefix) for text in taken]
        numbers = [int(tail) for tail in tails if tail.isascii() and tail.isdigit()]
        return f"{prefix}{max(numbers, default=0) + 1}"

    def study(self, name: str) -> StudyRecord:
        """The study of that name.

        Raises:
            StoreError: There is none.
        """
        with self._database.reading() as connection:
            return self._record(
                connection, schema.STUDIES.c.id == self._database.study_id(connection, name)
            )

    def has_study(self, name: str) -> bool:
        """Whether there is a study of that name."""
        with self._database.reading() as connection:
            found = select(schema.STUDIES.c.id).where(schema.STUDIES.c.name == name)
            return connection.execute(found).first() is not None

    def newest_study(self) -> StudyRecord:
        """The study that was started last.

        Raises:
            StoreError: There is none yet.
        """
        with self._database.reading() as connection:
            newest = select(func.max(schema.STUDIES.c.id)).scalar_subquery()
            return self._record(connection, schema.STUDIES.c.id == newest)

    def list_studies(self, limit: int | None = None) -> list[StudySummary]:
        """Studies, the newest first, at most ``limit``."""
        studies, outcomes = schema.STUDIES.c, schema.OUTCOMES.c
        trials = (
            select(func.count(outcomes.trial_number.distinct()))
            # Those of the baseline and of variants alone have -1.
            .where(outcomes.study_id == studies.id, outcomes.trial_number >= 0)
            .scalar_subquery()
        )
        query = select(
            studies.name, studies.model_name, studies.verdict, trials, studies.started_at,
            studies.status,
        )  # fmt: skip
        with self._database.reading() as connection:
            found = connection.execute(query.order_by(studies.id.desc()).limit(limit)).all()
        return [
            StudySummary(
                name=name, model=model, verdict=verdict, trials=count, started_at=at, status=status
            )
            for name, model, verdict, count, at, status in found
        ]

    def hold_study(self, study: str) -> None:
        """Takes the study for a search of this process, until the store is closed.

        Raises:
            StoreError: Another command searches it now.
        """
        self._database.hold(study)

    def set_status(
        self, study: str, status: StudyStatus, **told: Mapping[str, Any] | ModelInfo
    ) -> None:
        """Says how far it is, and where it goes on, its ``provenance``, ``options``, ``model``."""
        changed = {column: codec.dumps(value) for column, value in told.items()}
        with self._database.writing() as connection:
            study_id = self._database.study_id(connection, study)
            self._update(connection, study_id, status=status, **changed)

    def save_result(self, result: StudyResult) -> None:
        """Stores what a study ended with; a later result replaces it. Its outcomes are there."""
        body = codec.dumps(rows.stored_result(result))
        with self._database.writing() as connection:
            study_id = self._database.study_id(connection, result.name)
            self._update(connection, study_id, status="finished", verdict=result.verdict)
            connection.execute(delete(schema.RESULTS).where(schema.RESULTS.c.study_id == study_id))
            connection.execute(insert(schema.RESULTS).values(study_id=study_id, body=body))

    def load_result(self, name: str | None = None) -> StudyResult:
        """The result of study ``name`` (the newest if None), also of one that did not end.

        Raises:
            StoreError: There is no such study, or a row is damaged.
        """
        record = self.study(name) if name else self.newest_study()
        stored, outcomes = self._stored_result(record.name), self.outcomes(record.name)
        if stored is None or record.status != "finished":
            stored = unfinished(record, outcomes, stored)
        return rows.study_result(record, stored, outcomes, self.verifications(record.name))

    def _stored_result(self, study: str) -> StoredResult | None:
        with self._database.reading() as connection:
            study_id = self._database.study_id(connection, study)
            query = select(schema.RESULTS.c.body).where(schema.RESULTS.c.study_id == study_id)
            body = connection.execute(query).scalar_one_or_none()
        with self._database.readable(f"the result of study {study!r}"):
            return codec.loads(body, StoredResult) if body is not None else None

    def _update(self, connection: Connection, study_id: int, **values: str) -> None:
        row = schema.STUDIES.c.id == study_id
        connection.execute(update(schema.STUDIES).where(row).values(**values))

    # --- outcomes --------------------------------------------------------------------------------

    def add_outcome(
        self,
        study: str,
        trial_number: int,
        params: Mapping[str, Any],
        outcome: Measurement | Failure,
        *,
        role: str = "trial",
        logs: Sequence[RequestLog] = (),
        cost_per_hour: float | None = None,
    ) -> None:
        """Commits one outcome with the raw requests of its load tests, in their order.

        Args:
            trial_number: Optuna's number of the trial; several outcomes may share one.
            logs: Raw requests, the i-th of the i-th load test; of a long one a part is stored
                (:func:`~analyzer.store.blobs.thinned`).

        Raises:
            StoreError: There is no such study, or the database cannot be written; nothing of the
                outcome is then stored, and everything before it is.
        """
        row = rows.outcome_row(outcome, params, cost_per_hour=cost_per_hour)
        packed = [
            {"load_test": index, "requests": len(log), "warmup": log.warmup, "body": pack_log(log)}
            for index, log in enumerate(map(thinned, logs))
        ]
        with self._database.writing() as connection:
            row |= {
                "study_id": self._database.study_id(connection, study),
                "trial_number": trial_number,
                "role": role,
                "created_at": _now(),
            }
            result = connection.execute(insert(schema.OUTCOMES).values(**row))
            if packed and result.inserted_primary_key is not None:
                (outcome_id,) = result.inserted_primary_key
                connection.execute(
                    insert(schema.REQUEST_LOGS),
                    [{**log, "outcome_id": outcome_id} for log in packed],
                )

    def add_outcomes(
        self, study: str, outcomes: Iterable[tuple[int, Mapping[str, Any], Measurement | Failure]]
    ) -> None:
        """Commits many trials (number, parameters, outcome) at once: imports, benches."""
        now = _now()
        with self._database.writing() as connection:
            fixed = {"study_id": self._database.study_id(connection, study), "role": "trial"}
            chunk: list[dict[str, Any]] = []
            for trial_number, params, outcome in outcomes:
                row = rows.outcome_row(outcome, params, cost_per_hour=None)
                chunk.append(row | fixed | {"trial_number": trial_number, "created_at": now})
                if len(chunk) == _READ_CHUNK:
                    connection.execute(insert(schema.OUTCOMES), chunk)
                    chunk = []
            if chunk:
                connection.execute(insert(schema.OUTCOMES), chunk)

    def outcomes(
        self, study: str, *, load_tests_of: Collection[str] | None = None
    ) -> list[StoredOutcome]:
        """Every outcome in the order of storing, equal to what went in.

        Args:
            load_tests_of: The ``config_id`` of the configurations whose load tests are wanted; the
                others come back with ``load_tests=()``. None reads all of them, which takes several
                times as long.

        Raises:
            StoreError: There is no such study, or a row is damaged.
        """
        column = schema.OUTCOMES.c
        load_tests: ColumnElement[bytes | None] = column.load_tests
        if load_tests_of is not None:
            wanted = column.config_id.in_(sorted(load_tests_of))
            load_tests = case((wanted, column.load_tests), else_=literal(None, LargeBinary))
        query = select(
            column.id, column.trial_number, column.role, column.params, column.created_at,
            column.body, load_tests,
        )  # fmt: skip
        found: list[StoredOutcome] = []
        with self._database.reading() as connection, no_collection():
            study_id = self._database.study_id(connection, study)
            result = connection.execute(
                query.where(column.study_id == study_id).order_by(column.id)
            )
            for row in result.yield_per(_READ_CHUNK):
                with self._database.readable(f"outcome {row[0]} of study {study!r}"):
                    found.append(rows.stored_outcome(row))
        return found

    def trial_rows(self, study: str) -> list[TrialRow]:
        """The figures of every outcome in the order of storing; edges and claims as in its result.

        Raises:
            StoreError: There is no such study, or a row is damaged.
        """
        column = schema.OUTCOMES.c
        names = ("id", *TrialRow._fields[1:])
        query = select(*(column[name] for name in names))
        with self._database.reading() as connection, no_collection():
            study_id = self._database.study_id(connection, study)
            result = connection.execute(
                query.where(column.study_id == study_id).order_by(column.id)
            )
            found = list(map(TrialRow._make, result))
        stored = self._stored_result(study)
        if stored is not None:
            found = rows.without_claimed(found, stored.taken_back)
        if stored is None or not stored.speed_factors:
            return found  # edges as they are stored: no object need be built
        outcomes, sla = self.outcomes(study, load_tests_of=()), self.study(study).sla
        return rows.with_stated_edges(found, outcomes, stored, sla)

    def request_logs(
        self, study: str, trial_number: int, *, role: str | None = None
    ) -> list[RequestLog]:
        """Raw requests of a trial's load tests in their order; durations keep seven digits.

        Args:
            role: Only of outcomes in this role; None for all of the trial's.

        Raises:
            StoreError: There is no such study, or a row is damaged.
        """
        log, outcome = schema.REQUEST_LOGS.c, schema.OUTCOMES.c
        query = (
            select(log.id, log.requests, log.warmup, log.body)
            .join(schema.OUTCOMES, outcome.id == log.outcome_id)
            .where(outcome.trial_number == trial_number)
            .order_by(log.outcome_id, log.load_test)
        )
        if role is not None:
            query = query.where(outcome.role == role)
        logs: list[RequestLog] = []
        with self._database.reading() as connection:
            study_id = self._database.study_id(connection, study)
            for row in connection.execute(query.where(outcome.study_id == study_id)):
                with self._database.readable(f"request log {row.id} of study {study!r}"):
                    logs.append(unpack_log(row.body, requests=row.requests, warmup=row.warmup))
        return logs

    # --- verifications and the cache -------------------------------------------------------------

    def add_verification(self, study: str, verification: Verification) -> None:
        """Commits a claim that was measured again."""
        body = codec.dumps(verification)
        with self._database.writing() as connection:
            connection.execute(
                insert(schema.VERIFICATIONS).values(
                    study_id=self._database.study_id(connection, study),
                    verdict=verification.verdict,
                    at=verification.at,
                    body=body,
                )
            )

    def verifications(self, study: str) -> list[Verification]:
        """A study's verifications, the oldest first."""
        column = schema.VERIFICATIONS.c
        with self._database.reading() as connection:
            study_id = self._database.study_id(connection, study)
            query = select(column.body).where(column.study_id == study_id).order_by(column.id)
            bodies = connection.execute(query).scalars().all()
        with self._database.readable(f"a verification of study {study!r}"):
            return [codec.loads(body, Verification) for body in bodies]

    def put_cache(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keeps ``value`` (JSON-ready) under ``kind`` and ``key``; replaces what was there."""
        column = schema.CACHE.c
        body = codec.dumps(dict(value))
        # Two programs that put at once mean the same: whichever comes second may lose.
        with suppress(IntegrityError), self._database.writing() as connection:
            connection.execute(delete(schema.CACHE).where(column.kind == kind, column.key == key))
            connection.execute(insert(schema.CACHE).values(kind=kind, key=key, body=body))

    def get_cache(self, kind: str, key: str) -> dict[str, Any] | None:
        """What is kept under ``kind`` and ``key``; None if nothing is."""
        column = schema.CACHE.c
        with self._database.reading() as connection:
            query = select(column.body).where(column.kind == kind, column.key == key)
            body = connection.execute(query).scalar_one_or_none()
        return None if body is None else codec.loads_plain(body)

    def _record(self, connection: Connection, which: ColumnElement[bool]) -> StudyRecord:
        row = connection.execute(select(schema.STUDIES).where(which)).mappings().one_or_none()
        if row is None:
            raise StoreError(
                f"There are no studies yet in {self.place}.",
                hint="Run a search first (analyze search MODEL --latency-budget DURATION), "
                "or name its database with --store.",
            )
        with self._database.readable(f"study {row['name']!r}"):
            return rows.study_record(dict(row))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
