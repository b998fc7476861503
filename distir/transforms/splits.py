"""Which axes a block can be split over: heads, ffn, experts, vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from distir.axes.model import Axes, Axis
from distir.cost.work import OpClass
from distir.ir.core import Node, Op, Value
from distir.ir.signature import Kind
from distir.ops.elementwise import Cast, Identity
from distir.ops.tensor import Boundary, Concat, Expand, Reshape, Slice, Transpose
from distir.transforms.block import Block, Roles

_COPYING = (Boundary, Cast, Concat, Expand, Identity, Reshape, Slice, Transpose)
"""Ops whose results consist of elements of their operands."""


@dataclass(frozen=True, eq=False)
class Splits:
    """Axes that a block can be split over."""

    block: Block
    axes: Axes
    roles: Roles

    @property
    def internal(self) -> tuple[Axis, ...]:
        """Axes that tensor parallelism may split inside the block.

        A parameter carries the axis in an op that depends on an input, the axis does not cross the
        block's border, no op needs it whole, and it is summed only against parameters or chosen
        rows of them. Of attention's heads a norm may take the mean, too: devices add up a number
        per token. An axis that never occurs without another internal axis is left out.
        """
        return self._internal_and_secondary[0]

    @property
    def inner(self) -> tuple[tuple[Axis, Axis], ...]:
        """Pairs of an internal axis and a secondary one inside it that splits the same products of
        activations: heads of keys and values, and the query heads that read each of them."""
        internal, secondary = self._internal_and_secondary
        all_spaces = self._spaces_between_activations
        found: list[tuple[Axis, Axis]] = []
        for axis in internal:
            spaces = [space for space in all_spaces if axis in space]
            inside = (s for s, beside in secondary.items() if axis in beside) if spaces else ()
            inner = next((s for s in inside if all(s in space for space in spaces)), None)
            if inner is not None:
                found.append((axis, inner))
        return tuple(found)

    @property
    def heads(self) -> tuple[Axis, ...]:
        """Internal axes in the iteration space of a product of activations: attention's heads."""
        between = {axis for space in self._spaces_between_activations for axis in space}
        return tuple(axis for axis in self.internal if axis in between)

    @cached_property
    def experts(self) -> tuple[Axis, ...]:
        """Axes of experts inside the block: a product runs over them in parallel, with parameters
        of its own at each position. Both operands and the result carry such an axis."""
        excluded = self._passed | set(self.internal)
        return tuple(axis for axis in self._tally.experts if axis not in excluded)

    @cached_property
    def outputs(self) -> tuple[Axis, ...]:
        """Output axes: axes of parameters that do not leave the block, as the rows of an embedding
        table, or the columns of the model's head. No op sums over them, and only composites that
        can be lowered, such as the loss, need them whole."""
        found = self._tally.outputs.keys() - self._passed - set(self.internal)
        return tuple(axis for axis in self.block.axis_order(self.axes) if axis in found)

    @cached_property
    def _tally(self) -> _Tally:
        tally = _Tally(self.axes, self.roles, self.block.results)
        tally.add(self.block.nodes)
        return tally

    @cached_property
    def _passed(self) -> frozenset[Axis]:
        """The axes of the activations that cross the block's border."""
        crossing = (*self.block.inputs, *self.block.outputs)
        return frozenset(axis for value in crossing for axis in self.axes.of(value))

    @cached_property
    def _internal_and_secondary(
        self,
    ) -> tuple[tuple[Axis, ...], Mapping[Axis, Collection[Axis]]]:
        """The internal axes, and per secondary axis the axes that it never occurs without."""
        tally, passed = self._tally, self._passed
        found = {
            axis: place
            for place, axis in enumerate(
                axis for axis in tally.internal if axis not in passed and not tally.is_barred(axis)
            )
        }
        for axis in self._read_whole(found):
            del found[axis]
        together: dict[Axis, set[Axis]] = {}
        for node in self.block.nodes:
            present = found.keys() & self.axes.kinds[node].keys()
            for axis in present:
                together[axis] = together[axis] & present if axis in together else present
        primary: list[Axis] = []
        secondary: dict[Axis, Collection[Axis]] = {}
        for axis, place in found.items():
            beside = sorted(together[axis] - {axis}, key=found.__getitem__)
            if any(axis not in together[other] or found[other] < place for other in beside):
                secondary[axis] = beside
            else:
                primary.append(axis)
        return tuple(primary), secondary

    def _read_whole(self, axes: Collection[Axis]) -> set[Axis]:
        """Those of internal axes that meet another one in a product of activations, which occurs in
        more of these products and so splits this one: devices read the axis whole there, as the
        values of a head that all queries share."""
        spaces = self._spaces_between_activations
        count = Counter(axis for space in spaces for axis in space)
        found: set[Axis] = set()
        for space in spaces:
            present = [axis for axis in axes if axis in space]
            most = max((count[axis] for axis in present), default=0)
            found.update(axis for axis in present if count[axis] < most)
        return found

    @cached_property
    def _spaces_between_activations(self) -> list[Collection[Axis]]:
        """The iteration spaces of products that read no parameter and no chosen rows of one."""
        roles, chosen = self.roles, self._tally.chosen
        return [
            tuple(self.axes.kinds[node])
            for node in self.block.nodes
            if node.op.work(node.operand_types, node.result_types).kind is not OpClass.MEMORY
            and not any(value in roles.weights or chosen.has(value) for value in node.operands)
        ]


