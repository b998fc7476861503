"""Seconds of collectives: latency and bandwidth per level, the best of a few algorithms.

A route lists, innermost first, the levels that a group's members exchange over. With fan-out `f`
and `n = Π f` members, `S` bytes per device (the full tensor, before a scatter or after a gather),
one pass over the data (a reduce-scatter or an all-gather) takes

    ring          (n-1)/n · S / slowest rail        + hops · latency      (n-1 hops in all)
    hierarchical  Σ over levels of (f-1)/f · S / (rails · bandwidth) + (f-1) · latency

and an all-reduce two passes (Patarasuk and Yuan 2009; Cho et al. 2019), or a double binary tree,
`2 S / slowest rail + 2 Σ ⌈log2 f⌉ · latency` (Sanders et al. 2009). A shift hands `S` bytes to the
next member, `S / slowest link + latency`. NCCL's own model counts the same steps
(`src/graph/tuning.cc`). All are linear in `S`, and the best of them is concave: smooth but for the
bends where another algorithm takes over, monotone in bytes, bandwidth and latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from distir.cost.amounts import Amount, doublings, larger, smaller

__all__ = ["COLLECTIVES", "CollectiveKind", "Copies", "Link", "Route", "collective_seconds"]

CollectiveKind: TypeAlias = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "shift"
]


@dataclass(frozen=True, slots=True)
class Link:
    """One level of a route, as the members of a group see it; or of many groups whose routes have
    the same levels."""

    fan_out: Amount
    """Parties that exchange here, each a device or a unit of the level below; more than 1."""
    rails: Amount
    """Members in each party, every one of which sends over a link of its own."""
    bandwidth_bytes_per_second: Amount
    """Reached by one member, one direction."""
    latency_seconds: Amount
    """Of one step."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Of what an all-to-all sends, so many rows are copies of one, for members drawn at random, or
    partial sums for one: tokens on the way to experts and back. They are drawn from `chosen` of
    `groups` equal groups of neighbours, which are drawn first."""

    count: int
    groups: int = 1
    chosen: int = 1

    def places(self, units: Amount) -> Amount:
        """How many of so many units the copies of a row are expected in."""
        among = smaller(units, self.chosen * larger(1.0, units / self.groups))
        return among * (1 - (1 - 1 / among) ** self.count)


Route: TypeAlias = tuple[Link, ...]
Algorithm: TypeAlias = Callable[[Amount, Route], Amount]


def ring_pass(size_bytes: Amount, route: Route) -> Amount:
    """Reduce-scatter or all-gather around one ring per rail, ordered so that units are neighbours.

    One round crosses each outer level once per unit: with 2 nodes of 8, 14 hops inside and 1
    across.
    """
    members = _members(route)
    hops: Amount = members
    latency: Amount = 0.0
    for link in route:
        hops = hops // link.fan_out
        latency = latency + (link.fan_out - 1) * hops * link.latency_seconds
    return (members - 1) / members * size_bytes / _slowest_rail(route) + latency


def hierarchical_pass(size_bytes: Amount, route: Route) -> Amount:
    """Reduce-scatter or all-gather level by level; outer levels carry the shards of inner ones."""
    total: Amount = 0.0
    for link in route:
        share = size_bytes * ((link.fan_out - 1) / link.fan_out / link.rails)
        total = total + share / link.bandwidth_bytes_per_second
        total = total + (link.fan_out - 1) * link.latency_seconds
    return total


def tree_pass(size_bytes: Amount, route: Route) -> Amount:
    """Broadcast or reduction along a double binary tree, pipelined, every rail in use."""
    depth = sum(doublings(link.fan_out) * link.latency_seconds for link in route)
    return size_bytes / _slowest_rail(route) + depth


def direct_exchange(size_bytes: Amount, route: Route) -> Amount:
    """All-to-all in pairwise steps; a message takes the one level that separates its ends."""
    members = _members(route)
    below: Amount = 1
    busiest: Amount = 0.0
    latency: Amount = 0.0
    for link in route:
        peers = (link.fan_out - 1) * below
        busiest = larger(busiest, size_bytes * (peers / members) / link.bandwidth_bytes_per_second)
        latency = latency + peers * link.latency_seconds
        below = below * link.fan_out
    return busiest + latency


def hierarchical_exchange(size_bytes: Amount, route: Route) -> Amount:
    """All-to-all level by level, messages for one destination unit sent together."""
    total: Amount = 0.0
    for link in route:
        share = size_bytes * ((link.fan_out - 1) / link.fan_out)
        total = total + share / link.bandwidth_bytes_per_second
        total = total + (link.fan_out - 1) * link.latency_seconds
    return total


def exchange_of_copies(size_bytes: Amount, route: Route, copies: Copies) -> Amount:
    """All-to-all in which a row crosses a level once per unit that its copies are for, and is
    copied (or added up, on the way back) on the other side, while others are on their way
    (DeepSeek-AI 2024, section 3.2.2)."""
    busiest: Amount = 0.0
    latency: Amount = 0.0
    units: Amount = 1
    for link in reversed(route):
        units = units * link.fan_out
        share = copies.places(units) / copies.count * ((link.fan_out - 1) / link.fan_out)
        busiest = larger(busiest, size_bytes * share / link.bandwidth_bytes_per_second)
        latency = latency + (link.fan_out - 1) * link.latency_seconds
    return busiest + latency


def neighbour_exchange(size_bytes: Amount, route: Route) -> Amount:
    """Every member sends `size_bytes` to the next one of a single ring: the slowest link decides,
    which at the border of a unit is one member's own."""
    slowest = smaller(*(link.bandwidth_bytes_per_second for link in route))
    return size_bytes / slowest + larger(*(link.latency_seconds for link in route))


def _members(route: Route) -> Amount:
    return math.prod(cast("int", link.fan_out) for link in route)


def _slowest_rail(route: Route) -> Amount:
    """Bytes per second at the narrowest level when every member of a unit uses its own link."""
    return smaller(*(link.rails * link.bandwidth_bytes_per_second for link in route))


def _twice(algorithm: Algorithm) -> Algorithm:
    return lambda size_bytes, route: 2 * algorithm(size_bytes, route)


_PASS: Mapping[str, Algorithm] = {"ring": ring_pass, "hierarchical": hierarchical_pass}

COLLECTIVES: Mapping[CollectiveKind, Mapping[str, Algorithm]] = {
    "all_reduce": {
        "ring": _twice(ring_pass),
        "tree": _twice(tree_pass),
        "hierarchical": _twice(hierarchical_pass),
    },
    "all_gather": _PASS,
    "reduce_scatter": _PASS,
    "all_to_all": {"direct": direct_exchange, "hierarchical": hierarchical_exchange},
    "broadcast": {"tree": tree_pass},
    "shift": {"ring": neighbour_exchange},
}
"""Algorithms by collective: `(bytes, route) -> seconds`."""


def collective_seconds(
    kind: CollectiveKind, size_bytes: Amount, route: Route, copies: Copies | None = None
) -> Amount:
    """The best algorithm's time; an empty route (a group of one) costs nothing. `copies` are of an
    all-to-all that sends them once."""
    if not route:
        return 0.0 * size_bytes
    found = [algorithm(size_bytes, route) for algorithm in COLLECTIVES[kind].values()]
    if copies is not None:
        found.append(exchange_of_copies(size_bytes, route, copies))
    return smaller(*found)
