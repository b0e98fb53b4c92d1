"""The dashboard's files: nothing foreign, nothing inline, and nothing of a user's text as markup."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from api.pages import STATIC
from api.plotly_bundle import PlotlyBundle
from autotune.domain.space import SearchSpace
from tests import builders
from tests.api.running_api import EVIL, RunningApi, done, failed, started

SCRIPTS = sorted(STATIC.rglob("*.js"))
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
FOREIGN = re.compile(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", re.IGNORECASE)
NAMESPACE = "http://www.w3.org/2000/svg"


def pages(api: RunningApi) -> list[str]:
    study = done(api)
    return [api.get("/").text, api.get(f"/studies/{study.id}").text, api.get("/studies/99").text]


def test_pages_name_no_other_host_and_hold_no_inline_code(api: RunningApi) -> None:
    for text in pages(api):
        assert not FOREIGN.search(text)
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text)
        for link in re.findall(r'(?:src|href)="([^"#]+)"', text):
            assert link.startswith("/"), link
            assert api.get(link).status_code == 200, link


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_files_name_no_other_host(path: Path) -> None:
    assert not FOREIGN.search(path.read_text().replace(NAMESPACE, ""))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_scripts_never_make_markup_of_text(path: Path) -> None:
    text = path.read_text()
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "Function("):
        assert danger not in text
    assert len(text.splitlines()) <= 400


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_every_import_is_there(path: Path) -> None:
    for name in re.findall(r'from "\./([\w.]+)"', path.read_text()):
        assert (path.parent / name).is_file()


def test_names_and_texts_of_users_stay_text(api: RunningApi) -> None:
    space = SearchSpace(**{**dict(builders.space()), "engine": EVIL, "chip": '"><script>x</script>'})
    study = api.store.create_study(builders.study_spec(), space)
    failed(api.store, study, started(api.store, study), log_tail=EVIL)
    text = api.get(f"/studies/{study.id}").text
    assert EVIL not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<script>x" not in text


def test_an_odd_address_is_shown_as_text(api: RunningApi) -> None:
    answer = api.get("/studies/<b>x")
    assert answer.status_code == 404
    assert "There is no study &lt;b&gt;x." in answer.text


@pytest.mark.parametrize("address", ["0", "-1", "9" * 30, "²", "1.0", "99"])
def test_an_unknown_study_has_a_page_that_says_so(api: RunningApi, address: str) -> None:
    answer = api.get(f"/studies/{address}")
    assert answer.status_code == 404
    assert answer.headers["Content-Type"].startswith("text/html")


def test_a_wrong_address_is_answered_in_the_language_of_who_asks(api: RunningApi) -> None:
    browser = api.client.get("/nowhere", headers={"Accept": "text/html,*/*"})
    assert "There is no such page." in browser.text
    assert api.client.get("/nowhere").json()["error"] == "NotFound"
    assert api.client.get("/api/v1/nowhere", headers={"Accept": "text/html"}).json()["error"] == "NotFound"


def test_a_page_knows_where_the_stream_must_begin(api: RunningApi) -> None:
    study = api.create()
    started(api.store, study)
    assert f'data-study="{study.id}" data-last-event="{api.store.last_event()}"' in api.get(f"/studies/{study.id}").text


def test_plotly_comes_from_its_wheel_small_and_once(api: RunningApi) -> None:
    bundle = PlotlyBundle()
    answer = api.get(bundle.url)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert answer.content == bundle.script
    assert int(answer.headers["Content-Length"]) < 2_000_000
    plain = api.client.get(bundle.url, headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert plain.content == bundle.script
    assert api.get("/plotly/0.0.1/plotly.min.js").status_code == 404
    assert gzip.decompress(bundle.gzipped) == bundle.script


def test_plotly_finds_its_styles_and_adds_none(api: RunningApi) -> None:
    """It makes a <style> element for each of these ids that no element has: our policy would refuse it."""
    bundle = PlotlyBundle()
    made = re.findall(rb'\.id="([0-9a-f]{64})"', bundle.script)
    assert made
    assert set(bundle.style_guards) == {item.decode() for item in made}
    text = api.get(f"/studies/{done(api).id}").text
    for guard in bundle.style_guards:
        assert f'id="{guard}"' in text
    assert b'"plotly.js-style-"' in bundle.script
    assert b".no-inline-styles" in bundle.script
    assert 'id="plotly.js-style-global" class="no-inline-styles"' in text
