"""From phase, exit code and log to a failure class and the line that decided."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import NamedTuple

from autotune.domain.failure import FailureClass, Phase
from workers.failures.signatures import Signature, catalogue

LONGEST_LINE = 2000  # in characters; what decides stands at the beginning of a line
LONGEST_DECISIVE = 500

# What stands in these lines is no evidence: reports, access logs, metrics, and settings echoed at start.
_NOISE = re.compile(
    r"^\s*(\([^)]{1,60}\)\s*)*(\d{4}-\d\d-\d\d[ T][\d:.,+Z]+\s+)?\[?(INFO|DEBUG|TRACE)\b"
    r"|\b(INFO|DEBUG) \d\d-\d\d \d\d:\d\d"
    r"|\[(INFO|DEBUG)\]|^\d+\.\d\d\.\d{3}\.\d{3} [ID] "
    r"|^# (HELP|TYPE) |^(vllm|sglang|llamacpp):\w+"
    r'|"(GET|POST|HEAD|OPTIONS|PUT|DELETE) /\S* HTTP/'
    r"|non-default args:|with config:|server_args=|\bNamespace\("
)
_ERROR = re.compile(r"^.*\b(?!Warning)[A-Z]\w*(Error|Exception)\b(: .*|$)|^.*\b(error|fatal|panic)\b: .*", re.MULTILINE)
# A check of the configuration that the catalogue does not know by its words.
_REJECTION = re.compile(
    r"^.*\b(ValueError|TypeError|AssertionError|NotImplementedError|ValidationError)\b(:|$).*", re.M
)
_USAGE = re.compile(r"^(usage: .*|.{0,80}\berror: .*)", re.MULTILINE | re.IGNORECASE)

# `(Worker pid=7) ERROR 11-30 10:12:22 [core.py:708] ` differs in every launch; what follows does not.
_PREFIX = re.compile(
    r"^(\([^)]{1,60}\)\s*)*([A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s*|\d+\.\d\d\.\d{3}\.\d{3} [A-Z] )?"
)

_BEFORE_READY = frozenset({Phase.PLACE, Phase.LAUNCH, Phase.READY})
_WHEN_ALIVE = {  # what it is that a deadline passed in this phase
    Phase.LAUNCH: FailureClass.START_TIMEOUT,
    Phase.READY: FailureClass.START_TIMEOUT,
    Phase.WARM_UP: FailureClass.LOAD_TIMEOUT,
    Phase.LOAD: FailureClass.LOAD_TIMEOUT,
}
# Somebody asked the server to go: a shutdown of the host, an operator. We classify before we do so ourselves.
_FROM_OUTSIDE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Finding(NamedTuple):
    """`line` is None where no line of the log decided, `signature` where none of the catalogue matched.

    The line comes without the logger's prefix, so that the same failure reads the same in each launch.
    """

    failure_class: FailureClass
    line: str | None = None
    signature: str | None = None

    @property
    def tells_cause(self) -> bool:
        """Whether the catalogue knows what happened, and not only that something did."""
        return any(s.name == self.signature and not s.weak for s in catalogue().signatures)


def classify(phase: Phase, exit_code: int | None, log_text: str, engine: str) -> Finding:
    """Total and pure: any text and any code give a class.

    `exit_code` is the server's, negative or above 128 for a signal, None while it still runs. `log_text` is
    what it wrote in this phase and before; after readiness, only what it wrote since.
    """
    ready = phase not in _BEFORE_READY
    text = "\n".join(_evidence(log_text))
    if found := _first(text, engine, ready, weak=False):
        return found
    if exit_code == 2 and not ready and (usage := _USAGE.findall(text)):
        return Finding(FailureClass.INVALID_CONFIG, _cut(usage[-1]))
    weak = _first(text, engine, ready, weak=True)
    lines = (match.group(0) for match in _ERROR.finditer(text))
    error = next((_cut(line) for line in lines if not _is_weak(line, engine, ready)), None)
    if not ready and exit_code != 0 and (rejected := _REJECTION.search(text)):
        line = rejected.group(0)
        if not _is_weak(line, engine, ready):
            return Finding(FailureClass.INVALID_CONFIG, _cut(line))
    number = _signal(exit_code)
    if number in _FROM_OUTSIDE and error is None and weak is None:
        return Finding(FailureClass.INFRASTRUCTURE, f"the server was ended by {number.name} from outside")
    if weak is not None:
        # The wrapper points at a root cause that the catalogue does not know: show that line instead.
        return weak._replace(line=error) if error else weak
    if exit_code is None:
        return Finding(_WHEN_ALIVE.get(phase, FailureClass.INFRASTRUCTURE), error)
    return Finding(FailureClass.CRASH, error or (f"the server was ended by {number.name}" if number else None))


def describe_exit(exit_code: int) -> str:
    """`exit code 1` or `SIGKILL`."""
    number = _signal(exit_code)
    return number.name if number else f"exit code {exit_code}"


def _lines(log_text: str) -> Iterator[str]:
    return (line[:LONGEST_LINE] for line in re.split(r"[\r\n]+", log_text) if line.strip())


def _evidence(log_text: str) -> Iterator[str]:
    return (line for line in _lines(log_text) if not _NOISE.search(line))


def _first(text: str, engine: str, ready: bool, weak: bool) -> Finding | None:
    for signature in catalogue().signatures:
        if signature.weak == weak and signature.applies(engine, ready) and (match := signature.search(text)):
            start = text.rfind("\n", 0, match.start()) + 1
            end = text.find("\n", match.start())
            return Finding(signature.failure_class, _cut(text[start : end if end >= 0 else None]), signature.name)
    return None


def _is_weak(line: str, engine: str, ready: bool) -> bool:
    def tells(signature: Signature) -> bool:
        return signature.weak and signature.applies(engine, ready) and signature.search(line) is not None

    return any(tells(signature) for signature in catalogue().signatures)


def _signal(exit_code: int | None) -> signal.Signals | None:
    """Shells and containers turn the signal n into the exit code 128 + n."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    return signal.Signals(number) if number in set(signal.Signals) else None


def _cut(line: str) -> str:
    text = line.strip()
    return (_PREFIX.sub("", text) or text)[:LONGEST_DECISIVE]