class _Tally:
    """What the ops of a piece say of axes, told op by op, so that a piece can grow at the cost of
    what is added."""

    def __init__(self, axes: Axes, roles: Roles, results: Iterable[Value]) -> None:
        """A piece without ops. `results` are the values that are outputs of the function."""
        self._axes, self._roles = axes, roles
        self._nodes: list[Node] = []
        self.chosen = _ChosenRows(axes, roles)
        self._unread = _UnreadResults(axes, results)
        self._samples: set[Axis] = set()
        self._forget()

    def _forget(self) -> None:
        """Forgets what was counted."""
        self.internal: dict[Axis, None] = {}
        """Axes that a parameter, or chosen rows of one, carries in an op that depends on an input,
        and that no op but a norm needs whole or sums without a parameter."""
        self.experts: dict[Axis, None] = {}
        """Axes that a product goes over in parallel, with parameters and with activations."""
        self.outputs: dict[Axis, None] = {}
        """Axes of matrices of parameters that no op sums over or, unless it can be lowered, needs
        whole, apart from axes of experts and of chosen rows."""
        self._normed: set[Axis] = set()
        """Axes that norms read, or other ops that make one number of many and are no products: all
        that devices would add up is small."""
        self._between: set[Axis] = set()
        """Axes of the iteration spaces of products between activations."""
        self.has_matrix = False
        """Whether an op sums over an axis of a parameter, or picks along one."""
        self._not_internal: set[Axis] = set()
        self._not_output: set[Axis] = set()

    def add(self, nodes: Sequence[Node]) -> None:
        """Counts ops that follow those counted so far."""
        is_new = [self.chosen.add(node) for node in nodes]
        if any(is_new) and self._nodes:  # ops counted before may read rows chosen by these
            self._forget()
            self._count(self._nodes)
        self._count(nodes)
        self._nodes += nodes
        for node in nodes:
            self._unread.add(node)

    def is_barred(self, axis: Axis) -> bool:
        """Whether an axis is no internal one after all: a norm reads it and it does not split
        attention, or it crosses the piece's border apart from activations that are live there, in a
        sample that no activation is combined with, or in a result that no op reads.

        Other results and samples may stay split, as the keys and values that an export takes from
        the previous step, or returns for the next one, do over attention's heads.
        """
        if axis in self._normed and axis not in self._between:
            return True
        return axis in self._samples or self._unread.carry(axis)

    def _count(self, nodes: Iterable[Node]) -> None:
        for table in self.chosen.tables:
            self._bar(self._axes.of(table), self.outputs, self._not_output)
        for node in nodes:
            self._count_one(node)

    def _count_one(self, node: Node) -> None:
        axes, roles, kinds = self._axes, self._roles, self._axes.kinds[node]
        weights = [value for value in node.operands if value in roles.weights]
        chosen = [value for value in node.operands if self.chosen.has(value)]
        samples = {a for v in node.operands if v in roles.samples for a in axes.of(v)}
        trained = {axis for value in weights for axis in axes.of(value)}
        carried = trained.union(*map(axes.of, chosen))
        if samples and not any(value in roles.activations for value in node.operands):
            self._samples |= samples
        summed = {axis for axis, kind in kinds.items() if kind in (Kind.SUM, Kind.MAX)}
        whole = {axis for axis, kind in kinds.items() if kind is Kind.WHOLE}
        picked = {axis for axis, kind in kinds.items() if kind is Kind.PICK}
        unsafe = summed - (carried - samples)
        lowerable = type(node.op).lower is not Op.lower
        is_product = node.op.work(node.operand_types, node.result_types).kind is not OpClass.MEMORY
        normed: set[Axis] = set() if is_product else unsafe | (whole if lowerable else set())
        self._normed |= normed
        if is_product and not weights and not chosen:
            self._between |= kinds.keys()
        self._bar((whole | picked | unsafe) - normed, self.internal, self._not_internal)
        self._bar(summed if lowerable else summed | whole, self.outputs, self._not_output)
        sums = {axis for axis in summed if kinds[axis] is Kind.SUM}
        self.has_matrix = self.has_matrix or not trained.isdisjoint(sums | picked)
        if any(value in roles.moving for value in node.operands):
            matrices = (v for v in weights if len(axes.of(v)) > 1)
            self._allow((a for a in kinds if a in carried), self.internal, self._not_internal)
            self._allow(
                (axis for value in matrices for axis in axes.of(value)),
                self.outputs,
                self._not_output,
            )
        if sums and weights:
            moving = {a for v in node.operands if v in roles.moving for a in axes.of(v)}
            both = [a for a in kinds if a in trained and a in moving and kinds[a] is Kind.PARALLEL]
            self.experts.update(dict.fromkeys(both))
            self._bar(both, self.outputs, self._not_output)

    @staticmethod
    def _bar(axes: Iterable[Axis], allowed: dict[Axis, None], barred: set[Axis]) -> None:
        for axis in axes:
            barred.add(axis)
            allowed.pop(axis, None)

    @staticmethod
    def _allow(axes: Iterable[Axis], allowed: dict[Axis, None], barred: set[Axis]) -> None:
        allowed.update((axis, None) for axis in axes if axis not in barred)


