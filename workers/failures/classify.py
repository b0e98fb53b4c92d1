"""From phase, exit code and logs to a failure class, the line that decided, and what it tells beside."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import NamedTuple

from autotune.domain.failure import FailureClass, FailureValue, Phase, RetryPolicy
from workers.failures.evidence import LONGEST_LINE, Evidence, without_prefix
from workers.failures.signatures import catalogue

LONGEST_DECISIVE = 500
VALUE_LINES = 4  # a number may stand in the deciding line or in the few below it

_ERROR = re.compile(r"^.*\b(?!Warning)[A-Z]\w*(Error|Exception)\b(: .*|$)|^.*\b(error|fatal|panic)\b: .*", re.MULTILINE)
# A check of the configuration that the catalogue does not know by its words: whatever it is before weights are
# read; afterwards what the engine says in words of its own. Python's own words tell of a bug.
_REJECTION = re.compile(
    r"^.*\b(ValueError|TypeError|AssertionError|NotImplementedError|ValidationError)\b(:|$).*", re.M
)
_LATE_REJECTION = re.compile(r"^.*\b(ValueError|NotImplementedError|ValidationError)\b: .*", re.M)
_PYTHONS_OWN = re.compile(
    r"values to unpack|invalid literal for|could not convert|is not in list|list\.remove|empty (sequence|range)"
    r"|cannot (reshape|convert)|math domain|I/O operation"
)
_BUG = re.compile(
    r"\b(Attribute|Key|Index|Type|Name|UnboundLocal|Assertion|Value|ZeroDivision|NotImplemented|Recursion)Error\b(:|$)"
)
_USAGE = re.compile(r"^(usage: .*|.{0,80}\berror: .*)", re.MULTILINE | re.IGNORECASE)

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
    `policy` is set where it differs from the class's.
    """

    failure_class: FailureClass
    line: str | None = None
    signature: str | None = None
    values: tuple[FailureValue, ...] = ()
    policy: RetryPolicy | None = None

    @property
    def tells_cause(self) -> bool:
        """Whether the catalogue knows what happened, and not only that something did."""
        known = catalogue().signature(self.signature)
        return known is not None and not known.weak

    @property
    def retry(self) -> RetryPolicy:
        """Whether another launch of the same configuration is worth its time."""
        return self.policy or catalogue().classes[self.failure_class].retry

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of settings that are often to blame for such a failure, as they are written at launch."""
        return catalogue().settings(self.failure_class, self.signature, self.values)


def classify(
    phase: Phase,
    exit_code: int | None,
    logs: str | Sequence[str],
    engine: str,
    *,
    oom_kills: int | None = None,
    silence_s: float | None = None,
) -> Finding:
    """Total and pure: any text and any code give a class.

    `exit_code` is the server's, negative or above 128 for a signal, None while it still runs. `logs` are what
    its processes wrote in this phase and before; after readiness, only what they wrote since. `oom_kills`
    says by how much the kernel's counter rose meanwhile; `silence_s` is given where a limit on the time
    without a new line was passed.
    """
    ready = phase not in _BEFORE_READY
    number = _signal(exit_code)
    asked_to_end = exit_code == 0 or number in _FROM_OUTSIDE
    evidence = Evidence([logs] if isinstance(logs, str) else logs, asked_to_end=asked_to_end)
    if found := _first(evidence, engine, ready, weak=False):
        return found
    if exit_code == 2 and not ready and (usage := _USAGE.findall(evidence.text)):
        return Finding(FailureClass.INVALID_CONFIG, _cut(usage[-1]))
    if oom_kills and (number is signal.SIGKILL or exit_code not in {None, 0}):
        return Finding(FailureClass.HOST_OUT_OF_MEMORY, f"the kernel's oom_kill counter rose by {oom_kills}")
    weak = _first(evidence, engine, ready, weak=True)
    if not ready and exit_code != 0 and (rejected := _rejection(evidence, engine)):
        return Finding(FailureClass.INVALID_CONFIG, rejected)
    lines = (match.group(0) for match in _ERROR.finditer(evidence.text))
    error = next((_cut(line) for line in lines if not _is_weak(line, engine, ready)), None)
    if number in _FROM_OUTSIDE and error is None and weak is None:
        return Finding(FailureClass.INFRASTRUCTURE, f"the server was ended by {number.name} from outside")
    bug = RetryPolicy.NEVER if error and _BUG.search(error) else None
    if weak is not None:
        # The wrapper points at a root cause that the catalogue does not know: show that line instead.
        policy = bug if weak.failure_class is FailureClass.CRASH else weak.policy
        return weak._replace(line=error, policy=policy) if error else weak
    if exit_code is None:
        silent = FailureClass.HANG if silence_s is not None else None
        return Finding(silent or _WHEN_ALIVE.get(phase, FailureClass.INFRASTRUCTURE), error)
    ended = f"the server was ended by {number.name}" if number else None
    return Finding(FailureClass.CRASH, error or ended, policy=bug)


def describe_exit(exit_code: int) -> str:
    """`exit code 1` or `SIGKILL`."""
    number = _signal(exit_code)
    return number.name if number else f"exit code {exit_code}"


def _first(evidence: Evidence, engine: str, ready: bool, weak: bool) -> Finding | None:
    for signature in catalogue().looked_for(engine, ready, weak=weak):
        text = evidence.reports if signature.in_reports else evidence.text
        if match := signature.search(text):
            start = text.rfind("\n", 0, match.start()) + 1
            lines = text[start : start + VALUE_LINES * LONGEST_LINE].split("\n")[:VALUE_LINES]
            values = signature.read_values("\n".join(lines))
            return Finding(signature.failure_class, _cut(lines[0]), signature.name, values, signature.retry)
    return None


def _rejection(evidence: Evidence, engine: str) -> str | None:
    """The line of a check of the configuration that the catalogue does not know."""
    early = _REJECTION.search(evidence.before_weights)
    if early and not _is_weak(early.group(0), engine, ready=False):
        return _cut(early.group(0))
    late = _LATE_REJECTION.search(evidence.after_weights)
    if late and not _PYTHONS_OWN.search(late.group(0)) and not _is_weak(late.group(0), engine, ready=False):
        return _cut(late.group(0))
    return None


def _is_weak(line: str, engine: str, ready: bool) -> bool:
    return any(s.search(line) is not None for s in catalogue().looked_for(engine, ready, weak=True))


def _signal(exit_code: int | None) -> signal.Signals | None:
    """Shells and containers turn the signal n into the exit code 128 + n."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    return signal.Signals(number) if number in set(signal.Signals) else None


def _cut(line: str) -> str:
    return without_prefix(line)[:LONGEST_DECISIVE]
