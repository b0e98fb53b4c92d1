"""What other load generators mean by the names of their figures, as data with reasons.

Read in the sources of the versions named in `READ_IN`; another version may mean something else.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from autotune.domain.request_sample import RequestSample
from autotune.domain.value import Value
from workers.load.result_files import nearest_rank, whole_latency_per_token_ms


class Client(StrEnum):
    """A load generator of others."""

    EVALSCOPE = "evalscope"
    VLLM = "vllm"
    GUIDELLM = "guidellm"


READ_IN: Mapping[Client, str] = {Client.EVALSCOPE: "1.14.1", Client.VLLM: "0.32.0", Client.GUIDELLM: "0.8.1"}

OURS: Mapping[str, str] = {
    "ttft_ms": "first event with generated text, from the first byte of the request, by the kernel's arrival time",
    "ttft_p99_ms": "linear interpolation between ranks",
    "tpot_ms": "(last - first event with text) / (tokens - 1); undefined below 2 tokens",
    "tpot_p99_ms": "linear interpolation between ranks",
    "whole_latency_per_token_ms": "no figure of ours",
    "itl_ms": "time between two events over the tokens of the later one, weighted by tokens",
    "e2e_ms": "last event with text, from the first byte of the request",
    "output_tok_s": "tokens of good requests / (last arrival - first send)",
    "prompt_tokens": "as the server counts them",
    "output_tokens": "as the server counts them; without that there is no figure",
}
"""Every figure that is compared, with our own definition."""


class Definition(Value):
    """How one figure of another client is made, and what that does to it."""

    theirs: str
    effect: str


_USER_TIME = "Times are taken in user space, when the event loop comes to the bytes"
_BUSY = "Later than the arrival by the client's own work: by the work for all streams that a step of the server wakes."
_RANK = "Above the interpolated value; of fewer than 100 requests the p99 is the largest one."
_PER_EVENT = "Events with several tokens, as with speculation, count once: it is no time per token then."

DEFINITIONS: Mapping[Client, Mapping[str, Definition]] = {
    Client.EVALSCOPE: {
        "ttft_ms": Definition(
            theirs=f"First chunk with text or reasoning, from before the request is built. {_USER_TIME}.",
            effect=f"{_BUSY} Connections are opened within the first requests.",
        ),
        "ttft_p99_ms": Definition(theirs="Nearest rank, no interpolation.", effect=_RANK),
        "tpot_ms": Definition(
            theirs="(last JSON chunk, usage included, - first chunk) / (tokens - 1); without answers of one token.",
            effect="Longer by the time from the last token to the usage, over the tokens. Rounded to 0.01 ms.",
        ),
        "tpot_p99_ms": Definition(theirs="Nearest rank, no interpolation.", effect=_RANK),
        "itl_ms": Definition(theirs="Mean over all gaps between chunks with text.", effect=_PER_EVENT),
        "e2e_ms": Definition(
            theirs="Last JSON chunk, usage included.",
            effect="Longer by the time from the last token to the usage.",
        ),
        "output_tok_s": Definition(
            theirs="All tokens / (last completion - first start).",
            effect="Lower by what the client adds between requests; the database is written by the same loop.",
        ),
        "output_tokens": Definition(
            theirs="The server's usage, else a tokenizer of the client.",
            effect="Without usage, text is counted by what tokenizer there is.",
        ),
    },
    Client.VLLM: {
        "ttft_ms": Definition(
            theirs=f"First chunk with `choices`, even with empty text, as a role chunk has. {_USER_TIME}.",
            effect=f"Too early where the server sends a role chunk before the first token. {_BUSY}",
        ),
        "ttft_p99_ms": Definition(theirs="Linear interpolation.", effect="None."),
        "tpot_ms": Definition(
            theirs="(last chunk with `choices` - first one) / (tokens - 1); answers of one token are left out.",
            effect="Too long by an early first chunk, and by a last one without text, over the tokens.",
        ),
        "tpot_p99_ms": Definition(theirs="Linear interpolation.", effect="None."),
        "itl_ms": Definition(
            theirs="Mean over all gaps between chunks.",
            effect=f"A role chunk adds a gap that is no token's. {_PER_EVENT}",
        ),
        "e2e_ms": Definition(
            theirs="Last chunk with `choices`, from before the request is written.",
            effect="Longer by a last chunk that only has the finish reason.",
        ),
        "output_tok_s": Definition(
            theirs="All tokens / (first dispatch - all tasks done).",
            effect="Lower by the start and the end of the run.",
        ),
        "output_tokens": Definition(
            theirs="The server's usage, else a tokenizer of the client; without one, 1.",
            effect="Without usage, a guess.",
        ),
        "prompt_tokens": Definition(
            theirs="By the client's own tokenizer, before the request is sent.",
            effect="Differs by what the server's template and tokenizer make of it.",
        ),
    },
    Client.GUIDELLM: {
        "ttft_ms": Definition(
            theirs="First chunk that counts as a token, reasoning too, from before the body is encoded. Wall clock.",
            effect=f"{_BUSY} A clock that is set moves it.",
        ),
        "ttft_p99_ms": Definition(theirs="The least value that 99 % do not exceed.", effect=_RANK),
        "tpot_ms": Definition(
            theirs="Its inter-token latency: (last - first chunk) / (tokens - 1), mean weighted by tokens.",
            effect="Equal for answers of one length; otherwise long answers count for more.",
        ),
        "tpot_p99_ms": Definition(theirs="The least value that 99 % of the tokens do not exceed.", effect=_RANK),
        "whole_latency_per_token_ms": Definition(
            theirs="Its time per output token: whole latency / tokens.",
            effect="Has the wait for the first token in it: no time per token while decoding.",
        ),
        "e2e_ms": Definition(theirs="Until the stream is closed.", effect="Longer by usage, [DONE] and the close."),
        "output_tok_s": Definition(
            theirs="Tokens over the time in which they came, between warm-up and cool-down.",
            effect="Differs by what of the start and the end is in it.",
        ),
        "output_tokens": Definition(
            theirs="The server's usage, else the length that was asked for, else the number of chunks.",
            effect="Without usage, the asked length passes for what was made.",
        ),
    },
}

Way = Callable[[Sequence[RequestSample]], float | None]


def ours_by(client: Client, figure: str, good: Sequence[RequestSample], ours: float | None) -> float | None:
    """Our own requests by their definition, as far as what was recorded can tell; else our figure as it is."""
    way = _WAYS.get((client, figure))
    return ours if way is None else way(good)


def _nearest(field: str) -> Way:
    def of(good: Sequence[RequestSample]) -> float | None:
        values = sorted(value for s in good if (value := getattr(s, field)) is not None)
        return nearest_rank(values, 99) if values else None

    return of


def _per_event(good: Sequence[RequestSample]) -> float | None:
    gaps = [gap for s in good for gap in s.gaps_ms]
    return statistics.fmean(gaps) if gaps else None


def _whole(good: Sequence[RequestSample]) -> float | None:
    known = [(value, s.completion_tokens or 0) for s in good if (value := whole_latency_per_token_ms(s)) is not None]
    return sum(v * n for v, n in known) / sum(n for _, n in known) if known else None


def _by_tokens(good: Sequence[RequestSample]) -> float | None:
    known = [(s.tpot_ms, s.completion_tokens - 1) for s in good if s.tpot_ms is not None and s.completion_tokens]
    return sum(v * n for v, n in known) / sum(n for _, n in known) if known else None


_WAYS: Mapping[tuple[Client, str], Way] = {
    **{(c, f"{f}_p99_ms"): _nearest(f"{f}_ms") for c in (Client.EVALSCOPE, Client.GUIDELLM) for f in ("ttft", "tpot")},
    (Client.EVALSCOPE, "itl_ms"): _per_event,
    (Client.VLLM, "itl_ms"): _per_event,
    (Client.GUIDELLM, "tpot_ms"): _by_tokens,
    (Client.GUIDELLM, "whole_latency_per_token_ms"): _whole,
}
