"""The tree of choices as arrays: one walk counts it and is the recipe of all its strategies.

A *node* of a level is what of the choices before it matters to this level and all below; prefixes
that agree on that are one node. A *branch* is a value that may be chosen at a node, with the node
of the next level that it leads to and the number of strategies (*leaves*) behind it. The walk goes
level by level, for all nodes of a level together, and asks a domain or a rule once per
combination of the choices that it reads. Branches are in the order of their domains, and those of
a node are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Codes, Indices, codes_of, distinct_codes
from distir.rules import Rule
from search_spaces.parameters import Choices, Dimension, Value

Answer = TypeVar("Answer")


class ChoiceStep(NamedTuple):
    """A choice at a node: how many strategies are behind it, and the node that it leads to."""

    leaves: int
    node: int


@dataclass(frozen=True, slots=True)
class Level:
    """All branches of a level, node by node."""

    first: Indices
    """Per node the place of its first branch, and behind them the number of all branches."""
    codes: Codes
    """Which of the dimension's values each branch chooses."""
    nodes: Indices
    """The node of the next level that it leads to."""
    leaves: Indices
    """The number of strategies behind it."""

    @property
    def counts(self) -> Indices:
        """The number of branches per node."""
        return np.diff(self.first)

    @property
    def leaves_of_nodes(self) -> Indices:
        """The number of strategies below each node."""
        before = np.concatenate([[0], np.cumsum(self.leaves)])
        return np.diff(before[self.first])

    def pruned(self, leaves: Indices) -> Level:
        """Without the branches that lead nowhere; `leaves` are those below the next level's
        nodes."""
        behind = leaves[self.nodes]
        kept = behind > 0
        first = np.concatenate([[0], np.cumsum(kept)])[self.first]
        return Level(first, self.codes[kept], self.nodes[kept], behind[kept])


