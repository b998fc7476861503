"""Counts the layers of a model, which need not begin and end where blocks do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby

from distir.ir.core import Part
from distir.transforms.blocks import Blocks

Ops = tuple[Hashable, ...]
"""The ops on activations of a block, but for the loss, each with its types."""


def count_layers(blocks: Blocks) -> int:
    """The number of layers: blocks of kinds that occur more than once, and layers that the blocks
    beside a run of them are parts of; of all blocks if no kind occurs more than once.

    A layer whose norm comes last, say, has parts in two blocks: the first block of a run then
    begins in the middle of a layer, and the run ends there. What goes on, block by block, with the
    ops that the run would go on with belongs to a layer, too.
    """
    kinds = blocks.representative
    counts = Counter(kinds)
    several = sum(number for number in counts.values() if number > 1)
    parts = 0
    start = 0
    for kind, run in groupby(kinds):
        end = start + len(list(run))
        if end - start > 1:
            layer = _ops(blocks, kind)
            before = _alone(blocks, counts, range(start - 1, -1, -1))
            after = _alone(blocks, counts, range(end, len(kinds)))
            ops = _going_on(layer[::-1], (each[::-1] for each in before))
            ops += _going_on(layer, after)
            parts += -(-ops // len(layer))
        start = end
    return several + parts or len(kinds)


def _ops(blocks: Blocks, index: int) -> Ops:
    activations = blocks.roles.activations
    return tuple(
        (node.op, node.operand_types, node.result_types)
        for node in blocks.blocks[index].nodes
        if node.part is not Part.LOSS and any(value in activations for value in node.results)
    )


def _alone(blocks: Blocks, counts: Counter[int], indices: Sequence[int]) -> Iterable[Ops]:
    """The ops of these blocks, in order, up to the first whose kind occurs more than once."""
    for index in indices:
        if counts[blocks.representative[index]] > 1:
            return
        yield _ops(blocks, index)


def _going_on(layer: Ops, others: Iterable[Ops]) -> int:
    """The number of ops in the first of `others` that are those of `layer`, over and over."""
    done = 0
    for ops in others:
        if any(op != layer[(done + place) % len(layer)] for place, op in enumerate(ops)):
            break
        done += len(ops)
    return done


__all__ = ["count_layers"]
