"""The laws can fail: a plan that is broken on purpose is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distir import Strategy, Workload, load_cluster, load_model
from distir.errors import DistirError
from distir.execute.devices import Shards, VirtualMesh
from distir.execute.executor import execute
from distir.execute.shrink import shrink
from distir.execute.values import RandomValues, StepResult, optimizer_step
from distir.execute.verify import RELATIVE_TOLERANCE, compare, sequential_truth
from distir.ir.core import Node
from distir.ops.collective import AllReduce, Collective
from distir.ops.elementwise import Identity
from distir.ops.optimizer import AdamStep
from distir.plan import BlockProgram, Plan
from distir.schedules import validate
from distir.simulation import Simulator

STRATEGY = Strategy(dp=2, tp=2, pp=2, microbatches=2)


@pytest.fixture(scope="module")
def plan() -> Plan:
    small = shrink(Workload(model=load_model("gpt2"), batch_size=8), [STRATEGY])
    return Simulator(small, load_cluster("dgx-a100", STRATEGY.devices)).plan(STRATEGY)


@pytest.fixture(scope="module")
def truth(plan: Plan) -> tuple[RandomValues, StepResult]:
    return sequential_truth(plan.workload, STRATEGY.microbatches)


def is_caught(plan: Plan, truth: tuple[RandomValues, StepResult]) -> bool:
    """Whether executing ends in an error, or in other numbers."""
    given, expected = truth
    try:
        found = execute(plan, given.values, optimizer_step(plan.workload, 2)).result
    except DistirError:
        return True
    return any(
        not each.error < RELATIVE_TOLERANCE for each in compare(plan.workload, found, expected)
    )


def test_nothing_is_caught_where_nothing_is_wrong(
    plan: Plan, truth: tuple[RandomValues, StepResult]
) -> None:
    assert not is_caught(plan, truth)


# --- collectives ----------------------------------------------------------------------------------


def without(nodes: tuple[Node, ...], node: Node) -> tuple[Node, ...]:
    """The program with an op that passes on what it is given in the place of a collective."""
    return tuple(replace(each, op=Identity()) if each is node else each for each in nodes)


def with_program(plan: Plan, program: BlockProgram, broken: BlockProgram) -> Plan:
    stages = tuple(
        replace(stage, programs=tuple(broken if p is program else p for p in stage.programs))
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def broken_plans(plan: Plan) -> list[tuple[str, Plan]]:
    """The plan without one of its collectives, for each of them."""
    found: list[tuple[str, Plan]] = []
    programs = dict.fromkeys(program for stage in plan.stages for program in stage.programs)
    for program in programs:
        for part in ("forward", "computed_backward"):
            nodes: tuple[Node, ...] = getattr(program, part)
            for node in nodes:
                if isinstance(node.op, Collective):
                    broken = replace(program, **{part: without(nodes, node)})
                    found.append((f"{part} {node.op}", with_program(plan, program, broken)))
        for part in ("settle_by_parameter", "scatter_by_parameter"):
            by_parameter: tuple[tuple[Node, ...], ...] = getattr(program, part)
            for node in (each for nodes in by_parameter for each in nodes):
                if isinstance(node.op, Collective):
                    left = tuple(without(own, node) for own in by_parameter)
                    broken = replace(program, **{part: left})
                    found.append((f"{part} {node.op}", with_program(plan, program, broken)))
    return found


def test_a_missing_collective_is_caught(plan: Plan, truth: tuple[RandomValues, StepResult]) -> None:
    cases = broken_plans(plan)
    assert len(cases) > 20
    assert any("AllReduce" in name for name, _ in cases)
    for name, broken in cases:
        assert is_caught(broken, truth), name


def test_a_maximum_in_place_of_a_sum_is_caught(
    plan: Plan, truth: tuple[RandomValues, StepResult]
) -> None:
    programs = [p for stage in plan.stages for p in stage.programs]
    program = next(p for p in programs if any(isinstance(n.op, AllReduce) for n in p.forward))

    def turned(node: Node) -> Node:
        if not isinstance(node.op, AllReduce):
            return node
        other = "max" if node.op.reduction == "sum" else "sum"
        return replace(node, op=replace(node.op, reduction=other))

    broken = replace(program, forward=tuple(map(turned, program.forward)))
    assert is_caught(with_program(plan, program, broken), truth)


# --- order ----------------------------------------------------------------------------------------


def test_swapped_actions_are_caught_where_the_validator_refuses_them(
    plan: Plan, truth: tuple[RandomValues, StepResult]
) -> None:
    """Either the order is another good one, with the same numbers, or it fails; and what fails is
    what the validator refuses."""
    schedule = plan.schedule.schedule
    refused = 0
    for rank, actions in enumerate(schedule.ranks):
        for i in range(len(actions)):
            for j in range(i + 1, len(actions)):
                order = list(actions)
                order[i], order[j] = order[j], order[i]
                ranks = (*schedule.ranks[:rank], tuple(order), *schedule.ranks[rank + 1 :])
                swapped = replace(schedule, ranks=ranks)
                broken = replace(plan, schedule=replace(plan.schedule, source=swapped))
                assert is_caught(broken, truth) == is_refused(swapped)
                refused += is_refused(swapped)
    assert refused > 5


def is_refused(schedule: Any) -> bool:
    try:
        validate(schedule)
    except DistirError:
        return True
    return False


def test_a_missing_action_is_caught(plan: Plan, truth: tuple[RandomValues, StepResult]) -> None:
    schedule = plan.schedule.schedule
    for rank, actions in enumerate(schedule.ranks):
        for i in range(len(actions)):
            fewer = (*actions[:i], *actions[i + 1 :])
            ranks = (*schedule.ranks[:rank], fewer, *schedule.ranks[rank + 1 :])
            broken = replace(schedule, ranks=ranks)
            assert is_caught(replace(plan, schedule=replace(plan.schedule, source=broken)), truth)


# --- splitting and the optimizer ------------------------------------------------------------------


def test_a_split_along_the_wrong_axis_is_caught(
    plan: Plan, truth: tuple[RandomValues, StepResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fused weight of queries, keys and values cut in halves, instead of by heads."""
    scatter: Callable[..., Shards] = VirtualMesh.scatter

    def cut_in_halves(self: VirtualMesh, array: Any, dims: Any, layout: Any) -> Shards:
        right = scatter(self, array, dims, layout)
        columns = right[0].shape[-1]
        if np.ndim(array) != 2 or len(dims[1]) < 3 or columns == array.shape[1]:
            return right
        starts = [columns * at["tp"] for at in self.coordinates]
        return [array[:, start : start + columns] for start in starts]

    monkeypatch.setattr(VirtualMesh, "scatter", cut_in_halves)
    assert is_caught(plan, truth)


def test_a_dropped_bias_correction_is_caught(
    plan: Plan, truth: tuple[RandomValues, StepResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = AdamStep.evaluate

    def uncorrected(self: AdamStep, *operands: Any) -> tuple[Any, ...]:
        _, mean, square = right(self, *operands)
        root = np.sqrt(square) + self.epsilon
        return (operands[0] - self.learning_rate * mean / root, mean, square)

    monkeypatch.setattr(AdamStep, "evaluate", uncorrected)
    assert is_caught(plan, truth)


def _whole(*_: object) -> float:
    return 1.0


def test_a_microbatch_that_counts_twice_is_caught(
    plan: Plan, truth: tuple[RandomValues, StepResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    from distir.execute import executor

    monkeypatch.setattr(executor, "loss_weight", _whole)
    assert is_caught(plan, truth)
