"""1F1B: one forward, one backward, as soon as the pipeline is full."""

from __future__ import annotations

from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import Rhythm, Run, Step, one_pipeline, runs_of

__all__ = ["one_f_one_b"]


@schedule_family(
    "1f1b",
    order=2,
    summary="forward and backward alternate; as fast as gpipe, keeps fewer",
    source="Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training "
    "(PipeDream-Flush)",
)
def one_f_one_b(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Stage `s` of `p` keeps at most `min(m, p - s)` microbatches; as fast as GPipe.

    PipeDream-Flush, Narayanan et al. 2021 (Memory-Efficient Pipeline-Parallel DNN Training); the
    non-interleaved schedule of Megatron-LM.
    """
    assert chunks == 1
    orders = [_rank(stage, ranks, microbatches) for stage in range(ranks)]
    return one_pipeline(orders, range(ranks), microbatches, "1f1b")


def _rank(stage: int, ranks: int, microbatches: int) -> tuple[Run, ...]:
    """Forward passes to fill the pipeline below, then pairs, then the backward passes left."""
    warmup = min(ranks - stage - 1, microbatches)
    forward: Step = (stage, "F")
    backward: Step = (stage, "B")
    pairs = microbatches - warmup
    return runs_of(([forward], warmup), ([forward, backward], pairs), ([backward], warmup))
