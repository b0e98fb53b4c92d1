"""Whether an endpoint can be measured at all: asked once, so that a refusal has the server's own words."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from autotune.errors import Conflict, InvalidRequest, NotFound, Unavailable
from workers.load.endpoint import key_header
from workers.load.prompts import PromptSource
from workers.load.refusal import NoKey
from workers.load.requests_file import OwnRequests
from workers.load.spec import LoadSpec
from workers.load.tls import tls_context

CONNECT_S = 10.0
TOKENS = 4
PROMPT = (101, 757, 211, 349, 877, 523, 619, 433)  # any: what matters is that no measured prompt begins so
_SAID = 300  # characters of a server's own words
_DENIED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)


@contextmanager
def asking(url: str, api_key_env: str | None, ca_file: str | None, timeout_s: float) -> Iterator[httpx.Client]:
    """A plain client of the server. Raises InvalidRequest for a key or authorities that can't be used."""
    try:
        headers = key_header(api_key_env)
        verify: ssl.SSLContext | bool = tls_context(ca_file) if url.startswith("https:") else False
    except NoKey as error:
        raise InvalidRequest(str(error)) from error
    except OSError as error:
        raise InvalidRequest(f"{ca_file} can't be used: {error}") from error
    timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
    with httpx.Client(base_url=url, headers=headers, timeout=timeout, verify=verify, trust_env=False) as client:
        yield client


def served_model(client: httpx.Client, asked: str | None) -> str:
    """The model to measure: the asked one, else the only one that is served.

    Raises Unavailable, Conflict for a server that refuses, and InvalidRequest where a model must be named.
    """
    models = served_models(client)
    if asked is not None:
        return asked
    if not models:
        raise InvalidRequest("the server does not say which models it serves; name one with --model")
    if len(models) > 1:
        raise InvalidRequest(f"several models are served, name one with --model: {', '.join(models)}")
    return models[0]


def served_models(client: httpx.Client) -> tuple[str, ...]:
    """What the server lists; nothing where it has no list. Raises Unavailable and Conflict."""
    with _reachable(client):
        response = client.get("/v1/models")
    _allowed(client, response)
    try:
        return tuple(str(model["id"]) for model in response.json()["data"])
    except (ValueError, KeyError, TypeError):
        return ()


def probe(client: httpx.Client, spec: LoadSpec) -> None:
    """Send one short request as the load will; of requests of a user's own, only their file is read.

    Raises LoadRefused for a load that can't be, Unavailable, NotFound for the model or the path, and Conflict
    for an answer that can't be measured.
    """
    if spec.workload.requests_file is not None:
        OwnRequests(spec, Path(spec.workload.requests_file))
        return
    source = PromptSource(spec)
    with (
        _reachable(client),
        client.stream("POST", source.path, content=source.body(list(PROMPT), TOKENS), headers=_JSON) as response,
    ):
        if response.status_code != httpx.codes.OK:
            response.read()
            _allowed(client, response)
            _refused(client, spec, source.path, response)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise Conflict(
                f"{source.path} answers without a stream ({response.headers.get('content-type', 'no type')})"
            )
        usage = _usage(response)
    if usage is None:
        raise Conflict(
            "the server reports no usage although stream_options.include_usage asks for it: how many tokens it "
            "makes can't be known, and the asked length is never taken in its place"
        )


_JSON = {"content-type": "application/json", "accept": "text/event-stream"}


def _usage(response: httpx.Response) -> dict[str, Any] | None:
    usage = None
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        try:
            event = json.loads(line.removeprefix("data:"))
        except ValueError:  # [DONE]
            continue
        if not isinstance(event, dict):
            continue
        if event.get("error") is not None:
            raise Conflict(f"the server answers with an error: {_said(json.dumps(event['error']))}")
        if isinstance(event.get("usage"), dict):
            usage = event["usage"]
    return usage


@contextmanager
def _reachable(client: httpx.Client) -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise Unavailable(f"{client.base_url} does not answer in time") from error
    except httpx.TransportError as error:
        raise Unavailable(f"{client.base_url} can't be reached: {error}") from error


def _allowed(client: httpx.Client, response: httpx.Response) -> None:
    if response.status_code in _DENIED:
        key = "has another key than that" if "authorization" in client.headers else "wants a key"
        raise Conflict(
            f"{client.base_url} answers {response.status_code}: the server {key}; "
            "--api-key-env names the environment variable that holds it"
        )


def _refused(client: httpx.Client, spec: LoadSpec, path: str, response: httpx.Response) -> None:
    said = _said(response.text)
    if response.status_code == httpx.codes.NOT_FOUND:
        models = served_models(client)
        if models and spec.model not in models:
            raise NotFound(f"the server does not serve {spec.model}; it serves {', '.join(models)} ({said})")
        raise NotFound(f"{client.base_url} has no {path.removeprefix('/')}: {said}")
    raise Conflict(f"the server refuses a request with {response.status_code}: {said}")


def _said(text: str) -> str:
    """A server's own words on one line, without what could steer a terminal."""
    try:
        message = json.loads(text)
        text = message.get("error", message).get("message", text)
    except (ValueError, AttributeError):
        pass
    line = " ".join(str(text).split())
    return "".join(c if c.isprintable() else "?" for c in line)[:_SAID] or "no reason given"
