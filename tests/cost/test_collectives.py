"""Seconds of communication: golden cases by hand, and the laws between collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.cost import Cluster, ClusterLevel, CostModel, load_cluster, load_device, load_stack
from distir.cost.cluster import Senders
from distir.cost.collectives import (
    COLLECTIVES,
    CollectiveKind,
    Copies,
    Link,
    collective_seconds,
    exchange_of_copies,
)

IDEAL = load_stack("ideal")
STACKS = [load_stack(name) for name in ("ideal", "fsdp-compiled", "fsdp-eager")]
KINDS = list(COLLECTIVES)

sizes = st.floats(1, 1e12)
kinds = st.sampled_from(KINDS)
stacks = st.sampled_from(STACKS)

Case = tuple[CostModel, int, int]
"""A cost model, the size of a group of devices, and their stride."""


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One to three levels with any bandwidths, the last unit partly used."""
    depth = draw(st.integers(1, 3))
    levels = tuple(
        ClusterLevel(
            name=f"level {index}",
            size=None if index == depth - 1 else draw(st.integers(1, 6)),
            bandwidth_bytes_per_second=draw(st.floats(1e9, 1e12)),
            latency_seconds=draw(st.floats(0, 1e-4)),
            pair_bandwidth_bytes_per_second=draw(st.floats(1e9, 1e12) | st.just(float("inf"))),
        )
        for index in range(depth)
    )
    return Cluster(
        name="any",
        device=load_device("a100-sxm4-80gb"),
        levels=levels,
        num_devices=draw(st.integers(1, 40)),
    )


@st.composite
def models_and_groups(draw: st.DrawFn) -> Case:
    cluster = draw(clusters())
    stride = draw(st.integers(1, cluster.num_devices))
    size = draw(st.integers(1, 1 + (cluster.num_devices - 1) // stride))
    return CostModel(cluster, draw(stacks)), size, stride


def flat(num_devices: int, bandwidth: float, latency: float) -> CostModel:
    level = ClusterLevel(
        name="link", size=None, bandwidth_bytes_per_second=bandwidth, latency_seconds=latency
    )
    device = load_device("a100-sxm4-80gb")
    return CostModel(
        Cluster(name="flat", device=device, levels=(level,), num_devices=num_devices), IDEAL
    )


# --- golden ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "seconds"), [(2, 1.002), (4, 1.506), (8, 1.764)])
def test_ring_all_reduce_is_two_passes_over_the_ring(n: int, seconds: float) -> None:
    """2 (n-1)/n · 100 GB / 100 GB/s + 2 (n-1) · 1 ms."""
    ring = COLLECTIVES["all_reduce"]["ring"]
    assert ring(100e9, (Link(n, 1, 100e9, 1e-3),)) == pytest.approx(seconds)
    model = flat(n, 100e9, 1e-3)
    assert model.collective_seconds("all_reduce", 100e9, model.cluster.group(n)) == pytest.approx(
        seconds
    )


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("all_gather", 0.75 + 0.003),
        ("reduce_scatter", 0.75 + 0.003),
        ("all_to_all", 0.75 + 0.003),
        ("broadcast", 1.0 + 0.002),
    ],
)
def test_the_other_collectives_pass_once(kind: CollectiveKind, seconds: float) -> None:
    """4 devices, 100 GB at 100 GB/s, 1 ms per step; a broadcast goes down a tree of depth 2."""
    model = flat(4, 100e9, 1e-3)
    assert model.collective_seconds(kind, 100e9, model.cluster.group(4)) == pytest.approx(seconds)


def test_small_all_reduces_go_through_a_tree() -> None:
    """64 devices, one byte: 2 · 6 steps down and up a tree instead of 126 around a ring."""
    model = flat(64, 100e9, 1e-3)
    seconds = model.collective_seconds("all_reduce", 1.0, model.cluster.group(64))
    assert seconds == pytest.approx(0.012, rel=1e-6)


TWO_NODES = (Link(8, 1, 100e9, 1e-6), Link(2, 8, 10e9, 1e-5))
"""2 nodes of 8; 100 GB/s inside, 10 GB/s per device (80 per node) across."""


