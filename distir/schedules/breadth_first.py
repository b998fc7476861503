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
    orders = tuple(
        tuple(
            Action(chunk * ranks + rank, kind, m)
            for kind, order in (("F", range(chunks)), ("B", range(chunks - 1, -1, -1)))
            for chunk in order
            for m in range(microbatches)
        )
        for rank in range(ranks)
    )
    return Schedule(orders, ranks * chunks, microbatches, "breadth-first")
