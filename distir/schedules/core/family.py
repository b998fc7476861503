"""Schedule families: rules that make a schedule for given ranks, chunks and microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias

from distir.errors import ScheduleError
from distir.registry import LAST, Registry
from distir.schedules.core.rhythm import Rhythm
from distir.schedules.core.schedule import Schedule
from distir.schedules.core.validate import validate
from distir.units import counted
from distir.user_code import run_user_code

__all__ = [
    "SCHEDULES",
    "ScheduleFamily",
    "ScheduleGenerator",
    "StagePlacement",
    "schedule_family",
    "stages_on_ranks",
]

StagePlacement: TypeAlias = Literal["loop", "V", "mirror", "stated"]
"""The rule that says which of the `ranks · chunks` stages a rank holds.

- `loop`: rank `r` of `p` holds stages `r`, `r + p`, `r + 2p`, …; with one chunk just stage `r`.
- `V`: down the ranks and up again; rank `r` holds stages `r` and `2p - 1 - r`.
- `mirror`: rank `r` holds stage `r` and a second copy of stage `p - 1 - r`.
- `stated`: as a schedule file says.
"""


class ScheduleGenerator(Protocol):
    """A pure function from pipeline ranks, chunks (stages) per rank and microbatches to a schedule
    or to its rhythm."""

    def __call__(self, ranks: int, chunks: int, microbatches: int, /) -> Schedule | Rhythm: ...


class Requirement(Protocol):
    """A function that says why a schedule does not exist for these numbers, or None if it does."""

    def __call__(self, ranks: int, chunks: int, microbatches: int, /) -> str | None: ...


def _no_demands(_ranks: int, _chunks: int, _microbatches: int, /) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleFamily:
    """A family of schedules; called with `(ranks, chunks, microbatches)` it makes one of them."""

    name: str
    generate: ScheduleGenerator
    """The bare generator; `requires` must hold for its arguments."""
    summary: str
    """What lists show beside the name, in one line."""
    source: str
    """The paper that describes the schedule."""
    default_chunks: int = 1
    """Stages per rank if nobody says otherwise."""
    least_chunks: int = 1
    most_chunks: int | None = 1
    """The most stages per rank; None: any number."""
    splits_backward: bool = False
    """Whether the backward pass comes in two parts, `B` and `W`."""
    overlaps: bool = False
    """Whether forward passes run overlapped with backward passes."""
    copies: int = 1
    """Number of ranks that hold the parameters of a stage. Several must add up their gradients."""
    placement: StagePlacement = "loop"
    demands: Requirement = _no_demands
    """Says what the schedule needs besides a fitting number of chunks."""
    is_proven: bool = False
    """Whether tests hold all that the generator makes to what a schedule must be; what others make
    is validated here."""

    def requires(self, ranks: int, chunks: int, microbatches: int) -> str | None:
        """Why there is no schedule for these numbers, or None if there is one."""
        for what, number in (("rank", ranks), ("microbatch", microbatches)):
            if number < 1:
                return f"{self.name} needs at least one {what}, not {number}"
        least, most = self.least_chunks, self.most_chunks
        if chunks < least or (most is not None and chunks > most):
            if least == most:
                takes = f"has {counted(least, 'chunk')}"
            elif chunks < least:
                takes = f"needs at least {counted(least, 'chunk')}"
            else:
                takes = f"has at most {most} chunks"
            return f"{self.name} {takes} per rank, not {chunks}"
        reason = self.demands(ranks, chunks, microbatches)
        return reason if reason or self.is_proven else _fault(self, ranks, chunks, microbatches)

    def __call__(self, ranks: int, chunks: int, microbatches: int) -> Schedule:
        """The schedule for these numbers; raises `ScheduleError` if there is none."""
        made = self.made(ranks, chunks, microbatches)
        return made.schedule() if isinstance(made, Rhythm) else made

    def made(self, ranks: int, chunks: int, microbatches: int) -> Schedule | Rhythm:
        """The schedule for these numbers, or its rhythm if the generator makes one, which is short
        however many microbatches there are. Raises `ScheduleError` if there is no schedule."""
        reason = self.requires(ranks, chunks, microbatches)
        if reason is not None:
            raise ScheduleError(reason)
        return self.generate(ranks, chunks, microbatches)


@lru_cache(maxsize=4096)
def _fault(family: ScheduleFamily, ranks: int, chunks: int, microbatches: int) -> str | None:
    """What is wrong with the schedule that a generator makes for these numbers, or None."""
    numbers = ", ".join(
        (
            counted(ranks, "rank"),
            counted(chunks, "chunk"),
            counted(microbatches, "microbatch", "es"),
        )
    )
    try:
        made = run_user_code(
            f"{family.name} makes no schedule for {numbers}",
            lambda: family.generate(ranks, chunks, microbatches),
            ScheduleError,
        )
    except ScheduleError as error:
        return str(error)
    try:
        schedule = _validated(made)
    except ScheduleError as error:
        return f"{family.name} makes no schedule that can run for {numbers}: {error}"
    wrong = next(_contradictions(family, schedule, ranks, chunks, microbatches), None)
    return wrong and f"{family.name} for {numbers} makes a schedule with {wrong}"


def _validated(made: object) -> Schedule:
    """What a generator made, as a schedule that runs; raises `ScheduleError` if it is none."""
    schedule = made.schedule() if isinstance(made, Rhythm) else made
    if not isinstance(schedule, Schedule):
        raise ScheduleError(
            f"it is of {type(made)}; expected a Schedule, as parse_schedule makes of text, or a "
            "Rhythm"
        )
    validate(schedule)
    return schedule


def _contradictions(
    family: ScheduleFamily, schedule: Schedule, ranks: int, chunks: int, microbatches: int
) -> Iterator[str]:
    """Where a schedule is none for these numbers, or not what its family says."""
    for name, number, expected in (
        ("ranks", len(schedule.ranks), ranks),
        ("stages", schedule.stages, ranks * chunks),
        ("microbatches", schedule.microbatches, microbatches),
    ):
        if number != expected:
            yield f"{number} {name}; expected {expected}"
    if not schedule.has_backward:
        yield "forward passes only; expected backward passes as well"
    if schedule.splits_backward and not family.splits_backward:
        yield "W; expected none of a family without splits_backward=True"
    if any(schedule.overlapped) and not family.overlaps:
        yield "overlapped pairs; expected none of a family without overlaps=True"
    if family.placement != "stated":
        held = stages_on_ranks(family.placement, ranks, chunks)
        for rank, (found, wanted) in enumerate(zip(schedule.stages_of_ranks, held, strict=False)):
            if sorted(found) != sorted(wanted):
                yield (
                    f"the stages {', '.join(map(str, found))} on rank {rank}; expected "
                    f"{', '.join(map(str, wanted))}, as placement={family.placement!r} says"
                )


SCHEDULES: Registry[ScheduleFamily] = Registry("schedule", group="distir.schedules")
"""Schedules for training, by name: those of `distir.schedules.families`, and those of installed
packages that name them in the entry-point group `distir.schedules`."""


def schedule_family(
    name: str,
    *,
    summary: str,
    source: str,
    order: int = LAST,
    default_chunks: int = 1,
    least_chunks: int = 1,
    most_chunks: int | None = 1,
    splits_backward: bool = False,
    overlaps: bool = False,
    copies: int = 1,
    placement: StagePlacement = "loop",
    demands: Requirement = _no_demands,
    is_proven: bool = False,
) -> Callable[[ScheduleGenerator], ScheduleFamily]:
    """Makes a family of a generator and registers it in `SCHEDULES`; for use as a decorator.

    `order` says where lists and search spaces show it; the other parameters are the fields of
    `ScheduleFamily`.
    """

    def made(generate: ScheduleGenerator) -> ScheduleFamily:
        family = ScheduleFamily(
            name=name,
            generate=generate,
            summary=summary,
            source=source,
            default_chunks=default_chunks,
            least_chunks=least_chunks,
            most_chunks=most_chunks,
            splits_backward=splits_backward,
            overlaps=overlaps,
            copies=copies,
            placement=placement,
            demands=demands,
            is_proven=is_proven,
        )
        return SCHEDULES.add(name, family, summary, order)

    return made


def stages_on_ranks(
    placement: StagePlacement, ranks: int, chunks: int
) -> tuple[tuple[int, ...], ...]:
    """The stages that each rank holds, in pipeline order."""
    if placement == "loop":
        return tuple(tuple(range(rank, ranks * chunks, ranks)) for rank in range(ranks))
    if placement == "V":
        return tuple((rank, 2 * ranks - 1 - rank) for rank in range(ranks))
    if placement == "mirror":
        pairs = (sorted((rank, ranks - 1 - rank)) for rank in range(ranks))
        return tuple((low, high) for low, high in pairs)
    raise ValueError(
        "the placement is 'stated': only the schedule itself says where its stages are"
    )
