"""Expressions see knobs and facts, and nothing else."""

from __future__ import annotations

import pytest

from autotune.domain.expression import ExpressionError, check, evaluate, holds, mentioned

FACTS = {"concurrency": (1, 4, 8), "tensor_parallel": 2}


def test_values_come_back_as_plain_python() -> None:
    value = evaluate("facts.concurrency.map(c, c * (1 + knobs.k))", {"k": 4}, FACTS)
    assert value == [5, 20, 40]
    assert holds("knobs.k == null", {"k": None}, FACTS)


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "open('/etc/passwd')", "self.x", "os.environ", "foo.map(c, c)", "1 +", "knobs.k ==", ""],
)
def test_nothing_else_can_be_named_or_called(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, {"k": 1}, FACTS)


@pytest.mark.parametrize(
    "text", ["knobs.missing > 1", "knobs.none > 1", "1 / 0 == 1", "facts.concurrency[7] == 1", "'a' + 1 == 2"]
)
def test_an_expression_without_a_value_says_so(text: str) -> None:
    with pytest.raises(ExpressionError):
        holds(text, {"none": None}, FACTS)


def test_a_condition_must_be_true_or_false() -> None:
    with pytest.raises(ExpressionError, match="not true or false"):
        holds("1 + 1", {}, FACTS)


def test_expressions_cannot_run_long() -> None:
    nest = "facts.concurrency.map(a, facts.concurrency.map(b, facts.concurrency.map(c, facts.concurrency.map(d, 1))))"
    with pytest.raises(ExpressionError, match="macros"):
        check(nest)
    with pytest.raises(ExpressionError, match="longer"):
        check("1 + " * 300 + "1 == 1")


def test_the_names_that_an_expression_asks_for_are_known() -> None:
    text = "knobs.a + knobs.b_2 > 0 && 'knobs.c' != facts.knobs && x.knobs.d == knobs.size()"
    assert mentioned(text, "knobs") == {"a", "b_2"}
    assert mentioned(text, "facts") == {"knobs"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("knobs.a", 1),
        ("knobs['b']", 2),
        ("size(knobs)", 3),
        ("knobs.size()", 3),
        ("'c' in knobs && has(knobs.a) && !has(knobs.z)", True),
        ("knobs.exists(k, k == 'b')", True),
        ("knobs.c[1]", 4),
    ],
)
def test_every_way_to_ask_for_a_knob_works(text: str, value: object) -> None:
    assert evaluate(text, {"a": 1, "b": 2, "c": (3, 4)}, {}) == value
