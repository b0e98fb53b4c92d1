"""Plain clients of the field in one process, as benchmark scripts use them: stamps in user space, JSON as it comes.

Standalone, since it may run in another environment: `python load_client.py httpx|aiohttp URL STREAMS REQUESTS TOKENS`
prints one JSON object: per request when it was sent, its first and its last token (ns, monotonic), and the CPU time.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

Row = dict[str, int]
Send = Callable[[str, dict[str, Any]], Awaitable[Row]]


async def read(lines: AsyncIterator[Any], sent: int) -> Row:
    """Stamps events with text."""
    first = last = tokens = 0
    async for raw in lines:
        line = raw.decode() if isinstance(raw, bytes) else raw
        line = line.strip()
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        now = time.monotonic_ns()
        message = json.loads(line[6:])
        if usage := message.get("usage"):
            tokens = usage["completion_tokens"]
        choices = message["choices"]
        if choices and choices[0]["text"]:
            first = first or now
            last = now
    return {"sent": sent, "first": first, "last": last, "tokens": tokens}


async def with_httpx(url: str, run: Callable[[Send], Awaitable[list[Row]]]) -> list[Row]:
    import httpx

    async with httpx.AsyncClient(timeout=None, trust_env=False) as client:

        async def send(path: str, body: dict[str, Any]) -> Row:
            sent = time.monotonic_ns()
            async with client.stream("POST", url + path, json=body) as response:
                return await read(response.aiter_lines(), sent)

        return await run(send)


async def with_aiohttp(url: str, run: Callable[[Send], Awaitable[list[Row]]]) -> list[Row]:
    import aiohttp  # type: ignore[import-not-found, unused-ignore]

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def send(path: str, body: dict[str, Any]) -> Row:
            sent = time.monotonic_ns()
            async with session.post(url + path, json=body) as response:
                return await read(response.content, sent)

        return await run(send)


async def load(send: Send, streams: int, requests: int, tokens: int) -> list[Row]:
    """A closed loop, after a short request on every stream."""
    body = {"model": "truth", "prompt": [7] * 64, "stream": True, "ignore_eos": True}
    body["stream_options"] = {"include_usage": True}
    await asyncio.gather(*(send("/v1/completions", {**body, "max_tokens": 2}) for _ in range(streams)))
    waiting: Iterator[int] = iter(range(requests))
    rows: list[Row] = []

    async def stream() -> None:
        for _ in waiting:
            rows.append(await send("/v1/completions", {**body, "max_tokens": tokens}))

    await asyncio.gather(*(stream() for _ in range(streams)))
    return rows


def main() -> None:
    kind, url, streams, requests, tokens = sys.argv[1:6]
    clients = {"httpx": with_httpx, "aiohttp": with_aiohttp}
    before = 0.0

    async def run(send: Send) -> list[Row]:
        nonlocal before
        usage = resource.getrusage(resource.RUSAGE_SELF)
        before = usage.ru_utime + usage.ru_stime
        return await load(send, int(streams), int(requests), int(tokens))

    rows = asyncio.run(clients[kind](url, run))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    sys.stdout.write(json.dumps({"rows": rows, "cpu_s": usage.ru_utime + usage.ru_stime - before}))


if __name__ == "__main__":
    main()
