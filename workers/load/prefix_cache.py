"""The server's prefix cache before a level: emptied where the server can do that, so that no level depends on
what an earlier one left.

A server without such an endpoint keeps what it has. That is no other level's prompts but the prefix that all
share, and space that their blocks take.
"""

from __future__ import annotations

import asyncio

import httpx

# vLLM's path (served in its development mode only), then SGLang's.
RESET_PATHS = ("/reset_prefix_cache", "/flush_cache")
UNKNOWN = frozenset({404, 405, 501})
# SGLang refuses while it holds a request, which may be a moment longer than its answer took.
TRIES = 5
PAUSE_S = 0.2
LIMIT_S = 10.0


async def reset_prefix_cache(client: httpx.AsyncClient, base_url: str) -> str | None:
    """Ask the server to forget its prefix cache; the path that did it, None where none is known or it failed."""
    for path in RESET_PATHS:
        for _ in range(TRIES):
            try:
                async with asyncio.timeout(LIMIT_S):
                    status = (await client.post(base_url + path)).status_code
            except (TimeoutError, httpx.TransportError):
                return None  # a dead server shows in every request that follows
            if status < 300:
                return path
            if status in UNKNOWN:
                break
            await asyncio.sleep(PAUSE_S)
    return None
