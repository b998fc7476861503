"""Unites the factors of one dim of an operand with the loops of the op that reads it."""

from __future__ import annotations

from collections.abc import Sequence

from distir.axes.factors import Factor, join, leaves, may_join, split

Ties = list[tuple[list[Factor], list[Factor]]]
"""Pairs of products of factors that always have equal sizes."""

Loops = list[list[Factor] | None]
"""Per loop of an op its factors; None while no operand has given them."""


def unify(
    loops: Loops, sizes: Sequence[int], product: Sequence[int], factors: list[Factor], ties: Ties
) -> list[Factor] | None:
    """Unites the factors of a dim with the loops whose `product` (by index) it is.

    Loops that are seen for the first time take their factors from the dim. Returns None if the
    factors could be united; otherwise the operand needs a boundary, and these are the factors that
    the dim must have behind it. Factors that stay different but equally long are added to `ties`.
    """
    rest = leaves(factors)
    changed = False
    result: list[Factor] = []
    for index in product:
        loop = loops[index]
        if loop is None:
            taken, rest, clash = _take(loops, sizes[index], rest, ties)
            loops[index] = taken
            result.extend(taken)
        else:
            rest, clash, now = _unite(loop, rest, ties)
            result.extend(now)
        changed |= clash
    return result if changed else None


def _take(
    loops: Loops, size: int, rest: list[Factor], ties: Ties
) -> tuple[list[Factor], list[Factor], bool]:
    """Takes the leading leaves of `rest` for a loop that is seen for the first time. A leaf that
    another loop of the op has already is replaced by a fresh one.

    Returns the loop's leaves, the leaves left over, and whether a boundary is needed.
    """
    present = set(leaves(f for loop in loops if loop is not None for f in loop))
    taken: list[Factor] = []
    clash = False
    rest = list(rest)
    while size > 1:
        leaf = rest.pop(0)
        if leaf.size > size and leaf.size % size == 0:
            leaf, remainder = split(leaf, size)
            rest.insert(0, remainder)
        elif size % leaf.size:
            return _regroup(taken, size, leaf, rest)
        if leaf in present:
            fresh = Factor(leaf.size)
            ties.append(([leaf], [fresh]))
            leaf, clash = fresh, True
        taken.append(leaf)
        present.add(leaf)
        size //= leaf.size
    return taken, rest, clash


def _regroup(
    taken: list[Factor], size: int, leaf: Factor, rest: list[Factor]
) -> tuple[list[Factor], list[Factor], bool]:
    """Where no refinement exists, gives the loop, and the leaves after it, fresh factors of the
    right sizes."""
    following = leaf.size
    while following % size:
        following *= rest.pop(0).size
    remainder = [Factor(following // size)] if following != size else []
    return [*taken, Factor(size)], [*remainder, *rest], True


def _unite(
    loop: list[Factor], rest: list[Factor], ties: Ties
) -> tuple[list[Factor], bool, list[Factor]]:
    """Unites a known loop with the leading leaves of `rest`. Returns the leaves left over, whether
    a boundary is needed, and the loop's leaves."""
    clash = False
    ours, theirs = leaves(loop), list(rest)
    seen: list[Factor] = []
    while ours:
        a, b = ours.pop(0).find(), theirs.pop(0).find()
        if a.children is not None or b.children is not None:
            ours[:0] = leaves([a])
            theirs[:0] = leaves([b])
            continue
        if a.size == b.size:
            if a is not b:
                if may_join(a, b):
                    join(a, b)
                else:
                    ties.append(([b], [a]))
                    clash = True
            seen.append(a.find())
        elif b.size % a.size == 0 and b.axis is None:
            theirs[:0] = split(b, a.size)
            ours.insert(0, a)
        elif a.size % b.size == 0 and a.axis is None:
            ours[:0] = split(a, b.size)
            theirs.insert(0, b)
        else:
            clash = True
            left, right = a.size, b.size
            seen.append(a)
            while left != right:
                if left < right:
                    if not ours:
                        theirs.insert(0, Factor(right // left))
                        break
                    a = ours.pop(0).find()
                    left *= a.size
                    seen.append(a)
                else:
                    right *= theirs.pop(0).size
    return theirs, clash, leaves(seen)
