"""When each action of a schedule starts, given what actions and transfers take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from distir.errors import DeadlockError
from distir.schedules import Action, Schedule, dependencies, format_grid


@dataclass(frozen=True, slots=True)
class RankTime:
    """Seconds of one rank: when it is done, and how long it waited for transfers and for others."""

    end: float
    waited_for_transfer: float
    waited_for_stage: float
    last_start: float


@dataclass(frozen=True, slots=True)
class ActionTime:
    """One action in time."""

    action: Action
    start: float
    end: float


def run_pipeline(
    schedule: Schedule,
    seconds: Callable[[Action], float],
    transfer: Callable[[Action], float],
    record: list[list[ActionTime]] | None = None,
) -> tuple[RankTime, ...]:
    """Runs every rank's actions in order.

    An action starts when its rank is idle and what it depends on has arrived. What an action makes
    for another stage leaves at its end on a link of its own per rank and direction, in order, and
    takes `transfer(action)`; the rank itself goes on.
    """
    order = _topological_order(schedule)
    home = _homes(schedule)
    ranks = len(schedule.ranks)
    free = [0.0] * ranks
    stage_wait = [0.0] * ranks
    transfer_wait = [0.0] * ranks
    last_start = [0.0] * ranks
    link_free: dict[tuple[int, bool], float] = {}
    ended: dict[Action, float] = {}
    arrived: dict[Action, float] = {}
    for rank, action in order:
        at, sent = 0.0, 0.0
        for needed in _needs(schedule, action):
            if needed.stage == action.stage or home[needed] == rank:
                continue
            if arrived[needed] > at:
                at, sent = arrived[needed], ended[needed]
        begin = max(free[rank], at)
        wait = begin - free[rank]
        moving = max(0.0, begin - max(sent, free[rank])) if wait else 0.0
        transfer_wait[rank] += moving
        stage_wait[rank] += wait - moving
        end = begin + seconds(action)
        if record is not None:
            record[rank].append(ActionTime(action, begin, end))
        free[rank], last_start[rank] = end, begin
        key = _canonical(action)
        ended[key] = end
        link = (rank, action.kind == "F")
        leaves = max(end, link_free.get(link, 0.0))
        link_free[link] = arrived[key] = leaves + transfer(action)
    return tuple(
        RankTime(free[r], transfer_wait[r], stage_wait[r], last_start[r]) for r in range(ranks)
    )


def _canonical(action: Action) -> Action:
    return action._replace(kind="B") if action.kind == "BW" else action


@lru_cache(maxsize=65536)
def _needs_cached(action: Action, stages: int) -> tuple[Action, ...]:
    return dependencies(action, stages)


def _needs(schedule: Schedule, action: Action) -> tuple[Action, ...]:
    return _needs_cached(action, schedule.stages)


@lru_cache(maxsize=256)
def _homes(schedule: Schedule) -> dict[Action, int]:
    return {
        _canonical(action): rank
        for rank, actions in enumerate(schedule.ranks)
        for action in actions
    }


@lru_cache(maxsize=256)
def _topological_order(schedule: Schedule) -> tuple[tuple[int, Action], ...]:
    """Actions of all ranks in an order in which everything comes after what it needs."""
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
            missing = next((n for n in _needs(schedule, action) if n not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            order.append((rank, action))
            key = _canonical(action)
            done.add(key)
            runnable.extend(waiting.pop(key, ()))
            position[rank] += 1
    if len(order) < sum(len(actions) for actions in schedule.ranks):
        stuck = next(r for r, p in enumerate(position) if p < len(schedule.ranks[r]))
        mark = (stuck, position[stuck])
        raise DeadlockError(
            f"rank {stuck} waits for ever at {schedule.ranks[stuck][position[stuck]]}\n"
            + format_grid(schedule, mark)
        )
    return tuple(order)


@lru_cache(maxsize=4096)
def most_in_flight(schedule: Schedule, stage: int) -> tuple[int, int]:
    """Most microbatches held when a forward and when a backward action of the stage starts (the
    latter with its own), on the rank that holds most."""
    forward = backward = 0
    for actions in schedule.ranks:
        held = 0
        for action in actions:
            if action.stage != stage:
                continue
            if action.kind == "F":
                forward = max(forward, held)
                held += 1
            else:
                backward = max(backward, held)
                held -= action.kind != "B" or not schedule.splits_backward
    return forward, backward


__all__: Sequence[str] = ["ActionTime", "RankTime", "most_in_flight", "run_pipeline"]
