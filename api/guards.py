"""What stands before every route: whose browser asks, how large the body is, what the answer must carry."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import answer
from api.security_headers import SECURITY_HEADERS

MAX_BODY = 1_000_000  # bytes; a study file has some thousand
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class AnswerHeaders:
    """Adds the security headers, and keeps answers out of caches unless the route says otherwise."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                # Our scripts change with the product, not with their address: a browser must ask each time.
                headers.setdefault("Cache-Control", "no-cache" if scope["path"].startswith("/static/") else "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)


class OwnBrowserOnly:
    """Refuses foreign names for this machine (DNS rebinding) and changes asked for by other sites' pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not is_own_host(host):
            refusal = answer(400, "BadHost", "the Host header must name this machine: localhost, 127.0.0.1 or [::1]")
            await refusal(scope, receive, send)
            return
        if scope["method"] not in _SAFE and not _is_own_page(headers, host):
            refusal = answer(403, "ForeignOrigin", "a page of another site may not change anything here")
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


class BodyLimit:
    """Reads the body of a request before its route does, and refuses one that is too large."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        refusal = answer(
            413, "BodyTooLarge", f"the body may have at most {MAX_BODY} bytes", headers={"Connection": "close"}
        )
        if not length.isdecimal() or int(length) > MAX_BODY:
            await refusal(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > MAX_BODY:
                await refusal(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replay, send)


def is_own_host(host: str) -> bool:
    """Whether a Host header names this machine by a loopback name or address, with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname
        return name == "localhost" or (name is not None and ipaddress.ip_address(name).is_loopback)
    except ValueError:
        return False


def _is_own_page(headers: Headers, host: str) -> bool:
    """No browser, or a page that we served: its origin is the host that it asks."""
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site", "same-origin")
    return site in {"same-origin", "none"} and (origin is None or origin == f"http://{host}")
