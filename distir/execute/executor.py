"""Runs a plan on virtual devices: what they compute, send and hold is real.

Every rank takes its actions in the order of the schedule. An action waits for messages from other
stages, but not for what its own rank should have made before. So a schedule in a wrong order ends
in a `ScheduleError`, or in a deadlock, which is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from distir.errors import DeadlockError, ScheduleError, TransformError
from distir.execute.counts import StepMeasurements
from distir.execute.devices import Shards
from distir.execute.rank import FreeValues, Rank, canonical, shared_gradients
from distir.execute.stage import Message, StageDevices
from distir.execute.stage_parameters import Parameter
from distir.execute.values import (
    OptimizerStep,
    StepResult,
    StepValues,
    join_microbatches,
    loss_weight,
)
from distir.ir.core import Array, Value
from distir.plan import Plan
from distir.schedules import Action, format_grid
from distir.workload import OPTIMIZERS


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of a step, and what was counted while it ran."""

    result: StepResult
    measured: StepMeasurements


def execute(plan: Plan, given: StepValues, optimizer: OptimizerStep | None = None) -> Execution:
    """Runs one step of the plan: every microbatch, the settling of gradients, and the optimizer's
    update, which is left out if `optimizer` is None.

    Raises `ScheduleError` (or its `DeadlockError`) if the schedule cannot run in its order.
    """
    ranks = all_ranks(plan, given)
    _run_step(plan, ranks, optimizer)
    return Execution(result_of(plan, ranks, updated=optimizer is not None), _measured(ranks))


def execute_steps(
    plan: Plan, given: Sequence[StepValues], optimizers: Sequence[OptimizerStep]
) -> Execution:
    """Runs training steps one after the other, from the parameters and moments of the first; the
    others have inputs of their own. After every `sync_every`-th, replicas take the mean of their
    parameters, or make an outer step. The result is that of the last step, and so is what was
    counted."""
    ranks = all_ranks(plan, given[0])
    for number, (values, optimizer) in enumerate(zip(given, optimizers, strict=True), start=1):
        if number > 1:
            free = FreeValues(plan, values)
            for rank in ranks:
                rank.begin_step(free)
        _run_step(plan, ranks, optimizer)
        if plan.strategy.sync_every > 1 and number % plan.strategy.sync_every == 0:
            for rank in ranks:
                rank.average()
    return Execution(result_of(plan, ranks, updated=True), _measured(ranks))


def _run_step(plan: Plan, ranks: Sequence[Rank], optimizer: OptimizerStep | None) -> None:
    _run_schedule(plan, ranks)
    if plan.workload.training:
        for rank in ranks:
            rank.settle()
        _add_between_ranks(plan, ranks)
        if optimizer is not None:
            for rank in ranks:
                rank.update(optimizer)


def all_ranks(plan: Plan, given: StepValues) -> list[Rank]:
    """The ranks of a plan before its first action, with all their devices."""
    free = FreeValues(plan, given)
    count = len(plan.schedule.schedule.ranks)
    return [Rank(plan, number, given, free) for number in range(count)]


# --- the schedule ---------------------------------------------------------------------------------


def _run_schedule(plan: Plan, ranks: Sequence[Rank]) -> None:
    position = [0] * len(ranks)
    mail: dict[Action, Message] = {}
    moved = True
    while moved:
        moved = False
        for rank in ranks:
            own = rank.number
            while position[own] < len(rank.actions) and _act(
                rank, rank.actions[position[own]], mail
            ):
                position[own] += 1
                moved = True
    stuck = [rank for rank in ranks if position[rank.number] < len(rank.actions)]
    if stuck:
        mark = stuck[0].number, position[stuck[0].number]
        waiting = ", ".join(str(rank.actions[position[rank.number]]) for rank in stuck)
        raise DeadlockError(
            f"deadlock: {waiting} wait for ever\n{format_grid(plan.schedule.schedule, mark)}"
        )
    if mail:
        sent = ", ".join(f"{action}" for action in mail)
        raise ScheduleError(f"nobody received what was sent by {sent}")


def _act(rank: Rank, action: Action, mail: dict[Action, Message]) -> bool:
    """Runs an action if its message has come; returns whether it has."""
    needed = rank.routes.needed(action)
    if needed is not None and needed not in mail:
        return False
    sent = rank.act(action, Message() if needed is None else mail.pop(needed))
    if rank.routes.target(action) is not None:
        mail[canonical(action)] = sent
    return True


def _add_between_ranks(plan: Plan, ranks: Sequence[Rank]) -> None:
    """Adds the gradients of parameters that several ranks hold."""
    for value, holders in shared_gradients(plan).items():
        all_shards = [ranks[number].parameters[value].gradient or [] for number in holders]
        total = [reduce(np.add, shards) for shards in zip(*all_shards, strict=True)]
        for number in holders:
            ranks[number].replace_gradient(value, total)


