"""Factors: what axis inference unites. A union–find whose classes may also be products of others.

The dims of values and the loops of ops are products of factors. A *leaf* is a factor that is not
refined into others; when inference is done, every leaf is an axis. Factors that are *apart* must
stay different axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distir.axes.model import Axis


class Factor:
    """A member of a class of equal factors; the class is a leaf, or the product of `children`.

    `parent`, `children`, `apart` and `axis` count only on the representative, which `find` gives.
    `axis` is set if the factor is a known axis from the start.
    """

    __slots__ = ("apart", "axis", "children", "parent", "size")

    def __init__(self, size: int, axis: Axis | None = None) -> None:
        self.size = size
        self.parent: Factor | None = None
        self.children: list[Factor] | None = None
        self.apart: set[Factor] = set()
        self.axis = axis

    def find(self) -> Factor:
        """The representative of the factor's class."""
        factor = self
        while factor.parent is not None:
            if factor.parent.parent is not None:
                factor.parent = factor.parent.parent
            factor = factor.parent
        return factor


def leaves(factors: Iterable[Factor]) -> list[Factor]:
    """The leaves that factors are products of, as representatives, outermost first."""
    found: list[Factor] = []
    for factor in factors:
        root = factor if factor.parent is None else factor.find()
        if root.children is None:
            found.append(root)
        else:
            found += leaves(root.children)
    return found


def set_apart(factors: Sequence[Factor]) -> None:
    """Declares that no two of these leaves are the same axis."""
    for i, a in enumerate(factors):
        for b in factors[:i]:
            if a is not b and b not in a.apart:
                a.apart.add(b)
                b.apart.add(a)


def split(leaf: Factor, outer_size: int) -> list[Factor]:
    """Refines a leaf into `outer_size × rest`; both are apart from whatever the leaf was."""
    parts = [Factor(outer_size), Factor(leaf.size // outer_size)]
    for part in parts:
        part.apart = set(leaf.apart)
    for other in leaf.apart:
        other.apart.discard(leaf)
        other.apart.update(parts)
    leaf.apart = set()
    leaf.children = parts
    set_apart(parts)
    return parts


def may_join(a: Factor, b: Factor) -> bool:
    """Whether two leaves of equal size may be the same axis."""
    return b not in a.apart and (a.axis is None or b.axis is None or a.axis is b.axis)


def join(a: Factor, b: Factor) -> None:
    """Makes two leaves of equal size one."""
    if len(a.apart) < len(b.apart):
        a, b = b, a
    for other in b.apart:
        other.apart.discard(b)
        other.apart.add(a)
    a.apart |= b.apart
    b.apart = set()
    b.parent = a
    if a.axis is None:
        a.axis = b.axis
