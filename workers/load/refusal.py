"""Why a load can't be run: its own fault or its data's, never the server's answers."""

from __future__ import annotations


class LoadRefused(ValueError):
    """A load that can't be run as it was asked for; the message says what to change."""


class TooMuchToHold(LoadRefused):
    """The requests of one level do not fit into memory."""


class PromptsExhausted(LoadRefused):
    """There are not enough different prompts of this length."""


class BadTrace(LoadRefused):
    """A trace file that can't be read or used."""


class BadRequestsFile(LoadRefused):
    """A file of requests that can't be read or used."""


class NoExactText(LoadRefused):
    """The server has no tokenizer to ask, or none of its texts has the length asked for."""


class NotTrusted(LoadRefused):
    """The server's certificate is not one that this host trusts."""


class ShardFailed(LoadRefused):
    """One of the processes of a level ended without its result."""


class NoKey(LoadRefused):
    """The environment does not hold the server's key."""
