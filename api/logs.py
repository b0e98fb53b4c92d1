"""One log line a fact, as key=value text on stderr; times in UTC."""

from __future__ import annotations

import sys

import structlog


def log_to_stderr() -> None:
    """Configure structlog for a process of the control plane."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
