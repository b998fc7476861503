"""On which nodes of a cluster a launch has its devices.

A plan fills nodes one after the other, and the last one may be partly used; launchers start as many
processes on every node:

    12 devices, tp 4, nodes of 8    simulated     0 0 0 0 1 1 1 1 │ 2 2 2 2 · · · ·
                                    launched      0 0 0 0 │ 1 1 1 1 │ 2 2 2 2
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.launch.errors import LaunchError
from distir.cost import Cluster
from distir.factoring import divisors
from distir.plan.grid import DeviceGrid
from distir.units import counted


def node_sizes(cluster: Cluster) -> list[int]:
    """The devices that every node may have if all have as many, the most first. Raises
    `LaunchError` if the cluster has too few nodes for any."""
    used, node = cluster.num_devices, cluster.node_devices
    there = cluster.capacity / node
    found = [each for each in reversed(divisors(used)) if each <= node and used // each <= there]
    if not found:
        raise LaunchError(
            f"{used} devices cannot be launched on the {there:g} nodes of {node} devices of "
            f"{cluster.name}: launchers start equally many processes on every node; expected a "
            f"number divisible by a number of nodes, such as {used // node * node}"
        )
    return found


def launched_size(cluster: Cluster, grid: DeviceGrid) -> int:
    """The devices of every node that is launched: the most with which the devices of an axis are
    as near as simulated; if there is no such number, as near as can be."""
    axes = [(each.degree, each.stride) for each in (*grid.mesh, grid.ranks) if each.degree > 1]
    simulated = _crossed(cluster, axes)

    def farther(each: int) -> int:
        launched = _crossed(as_launched(cluster, each), axes)
        return sum(max(0, b - a) for a, b in zip(simulated, launched, strict=True))

    return min(node_sizes(cluster), key=lambda each: (farther(each), -each))


def _crossed(cluster: Cluster, axes: Sequence[tuple[int, int]]) -> list[int]:
    """By axis the outermost level over which its devices spread."""
    groups = [cluster.group(size, stride) for size, stride in axes]
    return [max(level for level, n in enumerate(g.fan_out) if n > 1) for g in groups]


def differs(cluster: Cluster, each: int) -> bool:
    """Whether nodes with so many devices are others than those that a plan fills."""
    return each < min(cluster.node_devices, cluster.num_devices)


def as_launched(cluster: Cluster, each: int) -> Cluster:
    """The cluster with the first `each` devices of every node alone. Raises `LaunchError` if it has
    too few nodes.

    A level within nodes keeps the devices that are whole units of it; where `each` cuts a unit, all
    units are as small as the pieces, which is never nearer than it is.
    """
    if not differs(cluster, each):
        return cluster
    node, there = cluster.node_devices, cluster.capacity / cluster.node_devices
    needed = cluster.num_devices // each
    if needed > there:
        raise LaunchError(
            f"{needed} nodes of {each} devices are needed, but {cluster.name} has {there:g}"
        )
    units = [
        math.gcd(unit, each) if unit < node else unit // node * each
        for unit in cluster.devices_per_unit
    ]
    sizes = [after // before for before, after in zip([1, *units], units, strict=False)]
    levels = tuple(
        level if level.size is None else replace(level, size=size)
        for level, size in zip(cluster.levels, sizes, strict=True)
    )
    host = cluster.host
    own = None if host is None else replace(host, devices=min(host.devices, each))
    return replace(cluster, levels=levels, host=own, devices_per_node=each)


def stated_size(nodes: object, each: object, devices: int) -> int | None:
    """The devices of every node that options of a launcher state, for so many devices in all; None
    if they do not say it as numbers, or speak of another number of devices."""
    try:
        size = int(str(each))
    except ValueError:
        return None
    if size < 1 or devices % size:
        return None
    try:
        return size if int(str(nodes)) * size == devices else None
    except ValueError:
        return size  # how many nodes there are is left open


def on_nodes(cluster: Cluster, each: int) -> str:
    """In words, the nodes that are launched."""
    return f"{counted(cluster.num_devices // each, 'node')} of {counted(each, 'device')}"