def test_across_nodes_every_device_uses_its_own_network_adapter() -> None:
    all_reduce = COLLECTIVES["all_reduce"]
    ring = 2 * 15 / 16 * 80e9 / 80e9 + 2 * (14 * 1e-6 + 1e-5)
    assert all_reduce["ring"](80e9, TWO_NODES) == pytest.approx(ring)
    inside = 2 * (7 / 8 * 0.8 + 7e-6)
    across = 2 * (1 / 2 * 10e9 / 10e9 + 1e-5)
    assert all_reduce["hierarchical"](80e9, TWO_NODES) == pytest.approx(inside + across)


def test_hierarchical_beats_the_flat_ring_exactly_where_arithmetic_says() -> None:
    """It saves 2 · 7 hops of 1 us and pays for passes that follow each other: 18.75 ps per byte."""
    all_reduce = COLLECTIVES["all_reduce"]
    ring_slope = 2 * 15 / 16 / 80e9
    hierarchical_slope = 2 * 7 / 8 / 100e9 + 2 * 1 / 2 / 80e9
    crossing = 14e-6 / (hierarchical_slope - ring_slope)
    for size, wins in ((0.99 * crossing, True), (1.01 * crossing, False)):
        ring = all_reduce["ring"](size, TWO_NODES)
        assert (all_reduce["hierarchical"](size, TWO_NODES) < ring) is wins


def test_a_message_takes_the_level_that_separates_its_ends() -> None:
    cluster = load_cluster("dgx-a100", 16)
    model = CostModel(cluster, IDEAL)
    inside, across = 3e8 / 300e9 + 3.4e-6, 3e8 / 25e9 + 14e-6
    assert model.point_to_point_seconds(3e8, 4, Senders(0, 4)) == pytest.approx(inside)
    assert model.point_to_point_seconds(3e8, 4, Senders(4, 4)) == pytest.approx(across)
    assert model.point_to_point_seconds(3e8, 4) == pytest.approx(across)
    assert model.point_to_point_seconds(3e8, 8) == pytest.approx(across)


# --- laws ------------------------------------------------------------------------------------


@given(models_and_groups(), kinds, sizes, st.floats(1, 10))
def test_more_bytes_never_take_less_time(
    case: Case, kind: CollectiveKind, size: float, factor: float
) -> None:
    model, members, stride = case
    group = model.cluster.group(members, stride)
    less = model.collective_seconds(kind, size, group)
    assert model.collective_seconds(kind, size * factor, group) >= less * (1 - 1e-12)


@given(models_and_groups(), kinds, sizes, st.data())
def test_better_links_never_hurt(
    case: Case, kind: CollectiveKind, size: float, data: st.DataObject
) -> None:
    model, members, stride = case
    cluster = model.cluster
    index = data.draw(st.integers(0, len(cluster.levels) - 1))
    level = cluster.levels[index]
    faster = replace(
        level,
        bandwidth_bytes_per_second=level.bandwidth_bytes_per_second * data.draw(st.floats(1, 9)),
        latency_seconds=level.latency_seconds * data.draw(st.floats(0, 1)),
    )
    levels = (*cluster.levels[:index], faster, *cluster.levels[index + 1 :])
    better = CostModel(replace(cluster, levels=levels), model.stack)
    group = cluster.group(members, stride)
    slow = model.collective_seconds(kind, size, group)
    assert better.collective_seconds(kind, size, group) <= slow * (1 + 1e-12)
    if stride < cluster.num_devices:
        assert better.point_to_point_seconds(size, stride) <= model.point_to_point_seconds(
            size, stride
        ) * (1 + 1e-12)


@pytest.mark.parametrize(("n", "seconds"), [(2, 1.0), (3, 2 / 3), (4, 0.5), (8, 0.35)])
def test_links_to_each_peer_add_up_as_the_group_grows(n: int, seconds: float) -> None:
    """2 (n-1)/n · 100 GB over n - 1 links of 100 GB/s, at most 500 GB/s in all."""
    model = flat(8, 500e9, 0.0)
    (level,) = model.cluster.levels
    mesh = replace(level, pair_bandwidth_bytes_per_second=100e9)
    model = CostModel(replace(model.cluster, levels=(mesh,)), IDEAL)
    found = model.collective_seconds("all_reduce", 100e9, model.cluster.group(n))
    assert found == pytest.approx(seconds)
    assert model.point_to_point_seconds(100e9, 1) == pytest.approx(1.0)


