"""The fast engine: never touches a device or an equal block twice.

Equal blocks are summarised once and composed; all devices of a stage are one; only stage ×
microbatch actions are scheduled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from distir.cost import Cluster, CostModel, CostProfile, load_profile
from distir.errors import StrategyError
from distir.plan import BlockProgram, Plan, Planner
from distir.plan.passes import Segment, block_passes, composed
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART, CompiledSchedule, Held
from distir.simulation.block_cost import Pass, PassCost, drain, run_chain
from distir.simulation.instructions import Instruction, Pricing
from distir.simulation.memory import ChainMemory, MemoryEffect
from distir.simulation.partition import balance_ranks, balanced_cuts
from distir.simulation.pipeline import PipelineTime, run_pipeline
from distir.simulation.report import RankSeconds, make_result
from distir.simulation.result import SimulationResult
from distir.simulation.state import StateBytes, state_bytes
from distir.simulation.table import SimulationTable
from distir.simulation.tied import repeated_uses, tied_gradients
from distir.strategy import Strategy
from distir.workload import Workload


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a stage's actions take and hold. `block_ends` are the times at which the gradients of
    its blocks are ready, from the start of the last backward pass, and `settling` the seconds that
    each of them then takes on the gradient stream, the last of them along `settled_along`."""

    forward: PassCost
    backward: PassCost
    block_ends: tuple[tuple[float, float, int], ...]
    settling: tuple[float, ...]
    settled_along: str | None
    optimizer: float
    refresh: float
    forward_memory: MemoryEffect
    backward_memory: MemoryEffect
    state: StateBytes
    sent_forward_bytes: float
    sent_backward_bytes: float

    @property
    def passes(self) -> tuple[PassCost | None, ...]:
        """What the kinds of action take, in the order of `pipeline`'s kinds."""
        return (self.forward, self.backward, None, None)


@dataclass(frozen=True, slots=True)
class _StepCost:
    """What a block does once per step: settling gradients, the optimizer, refreshing what is
    stored."""

    buckets: tuple[Instruction, ...]
    optimizer_seconds: float
    refresh_seconds: float


