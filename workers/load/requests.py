"""What a level sends: conversations of one turn or several, from random prompts or from a user's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"


class Conversation(Protocol):
    """Requests that follow each other on one stream, each as soon as the one before has been answered."""

    @property
    def path(self) -> str:
        """Where they go, below the base URL."""

    def body(self, turn: int, answers: Sequence[str], /) -> bytes:
        """The encoded request of a turn; `answers` are the texts of those before it."""

    def asked(self, turn: int, /) -> int | None:
        """The most tokens that this turn allows; None where the request does not say."""


class Requests(Protocol):
    """All requests of a run. The same level and number give the same conversation in every process."""

    continuous: bool
    """Whether bodies ask for the running usage with every event."""

    def turns(self, level: str, number: int, /) -> int:
        """How many requests a conversation has."""

    async def conversation(self, level: str, number: int) -> Conversation:
        """One conversation of a level, numbered from 0."""

    def primings(self) -> list[tuple[str, bytes]]:
        """Requests for one token that leave every shared prefix in the server's cache: path and body."""


@dataclass(frozen=True, slots=True)
class OneRequest:
    """A conversation of one turn."""

    path: str
    encoded: bytes
    most_tokens: int | None

    def body(self, _turn: int, _answers: Sequence[str]) -> bytes:
        return self.encoded

    def asked(self, _turn: int) -> int | None:
        return self.most_tokens
