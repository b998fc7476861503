"""Bytes that blocks hold one by one, from which cuts are fitted to memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distir.arrays import Floats, Indices


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

    @property
    def columns(self) -> tuple[Floats, ...]:
        """All of them, what is needed in passing by cost kind."""
        return self.state, self.after_forward, self.after_backward, *self.passing.values()

    @classmethod
    def joined(cls, several: Sequence[BlockBytes]) -> BlockBytes:
        """At the program sizes of all, one after the other. An action that some do not have needs
        nothing there."""
        cost_kinds = sorted({kind for each in several for kind in each.passing})
        return cls(
            np.concatenate([each.state for each in several]),
            np.concatenate([each.after_forward for each in several]),
            np.concatenate([each.after_backward for each in several]),
            {
                kind: np.concatenate(
                    [each.passing.get(kind, np.zeros_like(each.state)) for each in several]
                )
                for kind in cost_kinds
            },
        )

    def taken(self, sizes: Indices) -> BlockBytes:
        """At these program sizes."""
        return BlockBytes(
            self.state[sizes],
            self.after_forward[sizes],
            self.after_backward[sizes],
            {cost_kind: each[sizes] for cost_kind, each in self.passing.items()},
        )

    def mixed(self, other: BlockBytes, share: Floats) -> BlockBytes:
        """Where a `share` of the blocks of every kind, one number per program size, are as in
        `other`."""
        some, not_all = share[:, None] > 0, share[:, None] < 1
        return BlockBytes(
            mixed(self.state, other.state, share),
            mixed(self.after_forward, other.after_forward, share),
            mixed(self.after_backward, other.after_backward, share),
            {
                kind: np.maximum(each * not_all, other.passing[kind] * some)
                for kind, each in self.passing.items()
            },
        )


def mixed(one: Floats, other: Floats, share: Floats) -> Floats:
    """The mean of numbers of shape (program sizes, …), of which a `share` are those of `other`."""
    return (1 - share)[:, None] * one + share[:, None] * other


__all__ = ["BlockBytes", "mixed"]
