"""What the routes work with: made once by the composition root, handed to every route."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from api.metrics import Metrics
from api.plotly_bundle import PlotlyBundle
from api.settings import Settings
from autotune.engine.ports import SpaceSource, StudyStore, TemplateSource
from autotune.engine.study_service import StudyService


@dataclass(frozen=True)
class Parts:
    """`stopping` is set when the process was asked to end: open event streams end then, too."""

    settings: Settings
    service: StudyService
    store: StudyStore
    spaces: SpaceSource
    templates: TemplateSource
    metrics: Metrics
    plotly: PlotlyBundle = field(default_factory=PlotlyBundle)
    stopping: threading.Event = field(default_factory=threading.Event)


async def _parts(request: Request) -> Parts:
    return cast(Parts, request.app.state.parts)


Given = Annotated[Parts, Depends(_parts)]
