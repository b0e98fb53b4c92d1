"""Fits a search space to one study: its baseline, its held knobs, the libraries of its template."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from autotune.domain.deployment import facts
from autotune.domain.instance import instantiate
from autotune.domain.knobs import ChoiceKind, EnvFragment, EnvVar, KnobValue, Preload, StackChoice
from autotune.domain.launch_plan import render
from autotune.domain.space import SearchSpace
from autotune.domain.study import StudySpec
from autotune.domain.template import LaunchTemplate, is_denied_env
from autotune.errors import InvalidCandidate, InvalidSpace, InvalidStudy, Problem

TIER3 = "tier3"


def tailor(space: SearchSpace, spec: StudySpec, template: LaunchTemplate) -> SearchSpace:
    """The space as the study uses it.

    Raises InvalidStudy with every problem at once, keys as they stand in the study file.
    """
    known_recipes = tuple(recipe.name for recipe in space.recipes)
    tierless = [name for name in spec.include if name != TIER3 and name not in space.by_name]
    space = instantiate(space, spec.stack.over(template.versions_on(None)).over(space.stack), _included(spec)).space
    problems = _value_problems(space, "baseline", spec.baseline) + _value_problems(space, "hold", spec.hold)
    problems += _recipe_problems(known_recipes, spec)
    problems += [Problem(key="include", message=f"unknown knob {name}", allowed=(TIER3,)) for name in tierless]
    if spec.deployment.model not in template.models:
        problems.append(
            Problem(
                key="deployment.model",
                message=f"template {template.name} has no model {spec.deployment.model}",
                allowed=tuple(sorted(template.models)),
            )
        )
    if space.engine != template.engine:
        problems.append(
            Problem(
                key="deployment.template",
                message=f"template {template.name} starts {template.engine}, space {space.name} is for {space.engine}",
                mend="choose a template of the same engine",
            )
        )
    problems += [
        Problem(key="space", message=f"the space sets {name}, which no study may set", mend="remove it from the space")
        for name in _env_names(space)
        if is_denied_env(name)
    ]
    if problems:
        raise InvalidStudy("the study cannot be run", problems)
    listed = _only_what_the_host_lists(space, template)
    tailored = listed.model_copy(
        update={"baseline": {**listed.baseline, **spec.baseline, **spec.hold}, "hold": {**listed.hold, **spec.hold}}
    )
    _check_baseline(tailored, spec)
    return tailored


def _recipe_problems(known: tuple[str, ...], spec: StudySpec) -> list[Problem]:
    named = spec.recipes if isinstance(spec.recipes, tuple) else ()
    return [Problem(key="recipes", message=f"unknown recipe {n}", allowed=known) for n in named if n not in known]


def _included(spec: StudySpec) -> set[str]:
    """What the study names is part of its space, whatever its tier."""
    return {*spec.include, *spec.baseline, *spec.hold}


def _value_problems(space: SearchSpace, where: str, values: Mapping[str, KnobValue]) -> list[Problem]:
    return [
        Problem(key=f"{where}.{p.key}", message=p.message, allowed=p.allowed, mend=p.mend)
        for p in space.problems({**space.baseline, **values})
        if p.key in values
    ]


def _env_names(space: SearchSpace) -> list[str]:
    landings = [*(s.lands for s in space.fixed), *(s.lands for s in space.derived), *(k.lands for k in space.knobs)]
    return [la.name for la in landings if isinstance(la, EnvVar | EnvFragment)]


def _only_what_the_host_lists(space: SearchSpace, template: LaunchTemplate) -> SearchSpace:
    """A host that does not list an allocator or a stack can't try it: its values leave the space."""
    knobs = []
    hold = dict(space.hold)
    for knob in space.knobs:
        match knob.lands:
            case Preload():
                listed: Collection[str] = template.libraries
            case StackChoice():
                listed = template.stacks
            case _:
                knobs.append(knob)
                continue
        kept = tuple(v for v in knob.type.values if v in listed) if isinstance(knob.type, ChoiceKind) else ()
        if kept:
            knobs.append(knob.model_copy(update={"type": ChoiceKind(values=kept)}))
        else:
            hold[knob.name] = None
            knobs.append(knob)
    names = {knob.name: knob for knob in knobs}
    recipes = tuple(r for r in space.recipes if all(names[n].contains(v) or n in hold for n, v in r.values.items()))
    return space.model_copy(update={"knobs": tuple(knobs), "hold": hold, "recipes": recipes})


def _check_baseline(space: SearchSpace, spec: StudySpec) -> None:
    known = facts(spec.deployment, spec.workload)
    try:
        settled = space.settle(space.complete({}), known)
        render(space, settled.candidate, known)
    except InvalidCandidate as error:
        problems = [
            Problem(key=f"baseline ({p.key})", message=p.message, mend=p.mend, allowed=p.allowed)
            for p in error.problems
        ]
        raise InvalidStudy("the baseline cannot be launched", problems) from error
    except InvalidSpace as error:
        raise InvalidStudy("the space cannot be launched", [Problem(key="space", message=error.message)]) from error
