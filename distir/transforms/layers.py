"""Finds the layers of a model, which need not begin and end where blocks do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from distir.ir.core import Part
from distir.ir.types import TensorType
from distir.transforms.block import Block, nodes_with_weights, ops_with_weights
from distir.transforms.blocks import Blocks

Ops = tuple[Hashable, ...]
"""The ops of a block on activations and weights."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a model."""

    number: int
    blocks: frozenset[int]
    """The blocks that are layers, or parts of one, and not of the loss: behind that the backward
    pass begins, so that nothing is gained by computing them again."""


def find_layers(blocks: Blocks) -> Layers:
    """The layers of a model: blocks with weights of families that occur more than once, and layers
    that the blocks beside a run of them are parts of; all blocks that can be split inside if no
    such family occurs more than once. Blocks that begin with an input, such as the embeddings of
    several texts, are none unless they go on as a run does. Blocks that end as layers do at other
    sizes are layers, and so is one beside a run that does most of what its layers do.

    Where blocks begin in the middle of layers, the second part of the first layer is in the first
    block of a run, and the first part of the last one is in a block behind the run. What goes on,
    block by block, with the ops that the run would go on with belongs to a layer, too. A block of
    another kind beside a run that hands on what its layers hand on is a layer, and elsewhere beside
    blocks of layers it is part of one.
    """
    families = blocks.families
    counts = Counter(families)
    repeated = {
        block
        for block, family in enumerate(families)
        if counts[family] > 1 and blocks.blocks[block].read and _kind(blocks, block)
    }
    runs = [run for run in _runs(families) if len(run) > 1 and repeated.issuperset(run)]
    in_runs = {block for run in runs for block in run}
    parts: set[int] = set()
    number = 0
    for run in runs:
        layer = _ops(blocks, run.start)
        before = _beside(blocks, in_runs | parts, range(run.start - 1, -1, -1))
        after = _beside(blocks, in_runs | parts, range(run.stop, len(families)))
        found = (
            *_going_on(layer[::-1], {index: ops[::-1] for index, ops in before.items()}),
            *_going_on(layer, after),
        )
        parts.update(index for index, _ in found)
        number += -(-sum(ops for _, ops in found) // len(layer))
    number += len(repeated - parts)
    found = repeated | {index for index in parts if not _has_loss(blocks, index)}
    if not found:
        split = {block for block in range(len(families)) if blocks.internal_of(block)}
        found = split or set(range(len(families)))
        return Layers(len(found), frozenset(found))
    more = _others(blocks, in_runs) - found
    more |= (_of_other_sizes(blocks, in_runs) | _of_fewer_ops(blocks, runs)) - found - parts
    found |= more
    return Layers(number + len(more), frozenset(found | _others(blocks, found)))


def _of_other_sizes(blocks: Blocks, in_runs: Collection[int]) -> set[int]:
    """Blocks with internal axes that end with what a layer does that follows its like, at whatever
    sizes: where sizes grow, what makes them grow comes before the first layer of its size."""
    kinds = [_kind(blocks, block) for block in range(len(blocks.blocks))]
    known = {kinds[block] for block in in_runs}
    return {
        block
        for block, kind in enumerate(kinds)
        if any(kind[-len(each) :] == each for each in known) and blocks.internal_of(block)
    }


def _of_fewer_ops(blocks: Blocks, runs: Iterable[range]) -> set[int]:
    """Blocks with internal axes beside a run that read what its layers read, and do more than half
    of what these do with weights, and nothing else: as the last layer of two streams does, where
    one of them ends."""
    found: set[int] = set()
    for run in runs:
        layer = _kind(blocks, run.start)
        for index in {run.start - 1, run.stop} & {*range(len(blocks.blocks))}:
            kind = _kind(blocks, index)
            is_part = len(kind) > len(layer) / 2 and not Counter(kind) - Counter(layer)
            is_like = _read(blocks, index) == _read(blocks, run.start)
            if is_part and is_like and blocks.internal_of(index):
                found.add(index)
    return found


def _kind(blocks: Blocks, index: int) -> tuple[Hashable, ...]:
    """The types of a block's ops on activations and weights."""
    nodes = nodes_with_weights(blocks.blocks[index].nodes, blocks.roles)
    return tuple(type(node.op) for node in nodes)


def _read(blocks: Blocks, index: int) -> Counter[TensorType]:
    return Counter(value.type for value in blocks.blocks[index].read)


def _others(blocks: Blocks, layers: Collection[int]) -> set[int]:
    """The blocks beside these layers, and beside each other, that hand on what these do."""
    every = range(len(blocks.blocks))
    known = set(layers)
    for order, back in ((every, -1), (reversed(every), 1)):
        for index in order:
            if index + back in known and _is_like(blocks, index, index + back):
                known.add(index)
    return known.difference(layers)


def _is_like(blocks: Blocks, index: int, layer: int) -> bool:
    """Whether a block takes and hands on what a layer hands on, and can be split inside if that
    can: what makes embeddings as wide as layers are cannot."""
    block, known = blocks.blocks[index], blocks.blocks[layer]
    if blocks.internal_of(layer) and not blocks.internal_of(index):
        return False
    return block.hands_on and known.hands_on and _outputs(block) == _outputs(known)


def _outputs(block: Block) -> list[TensorType]:
    return [value.type for value in block.outputs]


def _has_loss(blocks: Blocks, index: int) -> bool:
    return any(node.part is Part.LOSS for node in blocks.blocks[index].nodes)


def _ops(blocks: Blocks, index: int) -> Ops:
    return ops_with_weights(blocks.blocks[index].nodes, blocks.roles)


def _runs(families: Sequence[int]) -> Iterator[range]:
    """The blocks of equal family in a row."""
    start = 0
    for _, run in groupby(families):
        end = start + len(list(run))
        yield range(start, end)
        start = end


def _beside(blocks: Blocks, known: Collection[int], indices: Iterable[int]) -> dict[int, Ops]:
    """The ops of these blocks, in order, up to the first that is known."""
    unknown = takewhile(lambda index: index not in known, indices)
    return {index: _ops(blocks, index) for index in unknown}


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
