"""What can be asked of studies, and every mistake that is caught before anything is stored."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.domain.knobs import ChoiceKind, EnvVar, Knob, Preload
from autotune.domain.space import NamedCandidate, SearchSpace
from autotune.domain.stack import Needs, StackVersions
from autotune.domain.study import StudyState
from autotune.domain.template import LaunchTemplate, RoleTemplate
from autotune.engine.study_service import StudyService
from autotune.errors import Conflict, InvalidStudy, NotFound, NothingToExport
from tests import builders
from tests.fakes import InMemoryStudyStore, ManualClock


class Spaces:
    def __init__(self, *spaces: SearchSpace) -> None:
        self._spaces = {s.name: s for s in spaces}

    def names(self) -> list[str]:
        return sorted(self._spaces)

    def space(self, name: str) -> SearchSpace:
        return self._spaces[name]


class Templates:
    def __init__(self, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "name": "simulated-910c",
            "engine": "vllm-ascend",
            "roles": {"server": RoleTemplate(argv=("serve",))},
            "models": {"tiny-model": "/models/tiny"},
        }
        self._template = LaunchTemplate(**{**fields, **changes})

    def names(self) -> list[str]:
        return [self._template.name]

    def template(self, name: str) -> LaunchTemplate:
        return self._template


def service(store: InMemoryStudyStore, space: SearchSpace | None = None, **template: Any) -> StudyService:
    return StudyService(store, Spaces(space or builders.space()), Templates(**template), ManualClock())


def keys(caught: pytest.ExceptionInfo[InvalidStudy]) -> set[str]:
    return {p.key for p in caught.value.problems}


def test_a_good_study_is_stored_and_runs() -> None:
    store = InMemoryStudyStore()
    study = service(store).create(builders.study_spec())
    assert study.state is StudyState.RUNNING
    assert service(store).overview(study.id).trials_total == 0


@pytest.mark.parametrize(
    ("change", "key", "allowed"),
    [
        ({"space": "nowhere"}, "space", "tiny"),
        ({"deployment": builders.deployment(template="nowhere")}, "deployment.template", "simulated-910c"),
        ({"deployment": builders.deployment(model="other")}, "deployment.model", "tiny-model"),
        ({"baseline": {"speed": 3}}, "baseline.speed", "buffer_mb"),
        ({"baseline": {"buffer_mb": 5}}, "baseline.buffer_mb", "64..4096, unset"),
        ({"baseline": {"buffer_mb": "big"}}, "baseline.buffer_mb", "64..4096, unset"),
        ({"hold": {"expansion_mode": "aiv"}}, "hold.expansion_mode", "AIV, AI_CPU, unset"),
        ({"hold": {"max_num_seqs": None}}, "hold.max_num_seqs", "8..256"),
        ({"recipes": ("avi",)}, "recipes", "aiv"),
    ],
)
def test_each_mistake_names_its_key_and_what_is_allowed_and_stores_nothing(
    change: dict[str, Any], key: str, allowed: str
) -> None:
    store = InMemoryStudyStore()
    with pytest.raises(InvalidStudy) as caught:
        service(store).create(builders.study_spec(**change))
    problem = next(p for p in caught.value.problems if p.key == key)
    assert allowed in problem.allowed
    assert store.studies().total == 0


def test_all_mistakes_come_at_once() -> None:
    spec = builders.study_spec(
        baseline={"speed": 1}, hold={"buffer_mb": 1}, deployment=builders.deployment(model="other")
    )
    with pytest.raises(InvalidStudy) as caught:
        service(InMemoryStudyStore()).create(spec)
    assert keys(caught) == {"baseline.speed", "hold.buffer_mb", "deployment.model"}


def test_a_template_of_another_engine_is_refused() -> None:
    with pytest.raises(InvalidStudy) as caught:
        service(InMemoryStudyStore(), engine="llama-cpp").create(builders.study_spec())
    assert keys(caught) == {"deployment.template"}


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "RAY_AUTH_TOKEN", "PYTHONPATH", "AUTOTUNE_ATTEMPT"])
def test_a_space_that_sets_a_denied_variable_is_refused(name: str) -> None:
    knob = Knob(name="evil", about="", type=ChoiceKind(values=("x",)), unset=True, lands=EnvVar(name=name))
    space = builders.space(knobs=(*builders.space().knobs, knob))
    with pytest.raises(InvalidStudy) as caught:
        service(InMemoryStudyStore(), space).create(builders.study_spec())
    assert keys(caught) == {"space"}


def test_libraries_that_the_host_does_not_list_leave_the_space() -> None:
    knob = Knob(name="malloc", about="", type=ChoiceKind(values=("jemalloc", "tcmalloc")), unset=True, lands=Preload())
    recipes = (
        NamedCandidate(name="tc", values={"malloc": "tcmalloc"}),
        NamedCandidate(name="je", values={"malloc": "jemalloc"}),
    )
    space = builders.space(knobs=(*builders.space().knobs, knob), recipes=recipes)
    store = InMemoryStudyStore()
    listed = service(store, space, libraries={"jemalloc": "/lib/je.so"}).create(builders.study_spec())
    tailored = store.space_of(listed.id)
    assert tailored.by_name["malloc"].type == ChoiceKind(values=("jemalloc",))
    assert [r.name for r in tailored.recipes] == ["je"]
    none = service(store, space).create(builders.study_spec())
    assert store.space_of(none.id).hold == {"malloc": None}


def test_baseline_and_held_knobs_become_part_of_the_study() -> None:
    store = InMemoryStudyStore()
    study = service(store).create(builders.study_spec(baseline={"max_num_seqs": 32}, hold={"expansion_mode": "AIV"}))
    space = store.space_of(study.id)
    assert space.complete({}) == {"max_num_seqs": 32, "expansion_mode": "AIV"}


def test_the_same_key_gives_the_same_study_and_another_body_a_conflict() -> None:
    store = InMemoryStudyStore()
    first = service(store).create(builders.study_spec(), "key")
    assert service(store).create(builders.study_spec(), "key").id == first.id
    with pytest.raises(Conflict):
        service(store).create(builders.study_spec(seed=9), "key")


def test_cancel_resume_and_too_early_exports() -> None:
    store = InMemoryStudyStore()
    asked = service(store)
    study = asked.create(builders.study_spec())
    with pytest.raises(NothingToExport, match="running in phase gate"):
        asked.recipe(study.id)
    assert asked.cancel(study.id).state is StudyState.CANCELLED
    with pytest.raises(Conflict):
        asked.cancel(study.id)
    assert asked.resume(study.id).state is StudyState.RUNNING
    with pytest.raises(NotFound):
        asked.overview(99)


def test_the_space_of_a_study_is_the_one_of_its_stack() -> None:
    old = Knob(
        name="old",
        about="",
        type=ChoiceKind(values=("x",)),
        unset=True,
        lands=EnvVar(name="OLD"),
        needs=Needs(engine="<0.23"),
    )
    rare = Knob(name="rare", about="", type=ChoiceKind(values=("x",)), unset=True, lands=EnvVar(name="RARE"), tier=3)
    space = builders.space(knobs=(*builders.space().knobs, old, rare), stack=StackVersions(engine="0.22.0"))
    store = InMemoryStudyStore()

    def knobs(**changes: Any) -> set[str]:
        template = changes.pop("template", {})
        study = service(store, space, **template).create(builders.study_spec(**changes))
        return set(store.space_of(study.id).by_name) - set(builders.space().by_name)

    assert knobs() == {"old"}
    assert knobs(stack=StackVersions(engine="0.23.0")) == set()
    assert knobs(template={"versions": StackVersions(engine="0.23.0")}) == set()
    assert knobs(include=("rare",)) == {"old", "rare"}
    assert knobs(include=("tier3",)) == {"old", "rare"}
    assert knobs(hold={"rare": "x"}) == {"old", "rare"}
    with pytest.raises(InvalidStudy) as caught:
        knobs(include=("raar",))
    assert keys(caught) == {"include"}
    with pytest.raises(InvalidStudy) as caught:
        knobs(stack=StackVersions(engine="0.23.0"), baseline={"old": "x"})
    assert keys(caught) == {"baseline.old"}
