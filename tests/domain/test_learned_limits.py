"""Limits that a study learns from its own earlier trials."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.learned_limits import ENOUGH_TRIALS, PhaseLimits, learned_limits, limited
from autotune.domain.template import Deadlines
from tests import builders


def test_nothing_is_learned_from_too_few_trials() -> None:
    assert learned_limits([]) is None
    assert learned_limits([{"ready": 10.0}] * (ENOUGH_TRIALS - 1)) is None


def test_three_times_the_longest_and_a_minute() -> None:
    taken = [{"ready": 100.0, "weights": 20.0, "load": 50.0}, {"ready": 90.0}, {"ready": 120.0, "load": 10.0}]
    assert learned_limits(taken) == PhaseLimits(ready_s=420.0)
    assert learned_limits([*taken, {"load": 60.0, "stop": 900.0}]) == PhaseLimits(ready_s=420.0, load_s=240.0)


def test_a_learned_limit_shortens_the_templates_and_leaves_a_start_some_room() -> None:
    own = Deadlines(ready_s=3600, warm_up_s=300, load_s=100)
    learned = PhaseLimits(ready_s=300, weights_s=90, warm_up_s=100, load_s=500)
    found = limited(own, learned)
    assert found == own.model_copy(update={"ready_s": 1200.0, "weights_s": 1200.0, "warm_up_s": 100.0})
    assert limited(own, None) == own


SECONDS = st.floats(0, 5000, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["ready", "weights", "capture", "warm_up", "load", "odd"]), SECONDS)),
    st.floats(1, 5000),
    st.none() | st.floats(1, 5000),
)
def test_limits_are_never_longer_than_the_templates_and_never_shorter_than_what_was_seen(
    taken: list[dict[str, float]], ready_s: float, weights_s: float | None
) -> None:
    own = Deadlines(ready_s=ready_s, weights_s=weights_s)
    found = limited(own, learned_limits(taken))
    for name, limit in found.model_dump(exclude_none=True).items():
        before = getattr(own, name)
        assert before is None or limit <= before
        longest = max((one.get(name.removesuffix("_s"), 0.0) for one in taken), default=0.0)
        assert limit >= min(longest, before if before is not None else longest)


def test_a_job_carries_them() -> None:
    job = builders.job("a1").model_copy(update={"limits": PhaseLimits(ready_s=60)})
    assert type(job).model_validate_json(job.model_dump_json()) == job
