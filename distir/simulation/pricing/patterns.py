"""Patterns of passes that differ only in how long instructions take, side by side.

Where many stages are priced at once, few of their passes differ in what waits for what: blocks that
keep other values, or shard other states, often have the same instructions with other seconds. Such
patterns become one, whose seconds are arrays with a number per pattern and program size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from distir.cost.amounts import Amount
from distir.simulation.pricing.chains import BlockChain, Pass, PassPattern
from distir.simulation.pricing.repeats import Count
from distir.simulation.pricing.timeline_many import BESIDE, ManyPass, PassForm

FEW_COPIES = 3
"""A pattern with at most this many copies, equally many in all chains, is scheduled copy by copy
without testing whether states still change."""


_Own = tuple[tuple[Pass, Amount], ...]
"""A pattern of passes, each with the seconds on the gradient stream after it."""


@dataclass(frozen=True, eq=False, slots=True)
class Pattern:
    """A pattern of passes, whose numbers are those of one or of several patterns: of all program
    sizes of one, and then of the next."""

    passes: tuple[ManyPass, ...]
    forms: tuple[PassForm, ...]
    settles: bool
    """Whether anything is done on the gradient stream."""


@dataclass(eq=False, slots=True)  # not frozen, as there are so many that making them takes long
class Steps:
    """Patterns that chains have still to pass: one, and then the `rest`. Compared by identity:
    equal ones are one."""

    pattern: Pattern
    first: int
    """Where the numbers of the first program size are among those of the pattern."""
    is_single: bool
    """Whether it comes once; else every chain has a number of copies."""
    rest: Steps | None
    count: int
    """How many steps there are."""
    repeated: int
    """How many of them do not come once."""


class ChainSteps(NamedTuple):
    """The steps of described chains."""

    steps: Steps
    counts: Sequence[Count]
    """Of the steps that do not come once, the last first, how often the chains pass them."""


def steps_of(chains: Sequence[tuple[BlockChain, int]]) -> list[ChainSteps]:
    """The steps of chains, each at a number of program sizes. Steps of one form have one
    pattern."""
    known = _Numbers()
    numbered = [_numbered(chain, num_sizes, known) for chain, num_sizes in chains]
    patterns, sizes = list(known.numbers), known.sizes
    by_form: dict[tuple[PassForm, ...], list[int]] = {}
    for number, pattern in enumerate(patterns):
        by_form.setdefault(tuple([each.form for each, _ in pattern]), []).append(number)
    places: dict[int, tuple[Pattern, int]] = {}
    for forms, alike in by_form.items():
        num_sizes = [sizes[number] for number in alike]
        together = _together(forms, [patterns[number] for number in alike], num_sizes)
        firsts = accumulate(num_sizes, initial=0)
        places |= {each: (together, first) for each, first in zip(alike, firsts, strict=False)}
    nodes: dict[tuple[int, bool, Steps | None], Steps] = {}
    return [_chained(own, places, nodes) for own in numbered]


def _chained(
    numbered: Sequence[tuple[int, Count | None]],
    places: Mapping[int, tuple[Pattern, int]],
    known: dict[tuple[int, bool, Steps | None], Steps],
) -> ChainSteps:
    """Steps, given the numbers of their patterns and how often they come; None: once."""
    steps: Steps | None = None
    for number, counts in reversed(numbered):
        key = number, counts is None, steps
        found = known.get(key)
        if found is None:
            count, repeated = (0, 0) if steps is None else (steps.count, steps.repeated)
            more = repeated + (counts is not None)
            found = Steps(*places[number], counts is None, steps, count + 1, more)
            known[key] = found
        steps = found
    if steps is None:
        raise ValueError("a chain has at least one pass")
    return ChainSteps(steps, [own for _, own in reversed(numbered) if own is not None])


class _Numbers:
    """The numbers of patterns, of which equal ones have one."""

    def __init__(self) -> None:
        self.numbers: dict[_Own, int] = {}
        self.sizes: list[int] = []
        """Of each pattern the number of its program sizes."""
        self._of_whole: dict[PassPattern, int] = {}
        self._of_passes: dict[PassPattern, list[tuple[int, None]]] = {}

    def whole(self, pattern: PassPattern, num_sizes: int) -> int:
        """The number of a pattern at a number of program sizes."""
        found = self._of_whole.get(pattern)
        if found is None:
            found = self._of_whole[pattern] = self._number(pattern.settled_passes, num_sizes)
        return found

    def passes(self, pattern: PassPattern, num_sizes: int) -> list[tuple[int, None]]:
        """The numbers of its passes as patterns that come once."""
        found = self._of_passes.get(pattern)
        if found is None:
            own = pattern.settled_passes
            found = [(self._number((each,), num_sizes), None) for each in own]
            self._of_passes[pattern] = found
        return found

    def _number(self, own: _Own, num_sizes: int) -> int:
        found = self.numbers.setdefault(own, len(self.sizes))
        if found == len(self.sizes):
            self.sizes.append(num_sizes)
        return found


def _numbered(chain: BlockChain, num_sizes: int, known: _Numbers) -> list[tuple[int, Count | None]]:
    """The numbers of the patterns of a chain, each with its number of copies, or None for 1. Those
    with few copies are split into single passes, so that chains can share the first of them."""
    found: list[tuple[int, Count | None]] = []
    for pattern, count in chain.patterns:
        if isinstance(count, int) and count <= FEW_COPIES:
            found += known.passes(pattern, num_sizes) * count
        else:
            found.append((known.whole(pattern, num_sizes), count))
    return found


def _together(
    forms: tuple[PassForm, ...], patterns: Sequence[_Own], num_sizes: Sequence[int]
) -> Pattern:
    """Patterns whose passes have these forms, each at a number of program sizes, as one."""
    passes = [
        _side_by_side(form, each, num_sizes)
        for form, each in zip(forms, zip(*patterns, strict=True), strict=True)
    ]
    settles = any(bool((each.numbers[1 - BESIDE] > 0).any()) for each in passes)
    return Pattern(tuple(passes), forms, settles)


def _side_by_side(
    form: PassForm, passes: Sequence[tuple[Pass, Amount]], num_sizes: Sequence[int]
) -> ManyPass:
    """Passes of one form, each with the seconds on the gradient stream after it, as one."""
    numbers, first = np.empty((len(form.streams) + BESIDE, sum(num_sizes))), 0
    for (each, settling), own in zip(passes, num_sizes, strict=True):
        seconds = (step.seconds for step in each.instructions if step.stream is not None)
        summed = (each.launch_seconds, each.link_seconds, each.scatter_seconds)
        amounts = (*seconds, 0.0, settling, *summed)
        for row, amount in zip(numbers, amounts, strict=True):
            row[first : first + own] = amount
        first += own
    return ManyPass.of(form, numbers)


__all__ = ["ChainSteps", "Pattern", "Steps", "steps_of"]
