"""The actions of a schedule as numbers, and an order in which each comes after those it needs.

Schedules have up to some hundred thousand actions, so this module works with lists of integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from distir.errors import DeadlockError, ScheduleError
from distir.schedules.core.action import Action, ActionKind
from distir.schedules.core.schedule import Schedule, format_grid

__all__ = ["NumberedActions", "execution_order", "numbered_actions", "schedule_error", "too_early"]

Cells = list[int]
"""The numbers of actions by `stage · microbatches + microbatch`; -1 if there is no action."""


@dataclass(frozen=True, slots=True, eq=False)
class NumberedActions:
    """The actions of a schedule, numbered rank by rank in the order of each rank."""

    schedule: Schedule
    rank: list[int]
    """The rank of each action."""
    starts: list[int]
    """The number of the first action of each rank."""
    forward: Cells
    backward: Cells
    """Actions `B`, or `BW` where the two parts are one action."""
    weight: Cells
    """Actions `W` or `BW`."""
    pairs: frozenset[int]
    """The forward passes that run overlapped with the action that has the next number."""

    def position(self, i: int) -> tuple[int, int]:
        """The rank of an action, and its position on that rank."""
        rank = self.rank[i]
        return rank, i - self.starts[rank]

    def action(self, i: int) -> Action:
        """The action with number `i`."""
        rank, position = self.position(i)
        return self.schedule.ranks[rank][position]

    def needs(self) -> list[int]:
        """For each action, the action of a neighbouring stage that it needs, or -1."""
        needs = [-1] * len(self.rank)
        step = self.schedule.microbatches
        for i, source in zip(self.forward[step:], self.forward, strict=False):
            needs[i] = source
        if self.backward[0] >= 0:
            for i, source in zip(self.backward, self.backward[step:], strict=False):
                needs[i] = source
        return needs


def schedule_error(schedule: Schedule, problem: str, position: tuple[int, int]) -> ScheduleError:
    """An error that shows the grid with the wrong action, at (rank, position), in brackets."""
    return ScheduleError(f"{problem}\n{format_grid(schedule, position)}")


def missing(schedule: Schedule, action: str, stage: int, why: str = "") -> ScheduleError:
    """An error that shows where an action of a stage would be expected."""
    ranks = (r for r, held in enumerate(schedule.stages_of_ranks) if stage in held)
    rank = next(ranks, min(stage, len(schedule.ranks) - 1))
    return schedule_error(schedule, f"{action} is missing{why}", (rank, len(schedule.ranks[rank])))


def _check_enough(schedule: Schedule) -> None:
    """Raises `ScheduleError` if there are fewer actions than forward passes are needed: a number
    that is a slip must not make tables as large as itself."""
    if schedule.stages * schedule.microbatches <= sum(map(len, schedule.ranks)):
        return
    present = {(stage, at) for stage, kind, at in schedule.actions if kind == "F"}
    pairs = product(range(schedule.stages), range(schedule.microbatches))
    stage, microbatch = next(pair for pair in pairs if pair not in present)
    raise missing(schedule, f"{stage}F{microbatch}", stage)


def numbered_actions(schedule: Schedule) -> NumberedActions:
    """Numbers the actions of a schedule.

    Raises `ScheduleError` if an action is there twice or has an index out of range, or if there
    are too few.
    """
    _check_enough(schedule)
    stages, microbatches = schedule.stages, schedule.microbatches
    tables: dict[ActionKind, Cells] = {
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
                    f"{stage}{kind}{microbatch} appears twice, first on rank {first}, "
                    f"position {there - starts[first]}"
                )
                raise schedule_error(schedule, problem, (rank, i - starts[rank]))
            table[cell] = i
            i += 1
    pairs = frozenset(
        start + position
        for start, of_rank in zip(starts, schedule.overlapped, strict=False)
        for position in of_rank
    )
    numbered = NumberedActions(
        schedule, rank_of, starts, tables["F"], tables["B"], tables["W"], pairs
    )
    _merge(numbered, tables["BW"])
    return numbered


def _out_of_range(schedule: Schedule, position: tuple[int, int]) -> ScheduleError:
    action = schedule.ranks[position[0]][position[1]]
    if 0 <= action.stage < schedule.stages:
        what, most = "microbatch", schedule.microbatches - 1
    else:
        what, most = "stage", schedule.stages - 1
    problem = f"{action} has no such {what}; expected {what}s 0 to {most}"
    return schedule_error(schedule, problem, position)


def _merge(numbered: NumberedActions, whole: Cells) -> None:
    """Enters backward passes that are one action (`BW`) as both of their parts."""
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
                raise schedule_error(numbered.schedule, problem, numbered.position(part[cell]))
            part[cell] = i


def execution_order(numbered: NumberedActions, needs: list[int]) -> list[int]:
    """All actions in an order in which each comes after the action of another stage that it needs.
    The actions of an overlapped pair come one after the other.

    Each rank runs as far as it can; an action that runs wakes the rank that waits for it. Raises
    `DeadlockError` if ranks wait for each other, and `ScheduleError` if a rank waits for itself.
    """
    starts = numbered.starts
    ends = [*starts[1:], len(needs)]
    heads = list(starts)
    done = bytearray(len(needs) + 1)
    done[-1] = 1  # for actions that need none: needs[i] == -1
    waiter = [-1] * len(needs)
    pairs = numbered.pairs
    order: list[int] = []
    runnable = list(range(len(starts) - 1, -1, -1))
    while runnable:
        rank = runnable.pop()
        for i in range(heads[rank], ends[rank]):
            if not done[needs[i]]:
                waiter[needs[i]] = rank
                heads[rank] = i
                break
            if i in pairs and not done[needs[i + 1]]:
                waiter[needs[i + 1]] = rank
                heads[rank] = i
                break
            done[i] = 1
            order.append(i)
            if waiter[i] >= 0:
                runnable.append(waiter[i])
        else:
            heads[rank] = ends[rank]
    if len(order) < len(needs):
        waiting = [head for head, end in zip(heads, ends, strict=True) if head < end]
        stuck = [head + (head in pairs and bool(done[needs[head]])) for head in waiting]
        raise _stuck(numbered, needs, stuck)
    return order


def _stuck(numbered: NumberedActions, needs: list[int], stuck: list[int]) -> ScheduleError:
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
    grid = format_grid(numbered.schedule, numbered.position(stuck[0]))
    return DeadlockError(f"deadlock: {'; '.join(shown + rest)}\n{grid}")


def too_early(numbered: NumberedActions, i: int, needed: int) -> ScheduleError:
    """The error that action `i` comes before action `needed` on the same rank, whose results it
    uses."""
    problem = (
        f"{numbered.action(i)} uses what {numbered.action(needed)} produces, "
        "which comes later on the same rank"
    )
    return schedule_error(numbered.schedule, problem, numbered.position(i))
