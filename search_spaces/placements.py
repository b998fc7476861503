"""Orders in which degrees are laid on the devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import permutations

from distir.strategy import PLACEMENT
from search_spaces.parameters import Value


def orders(active: Collection[str]) -> list[str]:
    """Every order in which degrees can be laid on the devices, the usual one first; degrees of 1
    (not `active`) stand where they stand in it."""
    usual = [name for name in PLACEMENT.split("-") if name in active]
    found: list[str] = []
    for order in permutations(usual):
        left = iter(order)
        names = (next(left) if name in active else name for name in PLACEMENT.split("-"))
        found.append("-".join(names))
    return found


def distinct_orders(active: Collection[str], placements: Iterable[Value]) -> list[Value]:
    """The first of all placements that lay the active degrees in the same order."""
    found: dict[tuple[str, ...], Value] = {}
    for placement in placements:
        order = tuple(name for name in str(placement).split("-") if name in active)
        found.setdefault(order, placement)
    return list(found.values())


__all__ = ["distinct_orders", "orders"]
