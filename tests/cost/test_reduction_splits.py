"""Whether a reduction over several levels should change its algorithm between them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from distir import load_cluster
from distir.cost import CostModel, load_stack
from distir.cost.collectives import COLLECTIVES, Link, Route, collective_seconds

ALL_REDUCES = COLLECTIVES["all_reduce"].values()


def outer_of_shards(route: Route, inner: int) -> Route:
    """The levels outside of the first `inner`, for the members of a unit that each have a shard:
    they share the links that the unit has."""
    members = math.prod(int(link.fan_out) for link in route[:inner])
    return tuple(
        Link(
            link.fan_out,
            1,
            link.bandwidth_bytes_per_second * link.rails / members,
            link.latency_seconds,
        )
        for link in route[inner:]
    )


def split_seconds(size_bytes: float, route: Route) -> Iterator[float]:
    """Seconds of all-reduces that are reduce-scatters within units, then all-reduces of shards
    between them, then all-gathers within units, each by its best algorithm."""
    for inner in range(1, len(route)):
        units, rest = route[:inner], outer_of_shards(route, inner)
        shard = size_bytes / math.prod(int(link.fan_out) for link in units)
        within = collective_seconds("reduce_scatter", size_bytes, units)
        within += collective_seconds("all_gather", size_bytes, units)
        yield float(within + min(algorithm(shard, rest) for algorithm in ALL_REDUCES))


@pytest.mark.parametrize(
    "name", ["hgx-h100", "dgx2-v100", "gb200-nvl72", "p3-v100-16gb", "mi300x-platform"]
)
@pytest.mark.parametrize("stack", ["ideal", "fsdp-compiled"])
def test_no_split_of_a_reduction_over_levels_gains_anything(name: str, stack: str) -> None:
    """Of the reductions that Xie et al. (2022) synthesise, those with three steps."""
    cluster = load_cluster(name, 1024)
    cost = CostModel(cluster, load_stack(stack))
    found = 0
    for size, stride in ((16, 1), (64, 2), (128, 8), (512, 1), (1024, 1)):
        route = cost.route(cluster.group(size, stride)) if size * stride <= 1024 else ()
        for size_bytes in np.logspace(3, 10, 8) if len(route) > 1 else ():
            best = collective_seconds("all_reduce", float(size_bytes), route)
            assert best <= min(split_seconds(float(size_bytes), route)) * (1 + 1e-9)
            found += 1
    assert found
