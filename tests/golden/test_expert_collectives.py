"""Collectives of a mixture of experts: Mixtral 8x7B with three layers.

An all-to-all before and after the experts, forward and backward (Lepikhin et al. 2021); gradients
of experts are settled over the replicas that hold the same experts, all others over all replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster
from distir.cost import load_stack
from distir.importers.load import load_source
from distir.ir.core import Node
from distir.models.transformer import TransformerConfig
from distir.models.zoo import find_model
from distir.ops.collective import AllToAll, Collective
from distir.plan import Planner

LAYERS = 3
ATTENTION_AND_ROUTER = 4 + 2 + 1
"""Parameters of a layer that are not experts': four products, two norms, the router."""
EXPERT_PRODUCTS = 3
EXCHANGES = 3
"""Of tokens to experts and back, and of the tokens' weights to where they meet them."""
OUTSIDE = 3
"""Embedding, last norm, head."""
MIB = 2**20
TOKENS, HIDDEN, FFN = 4096, 4096, 14336


def workload(batch_size: int = 8) -> Workload:
    config = find_model("mixtral-8x7b")
    assert isinstance(config, TransformerConfig)
    small = replace(config, layers=LAYERS)
    model = load_source(lambda: small)
    return Workload(model=model, batch_size=batch_size, sequence_length=TOKENS)


def counts(nodes: Iterable[Node]) -> Counter[str]:
    return Counter(
        f"{node.op.name} {'·'.join(node.op.mesh_axes)}"
        for node in nodes
        if isinstance(node.op, Collective)
    )


def collectives(strategy: Strategy) -> tuple[Counter[str], ...]:
    """How many of each, forward, backward, and once per step."""
    programs = Planner(workload()).block_programs(strategy)
    return (
        counts(node for program in programs for node in program.forward),
        counts(node for program in programs for node in program.backward),
        counts(node for program in programs for node in program.settle),
    )


def test_experts_are_shared_by_some_of_the_replicas() -> None:
    forward, backward, settle = collectives(Strategy(dp=8, ep=4))
    assert forward == backward == {"AllToAll ep": EXCHANGES * LAYERS}
    assert settle == {
        "AllReduce dp·ep": ATTENTION_AND_ROUTER * LAYERS + OUTSIDE,
        "AllReduce dp": EXPERT_PRODUCTS * LAYERS,
    }


def test_experts_are_shared_by_all_replicas() -> None:
    """Nobody else holds the same experts, so nothing is to be settled for them."""
    forward, backward, settle = collectives(Strategy(dp=8, ep=8))
    assert forward == backward == {"AllToAll ep": EXCHANGES * LAYERS}
    assert settle == {"AllReduce ep": ATTENTION_AND_ROUTER * LAYERS + OUTSIDE}


def test_without_expert_parallelism_nothing_is_exchanged() -> None:
    forward, backward, settle = collectives(Strategy(dp=8))
    assert forward == backward == {}
    assert settle == {"AllReduce dp": (ATTENTION_AND_ROUTER + EXPERT_PRODUCTS) * LAYERS + OUTSIDE}


def test_the_sequence_stays_split_in_the_experts() -> None:
    """Slots follow the sequence: context parallelism gathers keys and values, and nothing else."""
    forward, backward, _ = collectives(Strategy(cp=4))
    assert forward == {"AllGather cp": 2 * LAYERS}
    assert backward == {"ReduceScatter cp": 2 * LAYERS}


def test_those_who_share_a_sequence_share_experts() -> None:
    """Tokens are split over the sequence, and exchanged along it; the ring goes on beside that."""
    strategy = Strategy(cp=4, ep=4, cp_exchange="ring")
    forward, backward, settle = collectives(strategy)
    assert forward == backward == {"AllToAll cp": EXCHANGES * LAYERS}
    assert settle == {"AllReduce cp": ATTENTION_AND_ROUTER * LAYERS + OUTSIDE}
    some, _, settle = collectives(Strategy(cp=4, ep=2))
    assert some == {"AllToAll cp.2": EXCHANGES * LAYERS, "AllGather cp.1·cp.2": 2 * LAYERS}
    assert settle["AllReduce cp.1"] == EXPERT_PRODUCTS * LAYERS


