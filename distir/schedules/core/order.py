"""Actions as numbers, and an order in which each comes after what it needs.

Schedules have up to some hundred thousand actions, so everything here is lists of integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from distir.errors import DeadlockError, ScheduleError
from distir.schedules.core.action import Action, Kind
from distir.schedules.core.schedule import Schedule, format_grid

__all__ = ["Numbered", "execution_order", "number", "schedule_error", "too_early"]

Cells = list[int]
"""A number per `stage · microbatches + microbatch`; -1 where there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """Actions numbered rank by rank, each rank's in order."""

    schedule: Schedule
    rank: list[int]
    """Rank of each action."""
    starts: list[int]
    """Number of the first action of each rank."""
    forward: Cells
    backward: Cells
    """`B`, or `BW` where the two parts are one action."""
    weight: Cells
    """`W` or `BW`."""

    def place(self, i: int) -> tuple[int, int]:
        """Rank and position of an action."""
        rank = self.rank[i]
        return rank, i - self.starts[rank]

    def action(self, i: int) -> Action:
        """The action with number `i`."""
        rank, position = self.place(i)
        return self.schedule.ranks[rank][position]

    def needs(self) -> list[int]:
        """For each action the one of the neighbouring stage that it needs, or -1."""
        found = [-1] * len(self.rank)
        step = self.schedule.microbatches
        for i, source in zip(self.forward[step:], self.forward, strict=False):
            found[i] = source
        if self.backward[0] >= 0:
            for i, source in zip(self.backward, self.backward[step:], strict=False):
                found[i] = source
        return found


def schedule_error(schedule: Schedule, problem: str, place: tuple[int, int]) -> ScheduleError:
    """What is wrong, with the grid and the bad cell in brackets."""
    return ScheduleError(f"{problem}\n{format_grid(schedule, place)}")


def number(schedule: Schedule) -> Numbered:
    """Numbers the actions; raises `ScheduleError` on duplicates and on indices out of range."""
    stages, microbatches = schedule.stages, schedule.microbatches
    tables: dict[Kind, Cells] = {
        kind: [-1] * (stages * microbatches) for kind in ("F", "B", "W", "BW")
    }
    rank_of: list[int] = []
    starts: list[int] = []
    i = 0
    for rank, actions in enumerate(schedule.ranks):
        starts.append(i)
        rank_of += [rank] * len(actions)
        for stage, kind, microbatch in actions:
            cell = stage * microbatches + microbatch
            if not (0 <= stage < stages and 0 <= microbatch < microbatches):
                raise _out_of_range(schedule, (rank, i - starts[rank]))
            table = tables[kind]
            if table[cell] >= 0:
                first, there = rank_of[table[cell]], table[cell]
                problem = (
                    f"{stage}{kind}{microbatch} is there twice, first on rank {first}, "
                    f"position {there - starts[first]}"
                )
                raise schedule_error(schedule, problem, (rank, i - starts[rank]))
            table[cell] = i
            i += 1
    numbered = Numbered(schedule, rank_of, starts, tables["F"], tables["B"], tables["W"])
    _merge(numbered, tables["BW"])
    return numbered


def _out_of_range(schedule: Schedule, place: tuple[int, int]) -> ScheduleError:
    action = schedule.ranks[place[0]][place[1]]
    if 0 <= action.stage < schedule.stages:
        what, most = "microbatch", schedule.microbatches - 1
    else:
        what, most = "stage", schedule.stages - 1
    problem = f"{action} has no such {what}; expected {what}s 0 to {most}"
    return schedule_error(schedule, problem, place)


def _merge(numbered: Numbered, whole: Cells) -> None:
    """Enters the backward passes that are one action (`BW`) as both parts."""
    if max(whole, default=-1) < 0:
        return
    for cell, i in enumerate(whole):
        if i < 0:
            continue
        for part in (numbered.backward, numbered.weight):
            if part[cell] >= 0:
                problem = (
                    f"{numbered.action(part[cell])} is part of {numbered.action(i)}; "
                    "expected one of them"
                )
                raise schedule_error(numbered.schedule, problem, numbered.place(part[cell]))
            part[cell] = i


def execution_order(numbered: Numbered, needs: list[int]) -> list[int]:
    """All actions, each after what it needs from other stages; raises `DeadlockError` if ranks
    wait for each other and `ScheduleError` if one waits for itself.

    Each rank runs as far as it can; whoever is waited for wakes the one that waits.
    """
    starts = numbered.starts
    ends = [*starts[1:], len(needs)]
    heads = list(starts)
    done = bytearray(len(needs) + 1)
    done[-1] = 1  # what nothing is needed for: needs[i] == -1
    waiter = [-1] * len(needs)
    order: list[int] = []
    runnable = list(range(len(starts) - 1, -1, -1))
    while runnable:
        rank = runnable.pop()
        for i in range(heads[rank], ends[rank]):
            if not done[needs[i]]:
                waiter[needs[i]] = rank
                heads[rank] = i
                break
            done[i] = 1
            order.append(i)
            if waiter[i] >= 0:
                runnable.append(waiter[i])
        else:
            heads[rank] = ends[rank]
    if len(order) < len(needs):
        stuck = [head for head, end in zip(heads, ends, strict=True) if head < end]
        raise _stuck(numbered, needs, stuck)
    return order


def _stuck(numbered: Numbered, needs: list[int], stuck: list[int]) -> ScheduleError:
    for i, needed in enumerate(needs):
        if needed > i and numbered.rank[needed] == numbered.rank[i]:
            return too_early(numbered, i, needed)

    def describe(i: int) -> str:
        rank, needed = numbered.rank[i], needs[i]
        return (
            f"rank {rank} at {numbered.action(i)} waits for {numbered.action(needed)} "
            f"on rank {numbered.rank[needed]}"
        )

    shown = [describe(i) for i in stuck[:4]]
    rest = [f"and {len(stuck) - 4} more"] if len(stuck) > 4 else []
    grid = format_grid(numbered.schedule, numbered.place(stuck[0]))
    return DeadlockError(f"deadlock: {'; '.join(shown + rest)}\n{grid}")


def too_early(numbered: Numbered, i: int, needed: int) -> ScheduleError:
    """Action `i` comes before what it needs on the same rank."""
    problem = (
        f"{numbered.action(i)} uses what {numbered.action(needed)} produces, "
        "which comes later on the same rank"
    )
    return schedule_error(numbered.schedule, problem, numbered.place(i))
