"""Constants of the engine's modules, as a server finds them once the worker's import hook has set them.

A server process imports the modules under their real names, and the hook of `workers.constants` does its work. An
endpoint without a process of its own must not: it reads what the hook would have set, and says the hook's words.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TextIO

from autotune.domain.template import CONSTANTS_VARIABLE
from autotune.domain.value import Value
from workers.simulator.faults import EngineFailed

PACKAGE = "vllm_ascend"
FOLDER = Path(__file__).with_name("engine_modules")
OURS = f"{__package__}.{FOLDER.name}"  # the same modules under a name that no hook waits for
PLACES = {
    "graph_warmups": (f"{PACKAGE}.platform", "CUDAGRAPH_NUM_OF_WARMUPS"),
    "prefetch_token_threshold": (f"{PACKAGE}.ops.weight_prefetch", "MOE_PREFETCH_TOKEN_THRESHOLD"),
    "fused_gating": (f"{PACKAGE}.ops.fused_moe", "FUSED_GATING"),
    "balanced_experts": (f"{PACKAGE}.ops.fused_moe", "DYNAMIC_EXPERT_BATCHES"),
    "overlap_communication": (f"{PACKAGE}.distributed", "OVERLAP_COLLECTIVES"),
}


class EngineConstants(Value):
    """What the engine's modules say; the defaults are the engine's own."""

    graph_warmups: int = 1
    prefetch_token_threshold: int = 96
    fused_gating: bool = False
    balanced_experts: bool = False
    overlap_communication: bool = False


def imported_constants() -> EngineConstants:
    """What the modules hold in a server's own process. Raises EngineFailed where the hook refuses an import."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    try:
        modules = {name: importlib.import_module(name) for name, _ in PLACES.values()}
    except ImportError as error:
        raise _failed(str(error)) from error
    return EngineConstants.model_validate({field: vars(modules[m])[name] for field, (m, name) in PLACES.items()})


def written_constants(env: Mapping[str, str], out: TextIO) -> EngineConstants:
    """What the hook would set from this environment. `out` gets the lines that it would write.

    Raises EngineFailed where the hook would refuse. Constants of other packages are left alone: nothing imports them.
    """
    text = env.get(CONSTANTS_VARIABLE, "{}")
    try:
        settings = dict(json.loads(text).items())
    except (ValueError, AttributeError) as error:
        message = f"constants cannot be read: {CONSTANTS_VARIABLE}={_shown(text)}"
        _say(out, message)
        raise _failed(f"autotune: {message}") from error
    return changed_constants({target: value for target, value in settings.items() if _is_ours(target)}, out)


def changed_constants(settings: Mapping[str, Any], out: TextIO) -> EngineConstants:
    """The constants after these `{"package.module:NAME": value}`, each change said. Raises EngineFailed."""
    found: dict[str, Any] = {}
    for target, value in sorted(settings.items()):
        module_name, _, name = target.partition(":")
        module = _module(module_name)
        if module is None or name not in vars(module):
            _refuse(out, f"{target} does not exist")
        old = vars(module)[name]
        if type(value) is not type(old):
            _refuse(out, f"{target} is {_kind(old)}, not {_kind(value)}" + _wrong(value))
        found |= {field: value for field, place in PLACES.items() if place == (module_name, name)}
        _say(out, f"set {target} from {_shown(old)} to {_shown(value)}")
    return EngineConstants.model_validate(found)


def _is_ours(target: str) -> bool:
    module = target.partition(":")[0]
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{OURS}.{name}")
    except ModuleNotFoundError:
        return None


def _wrong(value: Any) -> str:
    return "" if isinstance(value, list) else f" ({_shown(value)})"


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _say(out: TextIO, text: str) -> None:
    out.write(f"autotune: {text}\n")
    out.flush()


def _refuse(out: TextIO, text: str) -> NoReturn:
    _say(out, f"constant {text}")
    raise _failed(f"autotune: constant {text}")


def _failed(message: str) -> EngineFailed:
    return EngineFailed("ImportError", message, "register_platform")
