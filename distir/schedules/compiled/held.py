"""What ranks hold of microbatches in flight when their actions start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.schedules.compiled.costs import (
    BACKWARD,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    CostRun,
)

Ints: TypeAlias = NDArray[np.int64]

MOST_RANKS = 1 << 15
"""Ranks of which it is kept what they hold."""


@dataclass(frozen=True, slots=True)
class Held:
    """Microbatches in flight on a rank when one of its actions starts: per stage of the rank how
    many are between F and B, and between B and W. `stage` and `kind` are the action's."""

    stage: int
    kind: int
    counts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class HeldMatrix:
    """The `Held` of a rank as arrays."""

    kinds: Ints
    """(situations,)"""
    places: Ints
    """Of their stages among the rank's, (situations,)."""
    counts: Ints
    """(situations, 2 · own stages): of each stage after F, after B."""

    @cached_property
    def steps(self) -> HeldSteps:
        """The same from situation to situation, so ordered that little changes."""
        order = np.lexsort(self.counts.T)
        changes = np.diff(self.counts[order], axis=0, prepend=0)
        situation, column = np.nonzero(changes)
        return HeldSteps(
            self.kinds[order],
            self.places[order],
            column,
            changes[situation, column].astype(np.float64),
            np.searchsorted(situation, np.arange(len(order)), side="right") - 1,
        )


@dataclass(frozen=True, slots=True, eq=False)
class HeldSteps:
    """What a rank holds from situation to situation."""

    kinds: Ints
    places: Ints
    columns: Ints
    """Of all changes the columns of `HeldMatrix.counts`, one situation after the other."""
    changes: NDArray[np.float64]
    last: Ints
    """Per situation its last change; -1 before the first one."""


def held_of(runs: Sequence[CostRun], stages: Sequence[int]) -> tuple[Held, ...]:
    """The situations in which a rank's actions start, without those in which another, of the same
    stage and kind, holds at least as much."""
    return _held(*_shortened(runs, stages))


def held_matrix_of(runs: Sequence[CostRun], stages: Sequence[int]) -> HeldMatrix:
    """The same as arrays; ranks that hold the same have the same object."""
    return _known_matrix(*_shortened(runs, stages))


def _shortened(
    runs: Sequence[CostRun], stages: Sequence[int]
) -> tuple[tuple[CostRun, ...], tuple[int, ...]]:
    """Words that end with as much as they begin with once: again they hold what they held."""
    return (
        tuple((word, times if any(_left(word).values()) else 1) for word, times in runs),
        tuple(stages),
    )


@lru_cache(maxsize=MOST_RANKS)
def _known_matrix(runs: tuple[CostRun, ...], stages: tuple[int, ...]) -> HeldMatrix:
    return _held_matrix(_held(runs, stages), stages)


def _held(runs: Sequence[CostRun], stages: Sequence[int]) -> tuple[Held, ...]:
    """Counts are digits of one number, two per stage: after F, after B."""
    base = 1 + sum(len(word) * times for word, times in runs)
    trains = any(cost % COST_KINDS != FORWARD for word, _ in runs for cost in word)
    change: dict[int, tuple[int, bool, bool]] = {}  # per cost: difference, up, down
    for place, stage in enumerate(stages):
        after_f, after_b = base ** (2 * place), base ** (2 * place + 1)
        cost = stage * COST_KINDS
        change[cost + FORWARD] = (after_f if trains else 0, trains, False)
        change[cost + BACKWARD] = (-after_f, False, True)
        change[cost + INPUT_PART] = (after_b - after_f, True, True)
        change[cost + WEIGHT_PART] = (-after_b, False, True)
    states: dict[int, list[int]] = {cost: [] for cost in change}
    seen: set[tuple[int, int]] = set()
    state = up = down = 0  # up, down: how often anything has grown or shrunk
    since: dict[int, tuple[int, int]] = {}
    for word, times in runs:
        before_word = state
        for turn in _turns(word, times):
            state = before_word + turn * sum(change[cost][0] for cost in word)
            for cost in word:
                difference, grows, shrinks = change[cost]
                if (cost, state) not in seen:
                    before = since.get(cost)
                    # Where things only grew since the last such action, this one holds at least as
                    # much; where they only shrank, the last one did.
                    if before is None or before[0] != up:
                        if before is not None and before[1] == down:
                            states[cost].pop()
                        states[cost].append(state)
                        since[cost] = (up, down)
                    seen.add((cost, state))
                state += difference
                up += grows
                down += shrinks
    return tuple(
        Held(cost // COST_KINDS, cost % COST_KINDS, counts)
        for cost, found in states.items()
        for counts in _largest(_digits(each, base, len(stages)) for each in found)
    )


def _turns(word: Sequence[int], times: int) -> Iterable[int]:
    """Of a word that is repeated, the turns that are worth a look: where each leaves more of
    everything than the last one, or less, the first and the last."""
    left = _left(word)
    mixed = min(left.values()) < 0 < max(left.values())
    return range(times) if mixed or times < 3 else (0, times - 1)


def _left(word: Sequence[int]) -> Counter[tuple[int, bool]]:
    """How many more there are after a word: per stage after F, after B."""
    left: Counter[tuple[int, bool]] = Counter()
    for cost, count in Counter(word).items():
        stage, kind = divmod(cost, COST_KINDS)
        forward = {FORWARD: 1, BACKWARD: -1, INPUT_PART: -1, WEIGHT_PART: 0}[kind]
        left[stage, False] += forward * count
        left[stage, True] += {INPUT_PART: 1, WEIGHT_PART: -1}.get(kind, 0) * count
    return left


def _held_matrix(held: Sequence[Held], own: Sequence[int]) -> HeldMatrix:
    places = {stage: place for place, stage in enumerate(own)}
    kinds = np.array([each.kind for each in held], np.int64)
    stages = np.array([places[each.stage] for each in held], np.int64)
    counts = np.array([each.counts for each in held], np.int64)
    return HeldMatrix(kinds, stages, counts.reshape(len(held), 2 * len(own)))


def _digits(state: int, base: int, stages: int) -> tuple[tuple[int, int], ...]:
    digits: list[int] = []
    for _ in range(2 * stages):
        state, digit = divmod(state, base)
        digits.append(digit)
    return tuple(zip(digits[::2], digits[1::2], strict=True))


def _largest(
    found: Iterable[tuple[tuple[int, int], ...]],
) -> list[tuple[tuple[int, int], ...]]:
    """Without those of which another has at least as much of everything."""
    flat = {tuple(chain.from_iterable(counts)): counts for counts in found}
    kept: list[tuple[int, ...]] = []
    for each in sorted(flat, key=sum, reverse=True):
        if not any(all(map(int.__le__, each, other)) for other in kept):
            kept.append(each)
    return [flat[each] for each in kept]


__all__ = ["Held", "HeldMatrix", "HeldSteps", "held_matrix_of", "held_of"]
