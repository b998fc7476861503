"""Schedules as repeated patterns: their length depends on the pattern, not on the microbatches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias, cast

from distir.schedules.core.action import Action, ActionKind
from distir.schedules.core.schedule import Schedule

__all__ = [
    "OverlappedSteps",
    "RepeatedSteps",
    "Rhythm",
    "Step",
    "groups_of",
    "one_pipeline",
    "repeated_steps",
]

Step: TypeAlias = tuple[int, ActionKind]
"""An action without its microbatch: a stage and the kind of action."""

OverlappedSteps: TypeAlias = tuple[Step, Step]
"""An overlapped pair: a forward step and a backward step."""


@dataclass(frozen=True, slots=True)
class RepeatedSteps:
    """A pattern of steps that a rank runs several times in a row."""

    pattern: tuple[Step, ...]
    times: int
    overlapped: tuple[int, ...] = ()
    """Positions in the pattern of forward steps that run overlapped with the backward step that
    comes next."""


@dataclass(frozen=True, eq=False)
class Rhythm:
    """A schedule whose ranks repeat patterns of steps.

    The microbatches of a stage come in ascending order in every kind of action of a rank. So a step
    needs no microbatch: the n-th `F` of a stage is for the n-th microbatch of its pipeline, the
    n-th `B` or `BW` too, and the n-th `W` is for that of the n-th `B`.
    """

    ranks: tuple[tuple[RepeatedSteps, ...], ...]
    """Per rank, the repeated patterns in order."""
    ranks_of_stages: tuple[tuple[int, ...], ...]
    """Per pipeline, the rank of every stage. Microbatch `m` goes through pipeline `m % pipelines`;
    a rank holds a stage in one pipeline at most."""
    microbatches: int
    name: str = ""

    @property
    def stages(self) -> int:
        """Number of pipeline stages over all ranks, chunks included."""
        return len(self.ranks_of_stages[0])

    @cached_property
    def stages_of_ranks(self) -> tuple[tuple[int, ...], ...]:
        """The stages (chunks) that each rank holds, in pipeline order."""
        stages: list[set[int]] = [set() for _ in self.ranks]
        for ranks in self.ranks_of_stages:
            for stage, rank in enumerate(ranks):
                stages[rank].add(stage)
        return tuple(tuple(sorted(held)) for held in stages)

    @cached_property
    def has_backward(self) -> bool:
        """Whether this is a training schedule."""
        return any(kind != "F" for repeated in self.ranks[0] for _, kind in repeated.pattern)

    @cached_property
    def splits_backward(self) -> bool:
        """Whether `B` is only the input-gradient part, with a `W` for the rest."""
        return any(kind == "W" for repeated in self.ranks[0] for _, kind in repeated.pattern)

    def pipeline(self, rank: int, stage: int) -> int:
        """Index of the pipeline in which the rank holds the stage."""
        return next(
            index for index, ranks in enumerate(self.ranks_of_stages) if ranks[stage] == rank
        )

    def schedule(self) -> Schedule:
        """The schedule with all its actions."""
        ranks = tuple(tuple(self._actions(rank)) for rank in range(len(self.ranks)))
        return Schedule(ranks, self.stages, self.microbatches, self.name, self._overlapped())

    def _overlapped(self) -> tuple[tuple[int, ...], ...]:
        """See `Schedule.overlapped`."""
        found: list[tuple[int, ...]] = []
        for patterns in self.ranks:
            begin = 0
            of_rank: list[int] = []
            for repeated in patterns:
                for _ in range(repeated.times):
                    of_rank += (begin + position for position in repeated.overlapped)
                    begin += len(repeated.pattern)
            found.append(tuple(of_rank))
        return tuple(found) if any(found) else ()

    def _actions(self, rank: int) -> Iterator[Action]:
        held = {stage for repeated in self.ranks[rank] for stage, _ in repeated.pattern}
        first = {stage: self.pipeline(rank, stage) for stage in held}
        following: dict[tuple[int, bool], int] = {}
        split: dict[int, deque[int]] = {stage: deque() for stage in held}
        for repeated in self.ranks[rank]:
            for _ in range(repeated.times):
                for stage, kind in repeated.pattern:
                    if kind == "W":
                        microbatch = split[stage].popleft()
                    else:
                        way = stage, kind == "F"
                        microbatch = following.get(way, first[stage])
                        following[way] = microbatch + len(self.ranks_of_stages)
                        if kind == "B":
                            split[stage].append(microbatch)
                    yield Action(stage, kind, microbatch)


def repeated_steps(
    *patterns: tuple[Iterable[Step | OverlappedSteps], int],
) -> tuple[RepeatedSteps, ...]:
    """Patterns, each with how often it is repeated, without empty patterns and repetitions of 0."""
    made = [_repeated(tuple(pattern), times) for pattern, times in patterns if times > 0]
    return tuple([repeated for repeated in made if repeated.pattern])


def _repeated(pattern: tuple[Step | OverlappedSteps, ...], times: int) -> RepeatedSteps:
    if not any([isinstance(first, tuple) for first, _ in pattern]):
        return RepeatedSteps(cast("tuple[Step, ...]", pattern), times)
    steps: list[Step] = []
    overlapped: list[int] = []
    for each in pattern:
        if isinstance(each[0], tuple):
            overlapped.append(len(steps))
            steps += cast("OverlappedSteps", each)
        else:
            steps.append(cast("Step", each))
    return RepeatedSteps(tuple(steps), times, tuple(overlapped))


def one_pipeline(
    ranks: Sequence[tuple[RepeatedSteps, ...]],
    rank_of_stage: Sequence[int],
    microbatches: int,
    name: str,
) -> Rhythm:
    """A rhythm in which all microbatches take the same way through the ranks."""
    return Rhythm(tuple(ranks), (tuple(rank_of_stage),), microbatches, name)


def groups_of(ranks: int, microbatches: int) -> list[range]:
    """Microbatches in groups of almost equal size, the larger groups first.

    Every group has at least `ranks` microbatches, unless there are fewer in all.
    """
    count = max(1, microbatches // ranks)
    size, larger = divmod(microbatches, count)
    starts = [group * size + min(group, larger) for group in range(count + 1)]
    return [range(a, b) for a, b in pairwise(starts)]
