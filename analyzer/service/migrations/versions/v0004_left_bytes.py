"""How much each job has left, for what a project stores."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.add_column(
        "service_jobs",
        sa.Column("left_bytes", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    )
    op.execute(
        "UPDATE service_jobs SET left_bytes = (SELECT coalesce(sum(size_bytes), 0)"
        " FROM service_artifacts WHERE service_artifacts.job = service_jobs.number)"
    )
    op.create_index("service_jobs_left", "service_jobs", ["project", "left_bytes"])
