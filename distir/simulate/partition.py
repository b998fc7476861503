"""Cuts a chain of blocks into stages of balanced cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def balanced_cuts(weights: Sequence[float], stages: int) -> tuple[int, ...]:
    """Where stages begin (without the first) so that the heaviest is as light as can be.

    Among the cuts that reach this, the last stages are filled first: under 1F1B the first stages
    keep the activations of most microbatches. Every stage has at least one block. The bottleneck
    is found by bisection over "does it fit in k stages", which is exact up to the last bit.
    """
    count = len(weights)
    if stages >= count:
        return tuple(range(1, count))
    total = [0.0, *accumulate(weights)]
    low, high = max(max(weights), total[-1] / stages), total[-1]
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        if _fill_from_end(weights, stages, middle) is None:
            low = middle
        else:
            high = middle
    cuts = _fill_from_end(weights, stages, high)
    assert cuts is not None
    return cuts


def _fill_from_end(
    weights: Sequence[float], stages: int, limit: float
) -> tuple[int, ...] | None:
    """Cuts that fill every stage, from the last, up to `limit`; None if it takes more stages."""
    limit *= 1 + 1e-12
    cuts: list[int] = []
    load = 0.0
    for index in range(len(weights) - 1, -1, -1):
        left = stages - 1 - len(cuts)
        # The stages before this one need a block each.
        if load and (load + weights[index] > limit or index + 1 == left):
            if left == 0:
                return None
            cuts.append(index + 1)
            load = 0.0
        load += weights[index]
    if len(cuts) < stages - 1:
        return None
    return tuple(reversed(cuts))
