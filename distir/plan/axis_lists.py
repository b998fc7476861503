"""Axis lists that nobody wrote down: those that a program's own axes make, one spelling per plan.

A *word* of a list stands for axes of one kind: heads, the sequence, the height of images. Lists
grow word by word. A list stops growing where no further word decides anything, and of two lists
that decide the same for every op, one goes on (`_Decisions`). Those that are left are placed, and
of lists that place to the same program the first stays (`Planner.fingerprint`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, product

from distir.axes.model import Axis
from distir.mesh import entries_of
from distir.ops.ring import Circulating
from distir.plan.decisions import places_of
from distir.plan.planner import Planner
from distir.program import UNNAMED, Program
from distir.strategy import Strategy, format_lists, in_order, own_degree
from distir.transforms.place import AxisListEntry

Words = tuple[str, ...]
"""Names of axes, with marks, as a strategy states them."""

MOST_LISTS = 1000
"""Lists of one degree that are generated: those of few words."""
MOST_PLANS = 5_000
"""Combinations of lists of several degrees that are placed: those of few words."""


@dataclass(frozen=True, slots=True)
class Word:
    """Axes that a list names together: by `names`, or one by one by `labels`. Words that differ in
    marks alone, such as `heads` and `heads*`, are about the same `axes`."""

    names: Words
    labels: Words
    axes: frozenset[Axis]

    def marked(self, mark: str) -> Word:
        """The word with a mark behind every name."""
        names, labels = (tuple(n + mark for n in each) for each in (self.names, self.labels))
        return Word(names, labels, self.axes)


def words_of(program: Program) -> tuple[Word, ...]:
    """The words of a program, those of named axes first.

    These are the names that axes have (see `name_axes`); what is tied to a sequence without being
    one, such as the positions of keys; and of axes without a name that cross the borders of blocks,
    such as the height of images, those of one dim each. Heads and experts also come with `*`, and
    sequences with `~` if an op can let its operands travel: other axes have no op for that.
    """
    blocks, extents = program.blocks, program.extents
    named = {name: axes for name, axes in program.families.items() if name != UNNAMED}
    label = program.label
    found = [Word((n,), tuple(map(label, axes)), frozenset(axes)) for n, axes in named.items()]
    rest = dict.fromkeys(program.families.get(UNNAMED, ()))
    tied = {program.axes.tied(axis) for axis in extents.sequences}
    sides = [a for a in rest if program.axes.tied(a) in tied]
    for group in (sides, *_crossing(program, [a for a in rest if a not in sides])):
        if group:
            labels = tuple(map(label, group))
            found.append(Word(labels, labels, frozenset(group)))
    marked = {*blocks.head_axes, *blocks.expert_axes}
    found += [word.marked("*") for word in found if not marked.isdisjoint(word.axes)]
    if any(isinstance(node.op, Circulating) for node in program.function.nodes):
        sequences = [word for word in found if not word.axes.isdisjoint(extents.sequences)]
        found += [word.marked("~") for word in sequences]
    return tuple(found)


def _crossing(program: Program, axes: Sequence[Axis]) -> list[list[Axis]]:
    """Those of the axes that activations carry across borders of blocks, by the dim in which."""
    wanted, group = set(axes), program.blocks.group
    found: dict[int, dict[Axis, None]] = {}
    for block in program.blocks.blocks:
        for value in block.outputs:
            for dim, carried in enumerate(program.axes.dims[value]):
                own = (group.get(axis, axis) for axis in carried)
                found.setdefault(dim, {}).update(dict.fromkeys(a for a in own if a in wanted))
    taken: set[Axis] = set()
    groups: list[list[Axis]] = []
    for dim in sorted(found):
        groups.append([axis for axis in found[dim] if axis not in taken])
        taken |= found[dim].keys()
    return groups


class _Decisions:
    """What lists decide in a program."""

    def __init__(self, program: Program) -> None:
        kinds = dict.fromkeys(program.blocks.representative)
        found = dict.fromkeys(place for first in kinds for place in places_of(program, first))
        self._places = tuple(found)

    def of(self, entries: Sequence[AxisListEntry]) -> tuple[object, ...]:
        """What a list decides, place by place, and which of its axes are marked `~`."""
        axes = [*(entry.axis for entry in entries), None]
        chosen = (axes[place.decided(entries)] for place in self._places)
        spelled = (place.spelled_out(entries) < len(entries) for place in self._places)
        return (frozenset(entry.axis for entry in entries if entry.ring), *chosen, *spelled)


class AxisLists:
    """The lists of a workload's axes that make different plans."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._found: dict[object, tuple[str, ...]] = {}
        self._left_out: dict[str, None] = {}

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """The words of the workload's program."""
        return words_of(self._planner.program)

    @cached_property
    def _decisions(self) -> _Decisions:
        return _Decisions(self._planner.program)

    @property
    def can_split(self) -> bool:
        """Whether there is anything to split but samples."""
        return any(word.axes - {*self._planner.program.batches} for word in self.words)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was left out of the lists that were generated so far, one sentence per degree."""
        return tuple(self._left_out)

    def generated(
        self, strategy: Strategy, users: Sequence[str], known: Sequence[Strategy] = ()
    ) -> tuple[str, ...]:
        """Axis lists of some degrees of a strategy, as it would state them, each a plan of its own.

        Degrees of 1 have none; of several degrees, some may keep their own list. Of plans that are
        `known`, no lists are given.
        """
        users = [user for user in users if strategy.devices_along(user) > 1]
        words = {user: self._fitting(strategy, user) for user in users}
        # Sizes decide which words fit and what is padded, and nothing else about a placed program.
        every = {user: tuple(chain.from_iterable(own)) for user, own in words.items()}
        mesh, _ = self._planner.mesh(_stating(strategy, every))
        before = frozenset(map(self._planner.fingerprint, known))
        key = (mesh, before, *words.values())
        if key not in self._found:
            self._found[key] = tuple(self._distinct(strategy, words, before))
        return self._found[key]

    def _distinct(
        self,
        strategy: Strategy,
        words: Mapping[str, Sequence[Words]],
        before: Collection[int],
    ) -> Iterator[str]:
        """Lists whose plans differ from each other and from those with the fingerprints `before`,
        those of few words first."""
        seen = {*before}
        grown = {user: [(), *self._grown(strategy, user, own)] for user, own in words.items()}
        if math.prod(map(len, grown.values())) > MOST_PLANS:
            along = " and ".join(f"{user} {strategy.devices_along(user)}" for user in grown)
            self._leave_out(along, MOST_PLANS, "combinations of axis lists")
        for lists in islice(combined(list(grown.values())), MOST_PLANS):
            stated = {
                user: own for user, own in zip(grown, lists, strict=True) if own or own_degree(user)
            }
            made = _stating(strategy, stated)
            if any(lists) and self._planner.workload.explain_lists(made) is None:
                found = self._planner.fingerprint(made)
                if found not in seen:
                    seen.add(found)
                    yield made.axes

    def _fitting(self, strategy: Strategy, user: str) -> tuple[Words, ...]:
        """The names of words that a degree can split, of each as far as it can."""

        def fits(names: Words) -> bool:
            made = _stating(strategy, {user: names})
            return self._planner.workload.explain_lists(made) is None

        found = (
            word.names if fits(word.names) else tuple(each for each in word.labels if fits((each,)))
            for word in self.words
        )
        return tuple(names for names in found if names)

    def _grown(self, strategy: Strategy, user: str, words: Sequence[Words]) -> list[Words]:
        """Lists of one degree, word by word; where another list makes the same plan, it goes on
        instead."""
        entries = {names: entries_of(self._planner.program, names) for names in words}
        decided = {self._decisions.of(())}
        seen: set[int] = set()
        found: list[Words] = []
        ends: list[tuple[Words, ...]] = [()]
        while ends and len(found) < MOST_LISTS:
            shorter, ends = ends, []
            for chosen, names in product(shorter, words):
                every = (*chosen, names)
                decision = self._decisions.of([e for each in every for e in entries[each]])
                if decision in decided:
                    continue
                decided.add(decision)
                stated = tuple(name for each in every for name in each)
                plan = self._planner.fingerprint(_stating(strategy, {user: stated}))
                if plan not in seen:
                    seen.add(plan)
                    found.append(stated)
                    ends.append(every)
        if ends:
            self._leave_out(f"{user} {strategy.devices_along(user)}", MOST_LISTS, "axis lists")
        return found[:MOST_LISTS]

    def _leave_out(self, along: str, most: int, what: str) -> None:
        said = f"Of the {what} along {along}, only the first {most:,} are in the space, which have"
        self._left_out[f"{said} the fewest words."] = None


def combined(choices: Sequence[Sequence[Words]]) -> Iterator[tuple[Words, ...]]:
    """Every combination of a list from each of `choices`, those of few words first."""
    by_length: list[dict[int, list[Words]]] = [{} for _ in choices]
    for known, lists in zip(by_length, choices, strict=True):
        for names in lists:
            known.setdefault(len(names), []).append(names)
    for lengths in sorted(product(*by_length), key=sum):
        yield from product(*(known[n] for known, n in zip(by_length, lengths, strict=True)))


def _stating(strategy: Strategy, lists: Mapping[str, Words]) -> Strategy:
    """The strategy with these lists beside those that it states for other degrees."""
    every = {**strategy.axis_lists, **lists}
    return replace(strategy, axes=format_lists(in_order(every)))


__all__ = ["AxisLists", "Word", "words_of"]
