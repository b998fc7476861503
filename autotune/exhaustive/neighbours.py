"""The neighbours of a strategy: those that differ in choices that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distir.strategies import FIELDS
from distir.strategy import Strategy
from search_spaces import SearchSpace

MOST = 512
"""Neighbours that differ in one group of choices."""

FINER = (
    ("schedule", "chunks"),
    ("zero", "zero_degree", "keep_gathered"),
    ("recompute", "recompute_every", "recompute_layers"),
    ("sequence_parallel", "keep_gathered"),
    ("cp_exchange",),
)
"""Choices in which neighbours with the same degrees and microbatches differ."""

TOGETHER = (*FINER, ("dp", "tp", "cp", "cp_exchange"), ("microbatches",))
"""Choices in which neighbours differ."""


def neighbours(
    space: SearchSpace, strategy: Strategy, together: Sequence[Sequence[str]] = TOGETHER
) -> Iterator[list[Strategy]]:
    """The strategies of a space that differ from one in each of these groups of choices, and agree
    in all others."""
    for names in together:
        fixed = {name: (getattr(strategy, name),) for name in FIELDS if name not in names}
        known = {name: values for name, values in fixed.items() if name in space.names}
        part = space.restricted(**known)
        yield [part.at(number) for number in range(min(MOST, part.count()))]


__all__ = ["FINER", "neighbours"]
