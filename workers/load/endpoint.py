"""What every process of a load needs to talk to its endpoint: a client over our transport, and the requests."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from workers.load.exact_text import ExactText
from workers.load.prompts import PromptSource
from workers.load.refusal import NoKey
from workers.load.requests import Requests
from workers.load.requests_file import OwnRequests
from workers.load.spec import LoadSpec
from workers.load.transport import RecordingTransport


def client_of(spec: LoadSpec, transport: RecordingTransport) -> httpx.AsyncClient:
    """The environment's proxies would take the place of our transport, and time limits are ours alone.

    Raises LoadRefused where the spec's key is not in the environment.
    """
    return httpx.AsyncClient(
        transport=transport,
        timeout=httpx.Timeout(None),
        trust_env=False,
        headers={
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "content-type": "application/json",
            **key_header(spec.api_key_env),
        },
    )


def key_header(api_key_env: str | None) -> dict[str, str]:
    """Of a server that wants a key; the key itself is in the environment and nowhere else. Raises NoKey."""
    if api_key_env is None:
        return {}
    key = os.environ.get(api_key_env, "").strip()
    if not key:
        raise NoKey(f"{api_key_env} is not set in the environment, or is empty: it is to hold the server's key")
    if not key.isascii() or not key.isprintable():
        raise NoKey(f"{api_key_env} holds characters that no key has")
    return {"authorization": f"Bearer {key}"}


def requests_of(spec: LoadSpec, client: httpx.AsyncClient) -> Requests:
    """What the spec asks to be sent. Raises LoadRefused."""
    if spec.workload.requests_file is not None:
        return OwnRequests(spec, Path(spec.workload.requests_file))
    exact = spec.workload.exact_text and spec.api == "chat"
    return PromptSource(spec, ExactText(client, spec.base_url, spec.model) if exact else None)
