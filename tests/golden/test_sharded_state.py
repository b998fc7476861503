"""Model state and bytes on the wire against the published tables.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020),
figure 1 and section 7: mixed-precision Adam keeps 2 bytes of parameters, 2 of gradients and 12 of
optimizer state per parameter; stage 1 shards the 12, stage 2 the gradients too, stage 3 all.
Korthikanti et al. (2022), section 4.2: sequence parallelism moves what tensor parallelism does, and
a quarter more where gathered activations are gathered again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from distir.importers.load import load_source
from distir.ir.core import Node
from distir.ops.collective import Collective
from distir.plan import BlockProgram, Planner
from distir.simulation.pricing.state import StateBytes, optimizer_bytes_per_element, state_bytes
from distir.simulation.pricing.tied import charged_elsewhere
from distir.strategy import Strategy
from distir.workload import Workload

REPLICAS = 4


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(Workload(model=load_source("gpt2"), batch_size=8, sequence_length=128))


def layer_of(planner: Planner, strategy: Strategy) -> BlockProgram:
    """An inner layer: none of its parameters is used elsewhere."""
    return planner.block_programs(strategy)[3]


@pytest.mark.parametrize(
    ("zero", "bytes_per_parameter"),
    [(0, 16), (1, 4 + 12 / REPLICAS), (2, 2 + 14 / REPLICAS), (3, 16 / REPLICAS)],
)
def test_state_per_parameter_is_the_papers(
    planner: Planner, zero: int, bytes_per_parameter: float
) -> None:
    program = layer_of(planner, Strategy(dp=REPLICAS, zero=zero))
    whole = layer_of(planner, Strategy())
    parameters = sum(use.type.num_elements for use in whole.parameters)
    state: StateBytes = state_bytes(planner.workload, program)
    assert state.total == bytes_per_parameter * parameters


@pytest.mark.parametrize(("dp", "cp"), [(12, 1), (10, 1), (7, 1), (2, 2), (1, 4), (7, 2), (3, 5)])
def test_any_number_of_devices_shares_states(planner: Planner, dp: int, cp: int) -> None:
    """Those of data and context parallelism together, whatever divides: every parameter lies flat,
    filled up to pieces of equal length, by less than an element per device."""
    workload = planner.workload.resized(batch_size=dp, sequence_length=16 * cp)
    program = layer_of(Planner(workload), Strategy(dp=dp, cp=cp, zero=3))
    sizes = [use.type.num_elements for use in layer_of(planner, Strategy()).parameters]
    total = state_bytes(workload, program).total
    assert total == 16 * sum(-(-size // (dp * cp)) for size in sizes)
    assert 0 <= total * dp * cp - 16 * sum(sizes) < 16 * len(sizes) * dp * cp


def test_zero_shares_what_tp_leaves_on_a_device(planner: Planner) -> None:
    """tp first, then what it leaves on a device lies flat: Megatron's distributed optimizer."""
    program = layer_of(planner, Strategy(dp=3, tp=4, zero=1))
    for use in program.parameters:
        assert use.owned_type.num_elements == -(-use.type.num_elements // 3)


@pytest.mark.parametrize(
    ("precision", "gradients", "optimizer", "bytes_per_parameter"),
    [
        ("fp32", "compute", "sgd", 4 + 4),
        ("fp32", "compute", "momentum", 4 + 4 + 4),
        ("fp32", "compute", "adam", 4 + 4 + 8),
        ("tf32", "compute", "adam", 4 + 4 + 8),
        ("tf32", "both", "adam", 4 + 4 + 8),
        ("bf16", "compute", "sgd", 2 + 2 + 4),
        ("bf16", "compute", "momentum", 2 + 2 + 4 + 4),
        ("bf16", "compute", "adam", 2 + 2 + 4 + 8),
        ("fp16", "compute", "adam", 2 + 2 + 4 + 8),
        ("fp8", "compute", "adam", 2 + 2 + 4 + 8),
        ("pure-bf16", "compute", "sgd", 2 + 2),
        ("pure-bf16", "compute", "adam", 2 + 2 + 2 * 2),
        ("pure-bf16", "fp32", "adam", 2 + 4 + 2 * 2),
        ("bf16", "fp32", "adam", 2 + 4 + 4 + 8),
        ("bf16", "both", "adam", 2 + (2 + 4) + 4 + 8),
        ("fp32", "both", "adam", 4 + 4 + 8),
    ],
)
def test_state_per_parameter_follows_from_its_types(
    planner: Planner, precision: str, gradients: str, optimizer: str, bytes_per_parameter: int
) -> None:
    """Parameters, gradients, the master copy in fp32 where the parameters are not, moments."""
    workload = planner.workload.resized(
        precision=precision, gradient_precision=gradients, optimizer=optimizer
    )
    program = layer_of(Planner(workload), Strategy())
    parameters = sum(use.type.num_elements for use in program.parameters)
    assert state_bytes(workload, program).total == bytes_per_parameter * parameters


@pytest.mark.parametrize(
    ("precision", "optimizer", "read", "written"),
    [
        ("bf16", "adam", 2 + (4 + 8), (4 + 8) + 2),
        ("bf16", "sgd", 2 + 4, 4 + 2),
        ("fp32", "adam", 4 + 4 + 8, 4 + 8),
        ("fp32", "sgd", 4 + 4, 4),
        ("pure-bf16", "adam", 2 + 2 + 4, 2 + 4),
    ],
)
def test_an_optimizer_moves_what_it_reads_and_writes(
    planner: Planner, precision: str, optimizer: str, read: int, written: int
) -> None:
    """The gradient, and the master copy or the parameter itself, and moments; then these, and the
    parameter where there is a master copy."""
    workload = planner.workload.resized(precision=precision, optimizer=optimizer)
    assert optimizer_bytes_per_element(workload) == read + written


@pytest.mark.parametrize("zero", range(4))
def test_gradients_in_fp32_are_sent_in_fp32(planner: Planner, zero: int) -> None:
    wider = Planner(planner.workload.resized(gradient_precision="fp32"))

    def scattered(planner: Planner) -> float:
        program = layer_of(planner, Strategy(dp=REPLICAS, zero=zero))
        kinds = ("all_reduce", "reduce_scatter")
        nodes = (*program.backward, *program.settle)
        return wire_bytes(
            node for node in nodes if isinstance(node.op, Collective) and node.op.kind in kinds
        )

    assert scattered(wider) == 2 * scattered(planner) > 0


def wire_bytes(nodes: Iterable[Node]) -> float:
    """What a device sends: an all-reduce is a reduce-scatter and an all-gather."""
    total = 0.0
    for node in nodes:
        op = node.op
        if isinstance(op, Collective):
            size = op.total_bytes(node.operand_types, node.result_types)
            total += size * (op.degree - 1) / op.degree * (2 if op.kind == "all_reduce" else 1)
    return total


def step_bytes(program: BlockProgram) -> float:
    refresh = [node for nodes in program.refresh_by_parameter for node in nodes]
    gathers = (*program.forward_gathers, *program.backward_gathers)
    passes = (*gathers, *program.forward, *program.backward)
    return wire_bytes([*passes, *program.settle, *refresh])


@pytest.mark.parametrize(("zero", "times"), [(1, 1.0), (2, 1.0), (3, 1.5)])
def test_zero_moves_what_the_paper_says(planner: Planner, zero: int, times: float) -> None:
    plain = step_bytes(layer_of(planner, Strategy(dp=REPLICAS)))
    assert step_bytes(layer_of(planner, Strategy(dp=REPLICAS, zero=zero))) == times * plain


def test_parameters_that_are_kept_move_as_in_data_parallelism(planner: Planner) -> None:
    plain = step_bytes(layer_of(planner, Strategy(dp=REPLICAS)))
    kept = layer_of(planner, Strategy(dp=REPLICAS, zero=3, keep_gathered="parameters"))
    assert step_bytes(kept) == plain
    sizes = sum(value.type.size_bytes for value in kept.kept_gathered)
    whole = layer_of(planner, Strategy(dp=REPLICAS))
    assert sizes == sum(use.type.size_bytes for use in whole.parameters)


def test_sequence_parallelism_moves_a_quarter_more(planner: Planner) -> None:
    def activation_bytes(strategy: Strategy) -> float:
        program = layer_of(planner, strategy)
        return wire_bytes([*program.forward, *program.backward])

    tensor = activation_bytes(Strategy(tp=4))
    sequence = activation_bytes(Strategy(tp=4, sequence_parallel=True))
    assert sequence == 1.25 * tensor
    kept = Strategy(tp=4, sequence_parallel=True, keep_gathered="activations")
    assert activation_bytes(kept) == tensor


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_a_gradient_of_several_uses_in_a_stage_is_shared_out_once_per_step(
    planner: Planner, zero: int, microbatches: int
) -> None:
    """GPT-2's embedding is its output matrix, too: 38,597,376 of 124,439,808 parameters. All other
    gradients are shared out in every microbatch."""
    plan = planner.plan(Strategy(dp=2, microbatches=microbatches, zero=zero), ())
    scattered = 0
    for program, away in zip(plan.stages[0].programs, charged_elsewhere(plan, 0), strict=True):
        scattered += microbatches * sum(map(scattered_bytes, program.backward))
        for position, nodes in enumerate(program.settle_by_parameter):
            scattered += 0 if position in away.added else sum(map(scattered_bytes, nodes))
    tied, every = 50257 * 768, 124_439_808
    assert scattered == 2 * (microbatches * (every - tied) + tied)


def scattered_bytes(node: Node) -> int:
    """Bytes of a reduce-scatter; 0 for other nodes."""
    op = node.op
    if not isinstance(op, Collective) or op.kind != "reduce_scatter":
        return 0
    return op.total_bytes(node.operand_types, node.result_types)
