"""Splits degrees of parallelism into factors, where a degree does not divide an axis.

With 8 heads of keys and values, each read by 8 heads of queries, tp = 16 is 8 × 2: the first factor
splits the heads of keys and values, the second the queries of each. Similarly, ep = 8 with 2
replicas of 4 devices that share a sequence is 2 × 4: all of these devices share experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


def tensor_factors(
    sizes: Sequence[tuple[str, int]], inner: Mapping[str, int], degree: int
) -> tuple[int, ...]:
    """The factors of a degree of tensor parallelism, outermost first; `()` if it does not fit.

    `sizes` are the labels and sizes of the internal axes, all of which must be split equally. The
    outer factors, whose product is the greatest common divisor of an axis and the degree, split the
    axis; the others split the axis inside it, whose size `inner` gives by label.
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
    """Why a degree of tensor parallelism does not fit these axes, and which degrees do; None if it
    fits. The arguments are those of `tensor_factors`."""
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
    """The numbers of devices along each degree that share experts; `ep` is their product."""

    dp: int = 1
    cp: int = 1
    tp: int = 1


def expert_factors(ep: int, dp: int, cp: int, tp: int) -> ExpertFactors | None:
    """The devices that share experts, or None if no choice makes `ep` of them.

    They are replicas if `ep` divides `dp`. Otherwise they are replicas and as many devices of `cp`
    as possible; or, if that does not fit either, replicas, devices of `cp` and all devices of `tp`,
    which then do not split the experts' width.

    The last two are Megatron-Core's expert parallelism with the same tensor parallelism for experts
    as for other layers, and with none for experts (Liu et al. 2025, "MoE Parallel Folding").
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
    """Why `ep` devices cannot share experts, and which numbers can; None if they can.

    `degrees` are `dp`, `cp` and `tp`; `sizes` are the labels and sizes of the axes of experts.
    """
    if ep == 1:
        return None
    if not sizes:
        return f"ep = {ep} shares experts, but the model has no axis of experts; ep = 1 would do"
    most = math.gcd(*(size for _, size in sizes))
    fitting = [n for n in range(1, most + 1) if most % n == 0 and expert_factors(n, *degrees)]
    label, size = next((each for each in sizes if each[1] % ep), sizes[0])
    if size % ep:
        fault = f"must divide the {label} ({size})"
    elif expert_factors(ep, *degrees) is None:
        named = zip(("dp", "cp", "tp"), degrees, strict=True)
        fault = f"does not fit {' x '.join(f'{name} {n}' for name, n in named)} devices"
    else:
        return None
    return f"ep = {ep} {fault}; {', '.join(map(str, fitting))} do"


__all__ = ["ExpertFactors", "expert_factors", "expert_refusal", "refusal", "tensor_factors"]
