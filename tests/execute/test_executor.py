"""The executor runs what the plan says, in the order it says, and notices when that cannot be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distir import Strategy, Workload, load_cluster
from distir.errors import DeadlockError, ScheduleError
from distir.execute.executor import Execution, execute
from distir.execute.values import StepValues, optimizer_step
from distir.execute.verify import compare, sequential_truth
from distir.importers.load import LoadedModel
from distir.models.mlp import MlpConfig
from distir.plan import Plan
from distir.schedules import compile_schedule, parse_schedule
from distir.simulation import Simulator

MLP = MlpConfig(name="mlp", layers=4, width=8)


def workload(**options: object) -> Workload:
    settings: dict[str, object] = {"batch_size": 8, "loss": "mse", **options}
    return Workload(model=LoadedModel("mlp", MLP.build(3, 1)), **settings)  # type: ignore[arg-type]


def plan_of(strategy: Strategy, **options: object) -> Plan:
    return Simulator(workload(**options), load_cluster("dgx-a100", strategy.devices)).plan(strategy)


def run(plan: Plan) -> tuple[Execution, float]:
    """The execution, and its largest error."""
    given, truth = sequential_truth(plan.workload)
    execution = execute(plan, given.values, optimizer_step(plan.workload, 2))
    errors = [each.error for each in compare(plan.workload, execution.result, truth)]
    return execution, max(errors)


TWO_STAGES = Strategy(pp=2, microbatches=2)


def in_order(text: str) -> Plan:
    """The plan of two stages and microbatches with its actions in another order."""
    schedule = compile_schedule_unchecked(text)
    return replace(plan_of(TWO_STAGES), schedule=schedule)


def compile_schedule_unchecked(text: str):
    """A compiled schedule whose order is not looked at: the executor reads the actions alone."""
    good = compile_schedule(parse_schedule("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"))
    return replace(good, source=parse_schedule(text))


def test_any_order_that_keeps_dependencies_gives_the_same_numbers() -> None:
    for text in (
        "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1",
        "0F0 0F1 0B1 0B0\n1F0 1F1 1B1 1B0",
        "0F1 0F0 0B0 0B1\n1F0 1F1 1B0 1B1",
    ):
        assert run(in_order(text))[1] < 1e-12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0B0 0F0 0F1 0B1\n1F0 1B0 1F1 1B1", "wait for ever"),
        ("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", "wait for ever"),
        ("0F0 0F1 0B0 0B1\n1B0 1F0 1F1 1B1", "needs what 1F0 keeps"),
        ("0F0 0F0 0B0 0B1\n1F0 1B0 1F1 1B1", "runs twice"),
        ("0F0 0F1 0B0 0B1\n1F0 1B0 1F1", "wait for ever"),
        ("0F0 0F1 0B0\n1F0 1B0 1F1 1B1", "nobody received"),
        ("0F0 0F1\n1F0 1F1", "never ran the backward pass"),
        ("0F0 0B0\n1F0 1B0", "expected each of"),
    ],
)
def test_a_wrong_order_does_not_pass(text: str, message: str) -> None:
    with pytest.raises((ScheduleError, DeadlockError), match=message):
        run(
            replace(
                in_order(text),
                schedule=replace(
                    compile_schedule_unchecked(text),
                    source=replace(parse_schedule(text), microbatches=2),
                ),
            )
        )


def test_the_loss_of_a_sum_is_added_over_microbatches() -> None:
    for loss in ("sum", "mse"):
        plan = plan_of(Strategy(dp=2, microbatches=4), loss=loss)
        assert run(plan)[1] < 1e-12


def test_inference_gives_the_outputs_in_order_of_samples() -> None:
    plan = plan_of(Strategy(dp=2, pp=2, microbatches=2), mode="inference", loss=None)
    execution, error = run(plan)
    assert error < 1e-12
    assert execution.result.outputs[0].shape == (8, 8)


def test_nothing_of_a_step_is_left_in_memory() -> None:
    execution, _ = run(plan_of(Strategy(pp=2, microbatches=4)))
    for actions in execution.measured.memory:
        assert actions[0].before == actions[-1].after == 0
        assert all(each.peak >= max(each.before, each.after) for each in actions)


def test_copies_of_a_value_must_agree() -> None:
    """What a device that holds a copy computes is looked at as well."""
    from distir.errors import DistirError
    from distir.execute.devices import VirtualMesh
    from distir.transforms.instantiate import Sizes
    from distir.transforms.place import Mesh

    mesh = VirtualMesh(Mesh(("dp",), ((),), {}), Sizes({}, (2,)))
    with pytest.raises(DistirError, match="disagree"):
        mesh.gather([np.zeros(()), np.ones(())], (), (None,))


def test_two_steps_are_those_of_one_device() -> None:
    plan = plan_of(Strategy(dp=2, tp=2))
    given, truth = sequential_truth(plan.workload)
    first = execute(plan, given.values, optimizer_step(plan.workload, 2)).result
    again = StepValues(given.values.sources, first.parameters, first.moments)
    second = execute(plan, again, optimizer_step(plan.workload, 3)).result
    from distir.execute.sequential import sequential_step

    expected = sequential_step(
        plan.workload,
        StepValues(given.values.sources, truth.parameters, truth.moments),
        optimizer_step(plan.workload, 3),
    )
    assert max(each.error for each in compare(plan.workload, second, expected)) < 1e-12
