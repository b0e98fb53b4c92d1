"""A small HTTP server that answers as the service does, from a script; and values for its answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from autotune.domain.failure import FailureClass, Phase
from autotune.domain.knobs import KnobValue
from autotune.domain.study import Study, StudySpec, StudyState
from autotune.domain.trial import StudyPhase, Trial, TrialState
from tests import builders
from tests.recipes import recipe

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
PREFIX = "/api/v1"


class FakeApi:
    """Answers by method and path. Several answers to one request come in turn; the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.lists: dict[str, Sequence[Mapping[str, Any]]] = {}
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.page_limit = 500
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.handle(self, "GET")

            def do_POST(self) -> None:
                api.handle(self, "POST")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def says(self, request: str, *answers: Any, status: int = 200) -> None:
        """`says("GET /studies/1", body, ...)`."""
        self.answers[request] = [(status, answer) for answer in answers]

    def refuses(self, request: str, status: int, error: str, detail: str, problems: Sequence[Any] = ()) -> None:
        self.says(request, {"error": error, "detail": detail, "problems": list(problems)}, status=status)

    def handle(self, handler: BaseHTTPRequestHandler, method: str) -> None:
        parts = urlsplit(handler.path)
        path = parts.path.removeprefix(PREFIX)
        query = dict(parse_qsl(parts.query))
        length = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        self.requests.append((f"{method} {path}", query, body))
        status, answer = self._answer(method, path, query)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _answer(self, method: str, path: str, query: Mapping[str, str]) -> tuple[int, Any]:
        if method == "GET" and path in self.lists:
            offset = int(query.get("offset", 0))
            wanted = {k: v for k, v in query.items() if k not in ("offset", "limit")}
            items = [item for item in self.lists[path] if all(str(item.get(k)) == v for k, v in wanted.items())]
            page = items[offset : offset + min(int(query.get("limit", 100)), self.page_limit)]
            return 200, {"items": page, "total": len(items)}
        script = self.answers.get(f"{method} {path}")
        if script is None:
            return 404, {"error": "NotFound", "detail": f"there is no {path}", "problems": []}
        return script.pop(0) if len(script) > 1 else script[0]


@contextmanager
def running(api: FakeApi) -> Iterator[FakeApi]:
    """The server in a thread."""
    thread = threading.Thread(target=api.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield api
    finally:
        api.server.shutdown()
        thread.join()
        api.server.server_close()


# --- values ---------------------------------------------------------------------------------


def study(state: StudyState = StudyState.RUNNING, spec: StudySpec | None = None, **changes: Any) -> Study:
    """Study 3."""
    fields: dict[str, Any] = {
        "id": 3,
        "uid": "abc",
        "spec": spec or builders.study_spec(),
        "state": state,
        "phase": StudyPhase.SEARCH,
        "created_at": NOW,
        "finished_at": NOW if state.is_finished else None,
    }
    return Study(**{**fields, **changes})


def overview(study: Study, best: float | None = None, **counts: int) -> dict[str, Any]:
    """As the service sends it."""
    return {
        "study": study.model_dump(mode="json"),
        "counts": counts,
        "trials_total": sum(counts.values()),
        "baseline_objective": 10.0,
        "best": None if best is None else {"number": 7, "label": "s", "objective": best, "gain_pct": 100 - best * 10},
        "a_key_of_a_newer_server": True,
    }


def trial(number: int = 0, state: TrialState = TrialState.MEASURED, tpot_ms: float = 10.0, **changes: Any) -> Trial:
    """A trial of study 3 that the state fits to."""
    new = builders.new_trial(values=changes.pop("values", None))
    measured = builders.measurement(tpot_ms=tpot_ms, ttft_ms=changes.pop("ttft_ms", 100.0))
    is_measured = state is TrialState.MEASURED
    fields: dict[str, Any] = {
        **{name: getattr(new, name) for name in type(new).model_fields},
        "study_id": 3,
        "number": number,
        "state": state,
        "attempt": 1,
        "measurement": measured if is_measured else None,
        "verdict": builders.verdict(measured) if is_measured else None,
        "failure": builders.failure(exit_code=3, log_tail="a\x1b[31m\nthe end") if state is TrialState.FAILED else None,
        "provenance": builders.provenance() if is_measured else None,
        "durations_s": {"launch": 0.5},
        "created_at": NOW,
    }
    return Trial(**{**fields, **changes})


def changes_of(trial: Trial) -> dict[str, tuple[KnobValue, KnobValue]]:
    return builders.candidate().difference(trial.candidate)


def detail(trial: Trial) -> dict[str, Any]:
    """A trial as the service sends it alone."""
    return {**trial.model_dump(mode="json"), "changes": changes_of(trial)}


def line(trial: Trial) -> dict[str, Any]:
    """A trial as the service sends it in a list."""
    levels = trial.measurement.levels if trial.measurement else {}
    full = trial.model_dump(mode="json")
    failure = full["failure"]
    return {
        **{key: full[key] for key in ("study_id", "number", "state", "phase", "label", "attempt", "created_at")},
        "changes": changes_of(trial),
        "verdict": full["verdict"],
        "failure": failure and {key: failure[key] for key in ("phase", "failure_class", "summary")},
        "failure_class": failure and failure["failure_class"],
        "tpot_ms": {name: level.tpot_ms.mean if level.tpot_ms else None for name, level in levels.items()},
    }


def some_trials() -> list[Trial]:
    """One of each end."""
    crashed = builders.failure(FailureClass.CRASH, Phase.LOAD, "the server ended\x1b[2J while under load")
    return [
        trial(0, label="baseline", phase=StudyPhase.GATE),
        trial(1, tpot_ms=8.0, values={"expansion_mode": "AIV", "buffer_mb": 128}),
        trial(2, ttft_ms=900.0, values={"max_num_seqs": 256}),
        trial(3, TrialState.FAILED, values={"draft_length": 8}),
        trial(4, TrialState.FAILED, failure=crashed),
        trial(5, TrialState.CANCELLED),
    ]


def finished(api: FakeApi, state: StudyState = StudyState.DONE, **changes: Any) -> None:
    """Study 3 has ended; its recipe and trials are there."""
    api.says("GET /studies/3", overview(study(state, **changes), 8.0, measured=4, failed=2))
    api.lists["/studies/3/trials"] = [line(t) for t in some_trials()]
    api.says("GET /studies/3/recipe", recipe().model_dump(mode="json"))
