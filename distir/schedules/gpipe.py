"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from distir.schedules.action import Action
from distir.schedules.schedule import Schedule

__all__ = ["gpipe"]


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Every stage keeps the activations of all microbatches. Huang et al. 2019 (GPipe).

    Backward passes run in the order of the forward passes; the reverse order is as fast.
    """
    ranks = tuple(
        tuple(Action(stage, kind, m) for kind in ("F", "B") for m in range(microbatches))
        for stage in range(stages)
    )
    return Schedule(ranks, stages, microbatches, "gpipe")
