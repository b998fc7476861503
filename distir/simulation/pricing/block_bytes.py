"""Bytes that blocks hold one by one, from which cuts are fitted to memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distir.arrays import Floats


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """Bytes of the different blocks of a model, each of shape (program sizes, block kinds)."""

    state: Floats
    """Model state: parameters, gradients, optimizer."""
    after_forward: Floats
    """What a microbatch leaves between F and B."""
    after_backward: Floats
    """What a microbatch leaves between B and W."""
    passing: Mapping[int, Floats]
    """By cost kind, what an action needs at its peak beyond what it leaves behind."""

    @classmethod
    def empty(cls, num_sizes: int, block_kinds: int, cost_kinds: int) -> BlockBytes:
        """Arrays of zeros, to be filled."""
        state, forward, backward = np.zeros((3, num_sizes, block_kinds))
        passing = np.zeros((cost_kinds, num_sizes, block_kinds))
        return cls(state, forward, backward, dict(enumerate(passing)))


__all__ = ["BlockBytes"]
