"""Places and values of a space as people name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.domain.export import setting_in_words
from autotune.domain.knobs import SERVER, EnvFragment, Knob, Landing, Preload, StackChoice, Switch
from autotune.domain.launch_plan import place_of
from autotune.domain.space import SearchSpace
from autotune.domain.stack import PARTS, Needs, StackVersions


def place_in_words(lands: Landing) -> str:
    """`env HCCL_BUFFSIZE`, `--additional-config a.b`, `--graphs / --no-graphs`."""
    match lands:
        case EnvFragment():
            return f"env {lands.name}, its part {lands.key}"
        case Preload():
            return "env LD_PRELOAD"
        case Switch():
            return " / ".join(filter(None, (lands.on, lands.off)))
        case StackChoice():
            return "the template's stack"
    return place_of(lands)  # its name in a launch plan is what people call it


def knob_place(knob: Knob) -> str:
    """The landing place, with the role where it is not the only server."""
    place = place_in_words(knob.lands)
    return place if knob.role == SERVER else f"{place} ({knob.role})"


def value_in_words(value: Any) -> str:
    """`unset`, `true`, `[1, 2]`, or the text itself."""
    return value if isinstance(value, str) else setting_in_words(value)


def settings_in_words(values: Mapping[str, Any]) -> str:
    """`buffer_mb=512, expansion_mode=AIV`."""
    return ", ".join(f"{name}={value_in_words(value)}" for name, value in values.items())


def over_baseline(space: SearchSpace, values: Mapping[str, Any]) -> str:
    """What a recipe changes."""
    return settings_in_words({k: v for k, v in values.items() if v != space.baseline.get(k)})


def stack_in_words(stack: StackVersions) -> str:
    """`engine 0.23, chip 910C`; what is unknown is left out."""
    known = {name: value for name, value in stack.model_dump().items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in known.items()) or "any stack"


def needs_in_words(needs: Needs) -> str:
    """`engine >=0.22, chips 910B, 910C`; empty where it exists everywhere."""
    parts = [f"{part} {wanted}" for part in PARTS if (wanted := getattr(needs, part)) is not None]
    return "; ".join([*parts, *([f"chips {', '.join(needs.chips)}"] if needs.chips else [])])
