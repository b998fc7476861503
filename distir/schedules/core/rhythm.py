"""Schedules as words that repeat: as long as they are varied, not as there are microbatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from distir.schedules.core.action import Action, Kind
from distir.schedules.core.schedule import Schedule

__all__ = ["Rhythm", "Run", "Step", "groups_of", "one_pipeline", "runs_of"]

Step: TypeAlias = tuple[int, Kind]
"""A stage and what it does, for whichever microbatch is next."""


@dataclass(frozen=True, slots=True)
class Run:
    """A word that is repeated."""

    word: tuple[Step, ...]
    times: int


@dataclass(frozen=True, slots=True, eq=False)
class Rhythm:
    """Runs per rank. On a rank the microbatches of a stage come in order in every kind of action,
    so that a step says whose turn it is."""

    ranks: tuple[tuple[Run, ...], ...]
    homes: tuple[tuple[int, ...], ...]
    """Per pipeline the rank of every stage. Microbatch `m` goes through pipeline `m % pipelines`;
    a rank holds a stage in one pipeline at most."""
    microbatches: int
    name: str = ""

    @property
    def stages(self) -> int:
        """Pipeline stages over all ranks, chunks included."""
        return len(self.homes[0])

    @property
    def stages_of_ranks(self) -> tuple[tuple[int, ...], ...]:
        """The stages (chunks) that each rank holds, in pipeline order."""
        found: list[set[int]] = [set() for _ in self.ranks]
        for homes in self.homes:
            for stage, rank in enumerate(homes):
                found[rank].add(stage)
        return tuple(tuple(sorted(own)) for own in found)

    @property
    def has_backward(self) -> bool:
        """Whether this is a training schedule."""
        return any(kind != "F" for run in self.ranks[0] for _, kind in run.word)

    @property
    def splits_backward(self) -> bool:
        """Whether `B` is only the input-gradient part, with a `W` for the rest."""
        return any(kind == "W" for run in self.ranks[0] for _, kind in run.word)

    def pipeline(self, rank: int, stage: int) -> int:
        """The pipeline in which the rank holds the stage."""
        return next(index for index, homes in enumerate(self.homes) if homes[stage] == rank)

    def schedule(self) -> Schedule:
        """All actions."""
        ranks = tuple(tuple(self._actions(rank)) for rank in range(len(self.ranks)))
        return Schedule(ranks, self.stages, self.microbatches, self.name)

    def _actions(self, rank: int) -> Iterator[Action]:
        own = {stage for run in self.ranks[rank] for stage, _ in run.word}
        first = {stage: self.pipeline(rank, stage) for stage in own}
        following: dict[Step, int] = {}
        for run in self.ranks[rank]:
            for _ in range(run.times):
                for step in run.word:
                    microbatch = following.get(step, first[step[0]])
                    following[step] = microbatch + len(self.homes)
                    yield Action(*step, microbatch)


def runs_of(*runs: tuple[Iterable[Step], int]) -> tuple[Run, ...]:
    """Words and how often they come, without empty ones."""
    made = (Run(tuple(word), times) for word, times in runs)
    return tuple(run for run in made if run.word and run.times > 0)


def one_pipeline(
    ranks: Sequence[tuple[Run, ...]], homes: Sequence[int], microbatches: int, name: str
) -> Rhythm:
    """The rhythm of microbatches that all take the same way."""
    return Rhythm(tuple(ranks), (tuple(homes),), microbatches, name)


def groups_of(ranks: int, microbatches: int) -> list[range]:
    """Runs of at least `ranks` microbatches (if there are so many), the larger ones first."""
    count = max(1, microbatches // ranks)
    size, larger = divmod(microbatches, count)
    starts = [group * size + min(group, larger) for group in range(count + 1)]
    return [range(a, b) for a, b in pairwise(starts)]
