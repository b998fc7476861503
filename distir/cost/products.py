"""Measured seconds of matrix products, by shape.

Which kernel a library picks for a shape, and how well the shape fills the device, no closed form
says: errors of a third either way repeat wherever the shape does. Who has measured products may
say so in a table, and where it holds it takes the place of the cost model's rate. It holds on the
device that it names, for the types and sizes that it lists, and between two of its points that
differ in their rows alone; it is never carried on beyond its points.

A product has `rows` of one operand, `columns` of the other and an `inner` size that is summed, and
it may come `batch` times side by side. The rows of activations are the tokens of a microbatch. The
gradient of a weight sums over the tokens, so there it is the inner size along which a table is
read between its points.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np

from distir.arrays import distinct_rows
from distir.cost.amounts import Amount, many
from distir.cost.reader import toml_value
from distir.errors import ClusterError
from distir.limits import LONGEST_SECONDS

__all__ = ["MeasuredProduct", "MeasuredProducts", "ProductShape", "products_text"]

MOST_PRODUCTS = 1_000_000
"""Points of a table: more are a slip in the file."""

_Key: TypeAlias = "tuple[str, int, int, int]"
_Line: TypeAlias = "tuple[list[int], list[float]]"
"""Sizes in order, and the seconds at each."""


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The sizes of a matrix product, which may be arrays with one number per plan, and the type in
    which it runs."""

    dtype: str
    rows: Amount
    columns: Amount
    inner: Amount
    batch: Amount = 1


@dataclass(frozen=True, slots=True)
class MeasuredProduct:
    """Seconds that the device took for a product, launch not counted, and those that the host took
    to launch it; None: as long as the software stack says."""

    dtype: str
    rows: int
    columns: int
    inner: int
    batch: int
    seconds: float
    launch_seconds: float | None = None

    @property
    def flops(self) -> float:
        """A multiply and an add per term."""
        return 2.0 * self.batch * self.rows * self.columns * self.inner


@dataclass(frozen=True)
class MeasuredProducts:
    """A table of measured products. Raises `ClusterError` for seconds that nothing takes, and for a
    product that is listed twice."""

    device: str
    """Name of the device on which they were measured; on others the table is not used."""
    versions: str
    """The software that ran them."""
    points: tuple[MeasuredProduct, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.points) <= MOST_PRODUCTS:
            raise ClusterError(
                f"the table of products has {len(self.points):,}; expected at least one, at most "
                f"{MOST_PRODUCTS:,}"
            )
        seen: set[object] = set()
        for point in self.points:
            shape = (point.dtype, point.batch, point.rows, point.columns, point.inner)
            launch = 0.0 if point.launch_seconds is None else point.launch_seconds
            if not (0 < point.seconds <= LONGEST_SECONDS and 0 <= launch <= LONGEST_SECONDS):
                raise ClusterError(
                    f"the product {_named(point)} takes {point.seconds} s and its launch {launch} "
                    "s; expected more than 0, at most a century"
                )
            if shape in seen:
                raise ClusterError(f"the product {_named(point)} is listed twice")
            seen.add(shape)

    def __str__(self) -> str:
        return f"{len(self.points):,} measured on {self.device} with {self.versions}"

    def holds_on(self, device: str) -> bool:
        """Whether the table is about the device of this name."""
        return device == self.device

    def seconds(self, shape: ProductShape, otherwise: Amount) -> Amount:
        """Seconds of a product's kernel where the table has it, and `otherwise` elsewhere."""
        return self._kernels.read(shape, otherwise)

    def launch_seconds(self, shape: ProductShape, otherwise: Amount) -> Amount:
        """Seconds that the host takes for a product where the table has them, and `otherwise`
        elsewhere."""
        return self._launches.read(shape, otherwise)

    def least_seconds_per_flop(self, dtype: str) -> float:
        """What no product in this type takes less than, where the table has it; infinite if the
        table has none. Between two points it lies between theirs."""
        return min(
            (point.seconds / point.flops for point in self.points if point.dtype == dtype),
            default=math.inf,
        )

    @cached_property
    def least_launch_seconds(self) -> float:
        """What no launch takes less than, where the table has it; infinite if it has none."""
        return min(
            (p.launch_seconds for p in self.points if p.launch_seconds is not None),
            default=math.inf,
        )

    @cached_property
    def _kernels(self) -> _Lines:
        return _Lines.of((point, point.seconds) for point in self.points)

    @cached_property
    def _launches(self) -> _Lines:
        stated = ((point, point.launch_seconds) for point in self.points)
        return _Lines.of((point, each) for point, each in stated if each is not None)


