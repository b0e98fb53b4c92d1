"""First tables."""

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "study",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("next_number", sa.Integer(), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.Column("finished_at", time, nullable=True),
        sa.Column("finding", sa.Text(), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
    )
    op.create_index("ix_study_state", "study", ["state"])
    op.create_table(
        "study_space",
        sa.Column("study_id", sa.Integer(), sa.ForeignKey("study.id"), primary_key=True, autoincrement=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "trial",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("study_id", sa.Integer(), sa.ForeignKey("study.id"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failure_class", sa.String(32), nullable=True),
        sa.Column("feasible", sa.Boolean(), nullable=True),
        sa.Column("objective", sa.Float(), nullable=True),
        sa.Column("created_at", time, nullable=False),
        sa.Column("started_at", time, nullable=True),
        sa.Column("finished_at", time, nullable=True),
        sa.Column("planned", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.UniqueConstraint("study_id", "number", name="uq_trial_study_number"),
    )
    op.create_index("ix_trial_filter", "trial", ["study_id", "number", "state", "phase", "failure_class", "feasible"])
    op.create_table(
        "attempt",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("trial_id", sa.Integer(), sa.ForeignKey("trial.id"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("uid", sa.String(200), nullable=False, unique=True),
        sa.Column("started_at", time, nullable=False),
        sa.Column("ended_at", time, nullable=True),
        sa.Column("ended", sa.String(16), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.UniqueConstraint("trial_id", "attempt", name="uq_attempt_trial_attempt"),
    )
    op.create_table(
        "event",
        sa.Column("seq", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("at", time, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("study_id", sa.Integer(), sa.ForeignKey("study.id"), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
    )
    counter = op.create_table(
        "event_counter",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
    )
    op.bulk_insert(counter, [{"id": 1, "last_seq": 0}])
    op.create_table(
        "lease",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("until", time, nullable=False),
    )
    op.create_table(
        "idempotency",
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("body_sha256", sa.String(64), nullable=False),
        sa.Column("study_id", sa.Integer(), sa.ForeignKey("study.id"), nullable=False),
        sa.Column("created_at", time, nullable=False),
    )


def downgrade() -> None:
    for table in ("idempotency", "lease", "event_counter", "event", "attempt", "trial", "study_space", "study"):
        op.drop_table(table)
