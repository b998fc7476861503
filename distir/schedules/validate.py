"""Whether a schedule can run, and if not, where it goes wrong."""

from __future__ import annotations

from distir.errors import DeadlockError, ScheduleError
from distir.schedules.action import Action, Kind
from distir.schedules.schedule import Schedule, dependencies, format_grid

__all__ = ["validate"]

Place = tuple[int, int]
"""Rank and position on it."""


def validate(schedule: Schedule) -> None:
    """Raises `ScheduleError` (`DeadlockError`), with the grid and the bad cell in brackets.

    Every microbatch visits every stage once forward and, when training, once backward; on one rank;
    nothing is used before it is produced; ranks do not wait for each other in a circle.
    """
    places = _places(schedule)
    _check_complete(schedule, places)
    _check_rank(schedule, places)
    _check_order(schedule, places)
    _check_progress(schedule)


def _error(schedule: Schedule, problem: str, mark: Place) -> ScheduleError:
    return ScheduleError(f"{problem}\n{format_grid(schedule, mark)}")


def _places(schedule: Schedule) -> dict[Action, Place]:
    """Where each action stands; raises on duplicates and on indices out of range."""
    places: dict[Action, Place] = {}
    for rank, actions in enumerate(schedule.ranks):
        for position, action in enumerate(actions):
            mark = (rank, position)
            if not 0 <= action.stage < schedule.stages:
                stages = f"expected stages 0 to {schedule.stages - 1}"
                raise _error(schedule, f"{action} has no such stage; {stages}", mark)
            if not 0 <= action.microbatch < schedule.microbatches:
                microbatches = f"expected microbatches 0 to {schedule.microbatches - 1}"
                raise _error(schedule, f"{action} has no such microbatch; {microbatches}", mark)
            if action in places:
                first = f"rank {places[action][0]}, position {places[action][1]}"
                raise _error(schedule, f"{action} is there twice, first on {first}", mark)
            places[action] = mark
    return places


def _check_complete(schedule: Schedule, places: dict[Action, Place]) -> None:
    training, split = schedule.has_backward, schedule.splits_backward
    homes = {action.stage: rank for action, (rank, _) in places.items()}
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            problem = _visit_problem(places, stage, microbatch, training, split)
            if problem:
                rank = homes.get(stage, min(stage, len(schedule.ranks) - 1))
                end = len(schedule.ranks[rank])
                raise _error(schedule, problem, (rank, end))


def _visit_problem(
    places: dict[Action, Place], stage: int, microbatch: int, training: bool, split: bool
) -> str | None:
    """What is missing or too much for one microbatch on one stage."""

    def has(kind: Kind) -> bool:
        return Action(stage, kind, microbatch) in places

    def missing(kind: str) -> str:
        return f"{stage}{kind}{microbatch} is missing"

    if not has("F"):
        return missing("F")
    if not training:
        return None
    if has("BW"):
        part = "B" if has("B") else "W" if has("W") else None
        extra = f"{stage}{part}{microbatch} is part of {stage}BW{microbatch}; expected one of them"
        return extra if part else None
    if not has("B"):
        return missing("B")
    if split and not has("W"):
        return f"{missing('W')}: where a schedule has W, every B needs one (or is a BW)"
    return None


def _check_rank(schedule: Schedule, places: dict[Action, Place]) -> None:
    """What a microbatch leaves on a stage stays on one rank."""
    for action, (rank, position) in places.items():
        home = places[Action(action.stage, "F", action.microbatch)][0]
        if rank != home:
            problem = f"{action} is on rank {rank}, but its forward pass is on rank {home}"
            raise _error(schedule, problem, (rank, position))


def _check_order(schedule: Schedule, places: dict[Action, Place]) -> None:
    """Dependencies on the same rank come first."""
    for action, (rank, position) in places.items():
        for needed in _resolved(action, schedule.stages, places):
            there, when = places[needed]
            if there == rank and when > position:
                problem = (
                    f"{action} uses what {needed} produces, which comes later on the same rank"
                )
                raise _error(schedule, problem, (rank, position))


def _check_progress(schedule: Schedule) -> None:
    """Runs the schedule, each rank as far as it can; stuck means a circle of ranks that wait."""
    places = _places(schedule)
    done: set[Action] = set()
    heads = [0] * len(schedule.ranks)
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule.ranks):
            while heads[rank] < len(actions) and done.issuperset(
                _resolved(actions[heads[rank]], schedule.stages, places)
            ):
                done.add(actions[heads[rank]])
                heads[rank] += 1
                moved = True
    stuck = [rank for rank, head in enumerate(heads) if head < len(schedule.ranks[rank])]
    if stuck:
        raise _deadlock(schedule, places, done, [(rank, heads[rank]) for rank in stuck])


def _deadlock(
    schedule: Schedule, places: dict[Action, Place], done: set[Action], waiting: list[Place]
) -> DeadlockError:
    def describe(rank: int, position: int) -> str:
        action = schedule.ranks[rank][position]
        needs = _resolved(action, schedule.stages, places)
        needed = next(need for need in needs if need not in done)
        return f"rank {rank} at {action} waits for {needed} on rank {places[needed][0]}"

    shown = [describe(*place) for place in waiting[:4]]
    rest = [f"and {len(waiting) - 4} more"] if len(waiting) > 4 else []
    problem = "deadlock: " + "; ".join(shown + rest)
    return DeadlockError(f"{problem}\n{format_grid(schedule, waiting[0])}")


def _resolved(action: Action, stages: int, places: dict[Action, Place]) -> tuple[Action, ...]:
    """Dependencies as they stand in the schedule: `BW` where there is no separate `B`."""
    return tuple(
        needed if needed in places else needed._replace(kind="BW")
        for needed in dependencies(action, stages)
    )
