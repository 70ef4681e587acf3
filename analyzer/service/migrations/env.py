"""How Alembic runs the migrations: on the connection that ``service.database`` hands over."""

from alembic import context

from analyzer.service.database import VERSION_TABLE
from analyzer.service.schema import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    # SQLite changes a column only by copying its table.
    render_as_batch=True,
    include_name=lambda name, kind, _: kind != "table" or str(name).startswith("service_"),
)
context.run_migrations()
