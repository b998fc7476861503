"""Finds where a function repeats itself: runs of nodes that a shift maps onto their like.

Nothing is known of layers. A *repeat* is `copies` times `period` neighbouring nodes, and from the
second copy on every node is the shifted one of the copy before: its op, its types and what it
reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distir.ir.core import Array, Value
from distir.ir.function import Function

FEWEST_COPIES = 4
"""A repeat that is shortened to its first two copies and its last has to have more than these."""

_SLOTS = 1 << 20
_SOURCE = _SLOTS >> 1
_WINDOW = 4
"""Nodes that two places must share to be compared in full."""
_CANDIDATES = 16
"""Periods that are looked at, the most frequent first."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """`copies` times `period` nodes, from the node at `start` on."""

    start: int
    period: int
    copies: int

    @property
    def end(self) -> int:
        """The node after the last copy."""
        return self.start + self.copies * self.period

    @property
    def omitted(self) -> range:
        """The nodes of all copies but the first two and the last."""
        return range(self.start + 2 * self.period, self.end - self.period)


class Homes:
    """Where every value is first met: at the node that makes it, or, if none does, at the first
    that reads it. Two values correspond under a shift by n nodes if their homes do."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.read: list[Value] = []
        """All operands, node by node."""
        self.begins: list[int] = []
        """Per node where its operands begin, and their number."""
        self.tokens: list[int] = []
        """Per node a number for its op and its types, and for which of its operands are new."""
        self.of: dict[Value, int] = {}
        """By value, the node where it is first met, and its place there."""
        declared = {
            **dict.fromkeys(function.inputs, 0),
            **dict.fromkeys(function.parameters, 1),
            **dict.fromkeys(function.constants, 2),
        }
        of, known = self.of, dict[object, int]()
        for index, node in enumerate(function.nodes):
            home = index * _SLOTS
            self.begins.append(len(self.read))
            self.read += node.operands
            new: list[object] = [len(node.operands)]
            for place, value in enumerate(node.operands):
                if value not in of:
                    of[value] = home + _SOURCE + place
                    new += (place, declared[value], value.type)
            for place, value in enumerate(node.results):
                of[value] = home + place
                new.append(value.type)
            token = (type(node.op), node.op, *new)
            self.tokens.append(known.setdefault(token, len(known)))
        self.begins.append(len(self.read))

    def read_by(self, nodes: range) -> list[Value]:
        """The operands of some nodes."""
        return self.read[self.begins[nodes.start] : self.begins[nodes.stop]]

    def node_of(self, value: Value) -> int | None:
        """The node where a value is first met."""
        home = self.of.get(value)
        return None if home is None else home // _SLOTS

    def shifted(self, value: Value, nodes: int) -> Value:
        """The value that corresponds to this one so many nodes later."""
        index, place = divmod(self.of[value], _SLOTS)
        node = self.function.nodes[index + nodes]
        return node.results[place] if place < _SOURCE else node.operands[place - _SOURCE]


def find_repeats(homes: Homes) -> tuple[Repeat, ...]:
    """Repeats of which something can be left out, none of them overlapping, in order. Those that
    leave out most come first, of equals the shortest period."""
    import numpy as np

    tokens = np.asarray(homes.tokens)
    begins = np.asarray(homes.begins)
    read = np.asarray([homes.of[value] for value in homes.read], dtype=np.int64)
    found = [
        repeat
        for period in _periods(homes.tokens)
        for start, stop in _stretches(tokens[period:] == tokens[:-period], 3 * period)
        for repeat in _regular(homes, begins, read, period, start, stop)
    ]
    chosen: list[Repeat] = []
    for repeat in sorted(found, key=lambda r: (-len(r.omitted), r.period)):
        if all(repeat.end <= other.start or other.end <= repeat.start for other in chosen):
            chosen.append(repeat)
    return tuple(sorted(chosen, key=lambda repeat: repeat.start))


def _periods(tokens: Sequence[int]) -> list[int]:
    """How far apart neighbours of a kind are, most frequent distances first."""
    last: dict[object, int] = {}
    distances: Counter[int] = Counter()
    shifted = (tokens[offset:] for offset in range(_WINDOW))
    for index, window in enumerate(zip(*shifted, strict=False)):
        if window in last:
            distances[index - last[window]] += 1
        last[window] = index
    return [distance for distance, _ in distances.most_common(_CANDIDATES)]


def _stretches(holds: Array, shortest: int) -> Iterator[tuple[int, int]]:
    """Where a condition holds at least so long: beginnings and ends."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False])).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2).tolist():
        if stop - start >= shortest:
            yield start, stop


def _regular(
    homes: Homes, begins: Array, read: Array, period: int, start: int, stop: int
) -> Iterator[Repeat]:
    """The repeats in a stretch of nodes that, shifted by the period, have the same tokens: what
    every node reads is shifted too, or is the same and was there before."""
    import numpy as np

    ours = read[begins[start] : begins[stop]]
    theirs = read[begins[start + period] : begins[stop + period]]
    same = ours == theirs
    readers = np.repeat(np.arange(start, stop), np.diff(begins[start : stop + 1]))
    back = readers - ours // _SLOTS
    alike = same | ((theirs - ours == period * _SLOTS) & (back <= period))
    wrong = np.bincount(readers[~alike] - start, minlength=stop - start) > 0
    for first, last in _stretches(~wrong, 3 * period):
        inside = same & (readers >= start + first) & (readers < start + last)
        begin, end = start + first, start + last
        while (late := ours[inside] // _SLOTS >= begin).any():
            begin = int((ours[inside] // _SLOTS)[late].max()) + 1
        copies = (end + period - begin) // period
        repeat = Repeat(begin, period, copies)
        if copies >= FEWEST_COPIES and _is_apart(homes, begins, read, repeat):
            yield repeat


def _is_apart(homes: Homes, begins: Array, read: Array, repeat: Repeat) -> bool:
    """Whether nothing after a repeat reads other copies than the last, and the function gives away
    the same of every copy between the first and the last."""
    later = read[begins[repeat.end] :] // _SLOTS
    if ((later >= repeat.start) & (later < repeat.end - repeat.period)).any():
        return False
    given = {homes.of[value] for value in homes.function.outputs if value in homes.of}
    step, second = repeat.period * _SLOTS, (repeat.start + repeat.period) * _SLOTS
    shifts = range(0, (repeat.copies - 2) * step, step)
    model = [home for home in given if second <= home < second + step]
    inside = {home for home in given if second <= home < second + shifts.stop}
    return inside == {home + shift for home in model for shift in shifts}
