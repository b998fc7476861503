"""Runs a plan on virtual devices: what they compute, send and hold is real.

Every rank takes its actions in the order of the schedule. An action waits for messages from other
stages, but not for what its own rank should have made before. So a schedule in a wrong order ends
in a `ScheduleError`, or in a deadlock, which is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from distir.axes.rescale import rescale_values
from distir.errors import DeadlockError, ScheduleError, TransformError
from distir.execute.counts import BETWEEN_RANKS, ActionMemory, StepMeasurements
from distir.execute.devices import Shards
from distir.execute.live import Meter
from distir.execute.stage import Message, Parameter, StageDevices, computed
from distir.execute.values import (
    OptimizerStep,
    StepResult,
    StepValues,
    join_microbatches,
    loss_weight,
    microbatch,
)
from distir.ir.core import Array, Value
from distir.plan import Plan
from distir.schedules import Action, dependencies, format_grid
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
    return _Executor(plan, given).run(optimizer)


class _Executor:
    def __init__(self, plan: Plan, given: StepValues) -> None:
        self.schedule = plan.schedule.schedule
        self.plan = plan
        self.given = given
        self.training = plan.workload.training
        self.microbatches = self.schedule.microbatches
        ranks = self.schedule.stages_of_ranks
        self.meters = [Meter() for _ in ranks]
        weight = loss_weight(plan.workload, self.microbatches)
        held: list[dict[Value, Parameter]] = [{} for _ in ranks]
        self.stages = {
            (rank, stage): StageDevices(
                plan, plan.stages[stage], self.meters[rank], held[rank], weight
            )
            for rank, stages in enumerate(ranks)
            for stage in stages
        }
        for stage in self.stages.values():
            stage.load(given.parameters, given.moments if self.training else {})
        self.memory: list[list[ActionMemory]] = [[] for _ in ranks]
        self.rank_of = {
            (action.stage, action.microbatch): rank
            for rank, actions in enumerate(self.schedule.ranks)
            for action in actions
        }
        self.in_parts = {action[::2] for action in self.schedule.actions if action.kind == "W"}
        self.mail: dict[Action, Message] = {}
        self._free: dict[int, Mapping[Value, Array]] = {}

    def run(self, optimizer: OptimizerStep | None) -> Execution:
        self._run_schedule()
        result = self._trained(optimizer) if self.training else StepResult(self._outputs())
        measured = StepMeasurements(
            counts={key: stage.counts for key, stage in self.stages.items()},
            state={key: stage.state() for key, stage in self.stages.items()},
            memory=tuple(map(tuple, self.memory)),
        )
        return Execution(result, measured)

    # --- the schedule -----------------------------------------------------------------------------

    def _run_schedule(self) -> None:
        ranks = self.schedule.ranks
        position = [0] * len(ranks)
        moved = True
        while moved:
            moved = False
            for rank, actions in enumerate(ranks):
                while position[rank] < len(actions) and self._can_start(actions[position[rank]]):
                    self._act(rank, actions[position[rank]])
                    position[rank] += 1
                    moved = True
        stuck = [rank for rank, actions in enumerate(ranks) if position[rank] < len(actions)]
        if stuck:
            mark = stuck[0], position[stuck[0]]
            waiting = ", ".join(str(ranks[rank][position[rank]]) for rank in stuck)
            raise DeadlockError(
                f"deadlock: {waiting} wait for ever\n{format_grid(self.schedule, mark)}"
            )
        self._check_complete()

    def _check_complete(self) -> None:
        if self.mail:
            sent = ", ".join(f"{action}" for action in self.mail)
            raise ScheduleError(f"nobody received what was sent by {sent}")
        for (rank, index), stage in self.stages.items():
            if stage.in_flight:
                raise ScheduleError(
                    f"rank {rank} never ran the backward pass of stage {index}, microbatch "
                    f"{min(stage.in_flight)}"
                )
        for index in range(self.schedule.stages):
            seen = [m for (_, other), s in self.stages.items() if other == index for m in s.results]
            if sorted(seen) != list(range(self.microbatches)):
                raise ScheduleError(
                    f"stage {index} ran the microbatches {sorted(seen)}; expected each of "
                    f"{self.microbatches} once"
                )

    def _message_of(self, action: Action) -> Action | None:
        """The action of another stage whose message this action waits for."""
        needed = dependencies(_canonical(action), self.schedule.stages)
        return next((other for other in needed if other.stage != action.stage), None)

    def _can_start(self, action: Action) -> bool:
        needed = self._message_of(action)
        return needed is None or needed in self.mail

    def _act(self, rank: int, action: Action) -> None:
        needed = self._message_of(action)
        received = Message() if needed is None else self.mail.pop(needed)
        stage, meter = self.stages[rank, action.stage], self.meters[rank]
        before = meter.live
        meter.restart()
        target = action.stage - 1
        if action.kind == "F":
            free = self._free_values(action.microbatch)
            sent = stage.forward(action, received, free, action[::2] in self.in_parts)
            target = action.stage + 1
        elif action.kind == "W":
            stage.weight_part(action)
            sent, target = Message(), -1
        elif action.kind == "B" and action[::2] in self.in_parts:
            sent = stage.input_part(action, received)
        else:
            sent = stage.backward(action, received)
        if 0 <= target < self.schedule.stages:
            if self.rank_of.get((target, action.microbatch)) != rank:
                stage.counts.add_sent(target, sent.size_bytes)
                sent = replace(sent, sender=action.stage)
            self.mail[_canonical(action)] = sent
        self.memory[rank].append(ActionMemory(action, before, meter.peak, meter.live))

    def _free_values(self, index: int) -> Mapping[Value, Array]:
        """The free values of the model (see glossary) for one microbatch."""
        if index not in self._free:
            self._free[index] = self._compute_free(index)
        return self._free[index]

    def _compute_free(self, index: int) -> Mapping[Value, Array]:
        workload = self.plan.workload
        program = workload.program
        blocks = program.blocks
        known = {
            value: computed(microbatch(workload, value, array, index, self.microbatches), value)
            for value, array in self.given.sources.items()
        }
        kept = replace(program.function, nodes=blocks.free_nodes, outputs=())
        function, _ = rescale_values(
            kept, program.axes, workload.sizes(workload.batch_size // self.microbatches)
        )
        for node, new in zip(blocks.free_nodes, function.nodes, strict=True):
            made = new.op.evaluate(*(known[value] for value in node.operands))
            known.update(zip(node.results, made, strict=True))
        return known

    # --- results ----------------------------------------------------------------------------------

    def _results(self) -> dict[Value, list[Array]]:
        """Per output of the program, its array for each microbatch, in order."""
        found: dict[Value, dict[int, Array]] = {}
        for stage in self.stages.values():
            for index, results in stage.results.items():
                for value, array in results:
                    found.setdefault(value, {})[index] = array
        return {
            value: [arrays[index] for index in sorted(arrays)] for value, arrays in found.items()
        }

    def _outputs(self) -> tuple[Array, ...]:
        workload, found = self.plan.workload, self._results()
        outputs = workload.program.function.outputs
        missing = [value for value in outputs if value not in found]
        if missing:
            raise TransformError(f"no stage of the plan made the output {missing[0]}")
        return tuple(join_microbatches(workload, value, found[value]) for value in outputs)

    def _trained(self, optimizer: OptimizerStep | None) -> StepResult:
        (losses,) = self._results().values()
        loss = loss_weight(self.plan.workload, self.microbatches) * sum(losses)
        for stage in self.stages.values():
            stage.settle()
        self._add_between_ranks()
        gradients = self._gather(lambda parameter: parameter.gradient)
        if optimizer is None:
            return StepResult((np.asarray(loss),), gradients)
        for stage in self.stages.values():
            stage.update(optimizer)
        parameters = self._gather(lambda parameter: parameter.shards, owned=False)
        moments = [
            self._gather(lambda parameter, place=place: parameter.moments[place])
            for place in range(OPTIMIZERS[self.plan.workload.optimizer].num_moments)
        ]
        return StepResult(
            (np.asarray(loss),),
            gradients,
            {value: parameters[value] for value in gradients},
            {value: tuple(each[value] for each in moments) for value in gradients},
        )

    def _add_between_ranks(self) -> None:
        """Adds the gradients of parameters that several ranks hold."""
        holders: dict[Value, list[StageDevices]] = {}
        for stage in self.stages.values():
            for value in stage.uses:
                if value in stage.holds and stage.parameters[value].gradient is not None:
                    holders.setdefault(value, []).append(stage)
        for value, stages in holders.items():
            if len(stages) < 2:
                continue
            all_shards = [stage.parameters[value].gradient or [] for stage in stages]
            total = [reduce(np.add, shards) for shards in zip(*all_shards, strict=True)]
            for stage in stages:
                stage.parameters[value].gradient = total
                size = float(np.size(total[0])) * self.plan.workload.types.gradient.itemsize
                stage.counts.add_collective("all_reduce", BETWEEN_RANKS, size)

    def _gather(
        self, choose: Callable[[Parameter], Shards | None], *, owned: bool = True
    ) -> dict[Value, Array]:
        """Whole arrays from shards that belong to parameters, such as their gradients.

        Raises `TransformError` if ranks that hold the same parameter disagree.
        """
        found: dict[Value, Array] = {}
        for stage in self.stages.values():
            for value in stage.uses:
                shards = choose(stage.parameters[value])
                if shards is None:
                    continue
                whole = stage.whole(value, shards, owned=owned)
                if value in found and not np.allclose(found[value], whole, rtol=1e-9, atol=1e-12):
                    raise TransformError(f"ranks disagree about the parameter {value}")
                found[value] = whole
        return found


def _canonical(action: Action) -> Action:
    """The action with a whole backward pass (`BW`) written `B`, as dependencies name it."""
    return action._replace(kind="B") if action.kind == "BW" else action


__all__ = ["Execution", "execute"]
