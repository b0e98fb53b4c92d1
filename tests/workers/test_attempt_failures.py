"""How an attempt's end is put into words, whatever its servers are."""

from __future__ import annotations

import pytest

from autotune.domain.failure import FailureClass, Phase, RetryPolicy
from autotune.domain.measurement import Measurement
from autotune.errors import InvalidCandidate, InvalidTemplate, NotFound, Problem
from tests import builders
from workers.attempt_failures import AttemptFailures, unblamed
from workers.conclusions import BrokenLevel
from workers.failures.classify import Finding


def failures(phase: Phase = Phase.LOAD) -> AttemptFailures:
    made = AttemptFailures()
    made.phase, made.engine, made.secrets = phase, "vllm-ascend", ("hunter2hunter2",)
    return made


def test_the_kernels_counter_and_silence_reach_the_class() -> None:
    made = failures()
    assert made.classify(-9, {"server": ""}).failure_class is FailureClass.CRASH
    assert made.classify(-9, {"server": ""}, oom_kills=1).failure_class is FailureClass.HOST_OUT_OF_MEMORY
    assert made.classify(None, {"server": ""}).failure_class is FailureClass.LOAD_TIMEOUT
    assert made.classify(None, {"server": ""}, silence_s=30).failure_class is FailureClass.HANG


def test_the_role_that_failed_speaks_for_itself_where_it_tells_a_cause() -> None:
    made = failures(Phase.READY)
    logs = {
        "prefill": "OSError: [Errno 98] Address already in use",
        "decode": "NPU out of memory. Tried to allocate 2 GiB",
    }
    made.told_role = "decode"
    assert made.classify(1, logs).failure_class is FailureClass.OUT_OF_MEMORY
    made.told_role = "prefill"
    assert made.classify(1, logs).signature == "port taken"


def test_a_failure_carries_signature_policy_and_no_secret() -> None:
    made = failures()
    found = Finding(FailureClass.INFRASTRUCTURE, "no hunter2hunter2", "model files", policy=RetryPolicy.REPAIR)
    ended = made.died("server", 1, found).failure
    assert (ended.signature, ended.retry, ended.exit_code) == ("model files", RetryPolicy.REPAIR, 1)
    assert ended.decisive_line == "no ***"
    assert ended.summary == "server ended with exit code 1 in phase load"
    plain = made.refused(BrokenLevel("c4: 4 of 4 requests failed", "http_500"), Finding(FailureClass.CRASH)).failure
    assert (plain.failure_class, plain.signature, plain.retry) == (
        FailureClass.REQUEST_ERRORS,
        None,
        RetryPolicy.ONCE,
    )


class Own(Exception):
    """A fault of one kind of attempt."""


class Derived(Own):
    """A kind of it."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidCandidate("bad", (Problem(key="x", message="y"),)), FailureClass.INVALID_CONFIG),
        (InvalidTemplate("bad"), FailureClass.INFRASTRUCTURE),
        (NotFound("bad"), FailureClass.INFRASTRUCTURE),
        (Own("bad"), FailureClass.CLIENT_FAULT),
        (Derived("bad"), FailureClass.CLIENT_FAULT),
    ],
)
def test_each_fault_has_its_class(error: Exception, expected: FailureClass) -> None:
    def measure() -> Measurement:
        raise error

    measurement, failure = failures().attempted(measure, {Own: FailureClass.CLIENT_FAULT})
    assert measurement is None
    assert failure is not None
    assert failure.failure_class is expected
    assert failure.summary == "bad"


def test_a_host_that_cannot_keep_a_log_is_to_blame_and_not_the_candidate() -> None:
    candidate = builders.failure(retry=RetryPolicy.NEVER)
    assert unblamed(candidate, None) is candidate
    changed = unblamed(candidate, "cannot write into x")
    assert changed is not None
    assert not changed.blames_candidate
    lost = builders.failure(FailureClass.INFRASTRUCTURE)
    assert unblamed(lost, "cannot write into x") is lost
