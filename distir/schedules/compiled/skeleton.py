"""The skeleton of a schedule: its repeated patterns without how often they are repeated.

With more microbatches, ranks mostly repeat more often the patterns that they run while the pipeline
is full. Schedules that differ in nothing else have the same skeleton, and what is found out about
the order of actions of one holds for all of them. They differ in their number of *rounds*: in a
round, every rank runs each of its passes equally often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import TypeAlias

from distir.schedules.compiled.compile import CompiledSchedule
from distir.schedules.core.rhythm import RepeatedSteps, Rhythm

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
    found = _round_repetitions(rhythm)
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
    ranks = tuple(
        tuple(
            replace(repeated, times=repeated.times + more * count)
            for repeated, count in zip(patterns, counts, strict=True)
        )
        for patterns, counts in zip(rhythm.ranks, repetitions, strict=True)
    )
    microbatches = rhythm.microbatches + more * passes * len(rhythm.ranks_of_stages)
    return _skeleton(ranks, rhythm.ranks_of_stages, microbatches, repetitions), -more


def _rounds_when_full(ranks: int) -> int:
    """More rounds than a pipeline needs, with any schedule, to be full."""
    return 64 + 8 * ranks


@lru_cache(maxsize=MOST_SKELETONS)
def _skeleton(
    ranks: tuple[tuple[RepeatedSteps, ...], ...],
    ranks_of_stages: tuple[tuple[int, ...], ...],
    microbatches: int,
    repetitions: RoundRepetitions,
) -> Skeleton:
    return Skeleton(CompiledSchedule(Rhythm(ranks, ranks_of_stages, microbatches)), repetitions)


def _round_repetitions(rhythm: Rhythm) -> tuple[RoundRepetitions, int] | None:
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
    for patterns in rhythm.ranks:
        stages = {stage for repeated in patterns for stage, _ in repeated.pattern}
        of_rank = [_occurrences(repeated, stages, rhythm) for repeated in patterns]
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


def _occurrences(repeated: RepeatedSteps, stages: Collection[int], rhythm: Rhythm) -> int:
    """How often a pattern has each pass of the `stages` of its rank: `F` and, in training, a
    backward pass, whole or in two parts. 0 if it does not have all of them equally often."""
    count = Counter(repeated.pattern)
    times = {count[stage, "F"] for stage in stages}
    if rhythm.has_backward:
        times |= {count[stage, "B"] + count[stage, "BW"] for stage in stages}
    if rhythm.splits_backward and any(count[stage, "W"] != count[stage, "B"] for stage in stages):
        return 0
    return times.pop() if len(times) == 1 else 0
