"""The router's process: one request goes to a prefill and to a decode server, and decode's answer to the client.

Both servers get the request with the same room, by which decode finds the state that prefill computed. Decode's
bytes are passed on as they arrive. The router is healthy when every server behind it is.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import uvloop

from workers.simulator.http.connection import Connection, Exchange
from workers.simulator.pd.peer import Peer, PeerLost
from workers.simulator.router.flags import RouterFlags, parse_router_flags
from workers.simulator.router.policy import Policy

HEALTH_S = 0.2  # between two looks at a server that is not healthy yet
WATCH_S = 2.0  # and at one that is
BACKLOG = 2048
JSON = "application/json"
GENERATE = ("/v1/completions", "/v1/chat/completions", "/generate")


class Router:
    """Where a request goes. `say` takes a line of the log."""

    def __init__(self, flags: RouterFlags, say: Callable[[str], None]) -> None:
        """Raises ValueError for an address that is none."""
        self._bootstrap = {Peer(url): port for url, port in flags.prefill}
        self._prefill = list(self._bootstrap)
        self._decode = [Peer(url) for url in flags.decode]
        self._prefill_policy = Policy(flags.prefill_policy, self._prefill)
        self._decode_policy = Policy(flags.decode_policy, self._decode)
        self._healthy: dict[Peer, bool] = dict.fromkeys([*self._prefill, *self._decode], False)
        self._say = say
        self._work: set[asyncio.Task[None]] = set()
        self._rooms = random.SystemRandom()

    def handle(self, exchange: Exchange) -> None:
        """Answer one request in a task of its own, which ends when the client goes."""
        work = asyncio.ensure_future(self._answer(exchange))
        self._work.add(work)
        work.add_done_callback(self._work.discard)

        def gone() -> None:
            work.cancel()

        exchange.on_gone = gone

    async def _answer(self, exchange: Exchange) -> None:
        match exchange.method, exchange.path:
            case "POST", path if path in GENERATE:
                await self._generate(exchange)
            case "GET", "/health" | "/liveness" | "/readiness" | "/health_generate":
                down = [peer.url for peer, healthy in self._healthy.items() if not healthy]
                ready = exchange.path == "/liveness" or not down
                _json(exchange, 200 if ready else 503, {"status": "ok" if ready else "waiting", "unhealthy": down})
            case "GET", "/v1/models" | "/server_info" | "/get_server_info" | "/get_model_info":
                await self._pass(self._decode[0], exchange)
            case "POST" | "GET", "/flush_cache":
                await self._flush(exchange)
            case _:
                _json(exchange, 404, {"detail": "Not Found"})

    async def watch(self, peer: Peer) -> None:
        """Keep an eye on one server, for ever."""
        while True:
            try:
                status, _ = await peer.call("GET", "/health")
                healthy = status == 200
            except PeerLost:
                healthy = False
            if healthy != self._healthy[peer]:
                self._healthy[peer] = healthy
                self._say(f"worker {peer.url} is {'healthy' if healthy else 'not healthy any more'}")
            await asyncio.sleep(WATCH_S if healthy else HEALTH_S)

    @property
    def peers(self) -> Sequence[Peer]:
        return tuple(self._healthy)

    async def _generate(self, exchange: Exchange) -> None:
        prefill, decode = self._prefill_policy.choose(exchange.body), self._decode_policy.choose(exchange.body)
        body = self._with_room(exchange.body, prefill)
        begun = False

        def pass_on(data: bytes) -> None:
            nonlocal begun
            begun = True
            exchange.write(data)

        first = asyncio.ensure_future(prefill.call("POST", exchange.path, body))
        second = asyncio.ensure_future(decode.call("POST", exchange.path, body, pass_on))
        try:
            await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
            if first.done() and not begun:
                status, content = first.result()
                if status != 200:
                    exchange.respond(status, content, JSON)
                    return
            await second
            exchange.end()
        except PeerLost as error:
            self._say(f"request failed: {error}")
            if begun:  # the client sees an answer that breaks off
                exchange.keep_alive = False
                exchange.end()
            else:
                _json(exchange, 502, _error(f"a server of the deployment is lost: {error}"))
        finally:
            for task in (first, second):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)

    def _with_room(self, body: bytes, prefill: Peer) -> bytes:
        """The fields go before the client's own: the body is not parsed. What is no object is refused behind us."""
        rest = body.lstrip()[1:].lstrip()
        if not body.lstrip().startswith(b"{"):
            return body
        fields = {
            "bootstrap_host": prefill.host,
            "bootstrap_port": self._bootstrap[prefill] or prefill.port,
            "bootstrap_room": self._rooms.getrandbits(62),
        }
        comma = b"" if rest.startswith(b"}") else b", "
        return json.dumps(fields).encode()[:-1] + comma + rest

    async def _pass(self, peer: Peer, exchange: Exchange) -> None:
        try:
            status, content = await peer.call(exchange.method, exchange.path, exchange.body)
        except PeerLost as error:
            _json(exchange, 502, _error(str(error)))
        else:
            exchange.respond(status, content, JSON)

    async def _flush(self, exchange: Exchange) -> None:
        """Every server flushes; the first that is busy and does not is the answer."""
        try:
            answers = [await peer.call(exchange.method, exchange.path) for peer in self.peers]
        except PeerLost as error:
            _json(exchange, 502, _error(str(error)))
        else:
            status, content = next((answer for answer in answers if answer[0] != 200), answers[0])
            exchange.respond(status, content)


def _json(exchange: Exchange, status: int, content: object) -> None:
    exchange.respond(status, json.dumps(content).encode(), JSON)


def _error(message: str) -> dict[str, object]:
    return {"error": {"message": message, "type": "BadGateway", "param": None, "code": 502}}


def _say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}  INFO sglang_router: {text}\n")
    sys.stderr.flush()


async def _serve(flags: RouterFlags) -> int:
    try:
        router = Router(flags, _say)
    except ValueError as error:
        sys.stderr.write(f"launch_router.py: error: argument --prefill/--decode: invalid url value: {error}\n")
        return 2
    loop = asyncio.get_running_loop()
    clients: set[Connection] = set()
    try:
        server = await loop.create_server(
            lambda: Connection(router.handle, clients), flags.host, flags.port, backlog=BACKLOG
        )
    except OSError as error:
        sys.stderr.write(f"OSError: [Errno {error.errno}] cannot bind {flags.host}:{flags.port}: {error.strerror}\n")
        return 1
    _say(f"router listens on http://{flags.host}:{flags.port}, waiting for {len(router.peers)} workers")
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    watches = [asyncio.ensure_future(router.watch(peer)) for peer in router.peers]
    await stopped.wait()
    for watch in watches:
        watch.cancel()
    server.close()
    for client in list(clients):
        client.abort()
    for peer in router.peers:
        peer.close()
    return 0


def run_router(argv: Sequence[str]) -> int:
    """Run the router until it is told to stop; returns the exit status."""
    flags = parse_router_flags(argv)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(flags))
