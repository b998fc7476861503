"""Breadth-first: every chunk runs all microbatches before the next one starts."""

from __future__ import annotations

from distir.schedules.action import Action
from distir.schedules.family import schedule_family
from distir.schedules.schedule import Schedule

__all__ = ["breadth_first"]


@schedule_family(
    "breadth-first",
    summary="each chunk runs all microbatches at once; small bubble, each parameter used in one go",
    source="Lamy-Poirier 2023, Breadth-First Pipeline Parallelism",
    default_chunks=2,
    least_chunks=2,
    most_chunks=None,
)
def breadth_first(ranks: int, chunks: int, microbatches: int) -> Schedule:
    """GPipe over chunks: rank `r` of `p` holds stages `r`, `p + r`, `2p + r`, … and runs all
    microbatches through each in turn, then back. Lamy-Poirier 2023.

    The bubble is that of the interleaved schedule and all activations are kept; a stage's passes
    follow each other, so that sharded parameters are gathered once each way and gradients of the
    last stages are settled while the first ones compute.
    """
    orders: list[tuple[Action, ...]] = []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        forward = [Action(stage, "F", m) for stage in stages for m in range(microbatches)]
        backward = [
            Action(stage, "B", m) for stage in reversed(stages) for m in range(microbatches)
        ]
        orders.append((*forward, *backward))
    return Schedule(tuple(orders), ranks * chunks, microbatches, "breadth-first")
