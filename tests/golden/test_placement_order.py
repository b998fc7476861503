"""In which order degrees are laid on the devices: what it changes, by arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_model
from distir.cost import Cluster, ClusterLevel, CostModel, load_device, load_stack
from distir.errors import StrategyError
from distir.plan.grid import DeviceGrid
from distir.simulation import SimulationResult
from distir.transforms.place import Mesh

GB = 1e9
SWITCH = ClusterLevel(name="node", size=4, bandwidth_bytes_per_second=100 * GB, latency_seconds=0.0)
NETWORK = ClusterLevel(
    name="net", size=None, bandwidth_bytes_per_second=10 * GB, latency_seconds=0.0
)
ORDERS = ("tp-cp-ep-dp-pp", "dp-cp-ep-tp-pp", "pp-cp-ep-dp-tp", "tp-pp-dp-cp-ep")


def cluster(*levels: ClusterLevel, devices: int = 8) -> Cluster:
    device = load_device("a100-sxm4-80gb")
    return Cluster(name="c", device=device, levels=levels, num_devices=devices)


def simulated(cluster: Cluster, placement: str) -> SimulationResult:
    workload = Workload(model=load_model("gpt2-xs"), batch_size=8)
    strategy = Strategy(dp=2, tp=2, pp=2, microbatches=2, placement=placement)
    simulator = Simulator(workload, cluster, load_stack("ideal"))
    return simulator.simulate(strategy)


def test_strides_follow_the_order() -> None:
    mesh = Mesh(("dp", "cp", "tp"), ((), (), ()), {})
    grid = DeviceGrid.of(mesh, (4, 3, 2), 5, "tp-cp-ep-dp-pp")
    assert [grid.stride(name) for name in ("tp", "cp", "dp", "pp")] == [1, 2, 6, 24]
    grid = DeviceGrid.of(mesh, (4, 3, 2), 5, "dp-pp-tp-ep-cp")
    assert [grid.stride(name) for name in ("dp", "pp", "tp", "cp")] == [1, 4, 20, 40]


def test_factors_of_one_choice_lie_together_the_last_innermost() -> None:
    mesh = Mesh(("a", "b", "tp"), ((), (), ()), {}, ("dp", "dp", "tp"))
    grid = DeviceGrid.of(mesh, (3, 2, 4), 1, "dp-tp-cp-ep-pp")
    assert [grid.stride(name) for name in ("b", "a", "tp")] == [1, 2, 6]


def test_a_swap_changes_the_time_across_levels_and_nothing_on_a_flat_cluster() -> None:
    flat = [simulated(cluster(NETWORK), order) for order in ORDERS]
    assert len({each.metrics["iteration_seconds"] for each in flat}) == 1
    pairs = cluster(replace(SWITCH, size=2), NETWORK)
    usual, swapped = (simulated(pairs, order) for order in ORDERS[:2])
    assert usual.metrics["iteration_seconds"] != swapped.metrics["iteration_seconds"]
    near, far = (each.stages[0].seconds for each in (usual, swapped))
    assert near["tp_communication"] < far["tp_communication"]
    assert near["dp_communication"] > far["dp_communication"]


def test_every_device_is_somewhere() -> None:
    mesh = Mesh(("dp", "cp", "tp"), ((), (), ()), {})
    for order in itertools.permutations(("tp", "cp", "ep", "dp", "pp")):
        grid = DeviceGrid.of(mesh, (2, 3, 4), 5, "-".join(order))
        numbers = {
            sum(k * each.stride for k, each in zip(place, (*grid.mesh, grid.ranks), strict=True))
            for place in itertools.product(range(2), range(3), range(4), range(5))
        }
        assert numbers == set(range(120))
        for rank in range(5):
            senders = grid.senders(rank)
            own = {
                senders.start + block * senders.period + k
                for block in range(senders.repeats)
                for k in range(senders.width)
            }
            assert own == {n for n in range(120) if n // grid.ranks.stride % 5 == rank}


def test_a_hop_between_neighbours_stays_inside_a_node() -> None:
    """Ranks innermost: 0 and 1 share a node, so a message of 1 GB takes 10 ms instead of 100."""
    cost = CostModel(cluster(SWITCH, NETWORK), load_stack("ideal"))
    mesh = Mesh(("dp",), ((),), {})
    for order, expected in (("pp-dp-tp-cp-ep", 0.01), ("dp-pp-tp-cp-ep", 0.1)):
        grid = DeviceGrid.of(mesh, (4,), 2, order)
        hop = cost.point_to_point_seconds(GB, grid.stride("pp"), grid.senders(0))
        assert hop == pytest.approx(expected)


# --- hierarchical all-reduce ----------------------------------------------------------------------


def all_reduce(nodes: int, per_node: int, inner: float, outer: float, latency: float) -> float:
    levels = (
        ClusterLevel(
            name="node",
            size=per_node,
            bandwidth_bytes_per_second=inner,
            latency_seconds=latency,
        ),
        ClusterLevel(
            name="net", size=None, bandwidth_bytes_per_second=outer, latency_seconds=latency
        ),
    )
    devices = nodes * per_node
    cost = CostModel(cluster(*levels, devices=devices), load_stack("ideal"))
    group = cost.cluster.group(devices)
    return float(cost.collective_seconds("all_reduce", GB, group))


@pytest.mark.parametrize(
    ("nodes", "per_node", "inner", "outer"),
    [(2, 4, 100 * GB, 10 * GB), (2, 4, 40 * GB, 10 * GB), (4, 2, 10 * GB, 40 * GB)],
)
def test_without_latency_the_better_of_flat_and_hierarchical_counts(
    nodes: int, per_node: int, inner: float, outer: float
) -> None:
    """Per GB, both ways. Flat: one ring per rail, `2 (n-1)/n / min(inner, per_node · outer)`.
    Hierarchical: reduce-scatter inside, all-reduce across of what one device holds then, all-gather
    inside: `2 (p-1)/p / inner + 2 (m-1)/m / (p · outer)`."""
    n = nodes * per_node
    flat = 2 * (n - 1) / n * GB / min(inner, per_node * outer)
    hierarchical = 2 * (per_node - 1) / per_node * GB / inner
    hierarchical += 2 * (nodes - 1) / nodes * GB / (per_node * outer)
    found = all_reduce(nodes, per_node, inner, outer, 0.0)
    assert found == pytest.approx(min(flat, hierarchical), rel=1e-9)


def test_hierarchical_wins_where_the_network_is_the_narrow_place() -> None:
    """2 nodes of 4, 100 GB/s inside. The network gives each of 4 rails x GB/s. Flat: 1.75 / 4x ·
    GB while 4x < 100; hierarchical: 1.5/100 + 1/4x. So flat loses while 0.75 / 4x > 1.5 / 100:
    for x below 12.5."""
    for x in (1.0, 6.0, 12.4, 12.6, 20.0):
        flat = 1.75 / (4 * x)
        found = all_reduce(2, 4, 100 * GB, x * GB, 0.0)
        assert (found < flat * (1 - 1e-9)) == (x < 12.5)


def test_an_order_is_a_permutation() -> None:
    assert Strategy(placement="DP-tp-cp-ep-pp").placement == "dp-tp-cp-ep-pp"
    for wrong in ("tp-dp", "tp-cp-ep-dp-xx", "tp-tp-ep-dp-pp", ""):
        with pytest.raises(StrategyError, match="innermost first"):
            Strategy(placement=wrong)
    assert Strategy(dp=2, tp=2, placement="dp-tp-cp-ep-pp").label == "dp2-tp2-pp1-m1-1f1b-on:dp,tp"
