"""Pauses Python's search for garbage while something large is made, all of which is kept."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Generator[None, None, None]:
    """Pauses the collection of cyclic garbage; also a decorator.

    While a model is read, a million objects are made that all stay. The collector would look
    through them again and again, for longer than the reading takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


__all__ = ["collection_paused"]