class Simulator:
    """Simulates strategies of one workload on one cluster; what they share is kept."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        profile: CostProfile | None = None,
        *,
        planner: Planner | None = None,
    ) -> None:
        """`planner`: one of this workload, to be shared by simulators of several clusters or
        software stacks that fuse alike."""
        self.workload = workload
        self.cluster = cluster
        self.cost = CostModel(cluster, profile or load_profile())
        fuse = self.cost.profile.fuses_elementwise
        if planner is not None and (planner.workload is not workload or planner.fuse != fuse):
            raise ValueError("the planner is of another workload, or fuses otherwise")
        self.planner = planner or Planner(workload, fuse=fuse)
        self._passes: dict[object, Pass] = {}
        self._steps: dict[object, _StepCost] = {}
        self._weights: dict[object, float] = {}
        self._stages: dict[object, StageCost] = {}
        self._cuts: dict[object, tuple[int, ...]] = {}
        self._memory = ChainMemory()

    def explain(self, strategy: Strategy) -> str | None:
        """Why a strategy cannot run on this cluster with this workload, or None."""
        if strategy.devices > self.cluster.num_devices:
            return (
                f"dp x tp x cp x pp = {strategy.dp} x {strategy.tp} x {strategy.cp} x "
                f"{strategy.pp} = {strategy.devices} devices; the cluster has "
                f"{self.cluster.num_devices}"
            )
        return self.planner.explain(strategy)

    def plan(self, strategy: Strategy) -> Plan:
        """The plan of a strategy, with stages balanced by simulated cost; raises
        `StrategyError`."""
        reason = self.explain(strategy)
        if reason is not None:
            raise StrategyError(reason)
        programs = self.planner.block_programs(strategy)
        whole = self.planner.plan(strategy, ())
        if strategy.stages == 1:
            return whole
        pricing = self.pricing(whole)
        own = whole.schedule.stages_of_ranks
        key = (tuple(map(id, programs)), own, pricing.grid.mesh)
        if key not in self._cuts:
            weights = [self._weight(program, pricing) for program in programs]
            cuts = balanced_cuts(weights, strategy.stages)
            if strategy.chunks > 1:
                rank_of = {stage: rank for rank, stages in enumerate(own) for stage in stages}
                cuts = balance_ranks(weights, cuts, [rank_of[s] for s in range(strategy.stages)])
            self._cuts[key] = cuts
        return self.planner.plan(strategy, self._cuts[key])

    def pricing(self, plan: Plan) -> Pricing:
        """Seconds on this cluster with the plan's mesh laid on it."""
        return Pricing.of(self.cost, plan)

    def simulate(self, strategy: Strategy) -> SimulationResult:
        """The metrics of a strategy. Raises `StrategyError` if it cannot run; if it only does not
        fit in memory, the result says so."""
        return self.simulate_plan(self.plan(strategy))

    def simulate_many(self, strategies: Sequence[Strategy]) -> SimulationTable:
        """The metrics of many strategies as columns; what cannot run is in it, with its reason."""
        from distir.simulation.batch import simulate_many

        return simulate_many(self, strategies)

    def simulate_plan(self, plan: Plan) -> SimulationResult:
        """The metrics of a plan, which may be cut and scheduled in any way."""
        return self._result(plan, self._stage_costs(plan))

    def trace(self, strategy: Strategy) -> dict[str, Any]:
        """One step of a strategy as Chrome trace events, for ui.perfetto.dev."""
        return self.trace_plan(self.plan(strategy))

    def trace_plan(self, plan: Plan) -> dict[str, Any]:
        """One step of a plan as Chrome trace events."""
        from distir.simulation.trace import chrome_trace

        stages = self._stage_costs(plan)
        seconds = _seconds(stages)
        time = run_pipeline(plan.schedule, seconds, self._transfers(plan, stages))
        return chrome_trace(plan, self.cost, time, seconds)

    # --- blocks -----------------------------------------------------------------------------------

    def _pass(self, segment: Segment, pricing: Pricing) -> Pass:
        key = (segment, pricing.grid.mesh)
        if key not in self._passes:
            own = composed(segment)
            instructions = pricing.instructions(own.nodes)
            self._passes[key] = Pass(instructions, own.handed, own.handing)
        return self._passes[key]

    def _weight(self, program: BlockProgram, pricing: Pricing) -> float:
        """Seconds of both passes of a block on its own."""
        key = (program, pricing.grid.mesh)
        if key not in self._weights:
            alone = (Segment(program, backward) for backward in (False, True))
            self._weights[key] = sum(
                run_chain([(self._pass(each, pricing), 1)]).cost.seconds for each in alone
            )
        return self._weights[key]

    def _step(
        self, program: BlockProgram, pricing: Pricing, without: tuple[int, ...] = ()
    ) -> _StepCost:
        """`without`: positions of parameters that are settled and updated with another block."""
        key = (program, pricing.grid.mesh, without)
        if key not in self._steps:
            elements = sum(
                use.owned_type.num_elements
                for position, use in enumerate(program.parameters)
                if use.gradient is not None and position not in without
            )
            self._steps[key] = _StepCost(
                pricing.buckets(program, without),
                pricing.optimizer(self.workload, elements) if self.workload.training else 0.0,
                sum(each.seconds for each in pricing.refresh(program, without)),
            )
        return self._steps[key]

    # --- stages -----------------------------------------------------------------------------------

    def _stage_costs(self, plan: Plan) -> list[StageCost]:
        pricing = self.pricing(plan)
        return [self._stage_cost(plan, index, pricing) for index in range(len(plan.stages))]

    def _stage_cost(self, plan: Plan, index: int, pricing: Pricing) -> StageCost:
        programs = plan.stages[index].programs
        repeated = repeated_uses(plan, index)
        key = (programs, pricing.grid.mesh, repeated)
        if key not in self._stages:
            self._stages[key] = self._make_stage_cost(programs, repeated, pricing)
        return self._stages[key]

    def _make_stage_cost(
        self,
        programs: Sequence[BlockProgram],
        repeated: Sequence[tuple[int, ...]],
        pricing: Pricing,
    ) -> StageCost:
        """`repeated` are per block the parameters that an earlier block of the stage holds."""
        runs = [
            (each, without, len(list(group)))
            for (each, without), group in groupby(
                zip(block_passes(programs), repeated, strict=True)
            )
        ]
        forward = run_chain([(self._pass(each.forward, pricing), n) for each, _, n in runs])
        backward = run_chain(
            [(self._pass(each.backward, pricing), n) for each, _, n in reversed(runs)]
        )
        steps = [
            (self._step(each.forward.program, pricing, without), n) for each, without, n in runs
        ]
        services: list[float] = []
        remaining = [
            (sum(bucket.seconds for bucket in each.buckets), count)
            for each, count in reversed(steps)
        ]
        for _, _, count in backward.block_ends:
            while remaining[0][1] == 0:
                remaining.pop(0)
            seconds, left = remaining[0]
            services.append(seconds)
            remaining[0] = (seconds, left - count)
        forward_memory, backward_memory = self._memory.stage(
            [(each, count) for each, _, count in runs]
        )
        state = StateBytes()
        for each, without, count in runs:
            state = state.plus(state_bytes(self.workload, each.forward.program, without), count)
        first, last = programs[0], programs[-1]
        return StageCost(
            forward=forward.cost,
            backward=backward.cost,
            block_ends=backward.block_ends,
            settling=tuple(services),
            settled_along=next(
                (each.buckets[-1].stream for each, _ in steps if each.buckets), None
            ),
            optimizer=sum(each.optimizer_seconds * count for each, count in steps),
            refresh=sum(each.refresh_seconds * count for each, count in steps),
            forward_memory=forward_memory,
            backward_memory=backward_memory,
            state=state,
            sent_forward_bytes=sum(v.type.size_bytes for v in last.outputs),
            sent_backward_bytes=sum(v.type.size_bytes for v in first.input_gradients),
        )

    # --- the whole -------------------------------------------------------------------------------

    def _result(self, plan: Plan, stages: Sequence[StageCost]) -> SimulationResult:
        compiled = plan.schedule
        seconds = _seconds(stages)
        time = run_pipeline(compiled, seconds, self._transfers(plan, stages))
        count = compiled.schedule.microbatches
        training = plan.workload.training
        tails = [0.0] * len(time.end)
        if training:
            tails = [_settling_tail(compiled, time, stages, rank) for rank in range(len(tails))]
        end = [done + tail for done, tail in zip(time.end, tails, strict=True)]
        waited, tied = self._add_up_tied(plan, end) if training else (tails, tails)
        reports: list[RankSeconds] = []
        for rank, own in enumerate(compiled.stages_of_ranks):
            costs = [stages[stage] for stage in own]
            exposed: dict[str, float] = {}
            busy = 0.0
            for cost in costs:
                for each in (cost.forward, cost.backward):
                    busy += each.seconds * count
                    for stream, seconds_waited in each.exposed:
                        exposed[stream] = exposed.get(stream, 0.0) + seconds_waited * count
            compute = busy - sum(exposed.values())
            refresh = sum(cost.refresh for cost in costs)
            exposed["dp"] = exposed.get("dp", 0.0) + refresh
            if training:
                last = _settled_along(compiled, stages, rank)
                exposed[last] = exposed.get(last, 0.0) + tails[rank]
            optimizer = sum(cost.optimizer for cost in costs)
            reports.append(
                RankSeconds(
                    stages=own,
                    compute=compute,
                    exposed=exposed,
                    transfer=time.waited_for_transfer[rank] + tied[rank],
                    bubble=time.waited_for_stage[rank] + waited[rank],
                    optimizer=optimizer,
                    end=end[rank] + optimizer + refresh,
                    memory=_peak(stages, compiled.held[rank], own),
                )
            )
        return make_result(plan, self.cost, reports)

    def _add_up_tied(self, plan: Plan, end: list[float]) -> tuple[list[float], list[float]]:
        """Moves the `end` of ranks behind the all-reduces of gradients that they share; returns
        per rank how long it waited for others, and how long it took."""
        waited, took = [0.0] * len(end), [0.0] * len(end)
        for tied in tied_gradients(plan, self.cost):
            start = max(end[rank] for rank in tied.ranks)
            for rank in tied.ranks:
                waited[rank] += start - end[rank]
                took[rank] += tied.seconds
                end[rank] = start + tied.seconds
        return waited, took

    def _transfers(self, plan: Plan, stages: Sequence[StageCost]) -> list[float]:
        """Seconds of the message that each kind of action sends."""
        ranks_of = {
            stage: rank for rank, own in enumerate(plan.schedule.stages_of_ranks) for stage in own
        }
        pricing = self.pricing(plan)
        seconds = [0.0] * (len(stages) * COST_KINDS)
        for stage, cost in enumerate(stages):
            programs = plan.stages[stage].programs
            forward_along = programs[-1].outputs_repeated_along
            backward_along = programs[0].input_gradients_repeated_along
            for step, size, along, kinds in (
                (1, cost.sent_forward_bytes, forward_along, (FORWARD,)),
                (-1, cost.sent_backward_bytes, backward_along, (BACKWARD, INPUT_PART)),
            ):
                here, there = ranks_of[stage], ranks_of.get(stage + step)
                if there is None or there == here:
                    continue
                hop = pricing.message(size, along, here, there)
                for kind in kinds:
                    seconds[stage * COST_KINDS + kind] = hop
        return seconds


