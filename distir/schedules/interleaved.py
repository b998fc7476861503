"""Interleaved 1F1B: every rank holds several chunks of layers, so the pipeline fills sooner."""

from __future__ import annotations

from itertools import pairwise

from distir.schedules.action import Action
from distir.schedules.family import schedule_family
from distir.schedules.schedule import Schedule

__all__ = ["groups_of", "interleaved"]


@schedule_family(
    "interleaved",
    summary="1f1b over several chunks per rank; divides the bubble by the chunks",
    source="Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters "
    "Using Megatron-LM, section 2.2",
    default_chunks=2,
    least_chunks=2,
    most_chunks=None,
)
def interleaved(ranks: int, chunks: int, microbatches: int) -> Schedule:
    """Rank `r` of `p` holds stages `r`, `p + r`, `2p + r`, …; microbatches go in groups, each group
    through all chunks. Narayanan et al. 2021 (Megatron-LM), section 2.2.

    Megatron-LM asks for microbatches that divide by the ranks: groups of `p`. Here any number
    does: the groups are as even as can be, none smaller than `p` unless there are fewer
    microbatches (Llama 3, Dubey et al. 2024, section 3.3.2, frees the size of the groups as well).
    Before its first backward pass a rank runs the chunks before the last for a whole group, and
    two forward passes for each rank below.
    """
    groups = groups_of(ranks, microbatches)
    forward = [(chunk, m) for group in groups for chunk in range(chunks) for m in group]
    backward = [(chunks - 1 - chunk, m) for chunk, m in forward]
    fill = (chunks - 1) * len(groups[0])
    orders: list[tuple[Action, ...]] = []
    for rank in range(ranks):
        actions: list[Action] = []
        warmup = min(len(forward), fill + 2 * (ranks - rank - 1))
        for i in range(len(forward) + warmup):
            if i < len(forward):
                chunk, m = forward[i]
                actions.append(Action(chunk * ranks + rank, "F", m))
            if i >= warmup:
                chunk, m = backward[i - warmup]
                actions.append(Action(chunk * ranks + rank, "B", m))
        orders.append(tuple(actions))
    return Schedule(tuple(orders), ranks * chunks, microbatches, "interleaved")


def groups_of(ranks: int, microbatches: int) -> list[range]:
    """Runs of at least `ranks` microbatches (if there are so many), the larger ones first."""
    count = max(1, microbatches // ranks)
    size, larger = divmod(microbatches, count)
    starts = [group * size + min(group, larger) for group in range(count + 1)]
    return [range(a, b) for a, b in pairwise(starts)]
