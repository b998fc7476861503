"""Pauses of the collection of cyclic garbage: nothing young is looked through after them, and
garbage that was made in them does not stay for ever."""

from __future__ import annotations

import gc
import weakref

import pytest

from distir import garbage
from distir.garbage import collected_seldom, collection_paused


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def nothing_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(garbage, "UNSEEN", type(garbage.UNSEEN)())


def test_what_was_made_in_a_pause_is_old_at_once() -> None:
    with collection_paused():
        made = [[number] for number in range(1000)]
    assert gc.isenabled()
    old = {id(each) for each in gc.get_objects(generation=2)}
    assert {id(each) for each in made} <= old


def test_garbage_of_pauses_is_found_when_enough_has_been_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "FEWEST_UNSEEN", 10_000)
    seen: list[weakref.ref[Cycle]] = []
    kept: list[list[int]] = []
    for _ in range(200):
        with collection_paused():
            seen.append(weakref.ref(Cycle()))
            kept += [[number] for number in range(1000)]
        if seen[0]() is None:
            break
    assert seen[0]() is None
    assert len(seen) > 5


def test_looking_in_vain_is_done_a_quarter_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "FEWEST_UNSEEN", 10_000)
    monkeypatch.setattr(garbage, "MOST_UNSEEN", 40_000)
    looked: list[bool] = []
    kept: list[list[int]] = []

    def collect() -> int:
        looked.append(True)
        return 0 if len(looked) == 1 else 10_000

    monkeypatch.setattr(gc, "collect", collect)
    monkeypatch.setattr(gc, "get_objects", list[object])
    pauses: list[int] = []
    for _ in range(70):
        with collection_paused():
            kept += [[number] for number in range(1000)]
        pauses.append(len(looked))
    looks = [pauses.index(count) for count in range(1, len(looked) + 1)]
    first, second, third = looks[:3]
    assert second - first == pytest.approx(4 * (third - second), rel=0.2)


def test_a_pause_within_a_pause_ends_with_the_outer_one() -> None:
    with collection_paused():
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_is_looked_for_less_often_for_a_while_but_no_more_often_than_asked_for() -> None:
    before = gc.get_threshold()
    try:
        with collected_seldom():
            assert gc.get_threshold() == (garbage.COLLECTED_AFTER, *before[1:])
        assert gc.get_threshold() == before
        for asked in (0, 2 * garbage.COLLECTED_AFTER):
            gc.set_threshold(asked)
            with collected_seldom():
                assert gc.get_threshold()[0] == asked
    finally:
        gc.set_threshold(*before)
