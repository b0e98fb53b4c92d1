"""The api process: REST, event stream and dashboard. Knows neither Ray nor Optuna.

Started as `python -m api.app`; settings come from the environment (`api/settings.py`).
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.staticfiles import StaticFiles

from api import errors, event_stream, health, hosts, pages, spaces, studies, trials
from api.guards import AnswerHeaders, BodyLimit, OwnBrowserOnly
from api.logs import log_to_stderr
from api.metrics import Metrics, RequestCount
from api.parts import Parts
from api.settings import Settings
from api.version import VERSION
from autotune.engine.clock import SystemClock
from autotune.engine.ports import SpaceSource, StudyStore, TemplateSource
from autotune.engine.study_service import StudyService
from autotune.errors import AutotuneError, InvalidRequest
from autotune.storage.sql_store import open_store
from search_spaces.catalog import SpaceCatalog
from workers.host_templates import HostTemplates

GRACE_S = 3  # for requests in flight at the end; event streams end by themselves within a poll
BACKLOG = 128


def create_app(
    settings: Settings,
    service: StudyService,
    store: StudyStore,
    spaces_known: SpaceSource,
    templates_known: TemplateSource,
    close: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The application on given parts; `close` is called when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        close()

    # The framework's pages for trying the API out load scripts from other hosts: they stay off.
    app = FastAPI(title="autotune", version=VERSION, docs_url=None, redoc_url=None, lifespan=lifespan)
    metrics = Metrics(store)
    app.state.parts = Parts(settings, service, store, spaces_known, templates_known, metrics)
    for module in (studies, trials, spaces, hosts, event_stream, health, pages):
        app.include_router(module.router)
    app.mount("/static", StaticFiles(directory=pages.STATIC), name="static")
    errors.install(app, pages.not_found)
    # The last one added sees a request first.
    app.add_middleware(BodyLimit)
    app.add_middleware(OwnBrowserOnly)
    app.add_middleware(AnswerHeaders)
    app.add_middleware(RequestCount, metrics=metrics)
    return app


def build_app(settings: Settings) -> FastAPI:
    """The application on the store, spaces and templates of a data directory.

    Raises Unavailable when the database does not answer, InvalidRequest when its URL cannot be used.
    """
    data = settings.directory.prepare()
    store = open_store(settings.database)
    known_spaces = SpaceCatalog(data.spaces)
    known_templates = HostTemplates(data.templates)
    service = StudyService(store, known_spaces, known_templates, SystemClock())
    return create_app(settings, service, store, known_spaces, known_templates, close=store.close)


class Api(uvicorn.Server):
    """Announces itself in `run/api.json` while it listens, and ends open event streams when it is to stop."""

    def __init__(self, app: FastAPI, settings: Settings, url: str) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                timeout_graceful_shutdown=GRACE_S,
                access_log=False,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
            )
        )
        self._parts = cast(Parts, app.state.parts)
        self._run_file = settings.run_file
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._parts.stopping.set()
        self._run_file.unlink(missing_ok=True)
        await super().shutdown(sockets)

    def _announce(self) -> None:
        draft = self._run_file.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps({"url": self._url, "pid": os.getpid()}), encoding="utf-8")
        draft.replace(self._run_file)


def bind(settings: Settings) -> socket.socket:
    """A listening socket, taken by us so that the port is known before anybody is told where we are.

    Raises InvalidRequest when the port is taken or the address is not this machine's.
    """
    family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InvalidRequest(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    listener.listen(BACKLOG)
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def main() -> None:
    """Serve until SIGTERM or SIGINT. Ends with a sentence when it cannot start."""
    log_to_stderr()
    try:
        settings = Settings()
        with bind(settings) as listener:
            Api(build_app(settings), settings, url_of(listener)).run(sockets=[listener])
    except ValidationError as error:
        reasons = "; ".join(
            f"AUTOTUNE_{'_'.join(map(str, e['loc'])).upper()}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors(include_url=False)
        )
        sys.exit(f"the api cannot start: {reasons}")
    except AutotuneError as error:
        sys.exit(f"the api cannot start: {error.message}")


if __name__ == "__main__":
    main()