# --- results --------------------------------------------------------------------------------------


def _measured(ranks: Sequence[Rank]) -> StepMeasurements:
    stages = {(rank.number, index): each for rank in ranks for index, each in rank.stages.items()}
    return StepMeasurements(
        counts={key: stage.ops.counts for key, stage in stages.items()},
        state={key: stage.state() for key, stage in stages.items()},
        memory=tuple(tuple(rank.memory) for rank in ranks),
    )


def result_of(plan: Plan, ranks: Sequence[Rank], *, updated: bool) -> StepResult:
    """The result of a step that has run on all devices of all ranks; without parameters and moments
    unless they were `updated`.

    Raises `ScheduleError` if not every microbatch has run once, whole.
    """
    stages = {(rank.number, index): each for rank in ranks for index, each in rank.stages.items()}
    _check_complete(plan, stages)
    return _Results(plan, list(stages.values())).of_step(updated)


def _check_complete(plan: Plan, stages: Mapping[tuple[int, int], StageDevices]) -> None:
    schedule = plan.schedule.schedule
    for (rank, index), stage in stages.items():
        if stage.in_flight:
            raise ScheduleError(
                f"rank {rank} never ran the backward pass of stage {index}, microbatch "
                f"{min(stage.in_flight)}"
            )
    for index in range(schedule.stages):
        seen = [m for (_, other), s in stages.items() if other == index for m in s.results]
        if sorted(seen) != list(range(schedule.microbatches)):
            raise ScheduleError(
                f"stage {index} ran the microbatches {sorted(seen)}; expected each of "
                f"{schedule.microbatches} once"
            )


@dataclass(frozen=True, slots=True)
class _Results:
    """Whole arrays from the shards of all devices."""

    plan: Plan
    stages: Sequence[StageDevices]

    def of_step(self, updated: bool) -> StepResult:
        if not self.plan.workload.training:
            return StepResult(self._outputs())
        loss = (np.asarray(self._loss()),)
        if self.plan.strategy.sync_every > 1:
            return StepResult(loss, parameters=self._of_replicas())
        gradients = self._gather(lambda parameter: parameter.gradient)
        if not updated:
            return StepResult(loss, gradients)
        parameters = self._gather(lambda parameter: parameter.shards, owned=False)
        moments = [
            self._gather(lambda parameter, place=place: parameter.moments[place])
            for place in range(OPTIMIZERS[self.plan.workload.optimizer].num_moments)
        ]
        return StepResult(
            loss,
            gradients,
            {value: parameters[value] for value in gradients},
            {value: tuple(each[value] for each in moments) for value in gradients},
        )

    def _of_replicas(self) -> dict[Value, Array]:
        """The parameters that have been updated, which replicas have averaged. Gradients and
        moments are each replica's own."""
        return self._gather(
            lambda parameter: None if parameter.gradient is None else parameter.shards, owned=False
        )

    def _loss(self) -> Array:
        (losses,) = self._by_output().values()
        weight = loss_weight(self.plan.workload, self.plan.schedule.schedule.microbatches)
        return weight * np.asarray(sum(losses))

    def _by_output(self) -> dict[Value, list[Array]]:
        """Per output of the program, its array for each microbatch, in order."""
        found: dict[Value, dict[int, Array]] = {}
        for stage in self.stages:
            for index in stage.results:
                for value, array in stage.whole_results(index):
                    found.setdefault(value, {})[index] = array
        return {
            value: [arrays[index] for index in sorted(arrays)] for value, arrays in found.items()
        }

    def _outputs(self) -> tuple[Array, ...]:
        workload, found = self.plan.workload, self._by_output()
        outputs = workload.program.function.outputs
        missing = [value for value in outputs if value not in found]
        if missing:
            raise TransformError(f"no stage of the plan made the output {missing[0]}")
        return tuple(join_microbatches(workload, value, found[value]) for value in outputs)

    def _gather(
        self, choose: Callable[[Parameter], Shards | None], *, owned: bool = True
    ) -> dict[Value, Array]:
        """Whole arrays from shards that belong to parameters, such as their gradients.

        Raises `TransformError` if ranks that hold the same parameter disagree.
        """
        found: dict[Value, Array] = {}
        for stage in self.stages:
            for value in stage.parameters.uses:
                shards = choose(stage.parameters.of_rank[value])
                if shards is None:
                    continue
                whole = stage.parameters.whole(value, shards, owned=owned)
                if value in found and not np.allclose(found[value], whole, rtol=1e-9, atol=1e-12):
                    raise TransformError(f"ranks disagree about the parameter {value}")
                found[value] = whole
        return found


__all__ = ["Execution", "all_ranks", "execute", "execute_steps", "result_of"]
