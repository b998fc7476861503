"""Seconds of collectives: the best of a few algorithms, from latency and bandwidth per level.

Which algorithms there are is a fact of the collective library (`CollectiveLibrary`).

A route lists, innermost first, the levels over which the members of a group exchange data. With
fan-outs `f`, `n = Π f` members and `S` bytes per device (the full tensor, before a scatter or after
a gather), one pass over the data (a reduce-scatter or an all-gather) takes

    ring          (n-1)/n · S / slowest rail        + hops · latency      (n-1 hops in all)
    hierarchical  Σ over levels of (f-1)/f · S / (rails · bandwidth) + (f-1) · latency

and an all-reduce two passes (Patarasuk and Yuan 2009; Cho et al. 2019), or a double binary tree,
`2 S / slowest rail + 2 Σ ⌈log2 f⌉ · latency` (Sanders et al. 2009). A shift hands `S` bytes to the
next member, `S / slowest link + latency`. NCCL's own model counts the same steps
(`src/graph/tuning.cc`). Changing the algorithm between levels, as reductions that are synthesised
for a hierarchy do (Xie et al. 2022), gains nothing on the clusters here
(tests/cost/test_reduction_splits.py).

NCCL and RCCL have the ring alone for gathers and scatters of groups with several devices per node,
and ring or tree for all-reduces: the latency of a gather grows with all its members (`tuning.cc`,
ncclTopoTuneModel; Jeaugey 2025, PAT, arXiv 2506.20252; Singh et al. 2025, arXiv 2504.18658).

Every algorithm's time is linear in `S`, so the best time is concave in `S`, with bends where
another algorithm becomes the best, and monotone in bytes, bandwidth and latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from distir.cost.amounts import Amount, doublings, larger, smaller

__all__ = [
    "COLLECTIVES",
    "CollectiveKind",
    "CollectiveLibrary",
    "Copies",
    "Link",
    "Medium",
    "Route",
    "collective_seconds",
]

Medium: TypeAlias = Literal["board", "network"]
"""Direct links between devices (NVLink, Infinity Fabric, PCIe), or network adapters."""
CollectiveLibrary: TypeAlias = Literal["rings", "levels"]
"""How a collective library gathers and reduces over several levels.

- `rings`: around one ring of all members, an all-reduce also along a tree, with `PROTOCOLS` for
  small and large messages (NCCL, RCCL).
- `levels`: around a ring, along a tree, or level by level, outer levels carrying the shards of
  inner ones (PCCL), with one protocol.
"""
CollectiveKind: TypeAlias = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "shift",
    "to_host",
    "to_device",
]


@dataclass(frozen=True, slots=True)
class Link:
    """One level of the route of a group; or, as arrays, of many groups whose routes have the same
    levels."""

    fan_out: Amount
    """Parties that exchange data over this level, each a device or a unit of the level below; more
    than 1."""
    rails: Amount
    """Members in each party. Every member sends over its own link."""
    bandwidth_bytes_per_second: Amount
    """Bandwidth that one member reaches, in one direction."""
    latency_seconds: Amount
    """Latency of one step."""
    medium: Medium = "board"


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies among the rows that an all-to-all sends: tokens on the way to their experts and back.

    Each row is one of `count` copies of a token, whose receivers are drawn at random (on the way
    back: one of `count` partial sums). The receivers are drawn from `chosen` of `groups` equal
    groups of neighbouring members, and these groups are drawn first.
    """

    count: int
    groups: int = 1
    chosen: int = 1

    def places(self, units: Amount) -> Amount:
        """The expected number of units, of `units` in all, that receive a copy of a given token."""
        among = smaller(units, self.chosen * larger(1.0, units / self.groups))
        return among * (1 - (1 - 1 / among) ** self.count)


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a library moves data. Latencies are fractions of that of a step of large messages around
    a ring, by medium; bandwidths of what large messages reach."""

    ring_latency: Mapping[Medium, float]
    ring_bandwidth: float
    tree_latency: Mapping[Medium, float]
    tree_bandwidth: float


PROTOCOLS = (
    Protocol({"board": 1.0, "network": 1.0}, 1.0, {"board": 4.0 / 3.4, "network": 1.0}, 1.0),
    Protocol(
        {"board": 1.9 / 3.4, "network": 4.0 / 14.0},
        120 / 128,
        {"board": 1.25 / 3.4, "network": 8.5 / 14.0},
        120 / 128,
    ),
    Protocol(
        {"board": 0.6 / 3.4, "network": 2.7 / 14.0},
        0.5,
        {"board": 0.6 / 3.4, "network": 5.0 / 14.0},
        1 / 3.8,
    ),
)
"""NCCL's protocols Simple, LL128 and LL (src/graph/tuning.cc, hwLatencies over NVLink and the
network, and the factors of `busBw`): flags that travel with the data spare synchronisation, and
take room."""

Route: TypeAlias = tuple[Link, ...]
Algorithm: TypeAlias = Callable[[Amount, Route], Amount]


def ring_pass(size_bytes: Amount, route: Route) -> Amount:
    """Reduce-scatter or all-gather around one ring per rail.

    Members of a unit are neighbours on the ring, so that one round crosses an outer level once per
    unit: with 2 nodes of 8 devices, 14 hops are within a node and 1 is between nodes.
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
    """Broadcast or reduction along a pipelined double binary tree that uses every rail."""
    depth = sum(doublings(link.fan_out) * link.latency_seconds for link in route)
    return size_bytes / _slowest_rail(route) + depth


