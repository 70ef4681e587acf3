"""An index for lists of a project's jobs in one state."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_index("service_jobs_state", "service_jobs", ["project", "state", "number"])
