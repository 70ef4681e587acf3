"""Indexes for many jobs: studies by name, files by who needs them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_index("service_jobs_study", "service_jobs", ["project", "study", "number"])
    unfinished = sa.text("finished_at IS NULL")
    op.create_index(
        "service_jobs_unfinished",
        "service_jobs",
        ["project"],
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )
    op.create_index("service_uploads_object", "service_uploads", ["sha256"])
    op.create_index("service_artifacts_object", "service_artifacts", ["sha256"])