def direct_exchange(size_bytes: Amount, route: Route) -> Amount:
    """All-to-all in pairwise steps. A message crosses only the outermost level between its ends."""
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
    """All-to-all level by level; messages for the same destination unit are sent together."""
    total: Amount = 0.0
    for link in route:
        share = size_bytes * ((link.fan_out - 1) / link.fan_out)
        total = total + share / link.bandwidth_bytes_per_second
        total = total + (link.fan_out - 1) * link.latency_seconds
    return total


def exchange_of_copies(size_bytes: Amount, route: Route, copies: Copies) -> Amount:
    """All-to-all that sends a token over a level once per receiving unit.

    The token is copied (on the way back: summed) on the far side while other tokens are on their
    way (DeepSeek-AI 2024, section 3.2.2).
    """
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
    """Every member sends `size_bytes` to the next member of a single ring.

    The slowest link decides; at the border of a unit only one member's link is in use.
    """
    slowest = smaller(*(link.bandwidth_bytes_per_second for link in route))
    return size_bytes / slowest + larger(*(link.latency_seconds for link in route))


def _members(route: Route) -> Amount:
    return math.prod(cast("int", link.fan_out) for link in route)


def _slowest_rail(route: Route) -> Amount:
    """Bytes per second at the narrowest level while every member of a unit uses its own link."""
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

_WITH_PROTOCOLS: Collection[CollectiveKind] = ("all_reduce", "all_gather", "reduce_scatter")
"""What a library of rings has no other algorithms for, each with all protocols."""


def _seconds(
    kind: CollectiveKind, size_bytes: Amount, route: Route, library: CollectiveLibrary
) -> Iterator[Amount]:
    """Seconds of a collective by every algorithm of a library."""
    if library == "levels" or kind not in _WITH_PROTOCOLS:
        for algorithm in COLLECTIVES[kind].values():
            yield algorithm(size_bytes, route)
        return
    ring, tree = (COLLECTIVES[kind].get(name) for name in ("ring", "tree"))
    for each in PROTOCOLS:
        if ring is not None:
            yield ring(size_bytes, _scaled(route, each.ring_latency, each.ring_bandwidth))
        if tree is not None:
            yield tree(size_bytes, _scaled(route, each.tree_latency, each.tree_bandwidth))


def _scaled(route: Route, latency: Mapping[Medium, float], bandwidth: float) -> Route:
    return tuple(
        Link(
            link.fan_out,
            link.rails,
            link.bandwidth_bytes_per_second * bandwidth,
            link.latency_seconds * latency[link.medium],
            link.medium,
        )
        for link in route
    )


def collective_seconds(
    kind: CollectiveKind,
    size_bytes: Amount,
    route: Route,
    copies: Copies | None = None,
    library: CollectiveLibrary = "levels",
) -> Amount:
    """Seconds of the best algorithm that a library has for a collective.

    `size_bytes` is the full tensor per device (see `CostModel.collective_seconds`). An empty route
    (a group of one) takes no time. `copies` describes the rows of an all-to-all whose software
    sends a token to a unit once; without it every row is sent by itself.
    """
    if not route:
        return 0.0 * size_bytes
    seconds = list(_seconds(kind, size_bytes, route, library))
    if copies is not None:
        seconds.append(exchange_of_copies(size_bytes, route, copies))
    return smaller(*seconds)
