"""Layouts spoken of without axes, so that equal blocks can share them."""

from __future__ import annotations

from distir.axes.model import Axis, AxisDims
from distir.transforms.moves import FLAT, Layout

Positions = tuple[object, ...]
"""A layout without axes: per mesh axis None, `Pending`, `FLAT`, or (dim, place in the dim)."""


def positions_of(layout: Layout, dims: AxisDims) -> Positions:
    """What a layout says about any value whose dims have the same structure."""
    found: list[object] = []
    for spot in layout:
        if isinstance(spot, Axis) and spot is not FLAT:
            place = next((d, f.index(spot)) for d, f in enumerate(dims) if spot in f)
            found.append(place)
        else:
            found.append(spot)
    return tuple(found)


def layout_at(positions: Positions, dims: AxisDims) -> Layout:
    """The inverse of `positions_of`, for a value with these dims."""
    return tuple(
        dims[spot[0]][spot[1]] if isinstance(spot, tuple) else spot  # type: ignore[index,misc]
        for spot in positions
    )
