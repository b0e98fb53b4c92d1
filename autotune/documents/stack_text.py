"""What an instance of a space is asked for: a stack, `engine=0.23,cann=9.1,chip=910C`, and knobs to include."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from autotune.documents.problems import nearest
from autotune.domain.space import SearchSpace
from autotune.domain.stack import StackVersions
from autotune.errors import InvalidRequest, Problem


def read_stack(text: str, key: str = "stack") -> StackVersions:
    """The versions that the text names; parts that it leaves out are unknown.

    Raises InvalidRequest with a problem of `key` for an unknown part, a part twice, or a wrong version.
    """
    known = tuple(StackVersions.model_fields)
    parts: dict[str, str] = {}
    problems: list[Problem] = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, sign, value = (word.strip() for word in item.partition("="))
        if name not in known:
            problems.append(Problem(key, f"unknown part {name}", nearest(name, known), known))
        elif not sign or not value:
            problems.append(Problem(key, f"{name} has no value", f"write {name}=VALUE"))
        elif name in parts:
            problems.append(Problem(key, f"{name} is given twice", "keep one of the two"))
        else:
            parts[name] = value.upper() if name == "chip" else value
    try:
        stack = StackVersions(**parts)
    except ValidationError as error:
        problems += [Problem(key, str(e["ctx"]["error"])) for e in error.errors(include_url=False)]
    if problems:
        raise InvalidRequest(f"{text!r} does not name a stack", problems)
    return stack


def check_included(space: SearchSpace, include: Sequence[str]) -> None:
    """Raises InvalidRequest for names that are neither knobs of the space nor `tier3`."""
    known = ("tier3", *sorted(knob.name for knob in space.knobs if knob.tier == 3))
    strange = [name for name in include if name != "tier3" and name not in space.by_name]
    if strange:
        problems = [Problem("include", f"unknown knob {name}", allowed=known) for name in strange]
        raise InvalidRequest("only knobs of the space can be included", problems)
