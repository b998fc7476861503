"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from distir.schedules.action import Action
from distir.schedules.family import schedule_family
from distir.schedules.schedule import Schedule

__all__ = ["gpipe"]


@schedule_family(
    "gpipe",
    summary="all forward passes, then all backward passes; keeps all activations",
    source="Huang et al. 2019, GPipe: Efficient Training of Giant Neural Networks using Pipeline "
    "Parallelism",
)
def gpipe(ranks: int, chunks: int, microbatches: int) -> Schedule:
    """Every stage keeps the activations of all microbatches. Huang et al. 2019 (GPipe).

    Backward passes run in the order of the forward passes; the reverse order is as fast.
    """
    assert chunks == 1
    orders = tuple(
        tuple(Action(stage, kind, m) for kind in ("F", "B") for m in range(microbatches))
        for stage in range(ranks)
    )
    return Schedule(orders, ranks, microbatches, "gpipe")
