"""The schedule of inference: forward passes in the order of the microbatches."""

from __future__ import annotations

from collections import Counter

from distir.schedules.core.family import ScheduleFamily
from distir.schedules.core.rhythm import Rhythm, Step, groups_of, one_pipeline, repeated_steps

__all__ = ["forward_only"]


def _forward_only(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Forward passes in order; with chunks, in groups as large as the pipeline is deep."""
    sizes = Counter([len(group) for group in groups_of(ranks, microbatches)])
    if chunks == 1:
        sizes = Counter({1: microbatches})

    def pattern(rank: int, size: int) -> list[Step]:
        return [(chunk * ranks + rank, "F") for chunk in range(chunks) for _ in range(size)]

    orders = [
        repeated_steps(*((pattern(rank, size), times) for size, times in sizes.items()))
        for rank in range(ranks)
    ]
    return one_pipeline(orders, [*range(ranks)] * chunks, microbatches, "forward-only")


forward_only = ScheduleFamily(
    name="forward-only",
    generate=_forward_only,
    summary="forward passes in order; nothing is kept",
    source="(inference: there is little to order)",
    most_chunks=None,
    is_proven=True,
)
"""The one schedule family for inference; `SCHEDULES` has only families for training."""
