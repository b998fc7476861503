"""What blocks hold one by one, which is what fitting a cut to memory goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distir.arrays import Floats


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """What the different blocks hold, each of shape (points, kinds of block): at rest, of a
    microbatch between F and B, and between B and W; and by kind of action what it needs at its
    worst moment on top."""

    state: Floats
    after_forward: Floats
    after_backward: Floats
    passing: Mapping[int, Floats]

    @classmethod
    def empty(cls, points: int, kinds: int, actions: int) -> BlockBytes:
        """At so many points, of so many different blocks, to be filled."""
        state, forward, backward = np.zeros((3, points, kinds))
        return cls(state, forward, backward, dict(enumerate(np.zeros((actions, points, kinds)))))


__all__ = ["BlockBytes"]
