"""Sharded parameters, gathered one block ahead, as FSDP does (Zhao et al. 2023, section 3.3).

All blocks are equal; a block's gather takes `g` seconds and its ops `c`. The first two gathers are
issued at once, every further one when the block before begins:

    gather    0 0 1 1 2 2 …
    compute       0 0 0 1 1 1 …

so a pass over n blocks takes `g + (n - 1) max(g, c) + c`. A pass that follows an equal one finds
the first block gathered, and gathers it for the next pass while its last block is computed:

    gather    1 1 2 2 … 0 0
    compute   0 0 0 1 1 1 …

so it takes `n max(g, c)`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import Cluster
from distir.ops.collective import Collective
from distir.plan import BlockProgram
from distir.plan.passes import block_passes, composed, segments
from distir.schedules import FORWARD
from distir.simulation.pricing.chains import BlockChain, ChainScheduler, Pass
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.memory import ChainMemory

REPLICAS = 4
STRATEGY = Strategy(dp=REPLICAS, zero=3)


def cluster(bandwidth: float) -> Cluster:
    known = load_cluster("dgx-a100", REPLICAS)
    levels = (replace(level, bandwidth_bytes_per_second=bandwidth) for level in known.levels)
    return replace(known, levels=tuple(levels))


def layer(simulator: Simulator) -> BlockProgram:
    """An inner layer: none of its parameters is used elsewhere."""
    return simulator.planner.block_programs(STRATEGY)[3]


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(model=load_model("gpt2"), batch_size=2 * REPLICAS, sequence_length=256)


@pytest.mark.parametrize("bandwidth", [1e9, 1e12], ids=["gathers are slower", "ops are slower"])
@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize("steady", [False, True], ids=["alone", "after an equal pass"])
def test_gathers_overlap_the_block_before(
    workload: Workload, bandwidth: float, blocks: int, steady: bool
) -> None:
    simulator = Simulator(workload, cluster(bandwidth))
    pricing = Pricing.of(simulator.cost, simulator.plan(STRATEGY))
    program = layer(simulator)
    passes: list[tuple[tuple[Pass, ...], int]] = []
    for segment in segments([program] * blocks, FORWARD, steady=steady):
        own = composed(segment)
        each = Pass(pricing.instructions(own.nodes), own.handed, own.handing)
        passes.append(((each,), 1))
    (gather,) = pricing.instructions(program.forward_gathers)
    g, c = gather.seconds, sum(each.seconds for each in pricing.instructions(program.forward))
    assert (g > c) == (bandwidth < 1e10)
    seconds = ChainScheduler(max).run(BlockChain.of(passes)).cost.seconds
    alone = g + (blocks - 1) * max(g, c) + c
    assert seconds == pytest.approx(blocks * max(g, c) if steady else alone, rel=1e-12)


@pytest.mark.parametrize(("blocks", "together"), [(1, 1), (2, 2), (7, 2)])
def test_no_more_than_two_blocks_are_together(
    workload: Workload, blocks: int, together: int
) -> None:
    program = layer(Simulator(workload, cluster(1e12)))
    forward = ChainMemory().stage([((each,), 1) for each in block_passes([program] * blocks)])[
        FORWARD
    ]
    size = sum(value.type.size_bytes for value in program.forward_gathers[0].results)
    assert forward.buffer_delta == 0
    assert forward.buffer_peak == together * size


def test_a_block_sends_one_message_per_kind(workload: Workload) -> None:
    program = layer(Simulator(workload, cluster(1e12)))
    passes = (program.forward_gathers, program.backward_gathers, program.backward)
    sent = [[node.op.kind for node in nodes if isinstance(node.op, Collective)] for nodes in passes]
    assert sent == [["all_gather"], ["all_gather"], ["reduce_scatter"]]
