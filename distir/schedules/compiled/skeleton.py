"""Schedules that differ in how long they go on.

With more microbatches ranks mostly say the words more often that they say while the pipeline is
full. Schedules that differ in nothing else have one *pattern*: what is found out about the order of
their actions holds for them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from typing import TypeAlias

from distir.schedules.compiled.compile import CompiledSchedule
from distir.schedules.core.rhythm import Rhythm, Run

__all__ = ["Pattern", "Steps", "pattern_of"]

Steps: TypeAlias = tuple[tuple[int, ...], ...]
"""Per rank and run how many words more there are with every turn."""

MOST_PATTERNS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What schedules have in common that differ in the number of turns: in a turn every action of
    every rank comes equally often."""

    compiled: CompiledSchedule
    """The one of them with so many turns that the pipeline is full for long."""
    steps: Steps

    def turns_in(self, said: Sequence[tuple[int, int]]) -> int:
        """How many turns it is when every rank says so many words of a run; 0 if it is none."""
        found = {
            count // own[run] if own[run] == sum(own) and count % own[run] == 0 else 0
            for own, (run, count) in zip(self.steps, said, strict=True)
        }
        return found.pop() if len(found) == 1 else 0


def pattern_of(compiled: CompiledSchedule) -> tuple[Pattern, int] | None:
    """A schedule's pattern, and how many turns more it has than `Pattern.compiled` (less than 0
    mostly); None if it has no turns. Schedules with one pattern have the same object."""
    rhythm = compiled.source
    if not isinstance(rhythm, Rhythm):
        return None
    found = _steps(rhythm)
    if found is None:
        return None
    steps, passes = found
    least = min(
        run.times // step
        for runs, own in zip(rhythm.ranks, steps, strict=True)
        for run, step in zip(runs, own, strict=True)
        if step
    )
    more = _turns(len(rhythm.ranks)) - least
    ranks = tuple(
        tuple(Run(run.word, run.times + more * step) for run, step in zip(runs, own, strict=True))
        for runs, own in zip(rhythm.ranks, steps, strict=True)
    )
    microbatches = rhythm.microbatches + more * passes * len(rhythm.homes)
    return _pattern(ranks, rhythm.homes, microbatches, steps), -more


def _turns(ranks: int) -> int:
    """Turns until a pipeline that fills at the pace of any schedule is full, several times over."""
    return 64 + 8 * ranks


@lru_cache(maxsize=MOST_PATTERNS)
def _pattern(
    ranks: tuple[tuple[Run, ...], ...],
    homes: tuple[tuple[int, ...], ...],
    microbatches: int,
    steps: Steps,
) -> Pattern:
    return Pattern(CompiledSchedule(Rhythm(ranks, homes, microbatches)), steps)


def _steps(rhythm: Rhythm) -> tuple[Steps, int] | None:
    """What a turn adds to the runs, and how often it has every action of a rank: once where ranks
    do one thing with all microbatches, then the next; else it is the one word of each rank that has
    all of its actions equally often."""
    if len({run.times for runs in rhythm.ranks for run in runs}) == 1 and all(
        len({run.word for run in runs}) == len(runs) and all(len(run.word) == 1 for run in runs)
        for runs in rhythm.ranks
    ):
        return tuple((1,) * len(runs) for runs in rhythm.ranks), 1
    found: list[list[int]] = []
    for runs in rhythm.ranks:
        actions = {step for run in runs for step in run.word}
        own = [_evenly(run, len(actions)) for run in runs]
        if sum(count > 0 for count in own) != 1:
            return None
        found.append(own)
    passes = lcm(*map(max, found))
    steps = tuple(tuple(passes // count if count else 0 for count in own) for own in found)
    return steps, passes


def _evenly(run: Run, actions: int) -> int:
    """How often a word has each of so many actions; 0 if not all of them equally often."""
    if len(run.word) % actions:
        return 0
    counts = Counter(run.word)
    times = {*counts.values()}
    return times.pop() if len(counts) == actions and len(times) == 1 else 0
