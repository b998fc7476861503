"""Ring attention (Liu, Zaharia and Abbeel 2023): keys and values travel round the devices of cp.

Forward as many bytes as gathering moves; backward keys and values once more, which gathering keeps,
and their gradients one step further, home. Never more than two blocks of what others have, and time
for it only where a block takes longer on its way than to compute with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import CostModel, load_stack
from distir.ir.core import Node
from distir.ops.attention import FusedAttention
from distir.ops.collective import Collective, Sharded
from distir.ops.ring import Ring
from distir.plan import BlockProgram, Planner
from distir.simulation.pricing.chains import BlockChain, ChainScheduler, Pass
from distir.simulation.pricing.instructions import COMPUTE, Pricing

CP, LENGTH = 4, 4096
RING = Strategy(cp=CP, cp_exchange="ring")
BLOCK = 2 * 1 * (LENGTH // CP) * 1024
"""Bytes of the keys of one device, and of its values: bf16, 8 heads of 128."""


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(Workload(model=load_model("llama3-8b"), batch_size=1, sequence_length=LENGTH))


def layer_of(planner: Planner, strategy: Strategy) -> BlockProgram:
    return planner.block_programs(strategy)[3]


def rings(nodes: Iterable[Node]) -> list[Ring]:
    return [node.op for node in nodes if isinstance(node.op, Ring)]


def sent(nodes: Iterable[Node]) -> float:
    """Bytes that a device sends along cp: of a gather or scatter, all but its own part."""
    total = 0.0
    for node in nodes:
        if isinstance(node.op, Ring):
            total += node.op.total_bytes(node.operand_types, node.result_types)
        elif isinstance(node.op, Collective):
            size = node.op.total_bytes(node.operand_types, node.result_types)
            total += size * (CP - 1) / CP
    return total


def test_a_ring_sends_what_gathering_sends_and_gradients_home(planner: Planner) -> None:
    gather, ring = (
        layer_of(planner, Strategy(cp=CP, cp_exchange=how)) for how in ("gather", "ring")
    )
    both = 2 * BLOCK
    assert sent(gather.forward) == sent(ring.forward) == (CP - 1) * both
    assert sent(gather.backward) == (CP - 1) * both
    assert sent(ring.backward) == (CP - 1) * both + CP * both


def test_gathered_keys_and_values_are_not_kept(planner: Planner) -> None:
    gather, ring = (
        layer_of(planner, Strategy(cp=CP, cp_exchange=how)) for how in ("gather", "ring")
    )
    kept, own = (sum(v.type.size_bytes for v in each.saved) for each in (gather, ring))
    assert kept - own == (CP - 1) * 2 * BLOCK


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_device_holds_no_more_than_two_blocks_of_others(planner: Planner, cp: int) -> None:
    """Beside queries, keys, values and result of its own a device has the block at hand and the
    next: six blocks in all, as in the paper (section 3), with keys and values as long as queries.
    """
    program = layer_of(planner, Strategy(cp=cp, cp_exchange="ring"))
    (node,) = (node for node in program.forward if isinstance(node.op, Ring))
    own = sum(node.operands[i].type.size_bytes for i in (1, 2))
    in_flight = sum(value.type.size_bytes for value in node.results[1:])
    assert in_flight == own * min(2, cp - 1)


def test_a_layer_has_one_ring_each_way(planner: Planner) -> None:
    program = layer_of(planner, Strategy(cp=CP, tp=2, cp_exchange="ring", sequence_parallel=True))
    for nodes in (program.forward, program.backward):
        (ring,) = rings(nodes)
        assert ring.mesh_axes == ("cp",)
        assert not any(
            isinstance(node.op, Collective) and "cp" in node.op.mesh_axes for node in nodes
        )


@pytest.mark.parametrize(
    ("model", "heads"),
    [("gpt2", 12), ("llama3-8b", 8), ("qwen3-0.6b", 8)],
)
@pytest.mark.parametrize("tp", [1, 4])
def test_heads_of_any_grouping_are_split_beside_it(model: str, heads: int, tp: int) -> None:
    workload = Workload(model=load_model(model), batch_size=1, sequence_length=512)
    program = layer_of(Planner(workload), Strategy(cp=CP, tp=tp, cp_exchange="ring"))
    (node,) = (node for node in program.forward if isinstance(node.op, Ring))
    assert [value.type.shape[1:3] for value in node.operands[1:3]] == [(heads // tp, 128)] * 2


def test_a_latent_is_spread_out_where_it_is() -> None:
    """Keys and values of DeepSeek-V2 come from a latent: each device spreads its own, and sends
    them round."""
    workload = Workload(model=load_model("deepseek-v2-lite"), batch_size=1, sequence_length=512)
    program = layer_of(Planner(workload), RING)
    (node,) = (node for node in program.forward if isinstance(node.op, Ring))
    assert [value.type.shape for value in node.operands[1:3]] == [
        (1, 16, 128, 192),
        (1, 16, 128, 128),
    ]


def test_beyond_the_heads_of_keys_and_values_tp_splits_the_queries_of_each() -> None:
    """8 heads of keys and values, tp 16: the second factor of tp splits the queries of each."""
    workload = Workload(model=load_model("llama3-70b"), batch_size=1, sequence_length=512)
    program = layer_of(Planner(workload), Strategy(cp=CP, tp=16, cp_exchange="ring"))
    (node,) = (node for node in program.forward if isinstance(node.op, Ring))
    assert [value.type.shape[1:3] for value in node.operands[:3]] == [(4, 128), (1, 128), (1, 128)]


def test_a_round_takes_as_long_as_its_block_or_its_message(planner: Planner) -> None:
    """`(n - 1) · max(computing, moving) + computing`, told apart by the link's bandwidth."""
    node = next(node for node in layer_of(planner, RING).forward if isinstance(node.op, Ring))
    plan = planner.plan(RING, ())
    cluster = load_cluster("dgx-a100", CP)
    for slower in (1.0, 1000.0):
        levels = tuple(
            replace(each, bandwidth_bytes_per_second=each.bandwidth_bytes_per_second / slower)
            for each in cluster.levels
        )
        cost = CostModel(replace(cluster, levels=levels), load_stack("ideal"))
        instructions = Pricing.of(cost, plan).of_node(node)
        moving, before, last = instructions
        assert moving.size_bytes == (CP - 1) * 2 * BLOCK
        assert before.seconds == pytest.approx((CP - 1) * last.seconds)
        assert (moving.seconds > before.seconds) == (slower > 1)
        longest = max(moving.seconds, before.seconds)
        found = ChainScheduler(max).run(BlockChain.of([((Pass(instructions, (), ()),), 1)])).cost
        assert found.seconds == pytest.approx(longest + last.seconds)
        assert sum(seconds for _, seconds in found.exposed) == pytest.approx(
            longest - before.seconds
        )


