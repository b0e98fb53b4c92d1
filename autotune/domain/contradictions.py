"""Where the load generator's figures and those of the server contradict each other."""

from __future__ import annotations

from autotune.domain.level import LevelMeasurement
from autotune.domain.server_truth import ServerTruth
from autotune.domain.value import Value

# A client sees each token later than the engine, by about the same time: a difference of the pace has a cause.
TPOT_SHARE = 0.01
TPOT_MS = 0.1


class Contradictions(Value):
    """Where client and server disagree. What is `wrong` makes a measurement invalid, a `finding` is worth a look."""

    wrong: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()


def contradictions(level: LevelMeasurement, truth: ServerTruth, completion_tokens: int) -> Contradictions:
    """Compares a level with the counters of the one server that answered it.

    `completion_tokens`: of all requests that ended as planned. Where requests failed, the server may have done more
    than the client saw to the end, and never less.
    """
    if truth.restarted:
        return Contradictions(wrong=("the server's counters went back: it was started anew under load",))
    wrong: list[str] = []
    findings: list[str] = []
    good = level.sent - level.failed
    for what, theirs, ours in (
        ("requests", truth.finished, good),
        ("generated tokens", truth.generation_tokens, completion_tokens),
    ):
        if theirs is not None and (theirs < ours or (theirs != ours and level.failed == 0)):
            whose = "others used it" if theirs > ours else "one of them counts wrongly"
            wrong.append(f"the server counts {theirs} {what}, {ours} were received: {whose}")
    tpot = level.tpot_ms
    # The server's mean is over all requests, that of a level which stopped over those on which it did.
    comparable = level.failed == 0 and level.stopped is None
    if tpot is not None and truth.tpot_mean_ms is not None and comparable:
        apart = tpot.mean - truth.tpot_mean_ms
        allowed = max(TPOT_SHARE * truth.tpot_mean_ms, TPOT_MS)
        told = f"TPOT is {tpot.mean:.3f} ms here and {truth.tpot_mean_ms:.3f} ms by the server"
        if apart < -allowed:
            wrong.append(f"{told}: no client is faster than its server")
        elif apart > allowed:
            findings.append(f"{told}: the way to the client costs the difference")
    return Contradictions(wrong=tuple(wrong), findings=tuple(findings))


def frontend_ms(level: LevelMeasurement, truth: ServerTruth) -> float | None:
    """What lies between the client's TTFT and the engine's: HTTP, tokenizer, the network."""
    if level.ttft_ms is None or truth.ttft_mean_ms is None:
        return None
    return level.ttft_ms.mean - truth.ttft_mean_ms
