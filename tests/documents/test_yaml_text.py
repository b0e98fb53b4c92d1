"""YAML text becomes plain data with lines; whatever is no such text is refused with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.documents import MAX_BYTES, Document, dotted, key_path, read_document
from autotune.errors import InvalidRequest, Problem

STUDY = """\
# a comment
name: small
levels:
  - {concurrency: 1}
  - concurrency: 4
    requests: 8
"""


def refused(text: str) -> Problem:
    with pytest.raises(InvalidRequest) as caught:
        read_document(text, "a.yaml")
    (problem,) = caught.value.problems
    assert problem.file == "a.yaml"
    return problem


def test_data_comes_with_lines() -> None:
    document = read_document(STUDY, "a.yaml")
    assert document.data == {"name": "small", "levels": [{"concurrency": 1}, {"concurrency": 4, "requests": 8}]}
    assert document.line_of(("name",)) == 2
    assert document.line_of(("levels",)) == 3
    assert document.line_of(("levels", 0)) == 4
    assert document.line_of(("levels", 1, "requests")) == 6


def test_a_place_without_a_line_has_that_of_the_nearest_around_it() -> None:
    document = read_document(STUDY)
    assert document.line_of(("levels", 1, "missing", "deeper")) == 5
    assert document.line_of(("nothing",)) == 2
    assert Document(data={}).line_of(("nothing",)) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-0", 0),
        ("0x10", 16),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("2.", 2.0),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        # What YAML 1.1 would turn into something else stays text.
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2026-01-02", "2026-01-02"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_plain_scalars_follow_the_core_schema(text: str, value: Any) -> None:
    read = read_document(f"key: {text}").data["key"]
    assert read == value
    assert type(read) is type(value)


def test_keys_are_text() -> None:
    assert read_document("{1: a, true: b, null: c}").data == {"1": "a", "true": "b", "null": "c"}


def test_an_empty_text_is_nothing() -> None:
    assert read_document("").data is None
    assert read_document("# only a comment\n").data is None


def test_a_byte_order_mark_is_passed_over() -> None:
    assert read_document("\ufeffa: 1").data == {"a": 1}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb:\n\tc: 2\n", 3, "a tab stands where YAML wants spaces"),
        ("a: 1\nb: c: d\n", 2, "mapping values are not allowed"),
        ("a: 1\nb: [1, 2\n", 3, "is not YAML"),
        ("a: 'open\n", 2, "is not YAML"),
        ("a: &x 1\nb: *x\n", 1, "anchors and aliases"),
        ("a: 1\nb: *x\n", 2, "anchors and aliases"),
        ("a: 1\nb: !!python/object/apply:os.system [id]\n", 2, "the tag"),
        ("a: !!str 1\n", 1, "the tag"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a: 1\n? [x]\n: 2\n", 2, "a key must be plain text"),
        ("a: 1\nb: " + "9" * 5000, 2, "5000 digits"),
        ("a: 1\nb: 1e999\n", 2, "too large"),
        ("a: 1\nb: \x07\n", 2, "U+0007"),
        ("a: 1\nb: \ud800\n", 2, "U+D800"),
        ("a: 1\nb: " + "[" * 40 + "]" * 40, 2, "more than 32 deep"),
        ("a: 1\nb: " + "[" * 100_000, 2, "nest"),
        ("a: 1\nb:" + " {a:" * 40 + "}" * 40, 2, "more than 32 deep"),
    ],
)
def test_what_is_refused_says_where(text: str, line: int, words: str) -> None:
    problem = refused(text)
    assert words in problem.message
    assert problem.line == line


def test_a_text_that_is_too_long_is_not_parsed() -> None:
    assert "more than" in refused("a: " + "x" * MAX_BYTES).message


def test_a_key_that_is_given_twice_names_both_lines() -> None:
    problem = refused("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert problem.key == "a.b"
    assert problem.message == "is given twice, on lines 2 and 4"
    assert problem.line == 4


def test_every_key_that_is_given_twice_is_told() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_document("a: 1\na: 2\nb: {c: 1, c: 2}\n")
    assert [p.key for p in caught.value.problems] == ["a", "b.c"]


def test_aliases_can_not_blow_up() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    assert "anchors and aliases" in refused("\n".join(lines)).message


KEYS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Zl", "Zp")), min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_json_is_read_as_it_is(value: Any) -> None:
    assert read_document(json.dumps(value, ensure_ascii=False)).data == value


TEXTS = st.recursive(KEYS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_what_a_yaml_writer_writes_is_read_again(value: Any) -> None:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    assert read_document(yaml.dump(value, Dumper=Plain, allow_unicode=True, default_style='"')).data == value


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab:-[]{}#&*!|>'\"%@`,? \n\t1.") | st.characters(), max_size=40))
def test_any_text_is_read_or_refused_in_order(text: str) -> None:
    problems: Sequence[Problem] = ()
    try:
        json.dumps(read_document(text, "a.yaml").data, allow_nan=False)
    except InvalidRequest as error:
        problems = error.problems or [Problem("nothing", "was told", line=-1)]
    last = len(re.split("\r\n|[\r\n\x85\u2028\u2029]", text)) + 1
    assert all(p.line is None or 1 <= p.line <= last for p in problems)


PATHS = st.lists(st.integers(0, 99) | st.from_regex(r"[a-z_][a-z0-9_-]*", fullmatch=True), min_size=1, max_size=5)


@given(PATHS)
def test_a_dotted_key_can_be_read_back(path: list[str | int]) -> None:
    assert key_path(dotted(path)) == tuple(path)


def test_a_dotted_key_looks_as_people_write_it() -> None:
    assert dotted(("workload", "levels", 1, "requests")) == "workload.levels[1].requests"
    assert dotted(()) == ""