@given(models_and_groups(), sizes)
def test_an_all_reduce_is_at_most_a_reduce_scatter_and_an_all_gather(
    case: Case, size: float
) -> None:
    model, members, stride = case
    group = model.cluster.group(members, stride)
    parts = sum(
        model.collective_seconds(kind, size, group) for kind in ("reduce_scatter", "all_gather")
    )
    assert model.collective_seconds("all_reduce", size, group) <= parts * (1 + 1e-12)


@given(kinds, sizes, st.integers(1, 63), st.floats(1e9, 1e12), st.floats(0, 1e-4))
def test_on_equal_links_a_larger_group_never_takes_less_time(
    kind: CollectiveKind, size: float, n: int, bandwidth: float, latency: float
) -> None:
    model = flat(64, bandwidth, latency)
    smaller, larger = model.cluster.group(n), model.cluster.group(n + 1)
    assert model.collective_seconds(kind, size, smaller) <= model.collective_seconds(
        kind, size, larger
    ) * (1 + 1e-12)


@given(models_and_groups(), kinds, sizes)
def test_no_collective_beats_the_links_it_uses(
    case: Case, kind: CollectiveKind, size: float
) -> None:
    """One share of one member takes its time even if all links together carried it."""
    model, members, stride = case
    group = model.cluster.group(members, stride)
    widest = sum(
        link.bandwidth_bytes_per_second * link.rails for link in model.route(group)
    ) or float("inf")
    share = size * (members - 1) / members / members
    assert model.collective_seconds(kind, size, group) >= share / widest


