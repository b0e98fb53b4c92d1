"""Why a trial has no measurement: phase, class and evidence."""

from __future__ import annotations

from enum import StrEnum

from autotune.domain.value import Value


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
    CLIENT_FAULT = "client_fault"
    INFRASTRUCTURE = "infrastructure"

    @property
    def blames_candidate(self) -> bool:
        """False where another attempt of the same trial is due and the search is not told."""
        return self not in {FailureClass.INFRASTRUCTURE, FailureClass.CLIENT_FAULT}


class Failure(Value):
    """A trial's end without a measurement. `log_tail` is the server's own text, capped and redacted."""

    phase: Phase
    failure_class: FailureClass
    summary: str
    decisive_line: str | None = None
    exit_code: int | None = None
    log_tail: str = ""
