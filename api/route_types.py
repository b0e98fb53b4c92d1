"""Types of path and query parameters: what they may be, once for all routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

_MAX_ID = 2**31 - 1  # what every database holds in an integer column

StudyId = Annotated[int, Path(ge=1, le=_MAX_ID, description="The study's number.")]
TrialNumber = Annotated[int, Path(ge=0, le=_MAX_ID, description="The trial's number within its study.")]
Offset = Annotated[int, Query(ge=0, le=_MAX_ID, description="How many to skip.")]
Limit = Annotated[int, Query(ge=1, le=500, description="How many to give at most.")]
