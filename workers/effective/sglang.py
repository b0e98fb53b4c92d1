"""SGLang: `/server_info`, and the arguments that it prints at start. Releases 0.5.x."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from autotune.domain.knobs import KnobValue
from workers.effective.asked import scalar
from workers.effective.reading import Fact, Reading, evidence, log_lines

INFO_PATHS = ("/server_info", "/get_server_info")  # the second is the older name

_PRINTED = re.compile(r"\bserver_args=ServerArgs\(")
_ARGUMENT = re.compile(r"\b([a-z]\w*)=('[^']*'|\[[^\[\]]*\]|[\w.+-]+)(?=[,)])")
# Spellings of the command line whose field has another name.
FIELDS = {
    "--tp": "tp_size",
    "--tensor-parallel-size": "tp_size",
    "--pp": "pp_size",
    "--pipeline-parallel-size": "pp_size",
    "--dp": "dp_size",
    "--data-parallel-size": "dp_size",
    "--ep": "ep_size",
    "--expert-parallel-size": "ep_size",
}
_ALIASES: dict[str, list[str]] = {}
for _flag, _field in FIELDS.items():
    _ALIASES.setdefault(_field, []).append(_flag)


def read(text: str, server_info: Mapping[str, Any] | None = None) -> Reading:
    """Total and pure. What the running server answers counts more than what it printed at start."""
    fields: dict[str, Fact] = {}
    for line in log_lines(text):
        if _PRINTED.search(line):
            for match in _ARGUMENT.finditer(line):
                fields.setdefault(match[1], Fact(_value(match[2]), evidence(match[0])))
            break
    speaks = bool(fields) or server_info is not None
    for name, value in (server_info or {}).items():
        known, plain = _plain(value)
        if known:
            fields[name] = Fact(plain, evidence(f"server_info: {name}={value!r}"))
    facts: dict[str, Fact] = {}
    for name, fact in fields.items():
        facts["--" + name.replace("_", "-")] = fact
        facts |= dict.fromkeys(_ALIASES.get(name, ()), fact)
    return Reading(facts, speaks=speaks)


def _value(text: str) -> KnobValue:
    if text.startswith("["):
        return tuple(v for word in text[1:-1].split(",") if word.strip() and (v := scalar(word)) is not None)
    return scalar(text)


def _plain(value: object) -> tuple[bool, KnobValue]:
    if isinstance(value, float) and not math.isfinite(value):
        return False, None
    if value is None or isinstance(value, bool | int | float | str):
        return True, value
    if isinstance(value, list) and all(isinstance(v, bool | int | str) for v in value):
        return True, tuple(value)
    return False, None
