"""Finds the layers of a model, which need not begin and end where blocks do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, takewhile

from distir.ir.core import Part
from distir.transforms.blocks import Blocks

Ops = tuple[Hashable, ...]
"""The ops on activations of a block, but for the loss, each with its types."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a model."""

    number: int
    blocks: frozenset[int]
    """The blocks that are layers, or parts of one, and not of the loss: behind that the backward
    pass begins, so that nothing is gained by computing them again."""


def find_layers(blocks: Blocks) -> Layers:
    """The layers of a model: blocks of kinds that occur more than once, and layers that the blocks
    beside a run of them are parts of; all blocks if no kind occurs more than once.

    Where norms come last in a layer, say, blocks begin in the middle of layers: of the first layer,
    the second part is in the first block of a run, and of the last one the first part is in a block
    behind the run. What goes on, block by block, with the ops that the run would go on with belongs
    to a layer, too.
    """
    kinds = blocks.representative
    counts = Counter(kinds)
    found = {block for block, kind in enumerate(kinds) if counts[kind] > 1}
    number = len(found)
    start = 0
    for kind, run in groupby(kinds):
        end = start + len(list(run))
        if end - start > 1:
            layer = _ops(blocks, kind)
            before = _alone(blocks, counts, range(start - 1, -1, -1))
            after = _alone(blocks, counts, range(end, len(kinds)))
            parts = (
                *_going_on(layer[::-1], {index: ops[::-1] for index, ops in before.items()}),
                *_going_on(layer, after),
            )
            found.update(index for index, _ in parts if not _has_loss(blocks, index))
            number += -(-sum(ops for _, ops in parts) // len(layer))
        start = end
    if not found:
        return Layers(len(kinds), frozenset(range(len(kinds))))
    return Layers(number, frozenset(found))


def _has_loss(blocks: Blocks, index: int) -> bool:
    return any(node.part is Part.LOSS for node in blocks.blocks[index].nodes)


def _ops(blocks: Blocks, index: int) -> Ops:
    activations = blocks.roles.activations
    return tuple(
        (node.op, node.operand_types, node.result_types)
        for node in blocks.blocks[index].nodes
        if node.part is not Part.LOSS and any(value in activations for value in node.results)
    )


def _alone(blocks: Blocks, counts: Counter[int], indices: Iterable[int]) -> dict[int, Ops]:
    """The ops of these blocks, in order, up to the first whose kind occurs more than once."""
    once = takewhile(lambda index: counts[blocks.representative[index]] == 1, indices)
    return {index: _ops(blocks, index) for index in once}


def _going_on(layer: Ops, others: Mapping[int, Ops]) -> Iterator[tuple[int, int]]:
    """The first of `others` whose ops are those of `layer`, over and over: index and number of
    ops."""
    done = 0
    for index, ops in others.items():
        if any(op != layer[(done + place) % len(layer)] for place, op in enumerate(ops)):
            return
        done += len(ops)
        yield index, len(ops)


__all__ = ["Layers", "find_layers"]
