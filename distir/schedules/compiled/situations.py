"""The situations of a rank: the microbatches in flight on it when its actions start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np

from distir.arrays import Floats, Integers
from distir.schedules.compiled.costs import (
    BACKWARD,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    RepeatedCosts,
)

MOST_RANKS = 1 << 15
"""Ranks whose situations are kept."""


Counts: TypeAlias = tuple[tuple[int, int], ...]
"""Per stage of a rank, the microbatches between F and B, and between B and W."""

Numbers: TypeAlias = tuple[int, ...]
"""`Counts`, one number after the other."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The microbatches in flight on a rank when one of its actions starts.

    `stage` and `cost_kind` are those of the action. `counts` has, per stage of the rank, the number
    of microbatches between F and B, and between B and W.
    """

    stage: int
    cost_kind: int
    counts: Counts


@dataclass(frozen=True, eq=False)
class SituationTable:
    """The situations of a rank as arrays."""

    cost_kinds: Integers
    """Of the actions, shape (situations,)."""
    positions: Integers
    """Of the actions' stages among the stages of the rank, shape (situations,)."""
    counts: Integers
    """Microbatches in flight, shape (situations, 2 · stages of the rank): of each stage those
    between F and B, then those between B and W."""

    @cached_property
    def kinds(self) -> set[int]:
        """The cost kinds that there are."""
        return set(self.cost_kinds.tolist())

    @cached_property
    def fullest(self) -> tuple[Counts, Counts, Counts]:
        """The microbatches in flight when the rank holds most of them between F and B (the one of
        the action itself included), most between B and W, and most of both."""
        counts = self.counts.copy()
        if self.kinds != {FORWARD}:  # that of a forward pass is in flight after it
            (starting,) = np.nonzero(self.cost_kinds == FORWARD)
            counts[starting, 2 * self.positions[starting]] += 1
        forward, backward = counts[:, ::2].sum(axis=1), counts[:, 1::2].sum(axis=1)
        found = (counts[each.argmax()].tolist() for each in (forward, backward, forward + backward))
        first, second, third = map(_by_stage, found)
        return first, second, third

    @cached_property
    def changes(self) -> SituationChanges:
        """The situations, sorted so that few counts change from one to the next, and behind the
        last one the changes after which nothing is in flight."""
        order = np.lexsort(self.counts.T)
        differences = np.diff(self.counts[order], axis=0, prepend=0, append=0)
        situation, column = np.nonzero(differences)
        return SituationChanges(
            self.cost_kinds[order],
            self.positions[order],
            column,
            differences[situation, column].astype(np.float64),
            np.searchsorted(situation, np.arange(len(order)), side="right") - 1,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SituationChanges:
    """The situations of a rank as changes: what each has in flight more than the one before it."""

    cost_kinds: Integers
    positions: Integers
    columns: Integers
    """Of each change the column of `SituationTable.counts`, situation by situation."""
    amounts: Floats
    """Of each change the difference of the count."""
    last: Integers
    """Of each situation the index of its last change; -1 before the first change."""


def situations_of(placed: Sequence[RepeatedCosts], stages: Sequence[int]) -> tuple[Situation, ...]:
    """The situations of a rank that holds these stages and runs these patterns, with stages given
    as positions among them (see `CompiledSchedule.placed_costs`).

    Drops dominated situations: those with no more in flight of anything than another situation of
    the same stage and cost kind.
    """
    return tuple(
        Situation(stages[cost // COST_KINDS], cost % COST_KINDS, _by_stage(counts))
        for cost, counts in _situations(_shortened(placed), len(stages))
    )


def situation_table_of(placed: Sequence[RepeatedCosts], stages: Sequence[int]) -> SituationTable:
    """`situations_of` as arrays; ranks with the same situations, if only of other stages, get the
    same object."""
    return _kept_table(_shortened(placed), len(stages))


def _shortened(placed: Sequence[RepeatedCosts]) -> tuple[RepeatedCosts, ...]:
    """Patterns with the same situations and with fewer repetitions: a pattern that leaves as much
    in flight as there was before it is run once, as its repetitions repeat its situations."""
    return tuple(
        [(pattern, times if any(_left_in_flight(pattern)) else 1) for pattern, times in placed]
    )


@lru_cache(maxsize=MOST_RANKS)
def _kept_table(repeated: tuple[RepeatedCosts, ...], stages: int) -> SituationTable:
    found = _situations(repeated, stages)
    cost, counts = (np.array(each, np.int64) for each in zip(*found, strict=True))
    return SituationTable(cost % COST_KINDS, cost // COST_KINDS, counts.reshape(-1, 2 * stages))


def _situations(repeated: Sequence[RepeatedCosts], stages: int) -> list[tuple[int, Numbers]]:
    """The cost numbers of the actions and what is in flight when they start.

    Walks through the actions. The counts of all stages are digits of one number, two per stage:
    microbatches between F and B, then between B and W."""
    base = 1 + sum(len(pattern) * times for pattern, times in repeated)
    trains = any(cost % COST_KINDS != FORWARD for pattern, _ in repeated for cost in pattern)
    change: dict[int, tuple[int, bool, bool]] = {}  # per cost number: difference, up, down
    for stage in range(stages):
        after_f, after_b = base ** (2 * stage), base ** (2 * stage + 1)
        cost = stage * COST_KINDS
        change[cost + FORWARD] = (after_f if trains else 0, trains, False)
        change[cost + BACKWARD] = (-after_f, False, True)
        change[cost + INPUT_PART] = (after_b - after_f, True, True)
        change[cost + WEIGHT_PART] = (-after_b, False, True)
    states: dict[int, list[int]] = {cost: [] for cost in change}
    seen: set[tuple[int, int]] = set()
    state = up = down = 0  # up, down: how often any count has grown or shrunk
    since: dict[int, tuple[int, int]] = {}
    for pattern, times in repeated:
        before_pattern = state
        for repetition in _telling_repetitions(pattern, times):
            state = before_pattern + repetition * sum(change[cost][0] for cost in pattern)
            for cost in pattern:
                difference, grows, shrinks = change[cost]
                if (cost, state) not in seen:
                    before = since.get(cost)
                    # If counts only grew since the last such action, this one dominates it; if they
                    # only shrank, the last one dominates this one.
                    if before is None or before[0] != up:
                        if before is not None and before[1] == down:
                            states[cost].pop()
                        states[cost].append(state)
                        since[cost] = (up, down)
                    seen.add((cost, state))
                state += difference
                up += grows
                down += shrinks
    return [
        (cost, counts)
        for cost, numbers in states.items()
        for counts in _undominated(_digits(number, base, stages) for number in numbers)
    ]


def _telling_repetitions(pattern: tuple[int, ...], times: int) -> Iterable[int]:
    """The repetitions of a pattern that can have undominated situations: the first and the last one
    where each repetition leaves no less in flight of anything than the one before, or no more."""
    left = _left_in_flight(pattern)
    mixed = min(left) < 0 < max(left)
    return range(times) if mixed or times < 3 else (0, times - 1)


@lru_cache(maxsize=MOST_RANKS)
def _left_in_flight(pattern: tuple[int, ...]) -> tuple[int, ...]:
    """How many microbatches more are in flight after a pattern: by stage those before B, and those
    after it."""
    left: Counter[tuple[int, bool]] = Counter()
    for cost, count in Counter(pattern).items():
        stage, cost_kind = divmod(cost, COST_KINDS)
        forward = {FORWARD: 1, BACKWARD: -1, INPUT_PART: -1, WEIGHT_PART: 0}[cost_kind]
        left[stage, False] += forward * count
        left[stage, True] += {INPUT_PART: 1, WEIGHT_PART: -1}.get(cost_kind, 0) * count
    return tuple(left.values())


def _digits(number: int, base: int, stages: int) -> Numbers:
    """The counts of every stage that a number of `_situations` stands for."""
    digits: list[int] = []
    for _ in range(2 * stages):
        number, digit = divmod(number, base)
        digits.append(digit)
    return tuple(digits)


def _by_stage(numbers: Sequence[int]) -> Counts:
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _undominated(situations: Iterable[Numbers]) -> list[Numbers]:
    """Drops dominated situations, given by their counts."""
    kept: list[Numbers] = []
    for counts in sorted(dict.fromkeys(situations), key=sum, reverse=True):
        if not any(all(map(int.__le__, counts, other)) for other in kept):
            kept.append(counts)
    return kept


__all__ = [
    "Situation",
    "SituationChanges",
    "SituationTable",
    "situation_table_of",
    "situations_of",
]
