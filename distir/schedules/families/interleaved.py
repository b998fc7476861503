"""Interleaved 1F1B: every rank holds several chunks of layers, so the pipeline fills sooner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import (
    RepeatedSteps,
    Rhythm,
    Step,
    groups_of,
    one_pipeline,
    repeated_steps,
)

__all__ = ["interleaved"]


@schedule_family(
    "interleaved",
    order=3,
    summary="1f1b over several chunks per rank; divides the bubble by the chunks",
    source="Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters "
    "Using Megatron-LM, section 2.2",
    default_chunks=2,
    least_chunks=2,
    most_chunks=None,
    is_proven=True,
)
def interleaved(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """1F1B with several chunks per rank: rank `r` of `p` holds stages `r`, `p + r`, `2p + r`, …

    Microbatches go in groups, each group through all chunks of a rank. Narayanan et al. 2021
    (Megatron-LM), section 2.2. Megatron-LM asks for a number of microbatches that `p` divides, in
    groups of `p`. Here any number is possible: the groups are as even as can be, and none is
    smaller than `p` unless there are fewer microbatches (as in Llama 3, Dubey et al. 2024, section
    3.3.2). Before its first backward pass, a rank runs a whole group through all chunks but the
    last, and two forward passes for each rank below.
    """
    sizes = [len(group) for group in groups_of(ranks, microbatches)]
    fill = (chunks - 1) * sizes[0]
    orders = [
        _rank(range(rank, ranks * chunks, ranks), sizes, fill + 2 * (ranks - rank - 1))
        for rank in range(ranks)
    ]
    return one_pipeline(orders, [*range(ranks)] * chunks, microbatches, "interleaved")


def _rank(stages: range, sizes: Sequence[int], ahead: int) -> tuple[RepeatedSteps, ...]:
    """The repeated steps of a rank: `ahead` forward passes, then forward and backward passes in
    turn, then the backward passes that are left.

    The first `larger` forward (and backward) passes are in groups of the larger size. Pairs of a
    forward and a backward pass repeat from group to group as long as neither of the two changes
    its group size.
    """
    large, small = max(sizes), min(sizes)
    cycle, last = len(stages) * large, len(stages) * small
    larger = cycle * sizes.count(large)
    total = len(stages) * sum(sizes)
    ahead = min(ahead, total)

    forward: list[Step] = [(stage, "F") for stage in stages]
    backward: list[Step] = [(stage, "B") for stage in reversed(stages)]

    def step(chunks: Sequence[Step], i: int) -> Step:
        size, i = (large, i) if i < larger else (small, i - larger)
        return chunks[i // size % len(chunks)]

    def pairs(a: int, b: int, length: int) -> Iterator[tuple[list[Step], int]]:
        """Forward passes `a` to `b` and as many backward passes; a pattern has `length` pairs."""
        times = max(0, b - a) // length
        for first, count, repeats in ((a, length, times), (a + times * length, b - a, 1)):
            count = min(count, b - first)
            pattern = [
                (step(forward, i), step(backward, i - ahead)) for i in range(first, first + count)
            ]
            yield [each for pair in pattern for each in pair], repeats

    steady = max(ahead, larger)  # from here on forward passes are in groups of the smaller size,
    mixed = max(steady, min(total, larger + ahead))  # and from here on backward passes, too
    return repeated_steps(
        ([step(forward, i) for i in range(ahead)], 1),
        *pairs(ahead, larger, cycle),
        *pairs(steady, mixed, max(1, mixed - steady)),
        *pairs(mixed, total, last),
        ([step(backward, i) for i in range(total - ahead, total)], 1),
    )
