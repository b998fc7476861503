"""Pauses Python's search for garbage, or makes it rarer, while much is made that is kept."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

COLLECTED_AFTER = 50_000
"""New objects after which garbage is looked for among them while that is done seldom."""

FEWEST_UNSEEN = 500_000
"""Objects that have been made during pauses before the collector looks through everything."""

MOST_UNSEEN = 4 * FEWEST_UNSEEN
"""The same after it has found next to nothing the last time, of objects of some hundred bytes."""

NEXT_TO_NOTHING = 0.01
"""Garbage over what had been made, from which on it pays to look often."""


@dataclass(slots=True)
class _Unseen:
    """How many objects have been made during pauses that the collector has never looked through,
    and how many had stayed when it last did."""

    made: int = 0
    stayed: int = 0
    in_vain: bool = False
    """Whether the collector found next to nothing when it last did."""

    def pass_over(self) -> None:
        """Makes what is young old without looking through it; but looks through everything when as
        much has been made as had stayed the last time, and rarely where that finds nothing."""
        if gc.get_freeze_count():
            return
        self.made += gc.get_count()[0]
        fewest = MOST_UNSEEN if self.in_vain else FEWEST_UNSEEN
        if self.made > max(fewest, self.stayed):
            self.in_vain = gc.collect() < NEXT_TO_NOTHING * self.made
            self.made, self.stayed = 0, len(gc.get_objects())
            return
        gc.freeze()
        gc.unfreeze()


UNSEEN = _Unseen()


@contextmanager
def collection_paused() -> Generator[None, None, None]:
    """Pauses the collection of cyclic garbage; also a decorator.

    While a model is read, or many strategies are simulated, a million objects are made that nearly
    all stay. The collector would look through them again and again, for longer than the reading
    takes. After the pause it would look through them once more, so they are old at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            UNSEEN.pass_over()
            gc.enable()


@contextmanager
def collected_seldom() -> Generator[None, None, None]:
    """Has the collector look for cyclic garbage less often; also a decorator.

    Planning, and bounds of many strategies, make objects by the hundred thousand that stay. To look
    through them time and again takes a tenth of the time.
    """
    before = gc.get_threshold()
    if before[0]:  # 0: nothing is collected at all
        gc.set_threshold(max(before[0], COLLECTED_AFTER), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


__all__ = ["collected_seldom", "collection_paused"]