class Tree:
    """All choices of a space. Node 0 of level 0 is the root."""

    def __init__(
        self,
        dimensions: Sequence[Dimension],
        rules: Sequence[Rule],
        fixed: Mapping[str, Value],
    ) -> None:
        """`fixed` are the choices that no dimension makes."""
        self.dimensions = dimensions
        self.names = tuple(dimension.name for dimension in dimensions)
        self.values: dict[str, list[Value]] = {name: [] for name in self.names}
        """By dimension the values that occur in its domains; codes are places in it."""
        self._codes: dict[str, dict[Value, int]] = {name: {} for name in self.names}
        self._fixed = fixed
        place = {name: at for at, name in enumerate(self.names)}
        last = [max((place.get(n, 0) for n in rule.reads), default=0) for rule in rules]
        self._decided = [
            tuple(rule for rule, at in zip(rules, last, strict=True) if at == depth)
            for depth in range(len(self.names))
        ]
        """By level the rules whose last choice is made there."""
        self.levels = self._grown()
        self._steps: list[dict[int, dict[Value, ChoiceStep]]] = [{} for _ in self.names]

    # --- growing ----------------------------------------------------------------------------------

    def _grown(self) -> tuple[Level, ...]:
        levels: list[Level] = []
        nodes, chosen = 1, dict[str, Codes]()
        for depth in range(len(self.names)):
            first, codes, parents = self._expanded(depth, nodes, chosen)
            chosen = {name: column[parents] for name, column in chosen.items()}
            chosen[self.names[depth]] = codes
            kept = np.flatnonzero(self._allowed(depth, chosen, len(codes)))
            first = np.searchsorted(kept, first)
            chosen = {name: chosen[name][kept] for name in self._read_from(depth + 1)}
            representatives, which = self._distinct(chosen, len(kept))
            levels.append(Level(first, codes[kept], which, which))
            nodes = len(representatives)
            chosen = {name: column[representatives] for name, column in chosen.items()}
        leaves = np.ones(nodes, np.int64)
        for depth in reversed(range(len(levels))):
            levels[depth] = levels[depth].pruned(leaves)
            leaves = levels[depth].leaves_of_nodes
        return tuple(levels)

    def _read_from(self, depth: int) -> tuple[str, ...]:
        """Choices above `depth` that anything at or below `depth` reads."""
        read = {name for dimension in self.dimensions[depth:] for name in dimension.reads}
        read |= {name for rules in self._decided[depth:] for rule in rules for name in rule.reads}
        return tuple(name for name in self.names[:depth] if name in read)

    def _expanded(
        self, depth: int, nodes: int, chosen: Mapping[str, Codes]
    ) -> tuple[Indices, Codes, Indices]:
        """Every value of a level's domains at every node: where those of a node begin, their codes,
        and the node of each."""
        dimension = self.dimensions[depth]
        known, values = self._codes[dimension.name], self.values[dimension.name]

        def domain(choices: Choices) -> Codes:
            codes = [known.setdefault(value, len(known)) for value in dimension.values(choices)]
            return codes_of(codes)

        domains, which = self._asked(domain, dimension.reads, chosen, nodes)
        values.extend(list(known)[len(values) :])
        sizes = np.array([len(each) for each in domains], np.int64)
        starts = (np.cumsum(sizes) - sizes)[which]
        first = np.concatenate([[0], np.cumsum(sizes[which])])
        parents = np.repeat(np.arange(nodes), sizes[which])
        inside = np.arange(int(first[-1])) - first[parents]
        codes = np.concatenate([np.zeros(0, np.int16), *domains])
        return first, codes[starts[parents] + inside], parents

    def _allowed(self, depth: int, chosen: Mapping[str, Codes], count: int) -> NDArray[np.bool_]:
        """A mask of the `count` choices that meet all rules decided at a level. A rule is asked
        about the choices that meet those before it."""
        left = np.arange(count)
        for rule in self._decided[depth]:
            some = {name: column[left] for name, column in chosen.items()}
            faults, which = self._asked(rule.fault, rule.reads, some, len(left))
            met = np.array([fault is None for fault in faults], np.bool_)
            left = left[met[which]]
        found = np.zeros(count, np.bool_)
        found[left] = True
        return found

    def _asked(
        self,
        question: Callable[[Choices], Answer],
        reads: Sequence[str],
        chosen: Mapping[str, Codes],
        count: int,
    ) -> tuple[list[Answer], Indices]:
        """The answers to a question about some choices, once per combination, and which of them is
        that of each of `count` rows."""
        read = {name: chosen[name] for name in reads if name in chosen}
        first, which = self._distinct(read, count)
        columns: dict[str, list[Value]] = {
            name: [self.values[name][code] for code in codes[first].tolist()]
            for name, codes in read.items()
        }
        answers = [
            question({**self._fixed, **dict(zip(columns, row, strict=True))})
            for row in (zip(*columns.values(), strict=True) if columns else [()] * len(first))
        ]
        return answers, which

    def _distinct(self, chosen: Mapping[str, Codes], count: int) -> tuple[Indices, Indices]:
        columns = [(codes, len(self._codes[name])) for name, codes in chosen.items()]
        return distinct_codes(columns, count)

    # --- looking ----------------------------------------------------------------------------------

    @property
    def leaves(self) -> int:
        """The number of all strategies."""
        return int(self.levels[0].leaves.sum()) if self.levels else 1

    def leaves_below(self, depth: int) -> Indices:
        """The number of strategies below each node of a level; at the end, the strategy itself."""
        if depth < len(self.levels):
            return self.levels[depth].leaves_of_nodes
        return np.ones(1 + int(self.levels[-1].nodes.max(initial=0)), np.int64)

    def steps(self, depth: int, node: int) -> Mapping[Value, ChoiceStep]:
        """What may be chosen at a node, in order."""
        known = self._steps[depth]
        if node not in known:
            level, values = self.levels[depth], self.values[self.names[depth]]
            here = slice(int(level.first[node]), int(level.first[node + 1]))
            columns = (level.codes[here], level.leaves[here], level.nodes[here])
            known[node] = {
                values[code]: ChoiceStep(leaves, child)
                for code, leaves, child in zip(*(each.tolist() for each in columns), strict=True)
            }
        return known[node]

    def node(self, chosen: Choices) -> int | None:
        """The node after `chosen`, the values of the first dimensions; None if there is none."""
        node = 0
        for depth, name in enumerate(self.names[: len(chosen)]):
            step = self.steps(depth, node).get(chosen[name])
            if step is None:
                return None
            node = step.node
        return node

    def below(
        self, nodes: Indices, depth: int, stop: int
    ) -> tuple[Indices, Indices, dict[str, Codes]]:
        """All choices from level `depth` up to level `stop` below some nodes, one after the other
        and each in the order of the tree: which of the nodes, the node that they lead to, and the
        codes of the choices."""
        which = np.arange(len(nodes))
        codes: dict[str, Codes] = {}
        for level, name in zip(self.levels[depth:stop], self.names[depth:stop], strict=True):
            counts = level.counts[nodes]
            rows = np.repeat(np.arange(len(nodes)), counts)
            inside = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            branches = level.first[nodes][rows] + inside
            codes = {known: column[rows] for known, column in codes.items()}
            codes[name] = level.codes[branches]
            which, nodes = which[rows], level.nodes[branches]
        return which, nodes, codes


__all__ = ["ChoiceStep", "Level", "Tree"]