def _seconds(stages: Sequence[StageCost]) -> list[float]:
    """What actions take, by `stage · COST_KINDS + kind`."""
    return [0.0 if each is None else each.seconds for stage in stages for each in stage.passes]


def _settled_along(compiled: CompiledSchedule, stages: Sequence[StageCost], rank: int) -> str:
    """The mesh axis of the last collective on a rank's gradients."""
    own = sorted(compiled.stages_of_ranks[rank], key=lambda s: -compiled.last_gradient[s])
    return next((axis for stage in own if (axis := stages[stage].settled_along)), "dp")


def _settling_tail(
    compiled: CompiledSchedule, time: PipelineTime, stages: Sequence[StageCost], rank: int
) -> float:
    """How long the gradient stream goes on after the last action of a rank. Its stages are
    settled in the order in which their gradients are complete."""
    own = sorted(compiled.stages_of_ranks[rank], key=lambda s: compiled.last_gradient[s])
    done = 0.0
    for stage in own:
        start = time.start[compiled.last_gradient[stage]]
        cost = stages[stage]
        done = start + drain(cost.block_ends, cost.settling, done - start)
    return max(0.0, done - time.end[rank])


def _peak(
    stages: Sequence[StageCost], situations: Sequence[Held], own: Sequence[int]
) -> Mapping[str, float]:
    """Memory of a rank by what holds it, at the peak."""
    held_bytes = buffers = 0.0
    for held in situations:
        counts = [(stages[s].forward_memory, n) for s, (n, _) in zip(own, held.counts, strict=True)]
        cost = stages[held.stage]
        effect = cost.forward_memory if held.kind == FORWARD else cost.backward_memory
        peak = effect.peak + sum(between * each.delta for each, between in counts)
        if peak > held_bytes:
            held_bytes = peak
            buffers = effect.buffer_peak + sum(n * each.buffer_delta for each, n in counts)
    state = StateBytes()
    for stage in own:
        state = state.plus(stages[stage].state)
    return {
        "parameters_bytes": state.parameters,
        "gradients_bytes": state.gradients,
        "optimizer_bytes": state.optimizer,
        "activations_bytes": held_bytes - buffers,
        "buffers_bytes": buffers,
    }


__all__ = ["Simulator", "StageCost"]
