"""Devices: what hosts have, who holds which, which are set aside."""

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "device_lease",
        sa.Column("host", sa.String(200), primary_key=True),
        sa.Column("device", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("uid", sa.String(200), nullable=False),
        sa.Column("since", time, nullable=False),
        sa.Column("idle_mb", sa.Integer(), nullable=True),
        sa.Column("ended_at", time, nullable=True),
    )
    op.create_index("ix_device_lease_uid", "device_lease", ["uid"])
    op.create_table(
        "quarantine",
        sa.Column("host", sa.String(200), primary_key=True),
        sa.Column("device", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", time, nullable=False),
        sa.Column("attempt", sa.String(200), nullable=True),
    )
    op.create_table(
        "host_inventory",
        sa.Column("host", sa.String(200), primary_key=True),
        sa.Column("body", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    for table in ("host_inventory", "quarantine", "device_lease"):
        op.drop_table(table)
