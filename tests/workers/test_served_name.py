"""The name by which an attempt's server is told from every other one."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.domain.template import LaunchTemplate, RoleTemplate
from tests.workers.launching import MODEL, job, template
from workers.attempt_files import AttemptFiles
from workers.host_templates import HostTemplates
from workers.role_command import role_commands
from workers.served_name import named_words, served_name

OWN = f"{MODEL}-s1-t0-a1"


@pytest.mark.parametrize(
    ("words", "named", "name"),
    [
        (("--served-model-name", "{model}"), ("--served-model-name", OWN), OWN),
        (("--served-model-name={model}",), (f"--served-model-name={OWN}",), OWN),
        (("-a", "{model}"), ("-a", OWN), OWN),
        (("--model", "/models/{model}"), ("--model", "/models/{model}"), MODEL),
        (("{model}",), ("{model}",), MODEL),
        (("--alias", "x-{model}"), ("--alias", "x-{model}"), MODEL),
    ],
)
def test_only_where_a_command_names_the_model_it_becomes_the_attempts_own(
    words: tuple[str, ...], named: tuple[str, ...], name: str
) -> None:
    role = RoleTemplate(argv=("serve", *words))
    assert named_words(role, job()) == ("serve", *named)
    assert served_name(template(argv=role.argv), job()) == name


def test_a_router_is_asked_for_the_name_that_its_servers_have() -> None:
    roles = {"router": RoleTemplate(argv=("route",)), "prefill": RoleTemplate(argv=("serve", "--alias={model}"))}
    assert served_name(template().model_copy(update={"roles": roles}), job()) == OWN


@pytest.mark.parametrize("name", [name for name in HostTemplates().names() if "llama" not in name])
def test_built_in_servers_get_it_and_exports_do_not(tmp_path: Path, name: str) -> None:
    launch: LaunchTemplate = HostTemplates().template(name)
    model = next(iter(launch.models))
    one = job(model=model).model_copy(update={"plan": job().plan.model_copy(update={"roles": {}})})
    ports = {role: 9000 + n for n, role in enumerate(launch.roles)}
    commands = role_commands(one, launch, AttemptFiles(tmp_path, "s1-t0-a1"), "127.0.0.1", ports)
    own = f"{model}-s1-t0-a1"
    assert any(own in command.argv for command in commands.values())
    for command in commands.values():
        assert own not in command.launched.argv
        assert (own in command.argv) == (model in command.launched.argv)