@dataclass(frozen=True, slots=True)
class _Lines:
    """Seconds along the lines of a table: by rows where type, batch, columns and inner size are
    equal, and by inner size where type, batch, and rows and columns in either order are."""

    by_rows: Mapping[_Key, _Line]
    by_inner: Mapping[_Key, _Line]

    @classmethod
    def of(cls, points: Iterable[tuple[MeasuredProduct, float]]) -> _Lines:
        """The lines through points."""
        listed = list(points)
        return cls(
            _lines(((p.dtype, p.batch, p.columns, p.inner), p.rows, s) for p, s in listed),
            _lines(
                ((p.dtype, p.batch, *sorted((p.rows, p.columns))), p.inner, s) for p, s in listed
            ),
        )

    def read(self, shape: ProductShape, otherwise: Amount) -> Amount:
        """Seconds of a shape where the lines have it, and `otherwise` elsewhere."""
        sizes = (shape.batch, shape.rows, shape.columns, shape.inner)
        if not any(isinstance(size, np.ndarray) for size in sizes):
            found = self._at(shape.dtype, *(int(size) for size in sizes))
            return otherwise if found is None else found
        rows = np.stack(np.broadcast_arrays(*(np.atleast_1d(size) for size in sizes)), axis=-1)
        first, which = distinct_rows(cast("Any", rows.astype(np.int64)))
        listed = [self._at(shape.dtype, *map(int, rows[place])) for place in first]
        known = np.array([math.nan if each is None else each for each in listed])[which]
        return many(np.where(np.isnan(known), np.asarray(otherwise), known))

    def _at(self, dtype: str, batch: int, rows: int, columns: int, inner: int) -> float | None:
        found = _between(self.by_rows.get((dtype, batch, columns, inner)), rows)
        if found is None:
            weight = (dtype, batch, min(rows, columns), max(rows, columns))
            found = _between(self.by_inner.get(weight), inner)
        return found


def _lines(points: Iterable[tuple[Any, int, float]]) -> dict[_Key, _Line]:
    """Points as lines of growing size; of several at one size, as of a product and its transpose,
    the mean counts."""
    found: dict[Any, dict[int, list[float]]] = {}
    for key, size, seconds in points:
        found.setdefault(key, {}).setdefault(size, []).append(seconds)
    return {
        key: (
            sorted(line),
            [math.fsum(line[size]) / len(line[size]) for size in sorted(line)],
        )
        for key, line in found.items()
    }


def _between(line: _Line | None, size: int) -> float | None:
    """Seconds at a point of a line, or between two of them as a power of the size; None beyond."""
    if line is None:
        return None
    sizes, seconds = line
    at = bisect_left(sizes, size)
    if at == len(sizes) or (at == 0 and sizes[0] != size):
        return None
    if sizes[at] == size:
        return seconds[at]
    part = math.log(size / sizes[at - 1]) / math.log(sizes[at] / sizes[at - 1])
    return seconds[at - 1] * (seconds[at] / seconds[at - 1]) ** part


def _named(point: MeasuredProduct) -> str:
    times = f"{point.batch} x " if point.batch > 1 else ""
    return f"{times}{point.rows} x {point.columns} x {point.inner} in {point.dtype}"


def products_text(table: MeasuredProducts, remark: str) -> str:
    """A table as TOML that `load_products` reads. `remark` says in the first line where it comes
    from."""
    lines = [f"# {remark}", f"device = {toml_value(table.device)}"]
    lines += [f"versions = {toml_value(table.versions)}", "products = ["]
    for point in table.points:
        batch = f"batch = {point.batch}, " if point.batch > 1 else ""
        host = (
            "" if point.launch_seconds is None else f', launch = "{_micro(point.launch_seconds)}"'
        )
        lines.append(
            f'  {{ dtype = "{point.dtype}", rows = {point.rows}, columns = {point.columns}, '
            f'inner = {point.inner}, {batch}seconds = "{_micro(point.seconds)}"{host} }},'
        )
    return "\n".join([*lines, "]"]) + "\n"


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:.5g} us"