@given(models_and_groups(), kinds)
def test_arrays_of_sizes_cost_what_their_elements_do(case: Case, kind: CollectiveKind) -> None:
    model, members, stride = case
    group = model.cluster.group(members, stride)
    many = np.array([0.0, 1e3, 1e6, 1e9])
    apart: Any = [model.collective_seconds(kind, size, group) for size in many.tolist()]
    together: Any = model.collective_seconds(kind, many, group)
    np.testing.assert_allclose(together, apart, rtol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_costs_nothing(kind: CollectiveKind) -> None:
    model = CostModel(load_cluster("dgx-a100"), load_stack("fsdp-eager"))
    assert model.collective_seconds(kind, 1e9, model.cluster.group(1)) == 0
    assert collective_seconds(kind, 1e9, ()) == 0


def test_neighbours_in_a_node_talk_faster_than_peers_across_nodes() -> None:
    """Swapping two mesh axes changes the time on two levels, and not on one."""
    model = CostModel(load_cluster("hgx-h100", 64), load_stack("fsdp-compiled"))
    inside, across = model.cluster.group(8, 1), model.cluster.group(8, 8)
    for kind in KINDS:
        assert model.collective_seconds(kind, 1e8, inside) < model.collective_seconds(
            kind, 1e8, across
        )
    even = flat(64, 1e11, 1e-6)
    assert even.collective_seconds("all_reduce", 1e8, even.cluster.group(8, 1)) == (
        even.collective_seconds("all_reduce", 1e8, even.cluster.group(8, 8))
    )


# --- copies of a row ------------------------------------------------------------------------------


def test_copies_of_a_row_are_in_as_many_places_as_chance_has_it() -> None:
    """One is in one place; two of two units are in the same half of the time."""
    assert Copies(1).places(8) == 1
    assert Copies(2).places(2) == pytest.approx(1.5)
    assert Copies(8).places(1) == 1
    # Of 4 of 8 groups: of 8 nodes 4, of 64 devices those of 4 nodes.
    limited = Copies(8, groups=8, chosen=4)
    assert limited.places(8) == pytest.approx(4 * (1 - 0.75**8))
    assert limited.places(64) == pytest.approx(32 * (1 - (31 / 32) ** 8))


def test_copies_cross_the_network_once_per_node() -> None:
    """Two nodes of two devices, 100 GB/s inside, 10 GB/s across, 4 GB in slots per device, two
    copies of each token. Sent one by one, 2 GB go across: 0.2 s. Of two copies the places are 1.5
    nodes on average, half of them the other one: 4 / 2 · 1.5 / 2 = 1.5 GB, 0.15 s."""
    route = (Link(2, 1, 100e9, 0.0), Link(2, 2, 10e9, 0.0))
    assert collective_seconds("all_to_all", 4e9, route) == pytest.approx(0.2)
    assert collective_seconds("all_to_all", 4e9, route, Copies(2)) == pytest.approx(0.15)


@given(
    st.lists(st.integers(2, 8), min_size=1, max_size=3),
    st.integers(1, 8),
    st.sampled_from([1, 2, 4, 8]),
    st.data(),
)
def test_copies_sent_once_cost_no_more(
    fan_outs: list[int], count: int, groups: int, data: st.DataObject
) -> None:
    """And the fewer groups they are in, the less."""
    rails = np.cumprod([1, *fan_outs])
    route = tuple(
        Link(n, int(r), 1e11 / 2**i, 0.0)
        for i, (n, r) in enumerate(zip(fan_outs, rails, strict=False))
    )
    chosen = data.draw(st.integers(1, groups))
    apart = COLLECTIVES["all_to_all"]["direct"](1e9, route)
    once = exchange_of_copies(1e9, route, Copies(count))
    near = exchange_of_copies(1e9, route, Copies(count, groups, chosen))
    assert near <= once * (1 + 1e-9)
    assert collective_seconds("all_to_all", 1e9, route, Copies(count)) <= apart * (1 + 1e-9)


# --- libraries -------------------------------------------------------------------------------


def nodes_of_eight(nodes: int) -> tuple[Link, Link]:
    """NVLink and InfiniBand as NCCL's model of latencies has them."""
    return (
        Link(8, 1, 200e9, 3.4e-6, "board"),
        Link(nodes, 8, 20e9, 14e-6, "network"),
    )


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_small_gathers_take_the_latency_of_nccls_model(kind: CollectiveKind) -> None:
    """1,024 devices on 128 nodes, protocol LL: 896 steps of 0.6 us over NVLink, and 127 of 2.7 us
    (src/graph/tuning.cc, ncclTopoTuneModel: nsteps, nInterSteps, hwLatencies)."""
    found = collective_seconds(kind, 1.0, nodes_of_eight(128), library="rings")
    assert found == pytest.approx(896 * 0.6e-6 + 127 * 2.7e-6, rel=1e-3)


def test_small_all_reduces_take_the_latency_of_nccls_trees() -> None:
    """2 · log2(128) steps of 5 us between nodes, and 2 · log2(8) of 0.6 us within."""
    found = collective_seconds("all_reduce", 1.0, nodes_of_eight(128), library="rings")
    assert found == pytest.approx(14 * 5e-6 + 6 * 0.6e-6, rel=1e-3)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_what_gathers_wait_for_grows_with_all_members(kind: CollectiveKind) -> None:
    """The linear latency of NCCL's rings "would show poor performance for small sizes and/or at
    scale" (Jeaugey 2025, PAT, abstract): four times as many nodes, four times the latency."""
    found: list[Any] = [
        collective_seconds(kind, 1.0, nodes_of_eight(nodes), library="rings")
        for nodes in (8, 32, 128)
    ]
    assert found[1] / found[0] == pytest.approx(4, rel=0.05)
    assert found[2] / found[1] == pytest.approx(4, rel=0.05)


@given(
    st.integers(2, 200),
    st.integers(2, 16),
    st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]),
    sizes,
)
def test_a_ring_takes_longer_the_more_nodes_it_goes_through(
    nodes: int, per_node: int, kind: CollectiveKind, size: float
) -> None:
    links = [
        (Link(per_node, 1, 200e9, 3.4e-6, "board"), Link(n, per_node, 20e9, 14e-6, "network"))
        for n in (nodes, 2 * nodes)
    ]
    fewer, more = (collective_seconds(kind, size, route, library="rings") for route in links)
    assert more > fewer
