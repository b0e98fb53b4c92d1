"""The router's command line: that of SGLang's router, as far as a deployment of prefill and decode needs it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from autotune.domain.value import Value
from workers.simulator.router.policy import POLICIES

_NO_EFFECT = "accepted, without effect on the simulation"


class RouterFlags(Value):
    """A parsed command line. A prefill server's second word, its bootstrap port, is its HTTP port where absent."""

    host: str
    port: int
    prefill: tuple[tuple[str, int | None], ...]
    decode: tuple[str, ...]
    prefill_policy: str
    decode_policy: str


def parse_router_flags(argv: Sequence[str]) -> RouterFlags:
    """Parse the words after `router`. Raises SystemExit(2) after argparse printed the reason."""
    parser = argparse.ArgumentParser(prog="launch_router.py", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--pd-disaggregation", action="store_true")
    add("--prefill", action="append", nargs="+", metavar=("URL", "BOOTSTRAP_PORT"), default=[])
    add("--decode", action="append", metavar="URL", default=[])
    add("--policy", choices=POLICIES, default="cache_aware")
    add("--prefill-policy", choices=POLICIES, default=None)
    add("--decode-policy", choices=tuple(p for p in POLICIES if p != "cache_aware"), default=None)
    add("--mini-lb", action="store_true", help=_NO_EFFECT)
    for flag in ("--prometheus-port", "--worker-startup-timeout-secs", "--request-timeout-secs"):
        add(flag, type=int, default=None, help=_NO_EFFECT)
    add("--log-level", default=None, help=_NO_EFFECT)
    parsed = parser.parse_args(argv)
    if not parsed.pd_disaggregation:
        parser.error("--pd-disaggregation is required: the simulated router knows no other mode")
    if not parsed.prefill or not parsed.decode:
        parser.error("PD disaggregation mode requires --prefill and --decode")
    prefill = []
    for url, *rest in parsed.prefill:
        if len(rest) > 1 or not all(word == "none" or word.isdecimal() for word in rest):
            parser.error(f"argument --prefill: invalid bootstrap port value: {' '.join(rest)!r}")
        prefill.append((url, int(rest[0]) if rest and rest[0] != "none" else None))
    return RouterFlags(
        host=parsed.host,
        port=parsed.port,
        prefill=tuple(prefill),
        decode=tuple(parsed.decode),
        prefill_policy=parsed.prefill_policy or parsed.policy,
        decode_policy=parsed.decode_policy or parsed.policy,
    )
