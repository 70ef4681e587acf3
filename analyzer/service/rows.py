"""What every module does with rows: insert or update by key, in both kinds of database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def upsert(
    connection: Connection, table: Table, values: Mapping[str, Any], *, update: tuple[str, ...] = ()
) -> bool:
    """Inserts a row, or sets the columns ``update`` of the one with the same primary key.

    Returns:
        Whether a row was written; False where one was there already and nothing is updated.
    """
    kind = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = kind(table).values(**values)
    keys = [column.name for column in table.primary_key.columns]
    if update:
        statement = statement.on_conflict_do_update(
            index_elements=keys, set_={name: statement.excluded[name] for name in update}
        )
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    done = connection.execute(statement.returning(table.c[keys[0]]))
    return done.first() is not None
