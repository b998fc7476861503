"""Inference: microbatches follow each other down the pipeline."""

from __future__ import annotations

from distir.schedules.action import Action
from distir.schedules.family import schedule_family
from distir.schedules.interleaved import groups_of
from distir.schedules.schedule import Schedule

__all__ = ["forward_only"]


@schedule_family(
    "forward-only",
    summary="forward passes in order; nothing is kept",
    source="(inference: there is little to order)",
    most_chunks=None,
)
def forward_only(ranks: int, chunks: int, microbatches: int) -> Schedule:
    """Forward passes in order; with chunks, in groups as large as the pipeline is deep."""
    orders = tuple(
        tuple(
            Action(chunk * ranks + rank, "F", m)
            for group in (groups_of(ranks, microbatches) if chunks > 1 else [range(microbatches)])
            for chunk in range(chunks)
            for m in group
        )
        for rank in range(ranks)
    )
    return Schedule(orders, ranks * chunks, microbatches, "forward-only")
