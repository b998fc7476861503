"""Matrices that a file stores several times, although they are one parameter.

Exporters compute what depends on no input beforehand. Where a model uses a parameter several times,
as one that shares its layers does, or a head that is tied to an embedding, they store it once per
use, usually transposed.

Matrices that were trained apart do not have the same values, but those of layers that were copied
may, as long as they are as they were initialised (`nn.TransformerEncoder`). So equal values alone
are not enough. What nothing had to be computed of is stored once, however often it is used: equal
matrices are one parameter where the vectors that are added to their products are one. A matrix
that is read transposed, or one whose rows are looked up beside one that is multiplied, is a use of
the same parameter in any case.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from distir.errors import ImportModelError
from distir.importers.onnx_file import GraphRecord, TensorRecord
from distir.units import counted

_LOOKED_AT = 32
"""Elements of the middle row and column by which matrices are told apart at first: the first rows
of an embedding may be those of padding, which are zero."""

_LEAST_DISTINCT = 4
"""Distinct values among these, without which a matrix may be as it was initialised: with zeros,
with ones on a diagonal, with the same numbers in every row."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What a stored matrix is a copy of, by name, and whether it is transposed."""

    of: str
    is_turned: bool


def stored_twice(graph: GraphRecord) -> Mapping[str, Copy]:
    """Per stored matrix of floats with the values of another one: of which. That is one in which
    rows are looked up, if there is such, otherwise the first."""
    uses = _Uses.of(graph)
    alike: dict[tuple[object, ...], list[str]] = {}
    for name, record in graph.initializers.items():
        is_matrix = len(record.shape) > 1 and record.num_elements > 0
        if is_matrix and record.dtype.is_float and record.has_values():
            alike.setdefault((record.dtype, *sorted(record.shape)), []).append(name)
    found: dict[str, Copy] = {}
    for names in alike.values():
        if len(names) > 1:
            tensors = {name: graph.initializers[name] for name in names}
            found.update(_copies(tensors, uses))
    return found


def told(copies: Mapping[str, Copy]) -> str:
    """What to tell the user of copies that have become one parameter with what they are copies
    of."""
    name, copy = next(iter(copies.items()))
    more = f"; likewise {counted(len(copies) - 1, 'other')}" if len(copies) > 1 else ""
    way = ", transposed" if copy.is_turned else ""
    return (
        f"{name} has the values of {copy.of}{way}, as when an exporter writes a shared parameter "
        f"several times; they are treated as one parameter{more}"
    )


@dataclass(frozen=True, slots=True)
class _Uses:
    """What a graph does with the tensors that it stores."""

    tables: Container[str]
    """Those whose rows are looked up."""
    added: Mapping[str, frozenset[str]]
    """Per tensor that is multiplied, the stored vectors that are added to the products."""
    stated: Container[str]
    """Those of which the exporter says that each is a parameter."""

    @classmethod
    def of(cls, graph: GraphRecord) -> _Uses:
        """The uses in a graph."""
        sums: dict[str, set[str]] = {}
        for node in graph.nodes:
            if node.op_type == "Add" and len(node.operands) == 2:  # else the file is damaged
                for one, other in (node.operands, node.operands[::-1]):
                    if other in graph.initializers:
                        sums.setdefault(one, set()).add(other)
        added: dict[str, set[str]] = {}
        for node in graph.nodes:
            first, *others = node.operands or ("",)
            vectors = {own for each in node.results for own in sums.get(each, ())}
            if node.op_type in _WITH_BIAS:
                vectors.update(each for each in others[1:2] if each in graph.initializers)
            for each in (first, *others[:1]):
                added.setdefault(each, set()).update(vectors)
        stated = {name for name, kind in graph.stated_kinds.items() if kind == "PARAMETER"}
        looked_up = (node for node in graph.nodes if node.op_type == "Gather")
        tables = {name for node in looked_up for name in node.operands[:1]}
        return cls(tables, {name: frozenset(own) for name, own in added.items()}, stated)

    def are_of_one(self, name: str, other: str, *, is_turned: bool) -> bool:
        """Whether two tensors with equal values are one parameter."""
        if name in self.stated and other in self.stated:
            return False
        if is_turned or (name in self.tables) != (other in self.tables):
            return True
        vectors = self.added.get(name, frozenset())
        return bool(vectors) and vectors == self.added.get(other)


_WITH_BIAS = ("Gemm", "Conv", "ConvTranspose")
"""Ops whose third operand is added to products of the second one."""

_Edge = tuple[tuple[int, ...], bytes, bytes]
"""A shape, and the first elements of the middle row and of the middle column."""


def _copies(tensors: Mapping[str, TensorRecord], uses: _Uses) -> Iterator[tuple[str, Copy]]:
    """The copies among tensors with the same sizes in some order."""
    edges = {name: edge for name, record in tensors.items() if (edge := _edge(record)) is not None}
    originals: dict[_Edge, list[str]] = {}
    for name in sorted(edges, key=lambda name: name not in uses.tables):
        copy = _copy_of(name, originals, tensors, edges, uses)
        if copy is None:
            originals.setdefault(edges[name], []).append(name)
        else:
            yield name, copy


def _edge(record: TensorRecord) -> _Edge | None:
    """What a matrix is looked up by; None if they may be as they were initialised, or
    cannot be read."""
    import numpy as np

    try:
        rows = record.load(mapped=True).reshape(record.shape[0], -1)
    except ImportModelError:
        return None
    height, width = rows.shape
    row, column = rows[height // 2, :_LOOKED_AT], rows[:_LOOKED_AT, width // 2]
    if min(len(np.unique(each.astype(np.float32))) for each in (row, column)) < _LEAST_DISTINCT:
        return None
    return record.shape, row.tobytes(), column.tobytes()


def _copy_of(
    name: str,
    originals: Mapping[_Edge, Sequence[str]],
    tensors: Mapping[str, TensorRecord],
    edges: Mapping[str, _Edge],
    uses: _Uses,
) -> Copy | None:
    """What a tensor is a copy of; None if it is of none of `originals`."""
    shape, row, column = edges[name]
    for is_turned, edge in ((False, edges[name]), (True, (shape[::-1], column, row))):
        for other in originals.get(edge, ()):
            if (
                not (is_turned and len(shape) > 2)
                and uses.are_of_one(name, other, is_turned=is_turned)
                and _equal(name, other, tensors, is_turned)
            ):
                return Copy(other, is_turned)
    return None


def _equal(name: str, other: str, tensors: Mapping[str, TensorRecord], is_turned: bool) -> bool:
    import numpy as np

    a, b = (tensors[each].load(mapped=True) for each in (name, other))
    return bool(np.array_equal(a, b.T if is_turned else b))


__all__ = ["Copy", "stored_twice", "told"]