def test_tp_may_share_experts_instead_of_splitting_their_width() -> None:
    """With ep 8 and 4 replicas of tp 2 every device has experts of its own, whole: tokens, whose
    sequence rests on tp, are exchanged where all others are gathered and scattered."""
    strategy = Strategy(dp=4, tp=2, ep=8, sequence_parallel=True)
    layer = Planner(workload()).block_programs(strategy)[1]
    assert counts(layer.forward) == {
        "AllToAll ep": EXCHANGES,
        "AllToAll tp": EXCHANGES,
        "AllGather tp": 1,
        "ReduceScatter tp": 1,
    }
    (width,) = {
        use.type.shape
        for use in layer.parameters
        if len(use.type.shape) == 3 and FFN in use.type.shape
    } - {(1, FFN, HIDDEN)}
    assert width == (1, HIDDEN, FFN)


def test_tensor_parallelism_splits_every_expert() -> None:
    """Two all-reduces per layer, as without experts, and the vocabulary's."""
    forward, _, _ = collectives(Strategy(tp=4))
    assert forward["AllReduce tp"] == 2 * LAYERS + 1 + 3
    assert set(forward) == {"AllReduce tp"}


def test_tokens_are_exchanged_before_they_are_gathered_over_tp() -> None:
    """As Megatron-Core's dispatcher does with sequence parallelism: every device exchanges its own
    part of the tokens; then those of its tensor-parallel neighbours are gathered, and the way back
    mirrors that, and so do the tokens' weights. The layer without experts: one all-gather and one
    reduce-scatter."""
    strategy = Strategy(dp=8, ep=8, tp=2, sequence_parallel=True)
    layer = Planner(workload()).block_programs(strategy)[1]
    moves = [
        (node.op.name, node.op.message_bytes(*node.operand_types, *node.result_types) / MIB)
        for node in layer.forward
        if isinstance(node.op, Collective)
    ]
    weights = [("AllToAll", 1 / 128), ("AllGather", 1 / 64)]
    assert [move for move in moves if move in weights] == weights
    assert [move for move in moves if move not in weights] == [
        ("AllGather", 32),
        ("ReduceScatter", 32),
        ("AllToAll", 32),
        ("AllGather", 64),
        ("ReduceScatter", 64),
        ("AllToAll", 32),
    ]
    assert counts(layer.backward) == {"AllToAll ep": 3, "AllGather tp": 5, "ReduceScatter tp": 3}


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_an_exchange_sends_every_token_to_each_of_its_experts(ep: int) -> None:
    """One sample per device: 4096 tokens, each at 2 experts, of 4096 numbers in bf16: 64 MiB,
    whatever the number of replicas that exchange them."""
    for program in Planner(workload()).block_programs(Strategy(dp=8, ep=ep)):
        for node in (*program.forward, *program.backward):
            if isinstance(node.op, AllToAll) and node.result.type.shape[-1] > 1:
                (operand,), (result,) = node.operand_types, node.result_types
                there, back = (1, 8, 1024, HIDDEN), (ep, 8 // ep, 1024, HIDDEN)
                assert (operand.shape, result.shape) in ((there, back), (back, there))
                assert node.op.message_bytes(operand, result) == TOKENS * 2 * HIDDEN * 2


@pytest.mark.parametrize(("dp", "ep", "zero"), [(8, 1, 0), (8, 4, 0), (8, 8, 0), (8, 4, 1)])
def test_experts_are_split_by_ep_and_all_else_is_whole(dp: int, ep: int, zero: int) -> None:
    """Parameters and gradients in bf16, 12 bytes of optimizer per parameter: experts by ep, the
    optimizer also by the rest of dp if sharded; all else whole, the optimizer by dp."""
    config = find_model("mixtral-8x7b")
    assert isinstance(config, TransformerConfig)
    experts = LAYERS * 8 * EXPERT_PRODUCTS * HIDDEN * FFN
    attention = HIDDEN * (32 + 8 + 8 + 32) * 128
    others = LAYERS * (attention + 2 * HIDDEN + 8 * HIDDEN) + (2 * 32000 + 1) * HIDDEN
    result = Simulator(workload(), load_cluster("hgx-h100", dp)).simulate(
        Strategy(dp=dp, ep=ep, zero=zero)
    )
    memory = result.stages[0].memory
    assert memory["parameters_bytes"] == 2 * (experts // ep + others)
    assert memory["gradients_bytes"] == 2 * (experts // ep + others)
    expected = experts // dp + others // dp if zero else experts // ep + others
    assert memory["optimizer_bytes"] == 12 * expected


@pytest.mark.parametrize("order", ["replicas", "nearest"])
@pytest.mark.parametrize(("dp", "cp", "tp", "ep", "etp"), [(2, 1, 4, 4, 2), (1, 1, 4, 4, 1),
    (2, 1, 4, 2, 4), (2, 2, 2, 4, 1), (1, 2, 4, 4, 2)])  # fmt: skip
def test_a_device_has_its_part_of_its_experts(
    order: str, dp: int, cp: int, tp: int, ep: int, etp: int
) -> None:
    """Experts by ep, their width by etp; the attention of Mixtral by tp, its norms whole."""
    strategy = Strategy(dp=dp, cp=cp, tp=tp, ep=ep, etp=etp, expert_order=order)
    for program in Planner(workload()).block_programs(strategy)[1:-1]:
        elements = sum(use.type.num_elements for use in program.parameters)
        experts = 8 * EXPERT_PRODUCTS * HIDDEN * FFN // (ep * etp)
        attention = HIDDEN * (32 + 8 + 8 + 32) * 128 // tp
        assert elements == experts + attention + 2 * HIDDEN + 8 * HIDDEN


def exchange_seconds(
    stack: str, *, hides: bool = False, schedule: str = "1f1b", **experts: int
) -> float:
    """What an exchange of tokens takes on four nodes, as far as it is not hidden; `hides`: the
    software stack hides a fixed fraction behind other microbatches."""
    config = find_model("deepseek-v3")
    assert isinstance(config, TransformerConfig)
    assert config.experts is not None
    small = replace(config, layers=6, experts=replace(config.experts, **experts))
    work = Workload(model=load_source(lambda: small), batch_size=128, sequence_length=TOKENS)
    software = replace(load_stack(stack), overlaps_exchanges=hides)
    simulator = Simulator(work, load_cluster("hgx-h100", 64), software)
    plan = simulator.plan(Strategy(dp=32, ep=32, pp=2, microbatches=4, schedule=schedule))
    nodes = (node for program in plan.stages[0].programs for node in program.forward)
    tokens = next(n for n in nodes if isinstance(n.op, AllToAll) and n.op.copies is not None)
    (instruction,) = simulator.pricing(plan).of_node(tokens)
    return instruction.seconds


@pytest.mark.not_quick
def test_stacks_that_send_a_token_to_a_node_once_send_less() -> None:
    """Of 4 nodes, 8 experts among all are in 4 · (1 - 0.75⁸) = 3.6; a quarter of these is the own
    node. Sent one by one, 6 of 8 copies go to others: 2.2 times as much. Latencies are less than a
    fiftieth."""
    apart, once = (
        exchange_seconds(name, groups=1, chosen_groups=1) for name in ("megatron", "deepseek")
    )
    places = 4 * (1 - 0.75**8)
    assert once / apart == pytest.approx(places / 8, rel=0.03)
    near = exchange_seconds("deepseek", groups=4, chosen_groups=2)
    assert near / once == pytest.approx(2 * (1 - 0.5**8) / places, rel=0.03)


def test_a_fixed_fraction_is_hidden_only_where_the_schedule_overlaps_nothing() -> None:
    """By a schedule with overlapped pairs as much as its streams hide; so its exchanges are priced
    whole, whatever the software stack says."""
    whole = exchange_seconds("deepseek")
    hidden = load_stack("deepseek").overlapped_fraction
    assert exchange_seconds("deepseek", hides=True) == pytest.approx((1 - hidden) * whole)
    assert exchange_seconds("deepseek", hides=True, schedule="dualpipe") == whole
