"""Fits a search space to one study: its baseline, its held knobs, the libraries of its template."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.domain.deployment import facts
from autotune.domain.knobs import ChoiceKind, EnvFragment, EnvVar, KnobValue, Preload
from autotune.domain.launch_plan import render
from autotune.domain.space import SearchSpace
from autotune.domain.study import StudySpec
from autotune.domain.template import LaunchTemplate, is_denied_env
from autotune.errors import InvalidCandidate, InvalidSpace, InvalidStudy, Problem


def tailor(space: SearchSpace, spec: StudySpec, template: LaunchTemplate) -> SearchSpace:
    """The space as the study uses it.

    Raises InvalidStudy with every problem at once, keys as they stand in the study file.
    """
    problems = _value_problems(space, "baseline", spec.baseline) + _value_problems(space, "hold", spec.hold)
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
    listed = _only_listed_libraries(space, template)
    tailored = listed.model_copy(
        update={"baseline": {**listed.baseline, **spec.baseline, **spec.hold}, "hold": {**listed.hold, **spec.hold}}
    )
    _check_baseline(tailored, spec)
    return tailored


def _value_problems(space: SearchSpace, where: str, values: Mapping[str, KnobValue]) -> list[Problem]:
    return [
        Problem(key=f"{where}.{p.key}", message=p.message, allowed=p.allowed, mend=p.mend)
        for p in space.problems({**space.baseline, **values})
        if p.key in values
    ]


def _env_names(space: SearchSpace) -> list[str]:
    landings = [*(s.lands for s in space.fixed), *(s.lands for s in space.derived), *(k.lands for k in space.knobs)]
    return [la.name for la in landings if isinstance(la, EnvVar | EnvFragment)]


def _only_listed_libraries(space: SearchSpace, template: LaunchTemplate) -> SearchSpace:
    """A host that does not list an allocator can't try it: its values leave the space."""
    knobs = []
    hold = dict(space.hold)
    for knob in space.knobs:
        if isinstance(knob.lands, Preload) and isinstance(knob.type, ChoiceKind):
            listed = tuple(v for v in knob.type.values if v in template.libraries)
            if listed:
                knobs.append(knob.model_copy(update={"type": ChoiceKind(values=listed)}))
                continue
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
