"""The documents name what there is, and nothing that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.app import build_app
from api.settings import Settings
from autotune.cli.main import app
from autotune.cli.space_schema import text as schema_text
from autotune.documents.space_file import space_of
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.knobs import Knob
from autotune.domain.objective import METRICS
from autotune.domain.space import SearchSpace, Severity
from autotune.domain.template import PLACEHOLDERS
from search_spaces.catalog import SpaceCatalog
from workers.failures.signatures import catalogue

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SPACES = (ROOT / "docs" / "spaces.md").read_text()
FAILURES = (ROOT / "docs" / "failures.md").read_text()


def commands() -> list[str]:
    """Every command of the program as it is typed."""
    names = [str(c.name or getattr(c.callback, "__name__", "")) for c in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            names.append(f"{group.name} {command.name or getattr(command.callback, '__name__', '')}")
    return names


def test_every_command_is_in_the_readme() -> None:
    assert len(commands()) > 10
    assert [c for c in commands() if f"autotune {c}" not in README] == []


def test_every_command_of_the_readme_exists() -> None:
    typed = set(re.findall(r"autotune (study \w+|space \w+|up|watch|trials|trial|export|demo|version)\b", README))
    assert {t for t in typed if t not in commands()} == set()


def test_every_route_is_in_the_readme(tmp_path: Path) -> None:
    paths = build_app(Settings(data=tmp_path)).openapi()["paths"]
    assert len(paths) > 10
    for path in paths:
        concrete = path.replace("{study_id}", "1").replace("{number}", "9")
        assert concrete in README, path


def test_every_space_is_in_the_readme() -> None:
    assert [n for n in SpaceCatalog(None).names() if f"`{n}`" not in README] == []


def test_the_list_of_spaces_is_true() -> None:
    listed = re.findall(r"^\| `([a-z0-9-]+)` \| [^`]+ \|$", SPACES.split("## A small one")[0], re.MULTILINE)
    assert sorted(listed) == SpaceCatalog(None).names()


def test_the_small_space_of_the_docs_is_right() -> None:
    (text,) = re.findall(r"^```yaml\n(.+?)^```$", SPACES, re.MULTILINE | re.DOTALL)
    space = space_of(text)
    assert (len(space.knobs), len(space.rules)) == (3, 1)
    assert "3 knobs, 1 rule: no problems" in SPACES


def test_the_language_is_explained() -> None:
    """Every kind, landing place, severity and key of a space and of its knobs."""
    words = [*Severity, *SearchSpace.model_fields, *Knob.model_fields]
    definitions = SearchSpace.model_json_schema()["$defs"].values()
    for tag in ("kind", "place"):
        words += [str(d["properties"][tag]["const"]) for d in definitions if tag in d.get("properties", {})]
    unexplained = {w for w in words if not re.search(rf"[`{{ \n]{w}\b[`:]", SPACES)}
    assert unexplained == {"absent"}, "made by instances only"


def test_the_schema_for_editors_is_current() -> None:
    assert (ROOT / "docs" / "space.schema.json").read_text() == f"{schema_text()}\n", (
        "write it anew: autotune space schema > docs/space.schema.json"
    )


@pytest.mark.parametrize("word", [*FailureClass, *Phase])
def test_every_failure_class_and_phase_is_explained(word: str) -> None:
    assert f"`{word}`" in FAILURES


def test_no_failure_class_is_made_up() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", FAILURES, re.MULTILINE)) == {str(c) for c in FailureClass}


def test_every_failure_class_has_its_page() -> None:
    """Cause, consequence and retry policy stand as the catalogue has them."""
    flat = " ".join(FAILURES.split())
    for name, page in catalogue().classes.items():
        about = flat.split(f"### {name} ")[1].split("###")[0]
        assert all(text in about for text in (page.means, page.cause, page.does, f"`{page.retry}`")), name


def test_every_placeholder_is_explained() -> None:
    text = (ROOT / "docs" / "templates.md").read_text()
    assert [p for p in PLACEHOLDERS if f"{{{p}}}" not in text] == []


def test_every_base_metric_is_named() -> None:
    bases = {re.sub(r"_p\d+", "", m) for m in METRICS}
    assert [m for m in bases if f"`{m}`" not in README] == []


def test_links_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_two_commands_of_the_readme_are_those_of_ci() -> None:
    assert "make demo" in README
    assert "make test" in README
    assert "make test" in (ROOT / ".ci" / "run").read_text()