@dataclass(frozen=True, slots=True)
class Splittable:
    """Whether a piece has internal axes, output axes, and a matrix of parameters."""

    internal: bool = False
    output: bool = False
    has_matrix: bool = False


class GrowingPiece:
    """A piece of a function's ops on activations that takes up what follows it until it can be
    split. Weights computed outside count as parameters."""

    def __init__(
        self,
        axes: Axes,
        roles: Roles,
        results: Iterable[Value],
        readers: Mapping[Value, int],
    ) -> None:
        """A piece without ops. `results` are the outputs of the function, and `readers` are the
        numbers of ops that read its values."""
        self._axes, self._roles, self._readers = axes, roles, readers
        self._tally = _Tally(axes, roles, results)
        self._made: set[Value] = set()
        self._entered: set[Axis] = set()
        self._live: dict[Value, int] = {}

    def add(self, nodes: Sequence[Node]) -> Splittable:
        """Adds ops that follow those of the piece; what it has now that can be split.

        It has no internal axes but primary ones, as of several axes that occur together one is
        primary. Internal axes are counted as output axes, too.
        """
        self._tally.add(nodes)
        for node in nodes:
            self._follow(node)
        passed = self._entered.union(*map(self._axes.of, self._live))
        tally = self._tally
        return Splittable(
            any(axis not in passed and not tally.is_barred(axis) for axis in tally.internal),
            any(axis not in passed for axis in tally.outputs),
            tally.has_matrix,
        )

    def _follow(self, node: Node) -> None:
        """Keeps track of the activations that enter the piece, and of those that are live behind
        it, with the number of ops that are still to read them."""
        for value in dict.fromkeys(node.operands):
            if value in self._live:
                self._live[value] -= 1
                if not self._live[value]:
                    del self._live[value]
            elif value in self._roles.activations and value not in self._made:
                self._entered |= self._axes.of(value)
        self._made.update(node.results)
        self._live.update((v, self._readers[v]) for v in node.results if v in self._readers)


