"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import Rhythm, one_pipeline, repeated_steps

__all__ = ["gpipe"]


@schedule_family(
    "gpipe",
    order=1,
    summary="all forward passes, then all backward passes; keeps all activations",
    source="Huang et al. 2019, GPipe: Efficient Training of Giant Neural Networks using Pipeline "
    "Parallelism",
    is_proven=True,
)
def gpipe(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """All forward passes, then all backward passes. Huang et al. 2019 (GPipe).

    Every stage keeps the activations of all microbatches. Backward passes run in the order of the
    forward passes; the reverse order is as fast.
    """
    assert chunks == 1
    orders = [
        repeated_steps(([(stage, "F")], microbatches), ([(stage, "B")], microbatches))
        for stage in range(ranks)
    ]
    return one_pipeline(orders, range(ranks), microbatches, "gpipe")
