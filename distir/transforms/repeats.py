"""Finds where the nodes of a function repeat themselves, without any notion of layers.

A *repeat* is `copies` times `period` neighbouring nodes. From the second copy on, every node equals
the one a period earlier: it has the same op and types, and it reads the values that correspond to
what the earlier node reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distir.ir.core import Array, Value
from distir.ir.function import Function

FEWEST_COPIES = 4
"""Copies that a repeat must have: shortened, it keeps the first two and the last."""

_SLOTS = 1 << 20
"""More values than any node has: a value's position is its node's index times this, plus its place
there."""
_SOURCE = _SLOTS >> 1
"""Added to the place of a value that no node makes: it is an operand of its node."""
_WINDOW = 4
"""Neighbouring nodes that two places must share to suggest a period."""
_CANDIDATES = 16
"""Periods that are examined, the most frequent first."""


@dataclass(frozen=True, slots=True)
class NodeRepeat:
    """`copies` times `period` nodes of a function, from the node at `start` on."""

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


class FirstMentions:
    """Where every value of a function is first mentioned: at the node that makes it, or, if none
    does, at the first node that reads it.

    Two values correspond under a shift by n nodes if their positions do.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.read: list[Value] = []
        """All operands, node by node."""
        self.begins: list[int] = []
        """Per node, where its operands begin in `read`; at the end, the length of `read`."""
        self.tokens: list[int] = []
        """Per node, a number that is equal for nodes with the same op and types, of whose operands
        the same ones are first mentioned there."""
        self.position: dict[Value, int] = {}
        """Per value, the index of its node times `_SLOTS`, plus its place there."""
        declared = {
            **dict.fromkeys(function.inputs, 0),
            **dict.fromkeys(function.parameters, 1),
            **dict.fromkeys(function.constants, 2),
        }
        position, known = self.position, dict[object, int]()
        for index, node in enumerate(function.nodes):
            start = index * _SLOTS
            self.begins.append(len(self.read))
            self.read += node.operands
            new: list[object] = [len(node.operands)]
            for place, value in enumerate(node.operands):
                if value not in position:
                    position[value] = start + _SOURCE + place
                    new += (place, declared[value], value.type)
            for place, value in enumerate(node.results):
                position[value] = start + place
                new.append(value.type)
            token = (type(node.op), node.op, *new)
            self.tokens.append(known.setdefault(token, len(known)))
        self.begins.append(len(self.read))

    def read_by(self, nodes: range) -> list[Value]:
        """The operands of the nodes in a range, node by node."""
        return self.read[self.begins[nodes.start] : self.begins[nodes.stop]]

    def node_of(self, value: Value) -> int | None:
        """The index of the node where a value is first mentioned; None for a value that the
        function did not have, such as the result of a boundary."""
        position = self.position.get(value)
        return None if position is None else position // _SLOTS

    def shifted(self, value: Value, nodes: int) -> Value:
        """The value that corresponds to this one a number of nodes later."""
        index, place = divmod(self.position[value], _SLOTS)
        node = self.function.nodes[index + nodes]
        return node.results[place] if place < _SOURCE else node.operands[place - _SOURCE]


def find_repeats(mentions: FirstMentions) -> tuple[NodeRepeat, ...]:
    """The repeats of a function that can be shortened, in order.

    Repeats that overlap are chosen among: the one that leaves out the most nodes wins, and of
    several such the one with the shortest period.
    """
    import numpy as np

    tokens = np.asarray(mentions.tokens)
    begins = np.asarray(mentions.begins)
    read = np.asarray([mentions.position[value] for value in mentions.read], dtype=np.int64)
    found = [
        repeat
        for period in _periods(mentions.tokens)
        for start, stop in _stretches(tokens[period:] == tokens[:-period], 3 * period)
        for repeat in _regular(mentions, begins, read, period, start, stop)
    ]
    chosen: list[NodeRepeat] = []
    for repeat in sorted(found, key=lambda r: (-len(r.omitted), r.period)):
        if all(repeat.end <= other.start or other.end <= repeat.start for other in chosen):
            chosen.append(repeat)
    return tuple(sorted(chosen, key=lambda repeat: repeat.start))


def _periods(tokens: Sequence[int]) -> list[int]:
    """Candidate periods: the distances between equal windows of tokens, most frequent first."""
    last: dict[object, int] = {}
    distances: Counter[int] = Counter()
    shifted = (tokens[offset:] for offset in range(_WINDOW))
    for index, window in enumerate(zip(*shifted, strict=False)):
        if window in last:
            distances[index - last[window]] += 1
        last[window] = index
    return [distance for distance, _ in distances.most_common(_CANDIDATES)]


def _stretches(holds: Array, shortest: int) -> Iterator[tuple[int, int]]:
    """The stretches (start, stop) of at least `shortest` elements in which a condition holds."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False])).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2).tolist():
        if stop - start >= shortest:
            yield start, stop


def _regular(
    mentions: FirstMentions, begins: Array, read: Array, period: int, start: int, stop: int
) -> Iterator[NodeRepeat]:
    """The repeats in a stretch of nodes whose tokens equal those a period later.

    Every operand must be shifted by a period too, or be the same value, mentioned before the
    repeat.
    """
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
        repeat = NodeRepeat(begin, period, copies)
        if copies >= FEWEST_COPIES and _can_be_shortened(mentions, begins, read, repeat):
            yield repeat


def _can_be_shortened(
    mentions: FirstMentions, begins: Array, read: Array, repeat: NodeRepeat
) -> bool:
    """Whether no node after a repeat reads from its copies but the last, and all copies between the
    first and the last make corresponding outputs of the function."""
    later = read[begins[repeat.end] :] // _SLOTS
    if ((later >= repeat.start) & (later < repeat.end - repeat.period)).any():
        return False
    position = mentions.position
    outputs = {position[value] for value in mentions.function.outputs if value in position}
    step, second = repeat.period * _SLOTS, (repeat.start + repeat.period) * _SLOTS
    shifts = range(0, (repeat.copies - 2) * step, step)
    model = [place for place in outputs if second <= place < second + step]
    inside = {place for place in outputs if second <= place < second + shifts.stop}
    return inside == {place + shift for place in model for shift in shifts}
