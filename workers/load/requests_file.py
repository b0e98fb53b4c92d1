"""A user's own requests: JSON lines with the fields of chat or completion requests.

A line with `turns` is a conversation: each turn is a list of messages that follow the answer to the turn before it, or,
where it begins with an assistant's message, that one in place of the answer. Which model, and how it streams, is ours
to say.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.domain.workload import MAX_REQUESTS
from workers.load.refusal import BadRequestsFile
from workers.load.requests import CHAT_PATH, COMPLETIONS_PATH
from workers.load.spec import LoadSpec

OURS = frozenset({"model", "stream", "stream_options"})
CONTENT = ("messages", "turns", "prompt")
ALLOWED = frozenset(
    {
        *CONTENT,
        "chat_template_kwargs",
        "frequency_penalty",
        "ignore_eos",
        "max_completion_tokens",
        "max_tokens",
        "min_p",
        "min_tokens",
        "parallel_tool_calls",
        "presence_penalty",
        "reasoning_effort",
        "repetition_penalty",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)

Messages = list[dict[str, Any]]


class OwnRequests:
    """The requests of a file, in its order and from its beginning again where it has too few.

    What comes again may be found in the server's cache, as the uncached tokens of the measurement tell. The warm-up
    begins with the last lines. Raises BadRequestsFile with the line that is wrong.
    """

    def __init__(self, spec: LoadSpec, path: Path) -> None:
        self._lines = _read(path)
        self._spec = spec
        self._levels = {level.name for level in spec.workload.levels}
        self.continuous = False

    def turns(self, level: str, number: int) -> int:
        return len(self._line(level, number).get("turns", ("",)))

    async def conversation(self, level: str, number: int) -> OwnConversation:
        line = self._line(level, number)
        fields = {key: value for key, value in line.items() if key not in OURS and key != "turns"}
        if "max_tokens" not in fields and "max_completion_tokens" not in fields:
            fields["max_tokens"] = self._spec.workload.output_tokens
        usage = {"include_usage": True, **({"continuous_usage_stats": True} if self.continuous else {})}
        common = {**fields, "model": self._spec.model, "stream": True, "stream_options": usage}
        return OwnConversation(common, tuple(line.get("turns", ())))

    def primings(self) -> list[tuple[str, bytes]]:
        return []

    def _line(self, level: str, number: int) -> dict[str, Any]:
        return self._lines[(number if level in self._levels else -1 - number) % len(self._lines)]


@dataclass(frozen=True, slots=True)
class OwnConversation:
    """One line."""

    common: dict[str, Any]
    turns: tuple[Messages, ...]

    @property
    def path(self) -> str:
        return COMPLETIONS_PATH if "prompt" in self.common else CHAT_PATH

    def body(self, turn: int, answers: Sequence[str]) -> bytes:
        if not self.turns:
            return json.dumps(self.common).encode()
        messages: Messages = []
        for number, added in enumerate(self.turns[: turn + 1]):
            if number > 0 and added[0].get("role") != "assistant":
                messages.append({"role": "assistant", "content": answers[number - 1]})
            messages += added
        return json.dumps({**self.common, "messages": messages}).encode()

    def asked(self, _turn: int) -> int | None:
        most = self.common.get("max_tokens", self.common.get("max_completion_tokens"))
        return most if isinstance(most, int) else None


@functools.lru_cache(maxsize=2)
def _read(path: Path) -> tuple[dict[str, Any], ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestsFile(f"requests_file {path} can't be read: {error}") from error
    found: list[dict[str, Any]] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise BadRequestsFile(f"requests_file {path}, line {number}: is no JSON: {error}") from error
        problem = _problem(line)
        if problem is not None:
            raise BadRequestsFile(f"requests_file {path}, line {number}: {problem}")
        found.append(line)
    if not found:
        raise BadRequestsFile(f"requests_file {path} has no lines")
    if len(found) > MAX_REQUESTS:
        raise BadRequestsFile(f"requests_file {path} has more than {MAX_REQUESTS} lines; split it")
    return tuple(found)


def _problem(line: Any) -> str | None:
    if not isinstance(line, dict):
        return "must be an object with the fields of a request"
    unknown = sorted(set(line) - ALLOWED - OURS)
    if unknown:
        return f"{', '.join(unknown)}: not sent; allowed: {', '.join(sorted(ALLOWED))}"
    if sum(key in line for key in CONTENT) != 1:
        return f"must have one of {', '.join(CONTENT)}"
    if "messages" in line and not _is_messages(line["messages"]):
        return "messages: must be a list of messages, at least one"
    if "prompt" in line and not (isinstance(line["prompt"], str | list) and line["prompt"]):
        return "prompt: must be text or a list of token ids"
    if "turns" in line:
        turns = line["turns"]
        if not isinstance(turns, list) or not turns or not all(_is_messages(turn) for turn in turns):
            return "turns: must be a list of lists of messages, none of them empty"
    for key in ("max_tokens", "max_completion_tokens"):
        most = line.get(key, 1)
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            return f"{key}: must be a whole number of at least 1"
    return None


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "role" in one for one in value)
