"""How late the event loop comes to its timers."""

from __future__ import annotations

import asyncio
import time

import pytest
from pydantic import ValidationError

from autotune.domain.workload import LoadLevel, Workload
from workers.load.heartbeat import Heartbeat
from workers.load.spec import LoadSpec


def block() -> None:
    time.sleep(0.2)


def test_a_blocked_loop_shows() -> None:
    async def main() -> None:
        with Heartbeat(asyncio.get_running_loop()) as heartbeat:
            assert heartbeat.worst_ms() == 0
            await asyncio.sleep(0.05)
            before = time.monotonic_ns()
            block()
            blocked = time.monotonic_ns()
            await asyncio.sleep(0.05)
        assert heartbeat.worst_ms() > 150
        assert heartbeat.worst_ms(before, blocked) > 150  # the beat that was due then came later
        assert heartbeat.worst_ms(0, 1) < heartbeat.worst_ms()

    asyncio.run(main())


WORKLOAD = Workload(prompt_tokens=1, output_tokens=2, levels=(LoadLevel(concurrency=2, requests=1),))


def test_the_spec_of_a_run() -> None:
    spec = LoadSpec(base_url="http://h:1/", model="m", workload=WORKLOAD, seed=1)
    assert spec.base_url == "http://h:1"
    assert spec.warm_up == LoadLevel(concurrency=2, requests=2)
    assert LoadSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    "change",
    [
        {"base_url": "ftp://h"},
        {"base_url": "h:1"},
        {"base_url": "http://h/?a=b"},
        {"model": ""},
        {"api": "grpc"},
        {"prompt_token_low": 5, "prompt_token_high": 5},
        {"surprise": 1},
    ],
    ids=str,
)
def test_a_spec_that_makes_no_sense(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LoadSpec.model_validate({"base_url": "http://h", "model": "m", "workload": WORKLOAD, "seed": 1, **change})
