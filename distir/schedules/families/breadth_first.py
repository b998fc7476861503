"""Breadth-first: every chunk runs all microbatches before the next one starts."""

from __future__ import annotations

from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import RepeatedSteps, Rhythm, Step, one_pipeline, repeated_steps

__all__ = ["breadth_first"]


@schedule_family(
    "breadth-first",
    order=4,
    summary="each chunk runs all microbatches at once; small bubble, each parameter used in one go",
    source="Lamy-Poirier 2023, Breadth-First Pipeline Parallelism",
    default_chunks=2,
    least_chunks=2,
    most_chunks=None,
    is_proven=True,
)
def breadth_first(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """GPipe over chunks: rank `r` of `p` holds stages `r`, `p + r`, `2p + r`, … and runs all
    microbatches through one stage, then through the next, and back. Lamy-Poirier 2023.

    The bubble is as small as that of the interleaved schedule, but all activations are kept. The
    passes of a stage follow each other, so that sharded parameters are gathered once each way and
    gradients of the last stages are settled while the first stages compute.
    """
    orders: list[tuple[RepeatedSteps, ...]] = []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        forward: list[Step] = [(stage, "F") for stage in stages]
        backward: list[Step] = [(stage, "B") for stage in reversed(stages)]
        orders.append(repeated_steps(*(([step], microbatches) for step in (*forward, *backward))))
    return one_pipeline(orders, [*range(ranks)] * chunks, microbatches, "breadth-first")
