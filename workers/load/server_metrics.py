"""A server's own counters around a load level: read from /metrics before its first request and after its last one.

Only differences of counters and of the sums and counts of histograms are used. Percentiles of a histogram are as coarse
as its buckets, whose lowest one is above a whole token of what is measured here.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field, TypeAdapter

from autotune.domain.server_truth import ServerTruth
from autotune.domain.value import Value

NAMES = Path(__file__).with_name("server_metrics.yaml")
PATH = "/metrics"
LIMIT_S = 5.0  # a server under full load answers within a second
MAX_BYTES = 16 * 1024**2
SETTLE_S = 2.0  # an engine counts a request up to a moment after its last byte
PAUSE_S = 0.05
_MS = 1000.0

Labels = tuple[tuple[str, str], ...]
Snapshot = Mapping[str, Mapping[Labels, float]]
"""Values by the name of the sample, without `_total`, and by their labels."""


class EngineNames(Value):
    """One engine's part of the names file."""

    counters: dict[str, tuple[str, ...]]
    means: dict[str, tuple[str, ...]]
    by_label: dict[str, tuple[str, str]] = Field(default_factory=dict)


_ENGINES = TypeAdapter(dict[str, EngineNames])


@functools.cache
def engine_names() -> Mapping[str, EngineNames]:
    """By engine, as the file has them."""
    return _ENGINES.validate_python(yaml.safe_load(NAMES.read_text(encoding="utf-8")))


def parse(text: str) -> Snapshot:
    """The samples of an exposition in Prometheus's text format; empty for a text that is none."""
    found: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                found.setdefault(name, {})[tuple(sorted(sample.labels.items()))] = float(sample.value)
    except (ValueError, KeyError, IndexError):  # what the parser raises for a page that is something else
        return {}
    return found


async def scrape(client: httpx.AsyncClient, base_url: str) -> Snapshot:
    """What the server says now; empty where it says nothing. Never raises: a dead server shows in its requests."""
    try:
        async with asyncio.timeout(LIMIT_S):
            response = await client.get(base_url + PATH, headers={"accept": "text/plain"})
    except (TimeoutError, httpx.TransportError):
        return {}
    if response.status_code != httpx.codes.OK or len(response.content) > MAX_BYTES:
        return {}
    return parse(response.text)


class ServerWatch:
    """The servers of a deployment by role, seen before and after each level."""

    def __init__(self, client: httpx.AsyncClient, base_urls: Mapping[str, str]) -> None:
        self._client = client
        self._urls = dict(base_urls)
        self._before: dict[str, Snapshot] = {}

    async def begin(self) -> None:
        """Right before the first request of a level."""
        self._before = await self._look(self._urls)

    async def end(self, requests: int) -> dict[str, ServerTruth]:
        """After the last answer of a level: by role, of those that tell anything.

        Waits for a moment until `requests` have been counted: engines do so after the last byte has gone out.
        """
        waited = 0.0
        told = await self._told()
        while waited < SETTLE_S and any(t.finished is not None and t.finished < requests for t in told.values()):
            await asyncio.sleep(PAUSE_S)
            waited += PAUSE_S
            told = await self._told()
        return told

    async def _told(self) -> dict[str, ServerTruth]:
        roles = {role: url for role, url in self._urls.items() if self._before.get(role)}
        after = await self._look(roles)
        found = {role: difference(self._before[role], snapshot) for role, snapshot in after.items()}
        return {role: truth for role, truth in found.items() if truth is not None}

    async def _look(self, urls: Mapping[str, str]) -> dict[str, Snapshot]:
        found = await asyncio.gather(*(scrape(self._client, url) for url in urls.values()))
        return dict(zip(urls, found, strict=True))


def difference(before: Snapshot, after: Snapshot) -> ServerTruth | None:
    """What happened between the two; None where no engine is recognised in the second one."""
    for engine, names in engine_names().items():
        known = {name for group in names.counters.values() for name in group}
        if not any(name in after for name in known):
            continue
        if any(_sum(after, name) < _sum(before, name) for name in known if name in after):
            return ServerTruth(engine=engine, restarted=True)
        return _truth(engine, names, before, after)
    return None


def _truth(engine: str, names: EngineNames, before: Snapshot, after: Snapshot) -> ServerTruth:
    figures: dict[str, object] = {}
    sources: dict[str, str] = {}
    for figure, candidates in names.counters.items():
        name = next((n for n in candidates if n in after), None)
        if name is not None:
            figures[figure] = round(_sum(after, name) - _sum(before, name))
            sources[figure] = name
    for figure, histograms in names.means.items():
        name = next((n for n in histograms if f"{n}_count" in after), None)
        if name is None:
            continue
        sources[figure] = name
        count = _sum(after, f"{name}_count") - _sum(before, f"{name}_count")
        if count > 0:
            figures[figure] = (_sum(after, f"{name}_sum") - _sum(before, f"{name}_sum")) / count * _MS
    for figure, (name, label) in names.by_label.items():
        if name in after:
            changes = _by_label(after, name, label)
            changes.subtract(_by_label(before, name, label))
            figures[figure] = {value: round(count) for value, count in sorted(changes.items()) if count}
            sources[figure] = name
    return ServerTruth.model_validate({"engine": engine, "names": sources, **figures})


def _sum(snapshot: Snapshot, name: str) -> float:
    return sum(snapshot.get(name, {}).values())


def _by_label(snapshot: Snapshot, name: str, label: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for labels, value in snapshot.get(name, {}).items():
        counts[dict(labels).get(label, "")] += round(value)
    return counts
