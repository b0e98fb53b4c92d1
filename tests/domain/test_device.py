"""Which devices of a host a trial gets: whole cards, and always the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.device import Device, Inventory, Placement, choose


def host(cards: int = 8, dies: int = 2, unhealthy: tuple[int, ...] = ()) -> Inventory:
    devices = tuple(
        Device(index=i, card=i // dies, memory_mb=65536, chip="910C", health="Alarm" if i in unhealthy else "OK")
        for i in range(cards * dies)
    )
    return Inventory(host="node-a", devices=devices, source="simulated")


def test_the_devices_of_each_card() -> None:
    assert host(cards=2).cards == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("count", "taken", "chosen"),
    [
        (2, (), (0, 1)),
        (2, (0, 1), (2, 3)),
        (2, (0, 3), (4, 5)),  # 1 and 2 are free, on different cards
        (4, (2,), (0, 1, 4, 5)),
        (16, (), tuple(range(16))),
        (1, (), (0,)),
        (1, (0,), (1,)),
        (1, (4,), (5,)),  # the card that is broken into already
        (3, (), (0, 1, 2)),
        (3, (6,), (0, 1, 7)),
        (16, (9,), None),
        (17, (), None),
        (1, tuple(range(16)), None),
        (2, tuple(range(0, 16, 2)), None),  # eight halves make no card
    ],
)
def test_whole_cards(count: int, taken: tuple[int, ...], chosen: tuple[int, ...] | None) -> None:
    assert choose(host(), count, taken) == chosen


def test_a_device_that_is_not_healthy_is_never_chosen() -> None:
    assert choose(host(cards=2, unhealthy=(1,)), 2, ()) == (2, 3)
    assert choose(host(cards=2, unhealthy=(1,)), 1, ()) == (0,)
    assert choose(host(cards=1, unhealthy=(0, 1)), 1, ()) is None


def test_cards_of_one_die_are_taken_in_order() -> None:
    assert choose(host(cards=8, dies=1), 4, (1,)) == (0, 2, 3, 4)


@given(
    count=st.integers(1, 17),
    taken=st.sets(st.integers(0, 15)),
    unhealthy=st.sets(st.integers(0, 15)),
    dies=st.sampled_from([1, 2, 4]),
)
@settings(max_examples=200, deadline=None)
def test_what_is_chosen_is_free_and_breaks_at_most_one_card(
    count: int, taken: set[int], unhealthy: set[int], dies: int
) -> None:
    inventory = host(16 // dies, dies, tuple(unhealthy))
    chosen = choose(inventory, count, taken)
    assert choose(inventory, count, frozenset(taken)) == chosen
    free = set(range(16)) - taken - unhealthy
    whole = [card for card in inventory.cards if set(card) <= free]
    if chosen is None:
        assert count > len(free) or count > len(whole) * dies or count % dies
        return
    assert len(set(chosen)) == count
    assert set(chosen) <= free
    broken = [card for card in inventory.cards if 0 < len(set(card) & set(chosen)) < dies]
    assert len(broken) == (1 if count % dies else 0)


def test_the_idle_level_of_a_device() -> None:
    assert Placement(host="a", devices=(2, 3), idle_mb=(2900, None)).idle_of(2) == 2900
    assert Placement(host="a", devices=(2, 3), idle_mb=(2900, None)).idle_of(3) is None
    assert Placement(host="a", devices=(2, 3)).idle_of(3) is None
