"""Splits degrees of parallelism into factors, where a degree does not divide an axis.

With 8 heads of keys and values, each read by 8 heads of queries, tp = 16 is 8 × 2: the first factor
splits the heads of keys and values, the second the queries of each. Similarly, ep = 8 with 2
replicas of 4 devices that share a sequence is 2 × 4: all of these devices share experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from distir.limits import MOST_MICROBATCHES


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of `number`, ascending."""
    found = [1]
    for prime, power in _prime_powers(number):
        found = [each * prime**exponent for each in found for exponent in range(power + 1)]
    return tuple(sorted(found))


def microbatch_counts(share: int) -> list[int]:
    """Into how many equal microbatches a replica's share of the batch, in samples, can be cut,
    ascending, as far as plans may have so many."""
    return [each for each in divisors(share) if each <= MOST_MICROBATCHES]


def _prime_powers(number: int) -> Iterator[tuple[int, int]]:
    """Prime factors of `number` with their exponents, by trial division."""
    prime = 2
    while prime * prime <= number:
        power = 0
        while number % prime == 0:
            number //= prime
            power += 1
        if power:
            yield prime, power
        prime += 1
    if number > 1:
        yield number, 1


def tensor_factors(
    sizes: Sequence[tuple[str, int]], inner: Mapping[str, int], degree: int, outer: int = 1
) -> tuple[int, ...]:
    """The factors of a degree of tensor parallelism, outermost first; `()` if it does not fit.

    `sizes` are the labels and sizes of the internal axes, all of which must be split equally. The
    outer factors, whose product is the greatest common divisor of an axis and the degree, split the
    axis; the others split the axis inside it, whose size `inner` gives by label. Where `outer` is
    stated, it is the product of the first factors.
    """
    ends = {1, outer, degree}
    for label, size in sizes:
        own = math.gcd(size, degree)
        if inner.get(label, 1) % (degree // own):
            return ()
        ends.add(own)
    ordered = sorted(ends)
    if any(large % small for small, large in pairwise(ordered)):
        return ()
    return tuple(large // small for small, large in pairwise(ordered)) or (1,)


@dataclass(frozen=True, slots=True)
class ExpertFactors:
    """The numbers of devices along each degree that share experts; `ep` is their product."""

    dp: int = 1
    cp: int = 1
    tp: int = 1


EXPERT_ORDERS = ("replicas", "nearest")
"""In which order devices are taken to share experts; see `expert_factors`."""


def expert_factors(
    ep: int, dp: int, cp: int, tp: int, etp: int = 0, order: str = "replicas"
) -> ExpertFactors | None:
    """The devices that share experts, or None if no choice makes `ep` of them.

    With the order `replicas` they are replicas if `ep` divides `dp`; otherwise devices of `cp`, as
    many as possible, and replicas. With `nearest` they are neighbours: devices of `cp`, and
    replicas if that is not enough. `etp` of the `tp` devices split the width of each expert; the
    other `tp / etp` share experts, before all others. 0 stands for as many as possible: all `tp`,
    or, if that does not fit, none.

    Megatron-Core has `nearest` with any `etp` (Liu et al. 2025, "MoE Parallel Folding"), and
    torchtitan has it with 1.
    """
    for split in (etp,) if etp else (tp, 1):
        sharing = tp // split
        if tp % split or ep % sharing:
            continue
        rest = ep // sharing
        alone = order == "replicas" and sharing == 1 and dp % rest == 0
        near = 1 if alone else _near(rest, cp, order)
        if near is not None and dp % (rest // near) == 0:
            return ExpertFactors(dp=rest // near, cp=near, tp=sharing)
    return None


def _near(ep: int, cp: int, order: str) -> int | None:
    """As many devices of `cp` as can be among `ep` devices that share experts; None if the nearest
    are no whole rows of them."""
    if order == "replicas":
        return math.gcd(ep, cp)
    return min(ep, cp) if max(ep, cp) % min(ep, cp) == 0 else None


__all__ = ["EXPERT_ORDERS", "ExpertFactors", "divisors", "expert_factors", "tensor_factors"]
