"""How tensor parallelism may be split into factors, where one axis alone does not divide by it.

With 8 heads of keys and values, each for 8 heads of queries, tp = 16 is 8 × 2: the first factor
splits the heads of keys and values, the second the queries of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise


def tensor_factors(
    sizes: Sequence[tuple[str, int]], inner: Mapping[str, int], degree: int
) -> tuple[int, ...]:
    """The factors of `degree`, outermost first: `()` if there is no way.

    `sizes` are the axes that must divide. Of each the first factors, up to their greatest common
    divisor, split the axis itself, and the others the axis inside it that `inner` gives, if any.
    """
    ends = {1, degree}
    for label, size in sizes:
        own = math.gcd(size, degree)
        if inner.get(label, 1) % (degree // own):
            return ()
        ends.add(own)
    ordered = sorted(ends)
    if any(large % small for small, large in pairwise(ordered)):
        return ()
    return tuple(large // small for small, large in pairwise(ordered)) or (1,)


def refusal(sizes: Sequence[tuple[str, int]], inner: Mapping[str, int], degree: int) -> str | None:
    """Why tensor parallelism of this degree does not fit these axes, and what would do; or None."""
    if tensor_factors(sizes, inner, degree):
        return None
    label, size = next((a for a in sizes if not tensor_factors([a], inner, degree)), sizes[0])
    within = f", each of {inner[label]} queries" if inner.get(label, 1) > 1 else ""
    most = math.gcd(*(size * inner.get(label, 1) for label, size in sizes))
    suited = [n for n in range(1, most + 1) if most % n == 0 and tensor_factors(sizes, inner, n)]
    return (
        f"{label} ({size}{within}) does not divide by tp = {degree}; "
        f"{', '.join(map(str, suited))} do"
    )


__all__ = ["refusal", "tensor_factors"]
