"""Patterns of passes that differ only in how long instructions take, side by side.

Where many stages are priced at once, few of their passes differ in what waits for what: blocks that
keep other values, or shard other states, often have the same instructions with other seconds. Such
patterns become one, whose seconds are arrays with a number per pattern and program size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from distir.arrays import Floats, Indices
from distir.cost.amounts import is_positive
from distir.simulation.pricing.chains import BlockChain, Pass
from distir.simulation.pricing.timeline_many import ManyPass

FEW_COPIES = 3
"""A pattern with at most this many copies, equally many in all chains, is scheduled copy by copy
without testing whether states still change."""


@dataclass(frozen=True, slots=True)
class _Own:
    """A pattern of passes, with the seconds on the gradient stream after each pass."""

    passes: tuple[Pass, ...]
    settling_seconds: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A pattern of passes, whose seconds are those of one or of several patterns."""

    passes: tuple[ManyPass, ...]
    launch_seconds: tuple[Any, ...]
    """Per pass, the seconds in which the host launches it."""
    settling_seconds: tuple[Any, ...]
    """Per pass, the seconds on the gradient stream after it."""
    sizes: Indices
    """The numbers of the program sizes that seconds are for, one pattern after the other."""

    @cached_property
    def settles(self) -> bool:
        """Whether anything is done on the gradient stream."""
        return any(map(is_positive, self.settling_seconds))


@dataclass(frozen=True, slots=True)
class Step:
    """A pattern that a chain passes."""

    pattern: Pattern
    first: int
    """Where the numbers of the first program size are among those of the pattern."""
    counts: Floats | None
    """How often it comes, with a number per chain; None: once."""


def steps_of(chains: Sequence[tuple[BlockChain, int]]) -> list[list[Step]]:
    """The steps of chains, each at a number of program sizes. Steps of one form have one
    pattern."""
    own = [_patterns(*each) for each in chains]
    by_form: dict[object, dict[_Own, int]] = {}
    known: set[_Own] = set()
    for (_, num_sizes), patterns in zip(chains, own, strict=True):
        for pattern, _ in patterns:
            if pattern not in known:
                known.add(pattern)
                form = tuple(each.form for each in pattern.passes)
                by_form.setdefault(form, {})[pattern] = num_sizes
    places: dict[_Own, tuple[Pattern, int]] = {}
    for alike in by_form.values():
        together = _together(list(alike), list(alike.values()))
        firsts = accumulate(alike.values(), initial=0)
        places |= {own: (together, first) for own, first in zip(alike, firsts, strict=False)}
    return [[Step(*places[pattern], counts) for pattern, counts in patterns] for patterns in own]


def _patterns(chain: BlockChain, num_sizes: int) -> list[tuple[_Own, Floats | None]]:
    """The patterns of a chain, each with its number of copies, or None for 1. Those with few copies
    are split into single passes, so that chains can share the first of them."""
    num_chains = num_sizes if chain.size_numbers is None else len(chain.size_numbers)
    settling = chain.settling_seconds or [[0.0] * len(pattern) for pattern, _ in chain.passes]
    patterns: list[tuple[_Own, Floats | None]] = []
    for (passes, count), seconds in zip(chain.passes, settling, strict=True):
        if isinstance(count, np.ndarray) or count > FEW_COPIES:
            counts = np.broadcast_to(np.asarray(count, np.float64), num_chains)
            patterns.append((_Own(tuple(passes), tuple(seconds)), counts))
            continue
        blocks = zip(passes, seconds, strict=True)
        patterns += [(_Own((each,), (own,)), None) for each, own in blocks] * count
    return patterns


def _together(patterns: Sequence[_Own], num_sizes: Sequence[int]) -> Pattern:
    """Patterns of one form, each at a number of program sizes, as one."""
    passes = list(zip(*(each.passes for each in patterns), strict=True))
    launching = ([own.launch_seconds for own in each] for each in passes)
    settling = zip(*(each.settling_seconds for each in patterns), strict=True)
    return Pattern(
        tuple(_side_by_side(each, num_sizes) for each in passes),
        tuple(_joined(each, num_sizes) for each in launching),
        tuple(_joined(each, num_sizes) for each in settling),
        np.concatenate([np.arange(count) for count in num_sizes]),
    )


def _side_by_side(passes: Sequence[Pass], num_sizes: Sequence[int]) -> ManyPass:
    """Passes of one form as one."""
    form = passes[0].form
    count = sum(each.stream is not None for each in form.steps)
    table, first = np.empty((count, sum(num_sizes))), 0
    for each, own in zip(passes, num_sizes, strict=True):
        on_streams = (step for step in each.instructions if step.stream is not None)
        for row, instruction in zip(table, on_streams, strict=True):
            row[first : first + own] = instruction.seconds
        first += own
    return ManyPass(form, table)


def _joined(amounts: Sequence[Any], num_sizes: Sequence[int]) -> Any:
    """Amounts, each one number or one per program size, one after the other."""
    if len(amounts) == 1:
        return amounts[0]
    joined, first = np.empty(sum(num_sizes)), 0
    for amount, count in zip(amounts, num_sizes, strict=True):
        joined[first : first + count] = amount
        first += count
    return joined


__all__ = ["Pattern", "Step", "steps_of"]
