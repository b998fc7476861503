"""Inference: microbatches follow each other down the pipeline."""

from __future__ import annotations

from distir.schedules.action import Action
from distir.schedules.family import schedule_family
from distir.schedules.schedule import Schedule

__all__ = ["forward_only"]


@schedule_family(
    "forward-only",
    summary="forward passes in order; nothing is kept",
    source="(inference has nothing to order)",
)
def forward_only(ranks: int, chunks: int, microbatches: int) -> Schedule:
    """Forward passes in order; nothing is kept."""
    assert chunks == 1
    orders = tuple(
        tuple(Action(stage, "F", m) for m in range(microbatches)) for stage in range(ranks)
    )
    return Schedule(orders, ranks, microbatches, "forward-only")
