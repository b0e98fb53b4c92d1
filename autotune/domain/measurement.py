"""What was observed under load. Times of requests in ms, of windows in s; never a default number.

Definitions (t_send: first byte written; t_due: when the schedule asked for it; a_i: arrival of content event i, n_i its
tokens; N: completion tokens as the server counts them):

* ttft = a_1 - t_send; role-only, empty and usage events never count
* ttft_sched = a_1 - t_due, open loop only: what a user waits; e2e_sched likewise
* ttfo: as ttft, to the first event that is no reasoning
* tpot = (a_last - a_1) / (N - 1); undefined for N < 2, and left out of means then. Where one read brought
  several first events, the quotient is taken from the pace after that read; undefined when more than half of
  the events, or all of them, came in it: a stream that arrives at once has no pace
* decode_tpot = (a_last - a_j) / (N - n_1 - ... - n_j), j the first event alone in its read: long drafts, whose first
  event brings several tokens for nothing, gain nothing by it
* itl = (a_i - a_i-1) / n_i, weighted by n_i; icl = a_i - a_i-1
* e2e  = a_last - t_send
* output_tok_s = completion tokens of good requests / (last arrival - first send) of the level;
  steady_output_tok_s = those that arrive within the steady window / its length
* goodput = requests that met every goal / the same time as output_tok_s; slo_attainment = these / sent
* in flight: from t_send to a_last, or to the failure; its mean over the level x duration / requests is the mean
  e2e (Little's law)
* uncached tokens = prompt tokens that the server did not find in its prefix cache, by its own usage
* schedule lag (open loop) = t_send - t_due; ttft and e2e count from t_send
* percentiles: linear interpolation (Hyndman and Fan 7), stored with their n and an interval
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from autotune.domain.host_load import HostLoad
from autotune.domain.level import LevelMeasurement, Pace
from autotune.domain.quantiles import Quantiles, quantile, quantiles
from autotune.domain.request_sample import RequestSample, TokenCount
from autotune.domain.summary import in_flight_peak, summarise
from autotune.domain.value import Value

__all__ = [
    "Finding",
    "LevelMeasurement",
    "Measurement",
    "Pace",
    "Quantiles",
    "RequestSample",
    "TokenCount",
    "Trust",
    "in_flight_peak",
    "quantile",
    "quantiles",
    "summarise",
]


class Trust(StrEnum):
    """Whether a measurement may be compared."""

    OK = "ok"
    WARN = "warn"
    INVALID = "invalid"


class Finding(Value):
    """What a validity rule says of a level. With `ok` it is a remark that costs no trust.

    `value` and `threshold` where the rule compares numbers; their unit is the rule's.
    """

    rule: str
    level: str
    trust: Trust
    text: str
    value: float | None = None
    threshold: float | None = None


class Measurement(Value):
    """All load levels of one launch, with the reasons for which they may not be trusted.

    `findings` are what the validity rules said, remarks among them; `trust_reasons` also hold what else costs trust.
    `host`: how the load generator's own host fared meanwhile.
    """

    levels: dict[str, LevelMeasurement] = Field(min_length=1)
    trust: Trust = Trust.OK
    trust_reasons: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    host: HostLoad | None = None
