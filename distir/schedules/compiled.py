"""A schedule as flat lists, in an order in which every action comes after what it needs.

Compiled once, it can be run in one pass, whatever its actions take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.errors import DeadlockError
from distir.schedules.action import Action
from distir.schedules.schedule import Schedule, dependencies, format_grid

FORWARD, BACKWARD, INPUT_PART, WEIGHT_PART = range(4)
"""What an action costs: F, the whole backward pass, or its two parts."""

COST_KINDS = 4


@dataclass(frozen=True, slots=True)
class Held:
    """Microbatches in flight on a rank when one of its actions starts: per stage of the rank how
    many are between F and B, and between B and W. `stage` and `kind` are the action's."""

    stage: int
    kind: int
    counts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSchedule:
    """A schedule as flat lists over its actions.

    `cost[i]` is `stage · COST_KINDS + kind`; `needs[i]` the action on another rank whose message
    action `i` waits for, or -1; `link[i]` numbers the link on which its own message leaves, or -1;
    `last_gradient[s]` is the action in which the gradients of stage `s` are complete.
    """

    schedule: Schedule
    stages_of_ranks: tuple[tuple[int, ...], ...]
    actions: tuple[Action, ...]
    rank: tuple[int, ...]
    cost: tuple[int, ...]
    needs: tuple[int, ...]
    link: tuple[int, ...]
    num_links: int
    last_gradient: tuple[int, ...]
    held: tuple[tuple[Held, ...], ...]


def compile_schedule(schedule: Schedule) -> CompiledSchedule:
    """The schedule as flat lists; raises `DeadlockError` if ranks wait for each other."""
    splits = schedule.splits_backward
    order = _topological_order(schedule)
    index = {_canonical(action): i for i, (_, action) in enumerate(order)}
    rank_of = {_canonical(action): rank for rank, action in order}
    links: dict[tuple[int, int, bool], int] = {}
    needs = [-1] * len(order)
    link = [-1] * len(order)
    last_gradient = [-1] * schedule.stages
    for i, (rank, action) in enumerate(order):
        for needed in dependencies(action, schedule.stages):
            if needed.stage != action.stage and rank_of[needed] != rank:
                source = index[needed]
                needs[i] = source
                way = (rank_of[needed], rank, action.kind == "F")
                link[source] = links.setdefault(way, len(links))
        if action.kind != "F" and not (splits and action.kind == "B"):
            last_gradient[action.stage] = i
    return CompiledSchedule(
        schedule=schedule,
        stages_of_ranks=schedule.stages_of_ranks,
        actions=tuple(action for _, action in order),
        rank=tuple(rank for rank, _ in order),
        cost=tuple(a.stage * COST_KINDS + kind_of(a, splits) for _, a in order),
        needs=tuple(needs),
        link=tuple(link),
        num_links=len(links),
        last_gradient=tuple(last_gradient),
        held=tuple(_held(actions, splits) for actions in schedule.ranks),
    )


def kind_of(action: Action, splits: bool) -> int:
    """What the action costs, in a schedule that splits the backward pass or does not."""
    if action.kind == "F":
        return FORWARD
    if action.kind == "W":
        return WEIGHT_PART
    return INPUT_PART if splits and action.kind == "B" else BACKWARD


def _held(actions: Sequence[Action], splits: bool) -> tuple[Held, ...]:
    """The distinct situations in which a rank's actions start."""
    stages = sorted({action.stage for action in actions})
    place = {stage: i for i, stage in enumerate(stages)}
    trains = any(action.kind != "F" for action in actions)
    counts = [[0, 0] for _ in stages]
    found: dict[Held, None] = {}
    for action in actions:
        kind = kind_of(action, splits)
        found[Held(action.stage, kind, tuple((a, b) for a, b in counts))] = None
        own = counts[place[action.stage]]
        if kind == FORWARD:
            own[0] += trains
        elif kind == WEIGHT_PART:
            own[1] -= 1
        else:
            own[0] -= 1
            own[1] += kind == INPUT_PART
    return tuple(_largest(found))


def _largest(found: dict[Held, None]) -> list[Held]:
    """Without the situations in which another, of the same action, holds at least as much."""
    kept: list[Held] = []
    for each in found:
        flat = [n for pair in each.counts for n in pair]
        beaten = False
        for other in kept:
            if (other.stage, other.kind) == (each.stage, each.kind):
                theirs = [n for pair in other.counts for n in pair]
                beaten = beaten or all(a <= b for a, b in zip(flat, theirs, strict=True))
        if not beaten:
            kept = [
                other
                for other in kept
                if (other.stage, other.kind) != (each.stage, each.kind)
                or not all(
                    a <= b
                    for a, b in zip(
                        (n for pair in other.counts for n in pair), flat, strict=True
                    )
                )
            ]
            kept.append(each)
    return kept


def _canonical(action: Action) -> Action:
    return action._replace(kind="B") if action.kind == "BW" else action


def _topological_order(schedule: Schedule) -> list[tuple[int, Action]]:
    """Actions of all ranks, each after everything it needs."""
    position = [0] * len(schedule.ranks)
    done: set[Action] = set()
    order: list[tuple[int, Action]] = []
    waiting: dict[Action, list[int]] = {}
    runnable = list(range(len(schedule.ranks)))
    while runnable:
        rank = runnable.pop()
        actions = schedule.ranks[rank]
        while position[rank] < len(actions):
            action = actions[position[rank]]
            missing = None
            for needed in dependencies(action, schedule.stages):
                if needed not in done:
                    missing = needed
                    break
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            order.append((rank, action))
            key = _canonical(action)
            done.add(key)
            if key in waiting:
                runnable.extend(waiting.pop(key))
            position[rank] += 1
    if len(order) < sum(len(actions) for actions in schedule.ranks):
        stuck = next(r for r, p in enumerate(position) if p < len(schedule.ranks[r]))
        raise DeadlockError(
            f"rank {stuck} waits for ever at {schedule.ranks[stuck][position[stuck]]}\n"
            + format_grid(schedule, (stuck, position[stuck]))
        )
    return order


__all__ = [
    "BACKWARD",
    "COST_KINDS",
    "FORWARD",
    "INPUT_PART",
    "WEIGHT_PART",
    "CompiledSchedule",
    "Held",
    "compile_schedule",
    "kind_of",
]