class _ChosenRows:
    """Values that are rows of a parameter, chosen by a sample, and that multiply activations, as
    the weights of the experts that tokens go through. Rows that become activations, as those of an
    embedding do, are not among them."""

    def __init__(self, axes: Axes, roles: Roles) -> None:
        self._axes, self._roles = axes, roles
        self._table: dict[Value, Value] = {}
        self.tables: dict[Value, None] = {}
        """The parameters whose rows multiply activations."""

    def has(self, value: Value) -> bool:
        """Whether a value is such rows."""
        return self._table.get(value) in self.tables

    def add(self, node: Node) -> bool:
        """Follows the rows through an op; whether it is the first that multiplies activations with
        the rows of a table."""
        roles, table = self._roles, self._table
        kinds = self._axes.kinds[node].values()
        first = node.operands[0] if node.operands else None
        if first in roles.weights and Kind.PICK in kinds:
            table.update((value, first) for value in node.results)
        elif first in table and node.op.is_view:
            table.update((value, table[first]) for value in node.results)
        elif Kind.SUM in kinds and any(value in table for value in node.operands):
            if any(v in roles.moving and v not in table for v in node.operands):
                known = len(self.tables)
                self.tables.update((table[v], None) for v in node.operands if v in table)
                return len(self.tables) > known
        return False


class _UnreadResults:
    """The axes of results that no op of a piece reads.

    A result is read, too, if it is a copy of a value that another op reads.
    """

    def __init__(self, axes: Axes, results: Iterable[Value]) -> None:
        """No ops yet; `results` are the values to look for."""
        self._axes, self._results = axes, frozenset(results)
        self._makers: dict[Value, Node] = {}
        self._readers: Counter[Value] = Counter()
        self._copied: dict[Value, list[Value]] = {}
        """Per unread result, itself and the values that it is a copy of."""
        self._result: dict[Value, Value] = {}
        """The same the other way round."""
        self._carriers: Counter[Axis] = Counter()
        """Per axis the number of unread results that carry it."""

    def carry(self, axis: Axis) -> bool:
        """Whether an unread result carries an axis."""
        return self._carriers[axis] > 0

    def add(self, node: Node) -> None:
        """Counts an op that follows those counted so far."""
        for value in dict.fromkeys(node.operands):
            self._readers[value] += 1
            if value in self._result:
                self._drop(self._result[value])
        for value in node.results:
            self._makers[value] = node
            if value in self._results:
                self._look_at(value)

    def _look_at(self, result: Value) -> None:
        """Adds a result that was just made, unless it is a copy of a value that another op
        reads."""
        copied = [result]
        while (maker := self._makers.get(copied[-1])) and isinstance(maker.op, _COPYING):
            if self._readers[maker.operands[0]] > 1:
                return
            copied.append(maker.operands[0])
        self._copied[result] = copied
        self._result.update((value, result) for value in copied)
        self._carriers.update(self._axes.of(result))

    def _drop(self, result: Value) -> None:
        """Takes out a result that an op reads after all."""
        for value in self._copied.pop(result):
            del self._result[value]
        self._carriers.subtract(self._axes.of(result))


__all__ = ["GrowingPiece", "Splits", "Splittable"]
