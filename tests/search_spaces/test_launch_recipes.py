"""Published launch scripts, re-made small: each parses into its space, and what is dead in it is named."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.documents.bash_launches import Launches
from autotune.documents.launch_script import read_launches
from autotune.domain.engine_spellings import spellings_of
from autotune.domain.knobs import KnobValue, Switch
from autotune.domain.launch_parse import parse
from autotune.domain.launch_plan import place_of
from autotune.domain.parsed_launch import ParsedLaunch
from autotune.domain.space import SearchSpace
from autotune.domain.stack import StackVersions
from search_spaces.catalog import SpaceCatalog

RECIPES_DIR = Path(__file__).parent / "launch_recipes"
INDEX: list[dict[str, Any]] = yaml.safe_load((RECIPES_DIR / "index.yaml").read_text())["recipes"]
BY_FILE = {entry["file"]: entry for entry in INDEX}

every_recipe = pytest.mark.parametrize("file", sorted(BY_FILE))


@cache
def space_of(name: str) -> SearchSpace:
    return SpaceCatalog().space(name)


@cache
def launches_of(file: str) -> Launches:
    return read_launches((RECIPES_DIR / file).read_text(), file)


@cache
def parsed(file: str) -> ParsedLaunch:
    entry = BY_FILE[file]
    return parse(space_of(entry["space"]), launches_of(file).roles, StackVersions(**entry["stack"]))


def test_the_index_lists_every_recipe_once() -> None:
    files = sorted(path.name for path in RECIPES_DIR.iterdir() if path.name != "index.yaml")
    assert sorted(entry["file"] for entry in INDEX) == files


def test_the_recipes_are_spread_over_engines_chips_families_and_layouts() -> None:
    assert len(INDEX) >= 15
    assert len({entry["family"] for entry in INDEX}) >= 4
    assert {entry["stack"]["chip"] for entry in INDEX} == {"910B", "910C", "950DT"}
    assert {entry["source"]["project"] for entry in INDEX} == {"vllm-ascend", "SGLang"}
    assert {tuple(entry["roles"]) for entry in INDEX} == {("server",), ("prefill", "decode")}
    assert all(entry["source"]["document"] for entry in INDEX)


@pytest.mark.parametrize("file", sorted(file for file in BY_FILE if file.endswith(".sh")))
def test_every_script_is_one_that_bash_reads(file: str) -> None:
    checked = subprocess.run(["bash", "-n", RECIPES_DIR / file], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@every_recipe
def test_a_recipe_starts_the_roles_that_it_was_published_for(file: str) -> None:
    assert list(launches_of(file).roles) == BY_FILE[file]["roles"]
    assert not [f for f in launches_of(file).findings if f.rule == "not-understood"]


@every_recipe
def test_no_recipe_is_refused(file: str) -> None:
    refused = [f"{f.rule}: {f.message}" for f in parsed(file).findings if f.severity == "refuse"]
    assert (refused, parsed(file).is_refused) == ([], False)


@every_recipe
def test_every_dead_key_of_a_recipe_is_named(file: str) -> None:
    found = {(given.role, given.key) for given in parsed(file).unread}
    assert found == _pairs(BY_FILE[file]["unread"])
    assert all(given.why for given in parsed(file).unread)


@every_recipe
def test_every_old_name_in_a_recipe_is_given_its_new_one(file: str) -> None:
    """Further spellings of a setting that is read may be told as well."""
    found = {(entry.role, entry.old, entry.new) for entry in parsed(file).renamed}
    wanted = {(role, old, new) for role, names in BY_FILE[file]["renamed"].items() for old, new in names.items()}
    assert wanted <= found


@every_recipe
def test_a_recipe_leaves_nothing_unknown_but_what_is_listed(file: str) -> None:
    found = {(given.role, given.key) for given in parsed(file).unknown}
    assert found <= _pairs(BY_FILE[file].get("unknown", {}))


@every_recipe
def test_the_published_values_come_out(file: str) -> None:
    wanted = {(role, key): value for role, keys in BY_FILE[file]["values"].items() for key, value in keys.items()}
    found = {(role, key): _value_of(file, role, key) for role, key in wanted}
    assert found == wanted


def _pairs(by_role: dict[str, list[str]]) -> set[tuple[str, str]]:
    return {(role, key) for role, keys in by_role.items() for key in keys}


def _value_of(file: str, role: str, key: str) -> object:
    """The value of a setting among the candidate's knobs or the fixed settings, under its present name."""
    result = parsed(file)
    space = space_of(BY_FILE[file]["space"])
    key = next((entry.new for entry in result.renamed if (entry.role, entry.old) == (role, key)), key)
    keys = set(spellings_of(key))
    place = role if role in {knob.role for knob in space.knobs} else _stand_in(space, role)
    for knob in space.knobs:
        places = set(place_of(knob.lands).split()) if isinstance(knob.lands, Switch) else {place_of(knob.lands)}
        if knob.role == place and keys & places and knob.name in result.candidate:
            return _plain(result.candidate[knob.name])
    for given in result.fixed:
        if given.role == role and given.key in keys:
            return _plain(given.value)
    return None


def _stand_in(space: SearchSpace, role: str) -> str:
    """Where all knobs are those of one server, that server stands for the one that decodes."""
    roles = {knob.role for knob in space.knobs}
    return next(iter(roles)) if len(roles) == 1 and role in ("server", "decode") else ""


def _plain(value: KnobValue) -> object:
    return list(value) if isinstance(value, tuple) else value
