"""Candidates that choose between the stacks of a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autotune.domain.failure import FailureClass
from autotune.domain.job import TrialJob
from autotune.domain.knobs import ChoiceKind, Knob, StackChoice
from autotune.domain.launch_plan import LaunchPlan, RolePlan, render
from autotune.domain.stack import StackVersions
from autotune.domain.template import LaunchTemplate, RoleTemplate, StackVariant
from autotune.errors import InvalidCandidate, InvalidTemplate
from tests import builders
from tests.workers.launching import ARGV, job, run, template
from workers.attempt_files import AttemptFiles
from workers.host_templates import HostTemplates
from workers.role_command import RoleCommand, role_commands

STACKS = {
    "old": StackVariant(value="/opt/old", versions=StackVersions(engine="0.22.0", cann="9.0.0")),
    "new": StackVariant(value="/opt/new", versions=StackVersions(engine="0.23.0rc1")),
    "same": StackVariant(value="/opt/same"),
}


def choosing(default: str | None = "old", **changes: Any) -> LaunchTemplate:
    """A template that starts one of three environments, and a router that is the same on all."""
    content = template().model_dump() | {
        "roles": {
            "server": RoleTemplate(argv=("{stack}/bin/serve", "--port", "{port}"), env={"ROOT": "{stack}"}),
            "router": RoleTemplate(argv=("/bin/route", "{port}")),
        },
        "versions": StackVersions(chip="910C", cann="9.1.0"),
        "stacks": STACKS,
        "default_stack": default,
    }
    return LaunchTemplate.model_validate(content | changes)


def with_plan(**roles: RolePlan) -> TrialJob:
    return job().model_copy(update={"plan": LaunchPlan(roles=roles)})


def commands(folder: Path, default: str | None = "old", **roles: RolePlan) -> dict[str, RoleCommand]:
    ports = {"server": 1, "router": 2}
    return role_commands(with_plan(**roles), choosing(default), AttemptFiles(folder, "a1"), "127.0.0.1", ports)


def test_the_choice_fills_its_place_in_argv_and_env_and_in_the_export(tmp_path: Path) -> None:
    made = commands(tmp_path, server=RolePlan(stack="new"))
    assert made["server"].argv == ("/opt/new/bin/serve", "--port", "1")
    assert made["server"].env["ROOT"] == "/opt/new"
    assert made["server"].launched.argv == ("/opt/new/bin/serve", "--port", "{port}")
    assert made["server"].launched.env == {"ROOT": "/opt/new"}
    assert made["router"].argv == ("/bin/route", "2")


def test_without_a_choice_the_default_is_started(tmp_path: Path) -> None:
    assert commands(tmp_path)["server"].argv[0] == "/opt/old/bin/serve"


@pytest.mark.parametrize(
    ("default", "roles", "key", "words", "allowed"),
    [
        ("old", {"server": RolePlan(stack="newest")}, "roles.server.stack", "'newest' is no stack", True),
        (None, {}, "roles.server.stack", "a stack has to be chosen", True),
        ("old", {"router": RolePlan(stack="new")}, "roles.router.stack", "the same on every stack", False),
    ],
)
def test_a_choice_that_means_nothing_is_refused_with_what_there_is(
    tmp_path: Path, default: str | None, roles: dict[str, RolePlan], key: str, words: str, allowed: bool
) -> None:
    with pytest.raises(InvalidCandidate) as caught:
        commands(tmp_path, default, **roles)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert words in problem.message
    assert problem.allowed == (("new", "old", "same") if allowed else ())


def test_an_attempt_on_an_unknown_stack_costs_no_launch(tmp_path: Path) -> None:
    outcome = run(tmp_path, with_plan(server=RolePlan(stack="new")))
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INVALID_CONFIG
    assert "the same on every stack" in (outcome.failure.decisive_line or "")
    assert not (tmp_path / outcome.uid / "pid").exists()


def test_a_real_server_is_started_on_the_chosen_stack(tmp_path: Path) -> None:
    knob = Knob(name="release", about="x", type=ChoiceKind(values=("a", "b")), lands=StackChoice())
    space = builders.space(knobs=(knob,), rules=(), baseline={"release": "a"}, recipes=())
    plan = render(space, builders.candidate(release="b"), {})
    two = template().model_dump() | {
        "roles": {"server": RoleTemplate(argv=(*ARGV, "--say", "stack {stack}"))},
        "stacks": {"a": StackVariant(value="first"), "b": StackVariant(value="second")},
    }
    outcome = run(tmp_path, job().model_copy(update={"plan": plan}), LaunchTemplate.model_validate(two))
    assert outcome.failure is None
    assert AttemptFiles(tmp_path, outcome.uid).log_text("server").startswith("stack second\n")


def test_versions_of_a_stack_lie_over_those_of_the_template() -> None:
    one = choosing()
    assert one.versions_on(None) == StackVersions(engine="0.22.0", cann="9.0.0", chip="910C")
    assert one.versions_on("new") == StackVersions(engine="0.23.0rc1", cann="9.1.0", chip="910C")
    assert one.versions_on("same") == one.versions
    assert choosing(None).versions_on(None) == one.versions
    with pytest.raises(KeyError):
        one.versions_on("newest")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stacks": {}, "default_stack": None}, "role server holds {stack}"),
        ({"roles": {"server": RoleTemplate(argv=("serve",))}}, "no role holds {stack}"),
        ({"default_stack": "newest"}, "'newest' is none of `stacks`: new, old, same"),
    ],
)
def test_a_template_whose_stacks_do_not_fit_together_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        choosing(**changes)
    assert words in str(caught.value)


def test_stacks_and_versions_are_read_from_a_file(tmp_path: Path) -> None:
    text = """
name: mine
engine: vllm-ascend
roles: {server: {argv: ["{stack}/bin/vllm", serve, "{model_path}"]}}
models: {m: /m}
versions: {chip: 910C, torch_npu: "2.9.0"}
stacks:
  a: {value: /opt/a, versions: {engine: "0.22.0"}}
  b: {value: /opt/b}
default_stack: a
"""
    (tmp_path / "mine.yaml").write_text(text)
    read = HostTemplates(tmp_path).template("mine")
    assert read.versions_on(None) == StackVersions(chip="910C", torch_npu="2.9.0", engine="0.22.0")
    (tmp_path / "mine.yaml").write_text(text.replace('"0.22.0"', "newest"))
    with pytest.raises(InvalidTemplate) as caught:
        HostTemplates(tmp_path).template("mine")
    assert "is not a version" in caught.value.problems[0].message


def test_the_built_in_simulator_names_its_chip() -> None:
    assert HostTemplates().template("simulated-910c").versions == StackVersions(chip="910C")
