"""What follows a failure: another attempt and where, another launch, or the end of it; and how that is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.domain.failure import Failure, FailureClass, LogContext, RetryPolicy, in_context
from autotune.domain.retry import (
    BACK_OFF_S,
    EXECUTOR_UNAVAILABLE,
    SERVICE_STOPPED,
    Consequence,
    Retry,
    back_off_s,
    charged,
    hosts_to_avoid,
    launched_again,
    policy,
    policy_of_attempt,
    retry,
)
from autotune.domain.trial import MAX_ATTEMPTS, StudyPhase
from tests import builders
from tests.engine.history import History
from workers.failures.signatures import catalogue


def lost(signature: str | None = None, **changes: Any) -> Failure:
    return builders.failure(FailureClass.INFRASTRUCTURE, signature=signature, **changes)


@pytest.mark.parametrize(
    ("failure", "attempts", "hosts", "then"),
    [
        (lost(), 1, ["b"], Retry.ELSEWHERE),
        (lost(), 1, None, Retry.ELSEWHERE),
        (lost(), 2, [], Retry.HERE),
        (lost(), 3, ["b"], Retry.FINAL),
        (lost(retry=RetryPolicy.REPAIR), 1, ["b"], Retry.ELSEWHERE),
        (lost(retry=RetryPolicy.REPAIR), 1, [], Retry.FINAL),
        (lost(retry=RetryPolicy.REPAIR), 1, None, Retry.ELSEWHERE),
        (lost(SERVICE_STOPPED), 9, [], Retry.HERE),
        (lost(EXECUTOR_UNAVAILABLE), 9, None, Retry.HERE),
        (builders.failure(FailureClass.CLIENT_FAULT), 1, ["b"], Retry.ELSEWHERE),
        (builders.failure(FailureClass.COMMUNICATION, retry=RetryPolicy.ELSEWHERE), 2, [], Retry.HERE),
        (builders.failure(FailureClass.COMMUNICATION, retry=RetryPolicy.ELSEWHERE), 3, [], Retry.FINAL),
        (builders.failure(FailureClass.COMMUNICATION, retry=RetryPolicy.ONCE), 1, ["b"], Retry.FINAL),
        (builders.failure(FailureClass.COMMUNICATION, retry=RetryPolicy.NEVER), 1, ["b"], Retry.FINAL),
        (builders.failure(FailureClass.OUT_OF_MEMORY), 1, ["b"], Retry.FINAL),
        (builders.failure(FailureClass.HANG), 1, None, Retry.FINAL),
    ],
)
def test_where_the_next_attempt_runs(failure: Failure, attempts: int, hosts: list[str] | None, then: Retry) -> None:
    assert retry(failure, attempts, hosts) is then


@given(
    st.sampled_from(list(FailureClass)),
    st.sampled_from([None, *RetryPolicy]),
    st.one_of(st.none(), st.text()),
    st.lists(st.text(), max_size=2),
)
def test_no_failure_on_a_host_is_retried_for_ever_and_what_is_retried_is_never_told(
    failure_class: FailureClass, worth: RetryPolicy | None, signature: str | None, hosts: list[str]
) -> None:
    failure = builders.failure(failure_class, signature=signature, retry=worth)
    if charged([failure]):
        assert retry(failure, MAX_ATTEMPTS, hosts) is Retry.FINAL
        assert retry(failure, 1, hosts) is Retry.FINAL or not failure.blames_candidate


def test_the_catalogue_and_the_classes_agree_on_whose_fault_it_is() -> None:
    for failure_class, page in catalogue().classes.items():
        named = builders.failure(failure_class, retry=page.retry)
        assert named.blames_candidate is builders.failure(failure_class).blames_candidate
    for signature in catalogue().signatures:
        if signature.retry is not None and signature.failure_class is FailureClass.INFRASTRUCTURE:
            assert signature.retry.blames_host, signature.name


def test_a_row_that_was_stored_before_there_was_a_policy_goes_by_its_class() -> None:
    stored = builders.failure(FailureClass.COMMUNICATION).model_dump(mode="json", exclude={"retry"})
    assert Failure.model_validate(stored).blames_candidate


def test_a_host_is_left_alone_for_longer_each_time() -> None:
    once, stopped = lost(), lost(SERVICE_STOPPED)
    waits = [back_off_s([once] * times) for times in range(1, MAX_ATTEMPTS)]
    assert waits[0] == back_off_s([stopped, once]) == BACK_OFF_S
    assert waits == sorted(set(waits))
    assert back_off_s([once, stopped]) == back_off_s([]) == 0


def test_hosts_to_avoid_are_those_whose_fault_it_was() -> None:
    failures = [
        lost(host="a"),
        lost(SERVICE_STOPPED, host="c"),
        lost(host="d"),
        lost(host="a"),
        lost(),
    ]
    assert hosts_to_avoid(failures) == ("a", "d")
    assert charged(failures) == 4


def test_baseline_and_recipes_get_one_more_launch_and_others_none() -> None:
    assert [p for p in StudyPhase if launched_again(p, 1)] == [StudyPhase.GATE, StudyPhase.RECIPES]
    assert not any(launched_again(p, 2) for p in StudyPhase)


@pytest.mark.parametrize(
    ("phase", "failure", "consequence", "words"),
    [
        (StudyPhase.GATE, builders.failure(), Consequence.LAUNCHED_AGAIN, "the study ends"),
        (StudyPhase.RECIPES, builders.failure(), Consequence.LAUNCHED_AGAIN, "counts as crashing"),
        (StudyPhase.SEARCH, builders.failure(), Consequence.LEARNED, "not tried again"),
        (StudyPhase.CONFIRM, builders.failure(), Consequence.LEARNED, "finalist"),
        (StudyPhase.SEARCH, lost(), Consequence.SET_ASIDE, "the search is not told"),
        (StudyPhase.SEARCH, lost(retry=RetryPolicy.REPAIR), Consequence.SET_ASIDE, "mend the host"),
    ],
)
def test_the_policy_says_what_the_study_does(
    phase: StudyPhase, failure: Failure, consequence: Consequence, words: str
) -> None:
    found = policy(History().add(phase, failure=failure))
    assert found is not None
    assert found.consequence is consequence
    assert words in found.sentence


def test_a_trial_that_did_not_fail_has_no_policy() -> None:
    assert policy(History().add(StudyPhase.SEARCH)) is None


@pytest.mark.parametrize(
    ("signature", "words"),
    [(None, "another host"), ("port taken", "at most 3 times"), (SERVICE_STOPPED, "does not count")],
)
def test_a_lost_attempt_was_retried(signature: str | None, words: str) -> None:
    found = policy_of_attempt(lost(signature))
    assert found.consequence is Consequence.RETRIED
    assert words in found.sentence


def test_the_decisive_line_is_shown_with_its_neighbours() -> None:
    log = "\n".join([*(f"before {n}" for n in range(30)), "(Worker) RuntimeError: boom", "after", "RuntimeError: boom"])
    found = in_context(builders.failure(decisive_line="RuntimeError: boom"), log)
    assert found is not None
    assert found.lines[found.decisive] == "(Worker) RuntimeError: boom"
    assert (found.lines[0], found.lines[-1], found.decisive) == ("before 22", "RuntimeError: boom", 8)
    first = in_context(builders.failure(decisive_line="before 0"), log)
    assert first == LogContext(lines=tuple(f"before {n}" for n in range(9)), decisive=0)


@pytest.mark.parametrize("line", [None, "", "said by nobody"])
def test_a_line_that_the_log_does_not_hold_has_no_context(line: str | None) -> None:
    assert in_context(builders.failure(decisive_line=line), "a\nb") is None
