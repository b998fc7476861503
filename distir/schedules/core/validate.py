"""Checks whether a schedule can run, and shows where it cannot."""

from __future__ import annotations

from operator import gt

from distir.schedules.core.order import (
    NumberedActions,
    execution_order,
    missing,
    numbered_actions,
    schedule_error,
    too_early,
)
from distir.schedules.core.schedule import Schedule

__all__ = ["validate"]


def validate(schedule: Schedule) -> None:
    """Raises `ScheduleError` (`DeadlockError`) if a schedule cannot run.

    In a valid schedule, every microbatch passes every stage once forward and, in training, once
    backward, on the same rank; no action comes before those whose results it uses; overlapped pairs
    are a forward pass and a whole backward pass that does not need it; and ranks do not wait for
    each other in a cycle. The error shows the schedule with the wrong action in brackets.
    """
    numbered = numbered_actions(schedule)
    _check_pairs(schedule)
    _check_complete(numbered)
    _check_rank(numbered)
    _check_parts(numbered)
    execution_order(numbered, numbered.needs())


def _check_pairs(schedule: Schedule) -> None:
    """Raises `ScheduleError` if what overlaps is not a forward pass and a backward pass that is
    whole and of another microbatch or stage."""
    whole = "BW" if schedule.splits_backward else "B"
    for rank, positions in enumerate(schedule.overlapped):
        actions = schedule.ranks[rank]
        for position in positions:
            pair = actions[position : position + 2]
            if [each.kind for each in pair] != ["F", whole]:
                shown = " and ".join(map(str, pair))
                problem = (
                    f"{shown} cannot overlap; expected a forward pass and a whole backward pass "
                    f"(F and {whole})"
                )
                raise schedule_error(schedule, problem, (rank, position))
            forward, backward = pair
            if (forward.stage, forward.microbatch) == (backward.stage, backward.microbatch):
                problem = f"{backward} cannot overlap with {forward}, whose results it uses"
                raise schedule_error(schedule, problem, (rank, position))


def _check_complete(numbered: NumberedActions) -> None:
    """Raises `ScheduleError` if an action is missing."""
    schedule = numbered.schedule
    cells = [("F", numbered.forward, "")]
    if schedule.has_backward:
        cells.append(("B", numbered.backward, ""))
    if schedule.splits_backward:
        why = ": where a schedule has W, every B needs one (or is a BW)"
        cells.append(("W", numbered.weight, why))
    for kind, present, why in cells:
        if -1 in present:
            stage, microbatch = divmod(present.index(-1), schedule.microbatches)
            raise missing(schedule, f"{stage}{kind}{microbatch}", stage, why)


def _check_rank(numbered: NumberedActions) -> None:
    """Raises `ScheduleError` if the passes of a microbatch through a stage are on several ranks."""
    rank = numbered.rank
    forward_ranks = [rank[i] for i in numbered.forward]
    for cells in (numbered.backward, numbered.weight):
        if cells[0] < 0 or [rank[i] for i in cells] == forward_ranks:
            continue
        i, expected = next(
            (i, forward)
            for i, forward in zip(cells, forward_ranks, strict=True)
            if rank[i] != forward
        )
        problem = (
            f"{numbered.action(i)} is on rank {rank[i]}, but its forward pass is on rank {expected}"
        )
        raise schedule_error(numbered.schedule, problem, numbered.position(i))


def _check_parts(numbered: NumberedActions) -> None:
    """Raises `ScheduleError` if the passes of a microbatch through a stage are not in the order F,
    B, W."""
    for first, second in (
        (numbered.forward, numbered.backward),
        (numbered.backward, numbered.weight),
    ):
        if second[0] < 0 or not any(map(gt, first, second)):
            continue
        needed, i = next((a, b) for a, b in zip(first, second, strict=True) if a > b)
        raise too_early(numbered, i, needed)
