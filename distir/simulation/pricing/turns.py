"""The order in which an overlapped forward and backward pass share the streams of a device.

Each pass is cut where its computation first needs what a communication stream moves, so that a
*part* is computation that can go on while the last part's messages travel. The parts of both passes
take turns, spread evenly over each other: while what one pass has sent is on its way, the other one
computes. How much that hides follows from what the streams do. The backward pass comes first, as in
figure 4 of the DeepSeek-V3 technical report (DeepSeek-AI 2024): its computation before the first
exchange is short, and what it ends with is long enough to hide the last exchange of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from distir.simulation.pricing.instructions import COMPUTE

__all__ = ["Streamed", "Turn", "turns"]


class Streamed(Protocol):
    """An instruction or a step: a stream, and what it reads and writes."""

    @property
    def stream(self) -> str | None: ...
    @property
    def reads(self) -> Sequence[object]: ...
    @property
    def writes(self) -> Sequence[object]: ...


Turn = tuple[int, range]
"""Whose turn it is, 0 (the forward pass) or 1 (the backward pass), and its instructions, by their
positions."""


def turns(forward: Sequence[Streamed], backward: Sequence[Streamed]) -> list[Turn]:
    """The turns of a block's forward pass and of another block's backward pass.

    Part `j` of `n` has its place at `(j + 1/2) / n` of the way; at equal places the backward pass
    comes first.
    """
    whose = (_parts(forward), _parts(backward))
    both = len(whose[0]) * len(whose[1])  # places are counted in halves of 1 / both
    placed = [
        ((2 * number + 1) * (both // len(parts) if both else 1), which, part)
        for which, parts in enumerate(whose)
        for number, part in enumerate(parts)
    ]
    placed.sort(key=lambda each: (each[0], -each[1]))
    return [(which, part) for _, which, part in placed]


def _parts(instructions: Sequence[Streamed]) -> list[range]:
    """The parts of a pass, as positions. A part begins with computation that needs what another
    stream has begun to move since the part before began."""
    begins = [0]
    moving: set[object] = set()
    for at, each in enumerate(instructions):
        waits = not moving.isdisjoint(each.reads)
        if each.stream == COMPUTE:
            if waits:
                begins.append(at)
                moving.clear()
        elif each.stream is not None or waits:
            moving.update(each.writes)
    ends = [*begins[1:], len(instructions)]
    return [range(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
