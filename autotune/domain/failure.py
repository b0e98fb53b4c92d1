"""Why a trial has no measurement: phase, class and evidence."""

from __future__ import annotations

from enum import StrEnum

from autotune.domain.value import Value

AROUND = 8  # lines before and after the decisive one: a traceback's last frames, and what followed
LONGEST_LINE = 2000  # in characters, of a line in a context


class Phase(StrEnum):
    """Where in an attempt it happened, in order."""

    PLACE = "place"
    LAUNCH = "launch"
    READY = "ready"
    WARM_UP = "warm_up"
    LOAD = "load"
    STOP = "stop"


class FailureClass(StrEnum):
    """What kind of failure it was; see the catalogue in `workers/failures/signatures.yaml`."""

    INVALID_CONFIG = "invalid_config"
    CONFIG_NOT_APPLIED = "config_not_applied"
    OUT_OF_MEMORY = "out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    GRAPH_CAPTURE = "graph_capture"
    UNSUPPORTED_OPERATOR = "unsupported_operator"
    COMPILE = "compile"
    COMMUNICATION = "communication"
    DEVICE = "device"
    CRASH = "crash"
    HANG = "hang"
    START_TIMEOUT = "start_timeout"
    LOAD_TIMEOUT = "load_timeout"
    REQUEST_ERRORS = "request_errors"
    HOPELESS = "hopeless"
    CLIENT_FAULT = "client_fault"
    INFRASTRUCTURE = "infrastructure"

    @property
    def blames_candidate(self) -> bool:
        """False where another attempt of the same trial is due and the search is not told; see `Failure` too."""
        return self not in {FailureClass.INFRASTRUCTURE, FailureClass.CLIENT_FAULT}


class RetryPolicy(StrEnum):
    """Whether another launch of the same configuration is worth its time; see `workers/failures/classes.yaml`."""

    NEVER = "never"
    ONCE = "once"
    ELSEWHERE = "elsewhere"
    REPAIR = "repair"

    @property
    def blames_host(self) -> bool:
        """Whether it is a host's matter, or chance, and says nothing about the configuration."""
        return self in {RetryPolicy.ELSEWHERE, RetryPolicy.REPAIR}


class Bound(StrEnum):
    """Which way a setting must go to come clear of a failure."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"


class FailureValue(Value):
    """A number that the engine named when it failed.

    `setting` is the setting it speaks of, as it is written at launch (`HCCL_BUFFSIZE`, `--max-model-len`);
    with a `bound` the number is the least or the most that the setting may have.
    """

    name: str
    value: float
    unit: str
    setting: str | None = None
    bound: Bound | None = None


class Failure(Value):
    """A trial's end without a measurement. `log_tail` is the server's own text, capped and redacted.

    `values` are the numbers that the deciding lines give.
    `signature` is the catalogue's name for what happened, or the control plane's own. `host` is where it was,
    for an attempt that was lost and so has no provenance. `retry` is what the catalogue says of another launch;
    None where nobody asked it: `worth` then goes by the class.
    """

    phase: Phase
    failure_class: FailureClass
    summary: str
    decisive_line: str | None = None
    exit_code: int | None = None
    log_tail: str = ""
    values: tuple[FailureValue, ...] = ()
    signature: str | None = None
    host: str | None = None
    retry: RetryPolicy | None = None

    @property
    def worth(self) -> RetryPolicy:
        """Whether another launch is worth its time, and where."""
        if self.retry is not None:
            return self.retry
        return RetryPolicy.NEVER if self.failure_class.blames_candidate else RetryPolicy.ELSEWHERE

    @property
    def blames_candidate(self) -> bool:
        """False where another attempt is due and the search is never told."""
        return self.failure_class.blames_candidate and not self.worth.blames_host


class LogContext(Value):
    """Lines of a log in their order; the one at index `decisive` decided."""

    lines: tuple[str, ...]
    decisive: int


def in_context(failure: Failure, log: str) -> LogContext | None:
    """The decisive line with its neighbours; None where it stands in no line of this log.

    The oldest such line: a cause is often repeated by those that it brought down.
    """
    wanted = failure.decisive_line
    if not wanted:
        return None
    lines = [line[:LONGEST_LINE] for line in log.splitlines()]
    at = next((i for i, line in enumerate(lines) if wanted in line), None)
    if at is None:
        return None
    first = max(at - AROUND, 0)
    return LogContext(lines=tuple(lines[first : at + AROUND + 1]), decisive=at - first)
