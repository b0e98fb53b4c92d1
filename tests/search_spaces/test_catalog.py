"""The catalogue of search spaces: what it knows, and what it says of files that are wrong."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from autotune.documents.space_file import read_space
from autotune.domain.space import SearchSpace
from autotune.engine.ports import SpaceSource
from autotune.errors import InvalidSpace, NotFound, Problem
from search_spaces.catalog import SpaceCatalog

HERE = Path(__file__).parent
GOOD = sorted((HERE / "good").glob("*.yaml"))
BAD = sorted((HERE / "bad").glob("*.yaml"))


@pytest.mark.parametrize("path", GOOD, ids=lambda p: str(p.stem))
def test_a_good_file_is_read(path: Path) -> None:
    space = read_space(path)
    assert isinstance(space, SearchSpace)
    assert SearchSpace.model_validate_json(space.model_dump_json()) == space


@pytest.mark.parametrize("path", BAD, ids=lambda p: str(p.stem))
def test_a_bad_file_is_refused_with_file_line_and_key(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    expected = re.findall(r"^# (?:expect|key): (.*)$", text, re.MULTILINE)
    with pytest.raises(InvalidSpace) as caught:
        read_space(path)
    (problem,) = caught.value.problems
    assert expected[0] in problem.message
    assert problem.key == expected[1]
    assert problem.file == str(path)
    assert problem.line == text[: text.index("# <- here")].count("\n") + 1


def test_what_would_do_is_listed() -> None:
    problem = _problem("unknown_place")
    assert problem.allowed == ("env", "env_fragment", "preload", "flag", "switch", "json", "constant", "stack")
    assert _problem("unknown_key").allowed == ("place", "flag")
    assert _problem("unknown_key").mend == "did you mean flag?"
    assert _problem("baseline_of_unknown_knob").mend == "did you mean share?"
    assert _problem("baseline_out_of_range").allowed == ("8..256 step 8",)
    assert _problem("unknown_severity").allowed == ("refuse", "derive", "repair", "warn", "arm")


def _problem(stem: str) -> Problem:
    with pytest.raises(InvalidSpace) as caught:
        read_space(HERE / "bad" / f"{stem}.yaml")
    return caught.value.problems[0]


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    text = (HERE / "good" / "every_part.yaml").read_text(encoding="utf-8")
    text = text.replace("batch: 16, share", "batch: 17, share").replace("facts.tensor_parallel", "nothing")
    text = text.replace("change: {batch: '256'}", "change: {bach: '256'}").replace(
        "about: No graphs.", "abut: No graphs."
    )
    path = tmp_path / "every_part.yaml"
    path.write_text(text)
    with pytest.raises(InvalidSpace) as caught:
        read_space(path)
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["knobs[6].about", "knobs[6].abut", "derived[0].value"]
    path.write_text(text.replace("abut: No graphs.", "about: No graphs."))
    with pytest.raises(InvalidSpace) as caught:
        read_space(path)
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["derived[0].value", "rules[0].change.bach", "baseline.batch", "recipes[0].values.batch"]


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSpace, match="UTF-8"):
        read_space(path)


# --- catalogue ------------------------------------------------------------------------------


@pytest.fixture
def catalog(tmp_path: Path) -> SpaceCatalog:
    (tmp_path / "mine").mkdir()
    shutil.copy(HERE / "good" / "every_part.yaml", tmp_path / "mine")
    built_in = tmp_path / "built-in"
    built_in.mkdir()
    shutil.copy(HERE / "good" / "minimal.yaml", built_in)
    return SpaceCatalog(tmp_path / "mine", built_in)


def test_it_knows_its_own_and_the_users_spaces(catalog: SpaceCatalog) -> None:
    source: SpaceSource = catalog
    assert source.names() == ["every-part", "minimal"]
    assert source.space("minimal").name == "minimal"
    assert source.space("every-part").chip == "some-chip"


def test_the_built_in_spaces_are_right() -> None:
    catalog = SpaceCatalog()
    for name in catalog.names():
        assert catalog.space(name).name == name


def test_a_user_folder_need_not_exist(tmp_path: Path) -> None:
    assert SpaceCatalog(tmp_path / "none", HERE / "good").names() == ["every-part", "minimal", "whole-language"]


def test_an_unknown_name_lists_the_known_ones(catalog: SpaceCatalog) -> None:
    with pytest.raises(NotFound, match=r"known: every-part, minimal; did you mean minimal\?"):
        catalog.space("minimum")
    for name in ("", "../minimal", "built-in/minimal", "minimal.yaml"):
        with pytest.raises(NotFound):
            catalog.space(name)


def test_a_changed_file_is_read_again(catalog: SpaceCatalog, tmp_path: Path) -> None:
    before = catalog.space("every-part")
    assert catalog.space("every-part") is before
    path = tmp_path / "mine" / "every_part.yaml"
    path.write_text(path.read_text().replace("chip: some-chip", "chip: another"))
    os.utime(path, ns=(1, 1))
    assert catalog.space("every-part").chip == "another"
    path.unlink()
    with pytest.raises(NotFound):
        catalog.space("every-part")


def test_a_bad_file_of_the_user_spoils_no_other_space(catalog: SpaceCatalog, tmp_path: Path) -> None:
    shutil.copy(HERE / "bad" / "tab.yaml", tmp_path / "mine")
    assert catalog.names() == ["every-part", "minimal", "tab"]
    assert catalog.space("minimal").name == "minimal"
    with pytest.raises(InvalidSpace):
        catalog.space("tab")


def test_a_users_file_can_not_replace_a_built_in_space(catalog: SpaceCatalog, tmp_path: Path) -> None:
    shutil.copy(HERE / "good" / "minimal.yaml", tmp_path / "mine")
    with pytest.raises(InvalidSpace, match="two search spaces minimal") as caught:
        catalog.space("minimal")
    assert "rename" in caught.value.problems[0].mend
    assert caught.value.problems[0].file == str(tmp_path / "mine" / "minimal.yaml")
