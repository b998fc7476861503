"""How degrees may be split into factors, where one axis, or one degree, alone does not divide.

With 8 heads of keys and values, each for 8 heads of queries, tp = 16 is 8 × 2: the first factor
splits the heads of keys and values, the second the queries of each. And with 2 replicas whose
sequences 4 devices share, experts shared by 8 are shared by all of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ExpertFactors:
    """How many devices along each degree share experts."""

    dp: int = 1
    cp: int = 1
    tp: int = 1


def expert_factors(ep: int, dp: int, cp: int, tp: int) -> ExpertFactors | None:
    """The devices that share experts: replicas; or, where `ep` does not divide their number, also
    the devices that share a sequence, nearest first; or also those of tensor parallelism, all of
    them, which then does not split the experts' width. None if there is no way.

    The last two are Megatron-Core's expert parallelism with as much tensor parallelism for experts
    as for all else, and with none (Liu et al. 2025, "MoE Parallel Folding").
    """
    if dp % ep == 0:
        return ExpertFactors(dp=ep)
    for whole in (1, tp):
        rest, uneven = divmod(ep, whole)
        near = math.gcd(rest, cp)
        if not uneven and dp % (rest // near) == 0:
            return ExpertFactors(dp=rest // near, cp=near, tp=whole)
    return None


def expert_refusal(
    ep: int, degrees: tuple[int, int, int], sizes: Sequence[tuple[str, int]]
) -> str | None:
    """Why experts cannot be shared by so many of `dp`, `cp` and `tp` devices, and what would do; or
    None. `sizes` are the axes of experts."""
    if ep == 1:
        return None
    if not sizes:
        return f"ep = {ep} shares experts, and the model has no axis of them; ep = 1 would do"
    most = math.gcd(*(size for _, size in sizes))
    fitting = [n for n in range(1, most + 1) if most % n == 0 and expert_factors(n, *degrees)]
    label, size = next((each for each in sizes if each[1] % ep), sizes[0])
    if size % ep:
        fault = f"must divide the {label} ({size})"
    elif expert_factors(ep, *degrees) is None:
        named = zip(("dp", "cp", "tp"), degrees, strict=True)
        fault = f"is shared by none of {' x '.join(f'{name} {n}' for name, n in named)} devices"
    else:
        return None
    return f"ep = {ep} {fault}; {', '.join(map(str, fitting))} do"


__all__ = ["ExpertFactors", "expert_factors", "expert_refusal", "refusal", "tensor_factors"]
