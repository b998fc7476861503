"""1F1B: forward and backward passes alternate as soon as the pipeline is full."""

from __future__ import annotations

from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import RepeatedSteps, Rhythm, Step, one_pipeline, repeated_steps

__all__ = ["one_f_one_b"]


@schedule_family(
    "1f1b",
    order=2,
    summary="forward and backward alternate; as fast as gpipe, keeps fewer activations",
    source="Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training "
    "(PipeDream-Flush)",
    is_proven=True,
)
def one_f_one_b(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Forward and backward passes alternate. As fast as GPipe, but stage `s` of `p` keeps the
    activations of at most `min(m, p - s)` microbatches.

    PipeDream-Flush, Narayanan et al. 2021 (Memory-Efficient Pipeline-Parallel DNN Training); the
    non-interleaved schedule of Megatron-LM.
    """
    assert chunks == 1
    orders = [_rank(stage, ranks, microbatches) for stage in range(ranks)]
    return one_pipeline(orders, range(ranks), microbatches, "1f1b")


def _rank(stage: int, ranks: int, microbatches: int) -> tuple[RepeatedSteps, ...]:
    """The repeated steps of a rank: forward passes to fill the pipeline below, then pairs of a
    forward and a backward pass, then the backward passes that are left."""
    warmup = min(ranks - stage - 1, microbatches)
    forward: Step = (stage, "F")
    backward: Step = (stage, "B")
    pairs = microbatches - warmup
    return repeated_steps(([forward], warmup), ([forward, backward], pairs), ([backward], warmup))
