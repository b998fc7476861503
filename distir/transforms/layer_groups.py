"""Groups the pieces of a program into layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

LONGEST_PERIOD = 16
"""The most pieces that may come again together: eight layers of two pieces each."""


def group_layers(families: Sequence[int], hands_on: Sequence[bool]) -> list[list[int]]:
    """Groups pieces, given their families, into layers: lists of indices.

    Where a pattern of families repeats (attention, MLP, attention, MLP, …), one repetition is a
    layer, or several, if layers of two kinds take turns. As many pieces beside such a run, which
    begin as its layers do and hand on as much as they take, are a layer, too, as one with an MLP
    before those with experts. Other pieces are groups of their own.
    """
    layers: list[range] = []
    odd: set[int] = set()
    start = 0
    for period, count in _runs(families):
        end = start + period * count
        if count > 1:
            layers += [range(at, at + period) for at in range(start, end, period)]
        else:
            odd.update(range(start, end))
        start = end
    for layer in layers:  # grows: what is beside a layer that was found may be one more
        for begin in (layer.start - len(layer), layer.stop):
            pieces = range(begin, begin + len(layer))
            begins_alike = odd.issuperset(pieces) and families[begin] == families[layer.start]
            if begins_alike and all(hands_on[piece] for piece in pieces):
                layers.append(pieces)
                odd.difference_update(pieces)
    alone = [range(piece, piece + 1) for piece in odd]
    return sorted([list(group) for group in (*layers, *alone)])


def _runs(families: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The runs of layers, in order: pieces per layer and number of layers; of a piece that is in
    none, one and one.

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
        layer = _layer(families[start : start + best_period]) if best_count > 1 else 1
        yield layer, best_count * best_period // layer
        start += best_count * best_period


def _layer(pattern: Sequence[int]) -> int:
    """The pieces of one layer of a pattern, in which layers of several kinds may take turns: the
    fewest at which more than half of the layers have a piece of the same family at one place."""
    for period in range(1, len(pattern)):
        layers, rest = divmod(len(pattern), period)
        places = (Counter(pattern[place::period]) for place in range(period))
        if not rest and any(2 * max(place.values()) > layers for place in places):
            return period
    return len(pattern)


__all__ = ["LONGEST_PERIOD", "group_layers"]
