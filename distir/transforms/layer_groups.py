"""Groups the pieces of a program into layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

LONGEST_PERIOD = 16
"""The most pieces that may come again together: eight layers of two pieces each."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Pieces whose families repeat."""

    pieces: range
    period: int
    """The pieces of one repetition."""
    layer: int
    """The pieces of one layer."""


def group_layers(families: Sequence[int], hands_on: Sequence[bool]) -> list[list[int]]:
    """Groups pieces, given their families, into layers: lists of indices.

    Where a pattern of families repeats (attention, MLP, attention, MLP, …), one repetition is a
    layer, or several, if layers of two kinds alternate; the last repetition may break off. As many
    pieces beside such a run, which begin as its layers do and hand on as much as they take, are a
    layer, too, as one with an MLP before those with experts, and so is a first layer that begins in
    a way of its own. Other pieces are groups of their own.
    """
    runs = list(_runs(families))
    odd = set(range(len(families))).difference(*(run.pieces for run in runs))
    layers: list[range] = []
    for run in runs:
        found = _layers(run, families, {piece for piece in odd if hands_on[piece]})
        odd.update(run.pieces)
        odd.difference_update(*found)
        layers += found
    alone = [range(piece, piece + 1) for piece in odd]
    return sorted([list(group) for group in (*layers, *alone)])


def _layers(run: _Run, families: Sequence[int], others: Collection[int]) -> list[range]:
    """The layers of a run, and those beside it. `others` are pieces outside of runs that hand on as
    much as they take: the run goes on among them as far as they repeat what comes a period before.
    The first layer begins among them where more layers are complete then: the first of all
    attentions may be of a kind of its own, as where it reads a mask that it hands on."""
    end = run.pieces.stop
    while end in others and families[end] == families[end - run.period]:
        end += 1

    def beginning(first: int) -> list[range]:
        if any(piece not in others for piece in range(first, run.pieces.start)):
            return []
        layers = [range(at, at + run.layer) for at in range(first, end - run.layer + 1, run.layer)]
        return [*layers, *_beside(layers, families, others)]

    firsts = (run.pieces.start - before for before in range(run.layer))
    return max(map(beginning, firsts), key=len)


def _beside(
    layers: Sequence[range], families: Sequence[int], others: Collection[int]
) -> list[range]:
    """Layers among `others`, beside the known ones and beside each other: as many pieces as a layer
    has, of which the first is of the family that layers begin with."""
    left, found = set(others).difference(*layers), [*layers]
    for layer in found:  # grows: what is beside a layer that was found may be one more
        for begin in (layer.start - len(layer), layer.stop):
            pieces = range(begin, begin + len(layer))
            if left.issuperset(pieces) and families[begin] == families[layer.start]:
                found.append(pieces)
                left.difference_update(pieces)
    return found[len(layers) :]


def _runs(families: Sequence[int]) -> Iterator[_Run]:
    """The runs of layers, in order.

    At every place the pattern whose repetitions cover most pieces is taken; of several such
    patterns, the shortest.
    """
    start = 0
    while start < len(families):
        best_period, best_count = 1, 1
        for period in range(1, LONGEST_PERIOD + 1):
            pattern = list(families[start : start + period])
            count = 1
            while list(families[start + count * period : start + (count + 1) * period]) == pattern:
                count += 1
            if count > 1 and count * period > best_count * best_period:
                best_period, best_count = period, count
        end = start + best_count * best_period
        if best_count > 1:
            layer = _layer(families[start : start + best_period])
            yield _Run(range(start, end), best_period, layer)
        start = end


def _layer(pattern: Sequence[int]) -> int:
    """The pieces of one layer of a pattern, in which layers of several kinds may alternate: the
    fewest at which more than half of the layers have a piece of the same family at one place."""
    for period in range(1, len(pattern)):
        layers, rest = divmod(len(pattern), period)
        places = (Counter(pattern[place::period]) for place in range(period))
        if not rest and any(2 * max(place.values()) > layers for place in places):
            return period
    return len(pattern)


__all__ = ["LONGEST_PERIOD", "group_layers"]
