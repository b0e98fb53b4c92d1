"""Shell text as commands of words, and words as text. Nothing is ever run.

Known are quotes, comments, line continuations, arrays, redirections, here-documents, and the forms of `$NAME`
that need no command. What only a shell can know (`$(...)`, `$1`, an unset variable) stays as it is written.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Variables = Mapping[str, "str | list[str]"]

_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>\||>&|<|>")
_SEPARATOR = re.compile(r";;|;|&&|\|\||\|&|\||&|\n|\(|\)")
_SIMPLE = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(r"([A-Za-z_]\w*)(\[[@*]\]|\[\d+\])?(?:(:?[-=+?])(.*))?", re.DOTALL)
_ANSI = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "r": "\r", "0": "\0"}


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a word: literal text, or something to expand; `quoted` keeps blanks together."""

    text: str
    expands: bool = False
    quoted: bool = False


@dataclass(slots=True)
class Word:
    """A word of a command; `items` are the words of an array that is assigned."""

    line: int
    pieces: list[Piece] = field(default_factory=list)
    items: list[Word] | None = None

    @property
    def plain(self) -> str:
        """The word as written, without its quotes."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(slots=True)
class Command:
    """Words up to a separator, which is `ended_by`."""

    line: int
    words: list[Word]
    ended_by: str = "\n"


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something in the text that is not what it seems, or cannot be read."""

    line: int
    message: str


def commands_of(text: str) -> tuple[list[Command], list[Oddity]]:
    """All commands in the order in which they stand, whatever decides at run time whether they run."""
    reader = _Reader(text.replace("\r\n", "\n"))
    reader.read()
    return reader.commands, reader.oddities


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._breaks = [found.start() for found in re.finditer("\n", text)]
        self.commands: list[Command] = []
        self.oddities: list[Oddity] = []
        self._words: list[Word] = []
        self._word: Word | None = None
        self._array: list[Word] | None = None  # the words outside, while those of an array are read
        self._heredocs: list[str] = []
        self._drop = 0  # words that belong to a redirection
        self._heredoc_next = False

    def read(self) -> None:
        while self.at < len(self.text):
            self._step()
        self._end_command("\n")

    def _line(self) -> int:
        return bisect_left(self._breaks, self.at) + 1

    def _open(self) -> Word:
        if self._word is None:
            self._word = Word(self._line())
        return self._word

    def _step(self) -> None:
        text, at = self.text, self.at
        char = text[at]
        if char == "\\":
            self._backslash()
        elif char in " \t":
            self._end_word()
            self.at += 1
        elif char == "#" and self._word is None:
            end = text.find("\n", at)
            self.at = len(text) if end < 0 else end
        elif char == "'":
            self._quoted_to("'", at + 1)
        elif char == '"':
            self._double_quoted()
        elif char == "$" and text.startswith("$'", at):
            self._ansi_quoted()
        elif char in "$`":
            self._open().pieces.append(Piece(self._expansion(), expands=True))
        elif text.startswith("((", at) and self._word is None:
            end = text.find("))", at)
            self.at = len(text) if end < 0 else end + 2
        elif redirection := _REDIRECTION.match(text, at):
            self._redirection(redirection[0])
        elif separator := _SEPARATOR.match(text, at):
            self._separator(separator[0])
        else:
            self._open().pieces.append(Piece(char))
            self.at += 1

    def _backslash(self) -> None:
        rest = re.compile(r"\\([ \t]*)(\n|\Z)").match(self.text, self.at)
        if rest is None:
            if self.at + 1 < len(self.text):
                self._open().pieces.append(Piece(self.text[self.at + 1], quoted=True))
            self.at += 2
            return
        if rest[1] and rest[2]:
            self._odd("blanks after the backslash end the command here for a shell; read as one command")
        if rest[1]:
            self._end_word()
        self.at = rest.end()

    def _quoted_to(self, quote: str, start: int) -> None:
        end = self.text.find(quote, start)
        word = self._open()
        if end < 0:
            self._odd("a quote is not closed")
            end = len(self.text)
        word.pieces.append(Piece(self.text[start:end], quoted=True))
        self.at = end + 1

    def _ansi_quoted(self) -> None:
        end = re.compile(r"(?:[^'\\]|\\.)*'", re.DOTALL).match(self.text, self.at + 2)
        if end is None:
            self._quoted_to("'", self.at + 2)
            return
        plain = re.sub(r"\\(.)", lambda found: _ANSI.get(found[1], found[0]), end[0][:-1], flags=re.DOTALL)
        self._open().pieces.append(Piece(plain, quoted=True))
        self.at = end.end()

    def _double_quoted(self) -> None:
        word = self._open()
        word.pieces.append(Piece("", quoted=True))
        start = self._line()
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            following = self.text[self.at + 1 : self.at + 2]
            if char == "\\" and following and following in '$`"\\\n':
                word.pieces.append(Piece(following if following != "\n" else "", quoted=True))
                self.at += 2
            elif char in "$`":
                word.pieces.append(Piece(self._expansion(), expands=True, quoted=True))
            else:
                word.pieces.append(Piece(char, quoted=True))
                self.at += 1
        if self.at >= len(self.text):
            self.oddities.append(Oddity(start, "a quote is not closed"))
        self.at += 1

    def _expansion(self) -> str:
        """The text of the expansion that starts here; moves behind it."""
        start, text = self.at, self.text
        if text[start] == "`":
            end = text.find("`", start + 1)
            self.at = len(text) if end < 0 else end + 1
        elif text.startswith("$(", start):
            self.at = _closing(text, start + 1, "(", ")")
        elif text.startswith("${", start):
            self.at = _closing(text, start + 1, "{", "}")
        else:
            name = _SIMPLE.match(text, start + 1)
            self.at = name.end() if name else start + 1
        return text[start : self.at]

    def _redirection(self, operator: str) -> None:
        if self._word is not None and self._word.plain.isdigit():
            self._word = None  # the number of a file descriptor
        self._end_word()
        self.at += len(operator)
        self._drop = 1
        self._heredoc_next = operator in ("<<", "<<-")

    def _separator(self, separator: str) -> None:
        word = self._word
        if separator == "(" and word is not None and re.fullmatch(r"[A-Za-z_]\w*\+?=", word.plain):
            self._array, self._words = self._words, []
            word.items = []
            self._array.append(word)
            self._word = None
        elif self._array is not None and separator in (")", "\n"):
            self._end_word()
            if separator == ")":
                self._array[-1].items, self._words, self._array = self._words, self._array, None
        else:
            self._end_command(separator)
        self.at += len(separator)
        if separator == "\n":
            for delimiter in self._heredocs:
                self._skip_heredoc(delimiter)
            self._heredocs = []

    def _skip_heredoc(self, delimiter: str) -> None:
        start = self._line()
        end = re.compile(rf"^\t*{re.escape(delimiter)}[ \t]*$", re.MULTILINE).search(self.text, self.at)
        body = self.text[self.at : end.start() if end else len(self.text)]
        self.at = end.end() if end else len(self.text)
        if re.search(r"vllm|sglang|serve", body):
            self.oddities.append(Oddity(start, "the text of a here-document is not read; give that text as a file"))

    def _end_word(self) -> None:
        word, self._word = self._word, None
        if word is None:
            return
        if self._drop:
            self._drop -= 1
            if self._heredoc_next:
                self._heredocs.append(word.plain)
                self._heredoc_next = False
            return
        self._words.append(word)

    def _end_command(self, separator: str) -> None:
        self._end_word()
        self._drop = 0
        words, self._words = (self._words if self._array is None else self._array), []
        self._array = None
        line = words[0].line if words else self._line()
        if words or separator in ("(", ")", ";;"):
            self.commands.append(Command(line, words, separator))

    def _odd(self, message: str) -> None:
        self.oddities.append(Oddity(self._line(), message))