@pytest.mark.parametrize("how", ["gather", "ring"])
def test_sequences_in_order_wait_for_the_last_device(planner: Planner, how: str) -> None:
    """Under a causal mask the last of n devices has `2 - 1/n` times the mean to compute: with all
    rows 1, the last quarter sees 7/8 of the columns on average, the mean is 1/2."""

    def attention(balanced: bool) -> float:
        stack = replace(load_stack("ideal"), balances_context=balanced)
        cost = CostModel(load_cluster("dgx-a100", CP), stack)
        strategy = Strategy(cp=CP, cp_exchange=how)
        pricing = Pricing.of(cost, planner.plan(strategy, ()))
        return sum(
            each.seconds
            for node in layer_of(planner, strategy).forward
            if isinstance(node.op, (Ring, Sharded)) and isinstance(node.op.op, FusedAttention)
            for each in pricing.of_node(node)
            if each.stream == COMPUTE
        )

    assert attention(False) == pytest.approx((7 / 8) / (1 / 2) * attention(True))


def test_what_gathering_shows_a_ring_hides() -> None:
    """32 thousand tokens on one board: less memory, and less waiting for cp."""
    workload = Workload(model=load_model("llama3-8b"), batch_size=1, sequence_length=32_768)
    simulator = Simulator(workload, load_cluster("hgx-h100", 8), load_stack("megatron"))

    def result(how: str) -> tuple[float, float]:
        strategy = Strategy(cp=8, cp_exchange=how, zero=3)
        found = simulator.simulate(strategy)
        return found.metrics["peak_memory_bytes"], found.stages[0].seconds["cp_communication"]

    gathered, ring = result("gather"), result("ring")
    assert ring[0] < gathered[0]
    assert ring[1] < gathered[1]
