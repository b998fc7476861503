"""How an op iterates: its loops, and every dim of operands and results as a product of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What splitting a loop over devices means for the op's results."""

    PARALLEL = "parallel"
    """Each device computes its part of the result."""
    SUM = "sum"
    """Each device computes a partial sum; the result is pending until they are added."""
    MAX = "max"
    """Each device computes a partial maximum."""
    PICK = "pick"
    """Rows are picked out of a table; a device holds some rows and gives zero for the others."""
    WHOLE = "whole"
    """Cannot be split: every device needs all of it."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of an op."""

    size: int
    kind: Kind


Dims = tuple[tuple[int, ...], ...]
"""Per dim the indices of the loops whose product it is, outermost first; `()` for size 1."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Loops of an op and the dims of its operands and results in terms of them."""

    loops: tuple[Loop, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    follows: tuple[tuple[int, int], ...] = ()
    """Pairs (follower, leader): who holds an n-th part of the leader holds the n-th part of the
    follower that belongs to it, whatever their sizes. The slots of experts follow the sequence."""
    equal: tuple[tuple[int, int], ...] = ()
    """Pairs of loops that always have the same size, although they are different axes."""


class SignatureBuilder:
    """Collects loops one by one; dims of size 1 get no loop."""

    def __init__(self) -> None:
        self._loops: list[Loop] = []
        self._follows: list[tuple[int, int]] = []
        self._equal: list[tuple[int, int]] = []

    def loop(self, size: int, kind: Kind = Kind.PARALLEL) -> tuple[int, ...]:
        """A new loop as the product of a dim: `()` if its size is 1."""
        if size == 1:
            return ()
        self._loops.append(Loop(size, kind))
        return (len(self._loops) - 1,)

    def positional(self, size: int, kind: Kind = Kind.PARALLEL) -> tuple[int, ...]:
        """Like `loop`, but takes the next index even for size 1, so that `evaluate_shard` knows
        the index beforehand."""
        self._loops.append(Loop(size, kind))
        return (len(self._loops) - 1,) if size > 1 else ()

    def dims(self, shape: Sequence[int], kind: Kind = Kind.PARALLEL) -> Dims:
        """One new loop per dim."""
        return tuple(self.loop(size, kind) for size in shape)

    def follower(self, size: int, leader: tuple[int, ...]) -> tuple[int, ...]:
        """A new parallel loop that is split together with `leader`."""
        loop = self.loop(size)
        self._follows += zip(loop, leader, strict=True)
        return loop

    def equate(self, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        """Declares that two loops always have the same size."""
        self._equal += zip(a, b, strict=True)

    def build(self, operands: Sequence[Dims], results: Sequence[Dims]) -> Signature:
        """The finished signature."""
        loops, follows, equal = tuple(self._loops), tuple(self._follows), tuple(self._equal)
        return Signature(loops, tuple(operands), tuple(results), follows, equal)


def broadcast_signature(
    operand_shapes: Sequence[Sequence[int]],
    result_shape: Sequence[int],
    num_results: int = 1,
    whole_dims: frozenset[int] = frozenset(),
) -> Signature:
    """One loop per dim of the result; operands align at the last dim, their dims of size 1 have
    no loop. Dims in `whole_dims` (of the result) cannot be split."""
    builder = SignatureBuilder()
    result = tuple(
        builder.loop(size, Kind.WHOLE if dim in whole_dims else Kind.PARALLEL)
        for dim, size in enumerate(result_shape)
    )
    operands: list[Dims] = []
    for shape in operand_shapes:
        offset = len(result_shape) - len(shape)
        operands.append(
            tuple(() if size == 1 else result[offset + dim] for dim, size in enumerate(shape))
        )
    return builder.build(operands, (result,) * num_results)
