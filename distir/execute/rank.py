"""One pipeline rank of a plan: its stages, and what it does in a step, action by action.

The executor has all ranks in one process and hands their messages over. A process that is one
device of a rank has that rank alone, with a wire to the other devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from distir.axes.rescale import rescale_values
from distir.execute.computing import NUMPY, Computing
from distir.execute.counts import BETWEEN_RANKS, ActionMemory
from distir.execute.devices import Shards, Wire
from distir.execute.live import Meter
from distir.execute.stage import Message, StageDevices, computed
from distir.execute.stage_ops import StageOps
from distir.execute.stage_parameters import Parameter
from distir.execute.values import OptimizerStep, StepValues, microbatch, replica_weight
from distir.ir.core import Array, Value
from distir.plan import Plan
from distir.schedules import Action, Schedule, dependencies


def canonical(action: Action) -> Action:
    """The action with a whole backward pass (`BW`) written `B`, as dependencies name it."""
    return action._replace(kind="B") if action.kind == "BW" else action


class Routes:
    """Where the messages of a schedule come from and go to. A message is named by the action that
    sends it, in its canonical form."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._ranks = {
            (action.stage, action.microbatch): rank
            for rank, actions in enumerate(schedule.ranks)
            for action in actions
        }

    def rank_of(self, stage: int, microbatch: int) -> int | None:
        """The rank that runs a microbatch on a stage; None if none does."""
        return self._ranks.get((stage, microbatch))

    def needed(self, action: Action) -> Action | None:
        """The action of another stage whose message this action waits for."""
        needed = dependencies(canonical(action), self.schedule.stages)
        return next((other for other in needed if other.stage != action.stage), None)

    def target(self, action: Action) -> int | None:
        """The stage that gets the action's message; None if the action sends none."""
        target = {"F": action.stage + 1, "W": -1}.get(action.kind, action.stage - 1)
        return target if 0 <= target < self.schedule.stages else None

    def messages(self, sender: int, receiver: int) -> Iterator[Action]:
        """The messages from one rank to another, in the order in which they are sent."""
        for action in self.schedule.ranks[sender]:
            target = self.target(action)
            if target is not None and self.rank_of(target, action.microbatch) == receiver:
                yield canonical(action)


