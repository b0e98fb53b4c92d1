"""What is concluded from samples."""

from __future__ import annotations

import pytest

from autotune.domain.measurement import RequestSample
from autotune.domain.stop_rule import Decision, Verdict
from autotune.domain.workload import LoadLevel, Workload
from workers.conclusions import measured

LEVEL = LoadLevel(concurrency=2, requests=40, precision=0.01)
WORKLOAD = Workload(prompt_tokens=16, output_tokens=11, levels=(LEVEL,))


def samples(*tpot_ms: float) -> tuple[RequestSample, ...]:
    """Two at a time, each wave after the one before."""
    return tuple(
        RequestSample(
            index=index,
            t_send_s=(index // 2) * 1.0,
            t_last_s=(index // 2) * 1.0 + 0.9 + index * 1e-6,
            ttft_ms=100.0,
            tpot_ms=pace,
            decode_tpot_ms=pace,
            e2e_ms=900.0,
            prompt_tokens=16,
            completion_tokens=11,
            finish_reason="length",
            events=11,
        )
        for index, pace in enumerate(tpot_ms)
    )


def test_the_pace_of_a_level_that_stopped_is_that_of_the_requests_on_which_it_did() -> None:
    decision = Decision(verdict=Verdict.PRECISE, requests=10, batches=4, mean_ms=10.0, half_width=0.01)
    made = {"c2": samples(8.0, 8.0, *[10.0] * 8, 7.0)}  # the first round, four batches, one that was in flight
    level = measured(WORKLOAD, made, {}, stopped={"c2": decision}).levels["c2"]
    assert level.stopped == decision
    assert level.tpot_ms is not None
    assert level.tpot_ms.n == 8
    assert level.tpot_ms.mean == pytest.approx(10.0)
    assert level.sent == 11, "everything that was sent counts elsewhere"
    assert level.ttft_ms is not None
    assert level.ttft_ms.n == 11
    without = measured(WORKLOAD, made, {}).levels["c2"]
    assert without.tpot_ms is not None
    assert without.tpot_ms.n == 11


def test_a_level_that_never_knew_its_pace_keeps_all_its_requests() -> None:
    decision = Decision(verdict=Verdict.CAP, requests=6, batches=2)
    level = measured(WORKLOAD, {"c2": samples(*[10.0] * 6)}, {}, stopped={"c2": decision}).levels["c2"]
    assert level.tpot_ms is not None
    assert level.tpot_ms.n == 6
