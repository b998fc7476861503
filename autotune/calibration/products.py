"""A table of measured products from whole runs.

A run does not say what its products took, only what all of it took. But runs whose products have
the same sizes err alike, whatever else they differ in. So products that come together in runs are a
*family*, and all of a family take longer than the cost model says by one factor, on the device and
on the host: the factor with which the runs of the family are right, in the middle. What else takes
too long in such runs, as collectives of these sizes, is in that factor, too; so the table belongs
to the software and the constants that it was made with. Products that several families share are
moved by each in turn, and what is left between families falls to those that they do not share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, TypeAlias

from autotune.calibration.constants import applied
from autotune.calibration.pricing import Priced
from distir.cost import MeasuredProduct, MeasuredProducts
from distir.errors import DistirError
from distir.simulation.pricing.instructions import Pricing

__all__ = ["one_device", "products_of_runs", "with_products"]

MOST_FACTOR = 4.0
"""Products take at most this many times longer, or shorter, than the cost model says."""
CLOSE, MOST_STEPS = 0.002, 12
"""When the middle of a family's runs counts as right, and how often its factor is changed."""
TURNS = 3
"""How often each family is made right: it may share products with others."""
MOST_RUNS = 9
"""Runs that tell a factor."""


class Shape(NamedTuple):
    """The type and the sizes of a product."""

    dtype: str
    rows: int
    columns: int
    inner: int
    batch: int


class Taken(NamedTuple):
    """Seconds of a product on the device, and on the host to launch it."""

    seconds: float
    launch_seconds: float

    def times(self, factor: float) -> Taken:
        """Both longer by a factor."""
        return Taken(self.seconds * factor, self.launch_seconds * factor)


Products: TypeAlias = "dict[Shape, Taken]"
Factors: TypeAlias = "dict[Shape, float]"
"""By product how much longer it takes than the cost model says."""


def products_of_runs(
    rows: Sequence[Priced],
    values: Mapping[str, float],
    progress: Callable[[str], None] = lambda _: None,
) -> MeasuredProducts:
    """The products of runs, with seconds that make the middle of runs with equal products right;
    `values` are the constants of all else. Raises `DistirError` unless all runs are on one kind of
    device."""
    timed = [row for row in rows if row.case.measured.seconds is not None]
    device = one_device(timed)
    families = _families(timed, values)
    modelled = dict[Shape, Taken]()
    for _, products in families:
        modelled.update(products)
    factors = dict.fromkeys(modelled, 1.0)
    for turn in range(TURNS):
        for number, (own, products) in enumerate(families):
            known = {shape: factors[shape] for shape in products}
            factor = _factor(own, modelled, known, values, device)
            factors.update(_times(known, factor))
            progress(f"turn {turn + 1}, {number + 1} of {len(families)}: x {factor:.2f}")
    software = sorted({row.case.software.name for row in timed})
    return _table(device, "; ".join(software), _taken(modelled, factors))


def one_device(rows: Sequence[Priced]) -> str:
    """The kind of device that runs are on. Raises `DistirError` unless it is one."""
    devices = sorted({row.case.hardware.cluster.device.name for row in rows})
    if len(devices) != 1:
        raise DistirError(
            f"the runs are on {', '.join(devices) or 'no device'}; expected runs with a time on "
            "one kind of device: choose with --hardware or --source"
        )
    return devices[0]


def with_products(row: Priced, products: MeasuredProducts | None) -> Priced:
    """A row whose software has these measured products."""
    return replace(row, stack=replace(row.stack, products=products))


def _families(
    rows: Sequence[Priced], values: Mapping[str, float]
) -> list[tuple[list[Priced], Products]]:
    """Rows with equal products, at most `MOST_RUNS` of them, evenly chosen, with what the cost
    model says of these products."""
    found: dict[frozenset[Shape], tuple[list[Priced], Products]] = {}
    for row in rows:
        products = _modelled(row, values)
        found.setdefault(frozenset(products), ([], products))[0].append(row)
    return [(own[:: -(-len(own) // MOST_RUNS)], products) for own, products in found.values()]


def _factor(
    rows: Sequence[Priced],
    modelled: Products,
    known: Factors,
    values: Mapping[str, float],
    device: str,
) -> float:
    """How much longer the products of a family take than is known of them so far."""

    def off(logarithm: float) -> float:
        table = _table(device, "", _taken(modelled, _times(known, math.exp(logarithm))))
        return median(
            math.log(with_products(row, table).seconds(values) / (row.case.measured.seconds or 1.0))
            for row in rows
        )

    return math.exp(_root(off, math.log(MOST_FACTOR)))


def _times(factors: Factors, factor: float) -> Factors:
    """Factors of products that take longer by a further one, within `MOST_FACTOR`."""
    return {
        shape: min(max(each * factor, 1 / MOST_FACTOR), MOST_FACTOR)
        for shape, each in factors.items()
    }


def _taken(modelled: Products, factors: Factors) -> Products:
    """The products that have factors, longer by these than the cost model says."""
    return {shape: modelled[shape].times(factor) for shape, factor in factors.items()}


@dataclass(slots=True)
class _End:
    """An end of an interval, and how far off it is."""

    at: float
    off: float


def _root(off: Callable[[float], float], reach: float) -> float:
    """Where a growing function is zero, between `-reach` and `reach`, or the end that is nearer to
    it: false position, in which an end that stays counts half (Dowell and Jarratt 1971)."""
    middle = _End(0.0, off(0.0))
    if abs(middle.off) < CLOSE:
        return 0.0
    side = -reach if middle.off > 0 else reach
    end = _End(side, off(side))
    if end.off * middle.off > 0:
        return side
    below, above = sorted((middle, end), key=lambda each: each.at)
    at = 0.0
    for _ in range(MOST_STEPS):
        at = (below.at * above.off - above.at * below.off) / (above.off - below.off)
        found = off(at)
        if abs(found) < CLOSE:
            break
        if found < 0:
            below = _End(at, found)
            above.off /= 2
        else:
            above = _End(at, found)
            below.off /= 2
    return at


def _modelled(row: Priced, values: Mapping[str, float]) -> Products:
    """The products of a row, with the seconds that the cost model gives them."""
    plain = with_products(row, None)
    simulator = plain.simulator.repriced(*applied(values, row.case, plain.stack))
    pricing = Pricing.of(simulator.cost, row.plan)
    programs = dict.fromkeys(program for stage in row.plan.stages for program in stage.programs)
    found: Products = {}
    for program in programs:
        for node in (*program.forward, *program.backward):
            for shape, seconds, launch in pricing.products(node):
                sizes = (shape.rows, shape.columns, shape.inner, shape.batch)
                found[Shape(shape.dtype, *map(int, sizes))] = Taken(float(seconds), float(launch))
    return found


def _table(device: str, versions: str, taken: Mapping[Shape, Taken]) -> MeasuredProducts:
    points = (MeasuredProduct(*shape, *each) for shape, each in sorted(taken.items()))
    return MeasuredProducts(device, versions, tuple(points))
