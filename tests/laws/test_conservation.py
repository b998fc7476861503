"""Nothing is lost and nothing is invented: FLOPs over all devices are those of one device, those
that are computed again, and those that several devices compute alike; what is sent is received."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings

from distir import Strategy, Workload, load_model
from distir.axes.model import Axis
from distir.cost import OpClass
from distir.execute.executor import execute
from distir.execute.values import random_values
from distir.ir import Node, Op
from distir.ir.types import TensorType
from distir.plan import BlockProgram, Plan, Planner
from distir.transforms.place import PlacedOp
from tests.laws.placements import AnyPlan, any_plans
from tests.laws.scenarios import Scenario, scenarios
from tests.slow import shares


def product_flops(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> float:
    """FLOPs of matrix products alone."""
    work = op.work(operands, results)
    return float(work.flops) if work.kind is OpClass.PRODUCT else 0.0


def flops_of(nodes: Iterable[Node]) -> float:
    return sum(product_flops(node.op, node.operand_types, node.result_types) for node in nodes)


def placed_ops(program: BlockProgram) -> Iterator[tuple[float, int]]:
    """For every op that is no change of layout the FLOPs that it has as a whole, and how many
    devices compute each part of it: all that differ along mesh axes over which it is not split."""
    sizes, dims = program.sizes, program.placed.step.axes.dims
    for step in (*program.placed.forward, *program.placed.backward):
        if not isinstance(step, PlacedOp):
            continue
        locals_ = (*step.operands, *step.results)
        copies = math.prod(
            degree
            for index, degree in enumerate(sizes.degrees)
            if not any(isinstance(local.layout[index], Axis) for local in locals_)
        )
        operands, results = (
            [sizes.whole_type(local.value, dims[local.value]) for local in side]
            for side in (step.operands, step.results)
        )
        op = step.op
        if op is step.node.op:
            op = op.rescaled(operands, results)
        yield product_flops(op, operands, results), copies


def totals(plan: Plan) -> tuple[float, float, float]:
    """FLOPs of one microbatch over all devices, of all ops as a whole, and of what more than one
    device computes."""
    over_devices = whole = waste = 0.0
    for stage in plan.stages:
        for program in stage.programs:
            local = flops_of((*program.forward, *program.backward))
            over_devices += local * plan.devices_per_stage
            for flops, copies in placed_ops(program):
                whole += flops
                waste += flops * (copies - 1)
    return over_devices, whole, waste


@shares(4, seconds=1)
@settings(max_examples=15)
@given(any_plans())
def test_flops_of_any_placement_are_conserved(share: int, case: AnyPlan) -> None:
    over_devices, whole, waste = totals(case.plan)
    assert over_devices == pytest.approx(whole + waste, rel=1e-12)


@shares(4, seconds=1)
@settings(max_examples=10)
@given(scenarios())
def test_flops_of_any_strategy_are_conserved(share: int, case: Scenario) -> None:
    over_devices, whole, waste = totals(case.plan)
    assert over_devices == pytest.approx(whole + waste, rel=1e-12)


STRATEGIES = (
    Strategy(dp=2, tp=2, pp=2, microbatches=2),
    Strategy(tp=4, microbatches=2, sequence_parallel=True, recompute="selective"),
    Strategy(dp=4, zero=3, microbatches=2, recompute="full"),
    Strategy(pp=2, chunks=2, microbatches=4, schedule="zb-v", recompute="full"),
    Strategy(dp=2, pp=4, microbatches=4, schedule="chimera"),
)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.label)
def test_flops_are_those_of_one_device_and_what_is_declared(strategy: Strategy) -> None:
    """Sequential FLOPs and recomputation. No product is wasted where heads, ffn and vocabulary
    divide: all of them are split."""
    workload = Workload(model=load_model("qwen3-0.6b"), batch_size=16, sequence_length=128)
    planner = Planner(workload)

    def alone(recompute: str) -> float:
        single = Strategy(microbatches=strategy.microbatches, recompute=recompute)
        over_devices, _, waste = totals(planner.plan(single, ()))
        assert waste == 0
        return over_devices

    cuts = range(2, 2 + strategy.stages - 1)
    over_devices, _, waste = totals(planner.plan(strategy, cuts))
    sequential = alone("none")
    again = alone(strategy.recompute) - sequential
    assert (again > 0) == (strategy.recompute == "full")
    assert over_devices == pytest.approx(sequential + again, rel=1e-12)
    assert waste == 0


def test_a_padded_vocabulary_is_the_only_waste() -> None:
    """GPT-2's vocabulary is odd: over two devices the three products of the head have a column
    more than over one."""
    workload = Workload(model=load_model("gpt2"), batch_size=4, sequence_length=128)
    planner = Planner(workload)
    one, two = (totals(planner.plan(Strategy(tp=tp), ())) for tp in (1, 2))
    assert one[2] == two[2] == 0
    assert two[0] - one[0] == 3 * 2 * (4 * 128) * 768


@shares(6, seconds=1)
@settings(max_examples=5)
@given(any_plans())
def test_what_is_sent_is_received(share: int, case: AnyPlan) -> None:
    """Per pair of stages, by what either side makes of the message."""
    plan = case.plan
    values = random_values(plan.workload, microbatches=plan.schedule.schedule.microbatches).values
    sent: dict[tuple[int, int], float] = {}
    received: dict[tuple[int, int], float] = {}
    for (_, stage), counts in execute(plan, values).measured.counts.items():
        for other, size in counts.sent_bytes.items():
            sent[stage, other] = sent.get((stage, other), 0.0) + size
        for other, size in counts.received_bytes.items():
            received[other, stage] = received.get((other, stage), 0.0) + size
    assert sent == received
