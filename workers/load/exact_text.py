"""Texts of an exact length in tokens, as the server's own tokenizer and chat template count them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx

from workers.load.refusal import NoExactText

PATH = "/tokenize"  # vLLM's
LIMIT_S = 60.0
TRIES = 40
FILLER = " a"  # one token of nearly every vocabulary


class ExactText:
    """Asks the server how many tokens a chat with one message has, until a text has as many as asked."""

    def __init__(self, client: httpx.AsyncClient, base_url: str, model: str) -> None:
        self._client = client
        self._url = base_url + PATH
        self._model = model

    async def of(self, words: Sequence[int], tokens: int) -> str:
        """Words for these numbers, as many as fit, and fillers. Raises NoExactText."""
        texts = list(map(str, words))
        kept, fillers = len(texts), 0
        most, least = kept + 1, 0  # words: so many are too many, so many are not
        for _ in range(TRIES):
            text = " ".join(texts[:kept]) + FILLER * fillers
            found = await self._count(text)
            if found == tokens:
                return text
            missing = tokens - found
            if fillers or (missing > 0 and kept + 1 >= most):
                fillers = max(fillers + missing, 0)
                if fillers == 0:
                    break
                continue
            if missing > 0:
                least = kept
            else:
                most = kept
            # As many words as their mean length tells, but always between what is known.
            guess = kept + int(missing * kept / max(found, 1))
            kept = min(max(guess, least + (missing > 0), 0), most - 1)
        raise NoExactText(
            f"the server's tokenizer finds no text of exactly {tokens} tokens; "
            "raise prompt_tokens, or leave exact_text out"
        )

    async def _count(self, text: str) -> int:
        asked = {"model": self._model, "messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        try:
            async with asyncio.timeout(LIMIT_S):
                response = await self._client.post(self._url, json=asked)
        except (TimeoutError, httpx.TransportError) as error:
            raise NoExactText(f"{self._url} gives no answer: {error}") from error
        if response.status_code != httpx.codes.OK:
            raise NoExactText(
                f"{self._url} answers {response.status_code}: exact_text needs a server that tokenizes; leave it out, "
                "or use token ids"
            )
        try:
            count = response.json()["count"]
        except (ValueError, KeyError, TypeError) as error:
            raise NoExactText(f"{self._url} does not say a count") from error
        if not isinstance(count, int):
            raise NoExactText(f"{self._url} does not say a count")
        return count
