"""Public reports of wrong TTFT, TPOT, token counts and broken streams: each with the right value or the right refusal.

Each is played twice: as a recording with exact times, which must give exactly the figures that the report's file
expects, and by the scripted endpoint over a real connection, where nothing that depends on the machine is asked.

Those with `set_aside: true` in their file, 15 of the 33 that were looked for beside the known ones, were found and
written down after the reader was done, and scored before it was touched again: 12 of 15 were right at first. Two
were refused, but as `truncated_stream` where the error could have been told (llama-cpp-16109, lemonade-2826); one got
no pace because its tokens an event were taken for running totals (vllm-9357). What kinds of faults there are was known
before: only these instances were not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest

from autotune.domain.measurement import RequestSample
from tests.load.mock_endpoint import MockEndpoint
from tests.load.reported_stream import ReportedStream, reports
from workers.load.recording import End, Recording
from workers.load.stream import sample
from workers.load.transport import RecordingTransport

REPORTS = reports()
SAME_ANYWHERE = (
    "error",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "finish_reason",
    "events",
    "counted_by",
)


def by_name(report: ReportedStream) -> str:
    return report.name


@pytest.mark.parametrize("report", REPORTS, ids=by_name)
def test_the_figures(report: ReportedStream) -> None:
    found = sample(report.recording(), 0, 0, asked=report.asked)
    assert report.expect, "a report without a right value"
    for name, right in report.expect.items():
        value: Any = getattr(found, name)
        if isinstance(right, (int, float)) and not isinstance(right, bool):
            assert value == pytest.approx(right, abs=1e-6), name
        elif isinstance(right, list):
            assert list(value) == pytest.approx(right), name
        else:
            assert value == right, name


@pytest.mark.parametrize("report", REPORTS, ids=by_name)
def test_over_a_real_connection(report: ReportedStream) -> None:
    with MockEndpoint(report.script()) as endpoint:
        found, recording = asyncio.run(asked_of(endpoint.url, report.asked))
        assert len(endpoint.served) == 1  # nothing is asked twice
        sent = endpoint.served[0].sent_ns
    planned = sample(report.recording(), 0, 0, asked=report.asked)
    for name in SAME_ANYWHERE:
        if name == "events" and report.end is End.RESET:
            continue  # what was still on its way is lost
        assert getattr(found, name) == getattr(planned, name), name
    assert (found.ttft_ms is None) == (planned.ttft_ms is None)
    assert (found.ttfo_ms is None) == (planned.ttfo_ms is None)
    if found.ttft_ms is not None:
        # Never before the step that brought the first token was sent.
        first = next(n for n, (at, _, _) in enumerate(report.pieces) if planned.ttft_ms == pytest.approx(at))
        while report.pieces[first - 1][0] == report.pieces[first][0] and first:
            first -= 1
        assert found.ttft_ms >= (sent[first] - recording.send_ns) / 1e6 - 1e-3
        assert found.ttft_low_ms is None or found.ttft_low_ms <= found.ttft_ms


async def asked_of(url: str, asked: int | None) -> tuple[RequestSample, Recording]:
    recording = Recording()
    body = json.dumps({"prompt": [1, 2], "stream": True, "max_tokens": asked or 9}).encode()
    async with httpx.AsyncClient(transport=RecordingTransport(), timeout=30, trust_env=False) as client:
        request = client.build_request(
            "POST", f"{url}/v1/completions", content=body, extensions={"recording": recording}
        )
        with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError, httpx.DecodingError):
            await client.send(request)
    return sample(recording, 0, recording.send_ns, asked=asked), recording


def test_each_report_names_its_source_and_none_comes_twice() -> None:
    sources = [report.source for report in REPORTS]
    assert all("/" in source and "#" in source for source in sources)
    assert len(set(sources)) == len(sources)
