"""Clusters: which levels a group of devices crosses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.cost import Cluster, ClusterLevel, load_cluster, load_device
from distir.cost.cluster import Senders
from distir.errors import ClusterError


def two_levels(num_devices: int, node: int = 8) -> Cluster:
    return Cluster(
        name="two",
        device=load_device("a100-sxm4-80gb"),
        levels=(
            ClusterLevel(
                name="node", size=node, bandwidth_bytes_per_second=3e11, latency_seconds=3e-6
            ),
            ClusterLevel(
                name="net", size=None, bandwidth_bytes_per_second=2e10, latency_seconds=1e-5
            ),
        ),
        num_devices=num_devices,
    )


@pytest.mark.parametrize(
    ("devices", "size", "stride", "fan_out", "rails"),
    [
        (16, 8, 1, (8, 1), (1, 8)),  # one node
        (16, 16, 1, (8, 2), (1, 8)),  # two whole nodes
        (64, 8, 8, (1, 8), (1, 1)),  # one device in each node
        (64, 16, 4, (2, 8), (1, 2)),  # two devices in each node
        (64, 4, 2, (4, 1), (1, 4)),  # every other device of a node
        (12, 12, 1, (8, 2), (1, 4)),  # the last node is partly used
        (12, 4, 3, (3, 2), (1, 1)),  # devices 0 3 6 | 9, and 2 5 | 8 11
        (12, 3, 1, (3, 2), (1, 1)),  # 6 7 | 8 straddles
    ],
)
def test_a_group_is_seen_by_each_level(
    devices: int, size: int, stride: int, fan_out: tuple[int, ...], rails: tuple[int, ...]
) -> None:
    group = two_levels(devices).group(size, stride)
    assert (group.fan_out, group.rails) == (fan_out, rails)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 60), st.data())
def test_fan_outs_agree_with_looking_at_every_group(
    node: int, rack: int, num_devices: int, data: st.DataObject
) -> None:
    levels = [
        ClusterLevel(name=str(size), size=size, bandwidth_bytes_per_second=1.0, latency_seconds=0.0)
        for size in (node, rack, None)
    ]
    device = load_device("a100-sxm4-80gb")
    cluster = Cluster(name="c", device=device, levels=tuple(levels), num_devices=num_devices)
    size = data.draw(st.integers(1, num_devices))
    stride = data.draw(st.integers(1, num_devices // size))
    group = cluster.group(size, stride)
    units = (1, node, node * rack, 10**9)
    blocks = max(1, num_devices // (size * stride))
    for level in range(3):
        fan_out, rails = 0, size
        for first in (b * size * stride + o for b in range(blocks) for o in range(stride)):
            members = [first + k * stride for k in range(size)]
            below = [member // units[level] for member in members]
            outer = {member // units[level + 1] for member in members}
            children = [
                len({m // units[level] for m in members if m // units[level + 1] == unit})
                for unit in outer
            ]
            fan_out = max(fan_out, *children)
            rails = min(rails, *(below.count(unit) for unit in below))
        assert group.fan_out[level] == fan_out
        assert group.rails[level] == rails


def test_a_message_crosses_the_outermost_level_between_its_ends() -> None:
    cluster = two_levels(32)
    assert cluster.crossed_level(1, Senders(0, 1)) == 0
    assert cluster.crossed_level(1, Senders(7, 1)) == 1
    assert cluster.crossed_level(4, Senders(0, 4)) == 0
    assert cluster.crossed_level(4) == 1
    assert cluster.crossed_level(16, Senders(0, 16)) == 1
    assert two_levels(8).crossed_level(4) == 0


def test_a_cluster_has_as_many_nodes_as_its_devices_need() -> None:
    cluster = two_levels(8)
    assert cluster.capacity == math.inf
    assert cluster.with_devices(20).num_devices == 20
    assert cluster.with_devices(20).devices_per_unit == (8, 20)
    assert hash(cluster.with_devices(20)) == hash(two_levels(20))


def test_a_cluster_that_cannot_be_says_why() -> None:
    node = ClusterLevel(name="node", size=8, bandwidth_bytes_per_second=1e9, latency_seconds=0)
    net = ClusterLevel(name="net", size=None, bandwidth_bytes_per_second=1e9, latency_seconds=0)
    device = load_device("a100-sxm4-80gb")
    box = Cluster(name="box", device=device, levels=(node,), num_devices=8)
    assert box.capacity == 8
    with pytest.raises(ClusterError, match="holds 8 devices, not 9"):
        box.with_devices(9)
    with pytest.raises(ClusterError, match="expected at least 1"):
        box.with_devices(0)
    with pytest.raises(ClusterError, match="only the outermost"):
        Cluster(name="odd", device=device, levels=(net, node), num_devices=8)
    with pytest.raises(ClusterError, match="at least one"):
        Cluster(name="none", device=device, levels=(), num_devices=8)
    with pytest.raises(ClusterError, match="bandwidth of level 'bad'"):
        ClusterLevel(name="bad", size=2, bandwidth_bytes_per_second=0, latency_seconds=0)
    with pytest.raises(ClusterError, match="no group of 4 devices 8 apart"):
        box.group(4, 8)
    with pytest.raises(ClusterError, match="no devices 8 apart"):
        box.crossed_level(8)


def test_a_node_is_a_unit_of_the_innermost_level_if_nobody_says_otherwise() -> None:
    assert two_levels(16).node_devices == 8
    assert replace(two_levels(16), devices_per_node=4).node_devices == 4
    assert load_cluster("gb200-nvl72").node_devices == 4
    assert load_cluster("dgx2-v100").node_devices == 16
    with pytest.raises(ClusterError, match=r"a node of cluster .* has 0 devices"):
        replace(two_levels(16), devices_per_node=0)


def test_load_cluster_takes_the_number_of_devices() -> None:
    assert load_cluster("dgx-a100").num_devices == 8
    assert load_cluster("dgx-a100", 1000).num_devices == 1000
