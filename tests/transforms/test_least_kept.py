"""What is kept so that the rest can be made again is the least that suffices."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain, combinations
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from distir.ir import Builder, DType, Node, Value
from distir.ops.activations import Dropout, Relu
from distir.ops.arithmetic import Add
from distir.ops.tensor import Reshape
from distir.transforms.least_kept import FLOAT_BYTES, least_kept


class Case(NamedTuple):
    """Inputs, ops, what is read behind them, and the ops that may run again."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    read: frozenset[Value]
    again: frozenset[Node]

    @property
    def values(self) -> list[Value]:
        return [*self.inputs, *(value for node in self.nodes for value in node.results)]

    def storage(self, value: Value) -> Value:
        """What a view shows."""
        views = {
            v: node.operands[0] for node in self.nodes if node.op.is_view for v in node.results
        }
        while value in views:
            value = views[value]
        return value

    def suffices(self, kept: Collection[Value]) -> bool:
        """Whether all that is read is there, or can be made."""
        there = set(kept)
        for node in self.nodes:
            if node.op.is_view:
                there.update(v for v in node.results if node.operands[0] in there)
            elif node in self.again and there.issuperset(node.operands):
                there.update(node.results)
        return self.read <= there


def size(values: Collection[Value]) -> int:
    sizes = {True: FLOAT_BYTES, False: 1}
    return sum(v.type.num_elements * sizes[v.type.dtype.is_float] for v in values)


def subsets(values: Sequence[Value]) -> chain[tuple[Value, ...]]:
    return chain.from_iterable(combinations(values, n) for n in range(len(values) + 1))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    builder = Builder("graph")
    inputs = tuple(builder.input(f"x{i}", (2, 6), DType.FLOAT32) for i in range(2))
    values = list(inputs)
    for _ in range(draw(st.integers(1, 6))):
        op = draw(st.sampled_from([Relu(), Reshape((2, 6)), Add(), Dropout(0.1)]))
        count = 2 if isinstance(op, Add) else 1
        operands = [draw(st.sampled_from(values)) for _ in range(count)]
        values.append(builder.apply(op, *operands)[0])
    nodes = tuple(builder.nodes)
    made = [value for node in nodes for value in node.results]
    read = draw(st.frozensets(st.sampled_from([*inputs, *made]), min_size=1))
    again = draw(st.frozensets(st.sampled_from(nodes)))
    return Case(inputs, nodes, read, again)


@settings(deadline=None)
@given(cases())
def test_nothing_less_suffices(case: Case) -> None:
    kept = least_kept(case.nodes, case.inputs, case.read, case.again.__contains__)
    storages = [value for value in case.values if case.storage(value) is value]
    assert kept <= set(storages)
    assert case.suffices(kept)
    assert size(kept) == min(size(each) for each in subsets(storages) if case.suffices(each))


def test_a_mask_is_kept_rather_than_what_it_was_drawn_for() -> None:
    """One byte against two; unless what was dropped is needed too."""
    builder = Builder("dropout")
    x = builder.input("x", (4, 4), DType.FLOAT32)
    product = builder.add(Relu(), x)
    dropped, mask = builder.apply(Dropout(0.1), product)
    total = builder.add(Add(), dropped, x)
    again = {node for node in builder.nodes if not isinstance(node.op, Relu)}

    def kept(*read: Value) -> frozenset[Value]:
        return least_kept(builder.nodes, [x], read, again.__contains__)

    assert kept(mask) == {mask}
    assert kept(mask, total, x) == {product, x}
