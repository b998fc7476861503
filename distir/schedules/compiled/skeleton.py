"""The skeleton of a schedule: its repeated patterns without how often they are repeated.

With more microbatches, ranks mostly repeat more often the patterns that they run while the pipeline
is full. Schedules that differ in nothing else have the same skeleton, and what is found out about
the order of actions of one holds for all of them. They differ in their number of *rounds*: in a
round, every rank runs each of its passes equally often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import lcm
from typing import TypeAlias

from distir.schedules.compiled.compile import CompiledSchedule
from distir.schedules.compiled.costs import (
    BACKWARD,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
)
from distir.schedules.core.rhythm import Rhythm

__all__ = ["RoundRepetitions", "Skeleton", "skeleton_of"]

RoundRepetitions: TypeAlias = tuple[tuple[int, ...], ...]
"""Per rank and repeated pattern, how many repetitions of the pattern a round has."""

MOST_SKELETONS = 4096
"""Skeletons that are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Skeleton:
    """What schedules have in common that differ only in their number of rounds."""

    compiled: CompiledSchedule
    """The schedule with this skeleton that has enough rounds to keep the pipeline full for long."""
    repetitions: RoundRepetitions

    @property
    def rounds(self) -> int:
        """The number of rounds of `compiled`."""
        return _rounds_when_full(len(self.repetitions))

    def rounds_in(self, repetitions: Sequence[tuple[int, int]]) -> int:
        """Whole rounds that these repetitions make; 0 if not whole.

        `repetitions` has, per rank, the index of one of its repeated patterns, and a number of
        repetitions of it.
        """
        rounds = {
            count // of_rank[index]
            if of_rank[index] == sum(of_rank) and count % of_rank[index] == 0
            else 0
            for of_rank, (index, count) in zip(self.repetitions, repetitions, strict=True)
        }
        return rounds.pop() if len(rounds) == 1 else 0


def skeleton_of(compiled: CompiledSchedule) -> tuple[Skeleton, int] | None:
    """A schedule's skeleton, and the number of rounds that the schedule has more than
    `Skeleton.compiled` (mostly negative); None if the schedule has no rounds.

    Schedules with the same skeleton get the same object.
    """
    rhythm = compiled.source
    if not isinstance(rhythm, Rhythm):
        return None
    found = _round_repetitions(compiled, rhythm)
    if found is None:
        return None
    repetitions, passes = found
    rounds = min(
        repeated.times // count
        for patterns, counts in zip(rhythm.ranks, repetitions, strict=True)
        for repeated, count in zip(patterns, counts, strict=True)
        if count
    )
    more = _rounds_when_full(len(rhythm.ranks)) - rounds
    longer = tuple(
        tuple(
            [
                (costs, repeated.overlapped, times + more * count)
                for repeated, (costs, times), count in zip(patterns, own, counts, strict=True)
            ]
        )
        for patterns, own, counts in zip(
            rhythm.ranks, compiled.repeated_costs, repetitions, strict=True
        )
    )
    microbatches = rhythm.microbatches + more * passes * len(rhythm.ranks_of_stages)
    named = _Longer(longer, rhythm.ranks_of_stages, microbatches, repetitions, rhythm)
    return _skeleton(named), -more


@dataclass(frozen=True, slots=True)
class _Longer:
    """A rhythm with the rounds of its skeleton, as numbers, which are soon compared."""

    ranks: tuple[tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...], ...]
    """Per rank and repeated pattern the cost numbers, where overlapped pairs begin, and how often
    it is repeated."""
    ranks_of_stages: tuple[tuple[int, ...], ...]
    microbatches: int
    repetitions: RoundRepetitions
    rhythm: Rhythm = field(compare=False)
    """A rhythm with any number of rounds."""

    def made(self) -> Rhythm:
        """The rhythm with these rounds."""
        ranks = tuple(
            tuple(
                replace(repeated, times=times)
                for repeated, (_, _, times) in zip(patterns, longer, strict=True)
            )
            for patterns, longer in zip(self.rhythm.ranks, self.ranks, strict=True)
        )
        return Rhythm(ranks, self.ranks_of_stages, self.microbatches)


def _rounds_when_full(ranks: int) -> int:
    """More rounds than a pipeline needs, with any schedule, to be full."""
    return 64 + 8 * ranks


@lru_cache(maxsize=MOST_SKELETONS)
def _skeleton(longer: _Longer) -> Skeleton:
    return Skeleton(CompiledSchedule(longer.made()), longer.repetitions)


def _round_repetitions(
    compiled: CompiledSchedule, rhythm: Rhythm
) -> tuple[RoundRepetitions, int] | None:
    """The repetitions that a round has of each pattern, and how often a round has every pass of a
    rank; None if the schedule has no rounds.

    Where ranks run one step for all microbatches, then the next, a round repeats every pattern
    once. Otherwise each rank repeats the one pattern that has all its passes equally often, or
    of several such patterns the one in which most of them overlap.
    """
    if len({repeated.times for patterns in rhythm.ranks for repeated in patterns}) == 1 and all(
        len({repeated.pattern for repeated in patterns}) == len(patterns)
        and all(len(repeated.pattern) == 1 for repeated in patterns)
        for patterns in rhythm.ranks
    ):
        return tuple((1,) * len(patterns) for patterns in rhythm.ranks), 1
    occurrences: list[list[int]] = []
    for patterns, costs, stages in zip(
        rhythm.ranks, compiled.repeated_costs, compiled.stages_of_ranks, strict=True
    ):
        of_rank = [_occurrences(pattern, stages, rhythm) for pattern, _ in costs]
        pairs = [len(repeated.overlapped) for repeated in patterns]
        most = max((n for n, count in zip(pairs, of_rank, strict=True) if count), default=0)
        of_rank = [count * (n == most) for n, count in zip(pairs, of_rank, strict=True)]
        if sum(count > 0 for count in of_rank) != 1:
            return None
        occurrences.append(of_rank)
    passes = lcm(*map(max, occurrences))
    repetitions = tuple(
        tuple(passes // count if count else 0 for count in of_rank) for of_rank in occurrences
    )
    return repetitions, passes


def _occurrences(pattern: Sequence[int], stages: Sequence[int], rhythm: Rhythm) -> int:
    """How often a pattern of cost numbers has each pass of the `stages` of its rank: `F` and, in
    training, a backward pass, whole or in two parts. 0 if it does not have all of them equally
    often."""
    if len(pattern) < len(stages) * (1 + rhythm.has_backward):
        return 0
    count = Counter(pattern)
    passes = {count[stage * COST_KINDS + FORWARD] for stage in stages}
    for cost in [stage * COST_KINDS for stage in stages] * rhythm.has_backward:
        passes.add(count[cost + INPUT_PART] + count[cost + BACKWARD])
        if count[cost + WEIGHT_PART] != count[cost + INPUT_PART]:
            return 0
    return passes.pop() if len(passes) == 1 else 0
