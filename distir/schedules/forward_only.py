"""Inference: microbatches follow each other down the pipeline."""

from __future__ import annotations

from distir.schedules.action import Action
from distir.schedules.schedule import Schedule

__all__ = ["forward_only"]


def forward_only(stages: int, microbatches: int) -> Schedule:
    """Forward passes in order; nothing is kept."""
    ranks = tuple(
        tuple(Action(stage, "F", m) for m in range(microbatches)) for stage in range(stages)
    )
    return Schedule(ranks, stages, microbatches, "forward-only")
