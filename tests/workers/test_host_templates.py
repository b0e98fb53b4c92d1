"""Launch templates from YAML files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from autotune.errors import InvalidTemplate, NotFound
from tests.workers.launching import MODEL, template
from workers.host_templates import HostTemplates, library_path, model_path


def write(folder: Path, file: str, **changes: object) -> Path:
    """A template file; `changes` replace entries, also with wrong ones."""
    folder.mkdir(exist_ok=True)
    content = template().model_dump(mode="json") | {"name": file} | changes
    path = folder / f"{file}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_both_folders_are_read_anew_each_time(tmp_path: Path) -> None:
    source = HostTemplates(tmp_path / "own", built_in=tmp_path / "built-in")
    assert source.names() == []
    write(tmp_path / "built-in", "b")
    write(tmp_path / "own", "a")
    assert source.names() == ["a", "b"]
    assert source.template("a").name == "a"
    assert source.template("b").models == {MODEL: "/models/tiny"}


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path / "own", "a")
    with pytest.raises(NotFound, match="known: a"):
        HostTemplates(tmp_path / "own", built_in=tmp_path / "none").template("b")


def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    write(tmp_path, "a", roles={"server": {"argv": ["{nonsense}"]}}, models={}, extra=1)
    with pytest.raises(InvalidTemplate) as caught:
        HostTemplates(tmp_path, built_in=tmp_path / "none").template("a")
    keys = {problem.key for problem in caught.value.problems}
    assert keys == {"roles.server.argv", "models", "extra"}
    assert {problem.file for problem in caught.value.problems} == {"a.yaml"}


def test_broken_yaml_is_told_with_its_line_and_hides_no_other_file(tmp_path: Path) -> None:
    write(tmp_path, "good")
    (tmp_path / "bad.yaml").write_text("name: bad\nroles: [\n")
    source = HostTemplates(tmp_path, built_in=tmp_path / "none")
    assert source.template("good").name == "good"
    with pytest.raises(InvalidTemplate) as caught:
        source.template("bad")
    assert caught.value.problems[0].line == 3


@pytest.mark.parametrize("content", ["", "[]", "just words", "\x00"])
def test_a_file_that_holds_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(InvalidTemplate):
        HostTemplates(tmp_path, built_in=tmp_path / "none").template("a")


def test_name_and_file_must_agree_and_names_must_be_unique(tmp_path: Path) -> None:
    write(tmp_path / "one", "a", name="b")
    with pytest.raises(InvalidTemplate, match=r"a\.yaml"):
        HostTemplates(tmp_path / "one", built_in=tmp_path / "none").template("a")
    write(tmp_path / "two", "c")
    write(tmp_path / "three", "c")
    with pytest.raises(InvalidTemplate) as caught:
        HostTemplates(tmp_path / "two", built_in=tmp_path / "three").template("c")
    assert "exists already" in caught.value.problems[0].message


def test_a_library_of_an_installed_package_is_found_by_its_path_inside(tmp_path: Path) -> None:
    fake = template(libraries={"je": "package:pydantic/py.typed", "odd": "package:pydantic/../typer/py.typed"})
    assert library_path(fake, "je").name == "py.typed"
    with pytest.raises(InvalidTemplate, match="cannot be found"):
        library_path(fake, "odd")


@pytest.mark.parametrize(
    "path",
    ["package:no_such_package/x.so", "package:pydantic/x.so", "package:os.path/x", "relative.so", "/none/x.so", "/"],
)
def test_a_library_that_is_not_here_is_an_invalid_template(path: str) -> None:
    with pytest.raises(InvalidTemplate):
        library_path(template(libraries={"je": path}), "je")


def test_models(tmp_path: Path) -> None:
    fake = template().model_copy(update={"models": {"a": "/m/a", "b": "package:pydantic/fields.py"}})
    assert model_path(fake, "a") == "/m/a"
    assert model_path(fake, "b").endswith("/pydantic/fields.py")
    with pytest.raises(NotFound, match="known: a, b"):
        model_path(fake, "c")


def test_the_built_in_templates_are_valid() -> None:
    source = HostTemplates()
    for name in source.names():
        assert source.template(name).name == name
