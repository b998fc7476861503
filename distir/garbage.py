"""Pauses Python's search for garbage while something large is made, all of which is kept."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

FEWEST_UNSEEN = 500_000
"""Objects that have been made during pauses before the collector looks through everything."""


@dataclass(slots=True)
class _Unseen:
    """How many objects have been made during pauses that the collector has never looked through,
    and how many had stayed when it last did."""

    made: int = 0
    stayed: int = 0

    def pass_over(self) -> None:
        """Makes what is young old without looking through it; but looks through everything when as
        much has been made as had stayed the last time."""
        if gc.get_freeze_count():
            return
        self.made += gc.get_count()[0]
        if self.made > max(FEWEST_UNSEEN, self.stayed):
            gc.collect()
            self.made, self.stayed = 0, len(gc.get_objects())
            return
        gc.freeze()
        gc.unfreeze()


UNSEEN = _Unseen()


@contextmanager
def collection_paused() -> Generator[None, None, None]:
    """Pauses the collection of cyclic garbage; also a decorator.

    While a model is read, a million objects are made that all stay. The collector would look
    through them again and again, for longer than the reading takes. After the pause it would look
    through them once more, so they are old at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            UNSEEN.pass_over()
            gc.enable()


__all__ = ["collection_paused"]
