"""One database: opened, checked, and used in transactions whose errors are sentences."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

from analyzer.errors import StoreError
from analyzer.store import engine as engines
from analyzer.store import schema
from analyzer.store.holding import hold

_NO_RESULTS_HINT = (
    "Run a search first (analyze search MODEL --latency-budget DURATION), "
    "or name its database with --store."
)
_LOCK_NUMBER = 0x54726974756E65  # any number that no other program is likely to lock


def open_database(url: str, *, create: bool, busy_timeout_s: float) -> Database:
    """The database at ``url``, its tables made or upgraded.

    Raises:
        StoreError: It cannot be reached, used or written, or is newer than this version.
        MissingPartError: PostgreSQL's driver is not installed.
    """
    parsed = engines.parse_url(url)
    database = Database(parsed, engines.make_engine(parsed, busy_timeout_s=busy_timeout_s))
    if database.sqlite:
        engines.check_file(parsed, create=create)
    try:
        database.prepare(create=create)
    except BaseException:
        database.close()
        raise
    return database


class Database:
    """An engine with its URL; safe to use from several threads, and as a context manager."""

    def __init__(self, url: URL, engine: Engine) -> None:
        self.url = url
        self.sqlite = url.get_backend_name() == "sqlite"
        self._engine = engine
        self._held: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """Where it is, for people: a path, or a URL without its password."""
        return engines.safe(self.url)

    def close(self) -> None:
        """Closes every connection, gives up what is held, and calls what :meth:`at_close` got."""
        while self._held:
            self._held.pop()()
        self._engine.dispose()

    def at_close(self, call: Callable[[], None]) -> None:
        """Has ``call`` called when the database is closed."""
        self._held.append(call)

    def hold(self, study: str) -> None:
        """Takes ``study`` for this process until the database is closed, or the process ends.

        Raises:
            StoreError: Another process has it, or its lock cannot be made.
        """
        try:
            with engines.translated(self.url):
                release = hold(self.url, self._engine, study)
        except OSError as error:
            raise StoreError(
                f"Nothing can be written beside {self.place}: {error.strerror or error}.",
                hint="Choose another file with --store.",
            ) from error
        if release is None:
            raise StoreError(
                f"The study {study!r} in {self.place} is being searched by another command.",
                hint="Wait for its end, or stop it; --resume goes on then.",
            )
        self._held.append(release)

    def prepare(self, *, create: bool) -> None:
        """Makes or upgrades our tables; writes nothing where they are current.

        Raises:
            StoreError: They are newer, or absent and ``create`` is false, or the file is another
                program's.
        """
        with engines.translated(self.url):
            with self._engine.connect() as connection:
                found = schema.stored_schema(connection)
            if found == schema.SCHEMA:
                return
            if found is not None:
                schema.check_not_newer(found, self.place)
            else:
                self.refuse_foreign()
                if not create:
                    raise StoreError(
                        f"There are no results yet in the database {self.place}.",
                        hint=_NO_RESULTS_HINT,
                    )
            if self.sqlite:
                engines.enable_wal(self._engine)
            with self.writing() as connection:
                if not self.sqlite:
                    # Two programs that start at once must not both make the tables.
                    connection.execute(select(func.pg_advisory_xact_lock(_LOCK_NUMBER)))
                schema.prepare(connection, self.place)

    def refuse_foreign(self) -> None:
        """Raises StoreError where the SQLite file belongs to another program."""
        if not self.sqlite:
            return  # a server's database may well be shared
        with self._engine.connect() as connection:
            others = schema.foreign_tables(connection)
        if others:
            shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise StoreError(
                f"The database {self.place} belongs to another program: it has tables ({shown}), "
                "and none of ours.",
                hint="Choose another file with --store; this one was left as it is.",
            )

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads.

        Raises:
            StoreError: The database cannot be read.
        """
        with engines.translated(self.url), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed at the end, or leaves nothing behind.

        Raises:
            StoreError: The database cannot be written.
            IntegrityError: A uniqueness rule is broken; the caller knows what it means.
        """
        broken: IntegrityError | None = None
        with engines.translated(self.url):
            try:
                with (
                    self._engine.connect().execution_options(writes=True) as connection,
                    connection.begin(),
                ):
                    yield connection
            except IntegrityError as error:
                broken = error
        if broken is not None:
            raise broken

    @contextmanager
    def readable(self, what: str) -> Iterator[None]:
        """Turns what a decoder says of a damaged row into StoreError; ``what`` names the row."""
        try:
            yield
        except ValueError as error:
            raise StoreError(
                f"The results database {self.place}: {what} cannot be read: {error}.",
                hint="It is damaged, or was written by another version of tritune.",
            ) from error

    def study_id(self, connection: Connection, name: str) -> int:
        """The key of the study of that name.

        Raises:
            StoreError: There is none; the hint names the newest that are there.
        """
        column = schema.STUDIES.c
        found: int | None = connection.execute(
            select(column.id).where(column.name == name)
        ).scalar_one_or_none()
        if found is not None:
            return found
        newest = connection.execute(select(column.name).order_by(column.id.desc()).limit(5))
        names = ", ".join(newest.scalars()) or "none yet"
        raise StoreError(
            f"There is no study named {name!r} in {self.place}.",
            hint=f"Studies there, the newest first: {names}.",
        )


@contextmanager
def no_collection() -> Iterator[None]:
    """Pauses the garbage collector: all that is read is kept, and it would look at it for ever."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
