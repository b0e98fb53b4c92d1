"""One measurement of an endpoint: the load as often as asked, judged as a trial's is."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, StrictInt

from autotune.domain.host_load import HostLoad
from autotune.domain.level import LevelMeasurement
from autotune.domain.measurement import Measurement, RequestSample, Trust
from autotune.domain.objective import Limit, Margin, Objective, judge
from autotune.domain.repeats import middle
from autotune.domain.value import Value
from autotune.domain.workload import Workload
from autotune.errors import AutotuneError
from workers.conclusions import measured
from workers.load.result_files import MeasuredLevel
from workers.load.spec import Api, LoadResult, LoadSpec

SEEDS_APART = 1_000_003  # between repeats, whose prompts differ
Samples = Mapping[str, Sequence[RequestSample]]


class NothingSent(AutotuneError):
    """A level that had no request at all."""


class Measured(Value):
    """What was asked, what came of it, and whether it may be trusted.

    `margins`: how far each limit was from being broken, by level. `cache_reset`: the path by which the server emptied
    its prefix cache. With `repeats`, each level's figures are those of the middle one.
    """

    url: str
    model: str
    api: Api
    version: str
    started_at: AwareDatetime
    seed: StrictInt
    repeats: StrictInt
    workload: Workload
    slo: tuple[Limit, ...]
    margins: tuple[Margin, ...]
    measurement: Measurement
    cache_reset: str | None = None
    continuous_usage: bool = False
    processes: int = 1

    @property
    def valid(self) -> bool:
        """Whether the figures may be compared with others."""
        return self.measurement.trust is not Trust.INVALID


class Taken(Value):
    """A measurement with every request that it is made of."""

    measured: Measured
    samples: dict[str, tuple[RequestSample, ...]]

    @property
    def levels(self) -> tuple[MeasuredLevel, ...]:
        """In the order of the workload, as result files want them."""
        told = self.measured
        return tuple(
            MeasuredLevel(
                url=told.url,
                model=told.model,
                api=told.api,
                started_at=told.started_at,
                level=level,
                figures=told.measurement.levels[level.name],
                samples=self.samples[level.name],
            )
            for level in told.workload.levels
        )


def take(
    spec: LoadSpec, repeats: int, slo: Sequence[Limit], folder: Path, run: Callable[[LoadSpec, Path], LoadResult]
) -> Taken:
    """Run the load `repeats` times and conclude. Of several runs, each has a folder of its own below `folder`."""
    started_at = datetime.now(UTC)
    results: list[LoadResult] = []
    for number in range(repeats):
        own = folder if repeats == 1 else folder / str(number + 1)
        own.mkdir(parents=True, exist_ok=True)
        results.append(run(spec.model_copy(update={"seed": spec.seed + number * SEEDS_APART}), own))
    measurement, samples = concluded(spec.workload, results, slo)
    measured_now = Measured(
        url=spec.base_url,
        model=spec.model,
        api=spec.api,
        version=_version(),
        started_at=started_at,
        seed=spec.seed,
        repeats=repeats,
        workload=spec.workload,
        slo=tuple(slo),
        margins=judge(measurement, Objective(), slo).margins,
        measurement=measurement,
        cache_reset=results[-1].cache_reset,
        continuous_usage=all(result.continuous_usage for result in results),
        processes=max(result.host.processes for result in results),
    )
    return Taken(measured=measured_now, samples={name: tuple(own) for name, own in samples.items()})


def concluded(workload: Workload, results: Sequence[LoadResult], slo: Sequence[Limit]) -> tuple[Measurement, Samples]:
    """Of each level the middle repeat, judged with the host's worst moments of all of them. Raises NothingSent."""
    for level in workload.levels:
        if not all(one.levels[level.name] for one in results):
            raise NothingSent(f"{level.name}: no request was due in its time; raise its rate_per_s or duration_s")
    each = [measured(workload, one.levels, {}, one.server, stopped=one.stopped, sla=slo) for one in results]
    chosen: dict[str, LevelMeasurement] = {}
    place: dict[str, int] = {}
    for level in workload.levels:
        repeats = [one.levels[level.name] for one in each]
        chosen[level.name] = middle(repeats)
        bare = chosen[level.name].model_copy(update={"repeats": 1, "repeat_spread_pct": None})
        place[level.name] = repeats.index(bare)
    samples = {name: results[number].levels[name] for name, number in place.items()}
    server = {name: results[number].server.get(name, {}) for name, number in place.items()}
    stopped = {name: end for name, number in place.items() if (end := results[number].stopped.get(name)) is not None}
    host = worst([one.host.load for one in results])
    measurement = measured(workload, samples, {}, server, stopped=stopped, sla=slo, host=host)
    if len(results) == 1:
        return measurement, samples
    return measurement.model_copy(update={"levels": chosen}), samples


def worst(hosts: Sequence[HostLoad]) -> HostLoad:
    """The worst of each figure; the window is the longest."""
    figures: dict[str, float | None] = {}
    for name in HostLoad.model_fields:
        known = [value for host in hosts if (value := getattr(host, name)) is not None]
        figures[name] = max(known, key=abs, default=None)
    return HostLoad.model_validate(figures)


def _version() -> str:
    try:
        return importlib.metadata.version("ascend-autotune")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
