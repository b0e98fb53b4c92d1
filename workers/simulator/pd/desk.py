"""What a prefill server holds for decode: the states of requests by room, until decode has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from workers.simulator.serving.batching import Sequence

WAIT_S = 300.0  # SGLang's own limit for either side to turn up


class StateLost(Exception):
    """There is no state of this room, and there will be none."""


@dataclass(frozen=True, slots=True)
class Handover:
    """Where decode finds a request's state, as the router tells both servers."""

    host: str
    port: int
    room: int


class Desk:
    """All methods belong to one event loop. `release` gives the memory of a held sequence back."""

    def __init__(self, release: Callable[[Sequence], None], wait_s: float = WAIT_S) -> None:
        self._release = release
        self._wait_s = wait_s
        self._rooms: dict[int, asyncio.Future[list[Sequence]]] = {}

    def computed(self, room: int, sequences: list[Sequence]) -> None:
        """The prompts of a room are computed, and are held from now on until `release`, or until nobody came."""
        future = self._room(room)
        if future.done():
            self._give_back(sequences)
            return
        future.set_result(sequences)
        asyncio.get_running_loop().call_later(self._wait_s, self.release, room)

    def lost(self, room: int) -> None:
        """The request of a room has ended without a state."""
        future = self._rooms.pop(room, None)
        if future is not None and not future.done():
            future.set_exception(StateLost(f"room {room} was given up"))
            future.exception()  # nobody need wait for it

    async def state(self, room: int) -> list[Sequence]:
        """The sequences of a room once they are computed. Raises StateLost."""
        future = self._room(room)
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.shield(future)
        except TimeoutError as error:
            raise StateLost(f"nobody prefilled room {room} within {self._wait_s:g} s") from error

    def release(self, room: int) -> None:
        """Decode has everything, or will not come; nothing happens when the room is empty."""
        future = self._rooms.pop(room, None)
        if future is not None and future.done() and not future.cancelled() and future.exception() is None:
            self._give_back(future.result())

    def _room(self, room: int) -> asyncio.Future[list[Sequence]]:
        found = self._rooms.get(room)
        if found is None:
            found = self._rooms[room] = asyncio.get_running_loop().create_future()
        return found

    def _give_back(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._release(sequence)