def _closing(text: str, start: int, opening: str, closing: str) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == opening) - (text[at] == closing)
        if depth == 0:
            return at + 1
    return len(text)


def expanded(word: Word, variables: Variables) -> list[str]:
    """The arguments that a word stands for: none, one, or several where a variable holds several words."""
    fields: list[str] = []
    current: str | None = None
    for piece in word.pieces:
        if not piece.expands:
            current = (current or "") + piece.text
            continue
        value = _value(piece.text, variables)
        if isinstance(value, list) and (piece.quoted or not value):
            parts = value
        elif piece.quoted or "$(" in piece.text or "`" in piece.text:
            current = (current or "") + (value if isinstance(value, str) else " ".join(value))
            continue
        else:
            parts = (" ".join(value) if isinstance(value, list) else value).split()
        for index, part in enumerate(parts):
            if index:
                fields.append(current or "")
                current = part
            else:
                current = (current or "") + part
    return fields if current is None else [*fields, current]


def as_text(word: Word, variables: Variables) -> str:
    """The one text that a word is where blanks do not split, as in an assignment."""
    return "".join(_joined(_value(p.text, variables)) if p.expands else p.text for p in word.pieces)


def _joined(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else " ".join(value)


def _value(expansion: str, variables: Variables, depth: int = 0) -> str | list[str]:
    """What `$NAME` and `${NAME...}` stand for; the expansion itself where the script does not say."""
    inner = expansion[2:-1] if expansion.startswith("${") else expansion[1:]
    found = _BRACED.fullmatch(inner) if expansion.startswith("$") else None
    if found is None or depth > 8:
        return expansion
    name, index, operator, word = found[1], found[2], found[3], found[4]
    held = variables.get(name)
    if index and isinstance(held, list):
        if index[1] in "@*":
            return list(held)
        number = int(index[1:-1])
        held = held[number] if number < len(held) else None
    elif isinstance(held, list):
        held = held[0] if held else ""
    missing = held is None or (held == "" and bool(operator) and operator.startswith(":"))
    if operator and operator[-1] in "-=":
        return _inner(word, variables, depth) if missing else held or ""
    if operator and operator[-1] == "+":
        return "" if missing else _inner(word, variables, depth)
    return expansion if held is None else held


def _inner(word: str, variables: Variables, depth: int) -> str:
    """The word behind `:-`, which may hold quotes and variables of its own."""
    plain = re.sub(r"\\(.)", r"\1", re.sub(r"^(['\"])(.*)\1$", r"\2", word, flags=re.DOTALL))
    return re.sub(r"\$\{[^}]*\}|\$[A-Za-z_]\w*", lambda found: _joined(_value(found[0], variables, depth + 1)), plain)
