"""The start of every action of one plan, given the seconds of actions and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.schedules import CompiledSchedule
from distir.simulation.pipeline.many import PipelineColumns, run_pipeline_columns


@dataclass(frozen=True, slots=True)
class PipelineTime:
    """Seconds per rank and per action.

    `end` says when each rank has done its last action. `waited_for_transfer` has the seconds in
    which it waited for messages that were on their way (its own, if it stays with them), and
    `waited_for_stage` those in which it waited for another stage. `start` has the start of every
    action.
    """

    end: tuple[float, ...]
    waited_for_transfer: tuple[float, ...]
    waited_for_stage: tuple[float, ...]
    start: tuple[float, ...]


def run_pipeline(
    compiled: CompiledSchedule,
    seconds: Sequence[float],
    transfers: Sequence[float],
    *,
    goes_on: bool = True,
) -> PipelineTime:
    """Runs every rank's actions in order. `seconds` and `transfers` are indexed by
    `stage · COST_KINDS + kind`.

    An action starts when its rank is idle and what it depends on has arrived. What it makes for
    another rank leaves at its end on a link of its own per rank and direction, in order; the rank
    itself goes on, or, if not `goes_on`, stays until the message has arrived.
    """
    ranks = len(compiled.stages_of_ranks)
    free = [0.0] * ranks
    transfer_wait = [0.0] * ranks
    stage_wait = [0.0] * ranks
    link_free = [0.0] * compiled.num_links
    count = len(compiled.rank)
    starts, ended, arrived = [0.0] * count, [0.0] * count, [0.0] * count
    rows = zip(compiled.rank, compiled.cost, compiled.needs, compiled.link, strict=True)
    for i, (rank, cost, needed, link) in enumerate(rows):
        begin = free[rank]
        if needed >= 0 and arrived[needed] > begin:
            arrival = arrived[needed]
            moving = arrival - max(ended[needed], begin)
            transfer_wait[rank] += moving
            stage_wait[rank] += arrival - begin - moving
            begin = arrival
        starts[i] = begin
        free[rank] = ended[i] = end = begin + seconds[cost]
        if link >= 0:
            leaves = link_free[link]
            link_free[link] = arrived[i] = (max(end, leaves)) + transfers[cost]
            if not goes_on:
                transfer_wait[rank] += arrived[i] - end
                free[rank] = arrived[i]
    return PipelineTime(tuple(free), tuple(transfer_wait), tuple(stage_wait), tuple(starts))


__all__ = ["PipelineColumns", "PipelineTime", "run_pipeline", "run_pipeline_columns"]
