"""Client and server side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.domain.contradictions import contradictions, frontend_ms
from autotune.domain.server_truth import ServerTruth
from tests.builders import level_measurement


def truth(**figures: object) -> ServerTruth:
    return ServerTruth.model_validate({"engine": "vllm", **figures})


def test_counts_that_agree_are_no_word_worth() -> None:
    told = contradictions(level_measurement("c4"), truth(finished=16, generation_tokens=256, tpot_mean_ms=9.97), 256)
    assert told.wrong == ()
    assert told.findings == ()


@pytest.mark.parametrize(
    ("figures", "part"),
    [
        ({"finished": 17}, "others used it"),
        ({"finished": 15}, "counts wrongly"),
        ({"generation_tokens": 300}, "others used it"),
        ({"generation_tokens": 200}, "counts wrongly"),
        ({"tpot_mean_ms": 50.0}, "no client is faster than its server"),  # a starved client: whole answers at once
        ({"restarted": True}, "started anew"),
    ],
)
def test_contradictions_that_make_a_measurement_wrong(figures: dict[str, object], part: str) -> None:
    told = contradictions(level_measurement("c4"), truth(**figures), 256)
    assert len(told.wrong) == 1
    assert part in told.wrong[0]


@pytest.mark.parametrize(
    ("figures", "part"),
    [({"tpot_mean_ms": 9.5}, "the way to the client")],
)
def test_findings_leave_the_measurement_valid(figures: dict[str, object], part: str) -> None:
    told = contradictions(level_measurement("c4"), truth(**figures), 256)
    assert told.wrong == ()
    assert len(told.findings) == 1
    assert part in told.findings[0]


def test_failed_requests_leave_the_server_more_and_never_less() -> None:
    level = level_measurement("c4", failed=2, error_rate=0.125)
    assert contradictions(level, truth(finished=16, generation_tokens=250), 224).wrong == ()
    assert len(contradictions(level, truth(finished=13, generation_tokens=200), 224).wrong) == 2


def test_time_before_the_engine() -> None:
    assert frontend_ms(level_measurement("c4"), truth(ttft_mean_ms=88.0)) == pytest.approx(12.0)
    assert frontend_ms(level_measurement("c4"), truth()) is None


@given(st.floats(0.5, 200), st.floats(-0.0099, 0.0099))
def test_one_percent_is_allowed_either_way(tpot_ms: float, apart: float) -> None:
    told = contradictions(level_measurement("c4", tpot_ms), truth(tpot_mean_ms=tpot_ms / (1 + apart)), 256)
    assert told.wrong == told.findings == ()


def test_what_a_truth_derives() -> None:
    assert truth(drafts=100, accepted_tokens=230).accept_len == pytest.approx(3.3)
    assert truth(drafts=0, accepted_tokens=0).accept_len is None
    assert truth().graph_share is None
