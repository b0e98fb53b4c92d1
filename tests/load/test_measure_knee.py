"""Where a server falls behind: the search alone, and as a command that finds nothing."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.measurement import Finding, Measurement, Pace, Trust
from autotune.domain.objective import Limit, Margin
from autotune.domain.workload import LoadLevel, Workload
from tests.builders import level_measurement
from tests.load.mock_endpoint import MockEndpoint
from tests.load.test_measure import argv_of, environment, workload
from workers.measure.knee import HIGHEST_PER_S, NARROW, Knee, Step, find_knee, step_of
from workers.measure.measured import Measured, Taken
from workers.measure.table import knee_words

LIMIT = Limit.parse("ttft_p99_ms <= 400")


def taken(
    rate: float,
    *,
    supply: bool = True,
    trust: Trust = Trust.OK,
    excess: float = -1.0,
    pace: Pace = Pace.SUPPLY,
) -> Taken:
    """One rate, kept up with or not."""
    load = LoadLevel(concurrency=256, rate_per_s=rate, requests=100)
    level = level_measurement("c256").model_copy(
        update={"level": load.name, "rate_per_s": rate, "pace": pace, "output_tok_s": rate * 16}
    )
    remark = Finding(rule="supply_limited", level=load.name, trust=Trust.OK, text="kept up")
    measured = Measured(
        url="http://h:1",
        model="m",
        api="completions",
        version="1",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        seed=1,
        repeats=1,
        workload=Workload(prompt_tokens=8, output_tokens=16, levels=(load,)),
        slo=(LIMIT,),
        margins=(Margin(limit=str(LIMIT), level=load.name, value=500.0, excess=excess),),
        measurement=Measurement(
            levels={load.name: level}, trust=trust, trust_reasons=("why",), findings=(remark,) if supply else ()
        ),
    )
    return Taken(measured=measured, samples={load.name: ()})


def searched(capacity: float, first: float = 1.0, least: float = 0.25) -> tuple[Knee, Taken, list[Step]]:
    told: list[Step] = []
    knee, found = find_knee(first, least, lambda rate, _: taken(rate, supply=rate <= capacity), told.append)
    return knee, found, told


@settings(max_examples=50, deadline=None)
@given(st.floats(0.3, 9000), st.floats(0.5, 100))
def test_the_knee_lies_between_neighbours(capacity: float, first: float) -> None:
    knee, found, told = searched(capacity, first)
    assert tuple(told) == knee.steps
    if knee.rate_per_s is None:
        assert all(step.rate_per_s > capacity for step in told)
        return
    assert knee.rate_per_s <= capacity
    assert knee.breaks_at_per_s is not None
    assert capacity < knee.breaks_at_per_s <= knee.rate_per_s * NARROW * 1.01
    assert found.measured.workload.levels[0].rate_per_s == knee.rate_per_s
    assert len(told) <= 25


def test_no_rate_holds_and_every_rate_holds() -> None:
    knee, found, told = searched(0.1)
    assert [step.rate_per_s for step in told] == [1.0, 0.5, 0.25]
    assert (knee.rate_per_s, found.measured.workload.levels[0].rate_per_s) == (None, 0.25)
    assert "no rate held" in knee_words(knee)
    knee, _, told = searched(1e9)
    assert (knee.rate_per_s, knee.breaks_at_per_s) == (HIGHEST_PER_S, None)
    assert "above 10000 requests/s" in knee_words(knee)


def test_what_ends_a_rate() -> None:
    assert step_of(2.0, taken(2.0).measured).holds
    assert "falls behind" in step_of(2.0, taken(2.0, supply=False).measured).why
    assert "256 in flight" in step_of(2.0, taken(2.0, pace=Pace.CAP).measured).why
    assert "too busy to send on time" in step_of(2.0, taken(2.0, pace=Pace.CLIENT).measured).why
    assert step_of(2.0, taken(2.0, trust=Trust.INVALID).measured).why == "not trusted: why"
    assert step_of(2.0, taken(2.0, excess=0.25).measured).why == "ttft_p99_ms <= 400 is broken: 500"


def test_the_command_shows_its_steps(tmp_path: Path) -> None:
    level = {"concurrency": 256, "rate_per_s": 80, "arrivals": "constant", "duration_s": 0.4}
    file = workload(
        tmp_path, {"preset": "knee", "prompt_tokens": 24, "output_tokens": 4, "warmup_requests": 1, "levels": [level]}
    )
    with MockEndpoint() as mock:
        words = ["--model", "m", "--workload", file, "--slo", "ttft_ms <= 0.001", "--json"]
        done = subprocess.run(
            argv_of("measure", mock.url, *words),
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    knee = json.loads(done.stdout)["knee"]
    assert (knee["rate_per_s"], [step["rate_per_s"] for step in knee["steps"]]) == (None, [80.0, 40.0])
    assert not any(step["holds"] for step in knee["steps"])
    assert "80 requests/s: " in done.stderr
