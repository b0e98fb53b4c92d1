"""Wait until a server is ready to be measured, and notice at once when it never will be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from typing import NamedTuple

import httpx

TICK_S = 0.05
_ASK_AGAIN_S = 0.2
_ANSWER_S = 10.0  # a server that compiles graphs may answer late; its death is noticed all the same
_LONGEST_ANSWER = 1024 * 1024
# Servers that share a port by SO_REUSEPORT are reached in turn: one of two is missed once in 65 536 times.
CONNECTIONS = 16


class Readiness(StrEnum):
    """How the waiting ended."""

    READY = "ready"
    DIED = "died"
    SILENT = "silent"  # no new word in the log for the stall limit
    LATE = "late"  # the deadline passed
    FOREIGN = "foreign"  # something answers on the port, but it is not the trial's model


class Answer(NamedTuple):
    """The end of the waiting and a sentence for it."""

    readiness: Readiness
    detail: str


class _Check(NamedTuple):
    ready: bool
    detail: str
    foreign: bool = False


def wait_ready(
    base_url: str,
    model: str,
    health_path: str,
    ready_s: float,
    stall_s: float,
    is_dead: Callable[[], bool],
    log_size: Callable[[], int],
    overdue: Callable[[], str | None] = lambda: None,
    may_be_silent: Callable[[], bool] = lambda: False,
    api_key: str | None = None,
) -> Answer:
    """Until `health_path` answers 200 and `/v1/models` lists `model`, or until there is no more hope.

    `is_dead`, `log_size` and `overdue`, which names a part of the start that takes too long, are called every 50 ms,
    also while a request hangs. A server whose health is good but that serves another model is reported as FOREIGN:
    another trial's server sits on the port. Each question has a connection of its own, and before a server counts
    as ready it is asked over several: a second one that listens on the same port is noticed. The limit on silence
    does not count while the log `may_be_silent`.
    """
    started = time.monotonic()
    size, size_since = log_size(), started
    detail = "not asked yet"
    ask_at = started
    pending: Future[_Check] | None = None
    # The environment's proxies are not for us, and a redirect leads to somebody else's server.
    client = httpx.Client(
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(_ANSWER_S, connect=1.0),
        limits=httpx.Limits(max_keepalive_connections=0),
        headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
    )
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="probe")
    try:
        while True:
            now = time.monotonic()
            if is_dead():
                return Answer(Readiness.DIED, "the server ended before it was ready")
            if pending is not None and pending.done():
                check = pending.result()
                pending, detail = None, check.detail
                if check.ready:
                    return Answer(Readiness.READY, detail)
                if check.foreign:
                    return Answer(Readiness.FOREIGN, detail)
                ask_at = now + _ASK_AGAIN_S
            if pending is None and now >= ask_at:
                pending = pool.submit(_check, client, base_url, model, health_path)
            if (current := log_size()) != size:
                size, size_since = current, now
            if now - started > ready_s:
                return Answer(Readiness.LATE, f"not ready after {ready_s:g} s: {detail}")
            if (late := overdue()) is not None:
                return Answer(Readiness.LATE, f"{late}: {detail}")
            if may_be_silent():
                size_since = now
            if now - size_since > stall_s:
                return Answer(Readiness.SILENT, f"no new line in the log for {stall_s:g} s: {detail}")
            time.sleep(TICK_S)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        # Closed under a question that is still on its way, the client would leave its newest connection open.
        if pending is None:
            client.close()
        else:
            pending.add_done_callback(lambda _: client.close())


def _check(client: httpx.Client, base_url: str, model: str, health_path: str) -> _Check:
    try:
        status, _ = _get(client, base_url + health_path)
        if status != httpx.codes.OK:
            return _Check(False, f"{health_path} answers {status}")
        for _ in range(CONNECTIONS):
            status, body = _get(client, f"{base_url}/v1/models")
            if status != httpx.codes.OK:
                return _Check(False, f"/v1/models answers {status}")
            served = [str(entry["id"]) for entry in json.loads(body)["data"]]
            if model not in served:
                return _Check(False, f"serves {', '.join(served) or 'nothing'} instead of {model}", foreign=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return _Check(False, f"{type(error).__name__}: {error}")
    except (ValueError, KeyError, TypeError):
        return _Check(False, "/v1/models gives no list of models")
    return _Check(True, f"serves {model}")


def _get(client: httpx.Client, url: str) -> tuple[int, bytes]:
    """Status and body, of which at most 1 MB is read."""
    with client.stream("GET", url) as response:
        body = b""
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _LONGEST_ANSWER:
                break
        return response.status_code, body