@dataclass(slots=True)
class FreeValues:
    """The free values of the model (see glossary), computed once per microbatch."""

    plan: Plan
    given: StepValues
    _made: dict[int, Mapping[Value, Array]] = field(
        default_factory=dict[int, Mapping[Value, Array]]
    )

    def of(self, index: int) -> Mapping[Value, Array]:
        """Those of one microbatch."""
        if index not in self._made:
            self._made[index] = self._compute(index)
        return self._made[index]

    def _compute(self, index: int) -> Mapping[Value, Array]:
        workload, microbatches = self.plan.workload, self.plan.schedule.schedule.microbatches
        program = workload.program
        blocks = program.blocks
        known = {
            value: computed(microbatch(workload, value, array, index, microbatches), value)
            for value, array in self.given.sources.items()
        }
        kept = replace(program.function, nodes=blocks.free_nodes, outputs=())
        sizes = workload.sizes(workload.batch_size // microbatches)
        function, _ = rescale_values(kept, program.axes, sizes)
        for node, new in zip(blocks.free_nodes, function.nodes, strict=True):
            made = new.op.evaluate(*(known[value] for value in node.operands))
            known.update(zip(node.results, made, strict=True))
        return known


class Rank:
    """The stages of rank `number`, loaded with parameters and optimizer state.

    `memory` has the bytes of activations, action by action.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        given: StepValues,
        free: FreeValues,
        wire: Wire | None = None,
        computing: Computing = NUMPY,
    ) -> None:
        schedule = plan.schedule.schedule
        self.number = number
        self.actions = schedule.ranks[number]
        self.routes = Routes(schedule)
        self.meter, self.host_meter = Meter(), Meter()
        self.memory: list[ActionMemory] = []
        self._plan, self._free = plan, free
        self._in_parts = {action[::2] for action in schedule.actions if action.kind == "W"}
        alone = plan.strategy.dp if plan.strategy.sync_every > 1 else 1
        weight = replica_weight(plan.workload, schedule.microbatches, alone)
        self.parameters: dict[Value, Parameter] = {}
        meters = self.meter, self.host_meter
        self.stages = {
            stage: StageDevices.loaded(
                StageOps(plan, plan.stages[stage], wire, computing),
                given,
                self.parameters,
                meters,
                weight,
            )
            for stage in schedule.stages_of_ranks[number]
        }

    def begin_step(self, free: FreeValues | None = None) -> None:
        """Makes the rank ready for a further step; with other inputs, if it is told which values of
        the model are `free`."""
        self.memory.clear()
        for stage in self.stages.values():
            stage.begin_step(new_inputs=free is not None)
        self._free = free or self._free

    def act(self, action: Action, received: Message) -> Message:
        """Runs an action and returns its message, which is empty if the action sends none."""
        stage, meter, in_parts = self.stages[action.stage], self.meter, self._splits(action)
        before = meter.live
        meter.restart()
        self.host_meter.restart()
        if action.kind == "F":
            sent = stage.forward(action, received, self._free.of(action.microbatch), in_parts)
        elif action.kind == "W":
            stage.weight_part(action)
            sent = Message()
        elif action.kind == "B" and in_parts:
            sent = stage.input_part(action, received)
        else:
            sent = stage.backward(action, received)
        target = self.routes.target(action)
        if target is not None and not self.is_home_of(target, action.microbatch):
            stage.ops.counts.add_sent(target, sent.size_bytes)
            sent = replace(sent, sender=action.stage)
        self.memory.append(
            ActionMemory(action, before, meter.peak, meter.live, self.host_meter.peak)
        )
        return sent

    def _splits(self, action: Action) -> bool:
        """Whether the backward pass of the action's microbatch is in two parts."""
        return action[::2] in self._in_parts

    def is_home_of(self, stage: int, index: int) -> bool:
        """Whether this rank runs a microbatch on a stage."""
        return self.routes.rank_of(stage, index) == self.number

    def settle(self) -> None:
        """Adds up the gradients of every stage over its mesh."""
        for stage in self.stages.values():
            stage.parameters.settle()

    def update(self, optimizer: OptimizerStep) -> None:
        """Runs the optimizer's step on every parameter that the rank holds."""
        for stage in self.stages.values():
            stage.parameters.update(optimizer)

    def average(self) -> None:
        """Takes the mean over replicas of every parameter that the rank holds."""
        for stage in self.stages.values():
            stage.parameters.average()

    def replace_gradient(self, value: Value, total: Shards) -> None:
        """Puts the sum over several ranks in place of a parameter's gradient, and counts the
        all-reduce that made it."""
        self.parameters[value].gradient = total
        size = float(total[0].size) * self._plan.workload.types.gradient.itemsize
        holder = next(stage for stage in self.stages.values() if value in stage.parameters.holds)
        holder.ops.counts.add_collective("all_reduce", BETWEEN_RANKS, size)


def shared_gradients(plan: Plan) -> dict[Value, tuple[int, ...]]:
    """The parameters whose gradients several ranks make, with those ranks, in the order of the
    model's parameters."""
    blocks = plan.workload.program.blocks.blocks
    ranks_of: dict[Value, set[int]] = {}
    for rank, actions in enumerate(plan.schedule.schedule.ranks):
        for stage in {action.stage for action in actions if action.kind != "F"}:
            programs = zip(plan.stages[stage].blocks, plan.stages[stage].programs, strict=True)
            for block, program in programs:
                for value, use in zip(blocks[block].parameters, program.parameters, strict=True):
                    if use.gradient is not None:
                        ranks_of.setdefault(value, set()).add(rank)
    order = plan.workload.program.function.parameters
    return {
        value: tuple(sorted(ranks_of[value])) for value in order if len(ranks_of.get(value, ())) > 1
    }


__all__ = ["FreeValues", "Rank", "Routes", "canonical", "shared_gradients"]
