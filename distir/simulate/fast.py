"""The fast engine: never touches a device or an equal block twice.

Equal blocks are summarised once and composed; all devices of a stage are one; only stage ×
microbatch actions are scheduled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from distir.cost import Cluster, CostModel, CostProfile, load_profile
from distir.errors import StrategyError
from distir.ir.core import Value
from distir.plan import BlockProgram, Plan, Planner
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART, CompiledSchedule, Held
from distir.simulate.block_cost import Pass, PassCost, drain, run_chain
from distir.simulate.instructions import Pricing
from distir.simulate.memory import ChainMemory, MemoryEffect
from distir.simulate.partition import balanced_cuts
from distir.simulate.pipeline import PipelineTime, run_pipeline
from distir.simulate.report import RankSeconds, make_result
from distir.simulate.result import SimulationResult
from distir.simulate.state import StateBytes, optimizer_bytes_per_element, state_bytes
from distir.strategy import Strategy
from distir.workload import Workload


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a stage's actions take and hold. `block_ends` are the times at which the gradients of
    its blocks are ready, from the start of the last backward pass, and `settling` the seconds that
    each of them then takes on the gradient stream."""

    forward: PassCost
    backward: PassCost
    block_ends: tuple[tuple[float, float, int], ...]
    settling: tuple[float, ...]
    optimizer: float
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
class _Passes:
    forward: Pass
    backward: Pass
    buckets_seconds: float
    optimizer_seconds: float
    weight: float


class Simulator:
    """Simulates strategies of one workload on one cluster; what they share is kept."""

    def __init__(
        self, workload: Workload, cluster: Cluster, profile: CostProfile | None = None
    ) -> None:
        self.workload = workload
        self.cluster = cluster
        self.cost = CostModel(cluster, profile or load_profile())
        self.planner = Planner(workload)
        self._passes: dict[object, _Passes] = {}
        self._stages: dict[object, StageCost] = {}
        self._cuts: dict[object, tuple[int, ...]] = {}
        self._memory = ChainMemory()

    def explain(self, strategy: Strategy) -> str | None:
        """Why a strategy cannot run on this cluster with this workload, or None."""
        if strategy.devices > self.cluster.num_devices:
            return (
                f"dp x tp x pp = {strategy.dp} x {strategy.tp} x {strategy.pp} = "
                f"{strategy.devices} devices; the cluster has {self.cluster.num_devices}"
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
        if strategy.pp == 1:
            return whole
        pricing = self.pricing(whole)
        key = (tuple(map(id, programs)), strategy.pp, tuple(pricing.groups.values()))
        if key not in self._cuts:
            weights = [self._passes_of(program, pricing).weight for program in programs]
            self._cuts[key] = balanced_cuts(weights, strategy.pp)
        return self.planner.plan(strategy, self._cuts[key])

    def pricing(self, plan: Plan) -> Pricing:
        """Seconds on this cluster with the plan's mesh laid on it."""
        return Pricing.of(self.cost, plan)

    def simulate(self, strategy: Strategy) -> SimulationResult:
        """The metrics of a strategy. Raises `StrategyError` if it cannot run; if it only does not
        fit in memory, the result says so."""
        plan = self.plan(strategy)
        pricing = self.pricing(plan)
        stages = [self._stage_cost(plan, index, pricing) for index in range(len(plan.stages))]
        return self._result(plan, stages)

    # --- blocks -----------------------------------------------------------------------------------

    def _passes_of(self, program: BlockProgram, pricing: Pricing) -> _Passes:
        key = (program, tuple(pricing.groups.values()))
        if key not in self._passes:
            forward = Pass(pricing.instructions(program.forward), program.inputs, program.outputs)
            backward = Pass(
                pricing.instructions(program.backward),
                program.output_gradients,
                program.input_gradients,
            )
            weight = sum(run_chain([(each, 1)]).cost.seconds for each in (forward, backward))
            bytes_per_element = optimizer_bytes_per_element(self.workload)
            elements = sum(
                use.type.num_elements for use in program.parameters if use.gradient is not None
            )
            self._passes[key] = _Passes(
                forward,
                backward,
                sum(bucket.seconds for bucket in pricing.buckets(program)),
                pricing.optimizer(elements, bytes_per_element) if self.workload.training else 0.0,
                weight,
            )
        return self._passes[key]

    # --- stages -----------------------------------------------------------------------------------

    def _stage_cost(self, plan: Plan, index: int, pricing: Pricing) -> StageCost:
        stage = plan.stages[index]
        shared = self._shared_parameters(plan, index)
        key = (stage.programs, tuple(pricing.groups.values()), shared)
        if key not in self._stages:
            self._stages[key] = self._make_stage_cost(plan, index, pricing)
        return self._stages[key]

    def _shared_parameters(self, plan: Plan, index: int) -> frozenset[tuple[int, int]]:
        """Parameters used by several blocks: `(place of block in stage, place in block)` of the
        uses whose state another use in the stage holds already."""
        blocks = self.planner.program.blocks
        seen: set[Value] = set()
        found: set[tuple[int, int]] = set()
        for place, block_index in enumerate(plan.stages[index].blocks):
            if block_index not in _sharing_blocks(self.planner):
                continue
            for position, value in enumerate(blocks.blocks[block_index].parameters):
                if value in seen:
                    found.add((place, position))
                seen.add(value)
        return frozenset(found)

    def _make_stage_cost(self, plan: Plan, index: int, pricing: Pricing) -> StageCost:
        programs = plan.stages[index].programs
        runs = [(program, len(list(group))) for program, group in groupby(programs)]
        passes = [(self._passes_of(program, pricing), count) for program, count in runs]
        forward = run_chain([(each.forward, count) for each, count in passes])
        backward = run_chain([(each.backward, count) for each, count in reversed(passes)])
        services: list[float] = []
        remaining = [(each.buckets_seconds, count) for each, count in reversed(passes)]
        for _, _, count in backward.block_ends:
            while remaining[0][1] == 0:
                remaining.pop(0)
            seconds, left = remaining[0]
            services.append(seconds)
            remaining[0] = (seconds, left - count)
        forward_memory, backward_memory = self._memory.stage(runs)
        state = StateBytes()
        shared = self._shared_parameters(plan, index)
        place = 0
        for program, count in runs:
            own = state_bytes(self.workload, program)
            state = state.plus(own, count)
            for at, position in shared:
                if place <= at < place + count:
                    state = state.plus(state_bytes(self.workload, program, only=position), -1)
            place += count
        first, last = programs[0], programs[-1]
        return StageCost(
            forward=forward.cost,
            backward=backward.cost,
            block_ends=backward.block_ends,
            settling=tuple(services),
            optimizer=sum(each.optimizer_seconds * count for each, count in passes),
            forward_memory=forward_memory,
            backward_memory=backward_memory,
            state=state,
            sent_forward_bytes=float(sum(v.type.size_bytes for v in last.outputs)),
            sent_backward_bytes=float(sum(v.type.size_bytes for v in first.input_gradients)),
        )

    # --- the whole ----------------------------------------------------------------------------------

    def _result(self, plan: Plan, stages: Sequence[StageCost]) -> SimulationResult:
        compiled = plan.schedule
        seconds = [
            0.0 if each is None else each.seconds for stage in stages for each in stage.passes
        ]
        time = run_pipeline(compiled, seconds, self._transfers(plan, stages))
        count = compiled.schedule.microbatches
        training = plan.workload.training
        reports: list[RankSeconds] = []
        for rank, own in enumerate(compiled.stages_of_ranks):
            costs = [stages[stage] for stage in own]
            exposed: dict[str, float] = {}
            busy = 0.0
            for cost in costs:
                for each in (cost.forward, cost.backward):
                    busy += each.seconds * count
                    for stream, waited in each.exposed:
                        exposed[stream] = exposed.get(stream, 0.0) + waited * count
            compute = busy - sum(exposed.values())
            tail = tied = optimizer = 0.0
            if training:
                tail = _settling_tail(compiled, time, stages, rank)
                exposed["dp"] = exposed.get("dp", 0.0) + tail
                tied = sum(self._tied_seconds(plan, stage) for stage in own)
                optimizer = sum(cost.optimizer for cost in costs)
            reports.append(
                RankSeconds(
                    stages=own,
                    compute=compute,
                    exposed=exposed,
                    transfer=time.waited_for_transfer[rank] + tied,
                    bubble=time.waited_for_stage[rank],
                    optimizer=optimizer,
                    end=time.end[rank] + tail + tied + optimizer,
                    memory=_peak(stages, compiled.held[rank], own),
                )
            )
        return make_result(plan, self.cost, reports)

    def _transfers(self, plan: Plan, stages: Sequence[StageCost]) -> list[float]:
        """Seconds of the message that each kind of action sends."""
        ranks_of = {
            stage: rank
            for rank, own in enumerate(plan.schedule.stages_of_ranks)
            for stage in own
        }
        stride = plan.devices_per_stage
        seconds = [0.0] * (len(stages) * COST_KINDS)
        for stage, cost in enumerate(stages):
            for step, size, kinds in (
                (1, cost.sent_forward_bytes, (FORWARD,)),
                (-1, cost.sent_backward_bytes, (BACKWARD, INPUT_PART)),
            ):
                here, there = ranks_of[stage], ranks_of.get(stage + step)
                if there is None or there == here:
                    continue
                distance = abs(there - here) * stride
                start = min(here, there) * stride
                hop = float(self.cost.point_to_point_seconds(size, distance, start=start))
                for kind in kinds:
                    seconds[stage * COST_KINDS + kind] = hop
        return seconds

    def _tied_seconds(self, plan: Plan, index: int) -> float:
        """All-reduce of the gradients of parameters that this stage shares with others."""
        total = 0.0
        for stages, size in tied_parameters(self.planner, plan):
            if index in stages:
                apart = (max(stages) - min(stages)) // (len(stages) - 1)
                group = self.cluster.group(len(stages), apart * plan.devices_per_stage)
                total += float(self.cost.collective_seconds("all_reduce", size, group))
        return total


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
    activations = 0.0
    for held in situations:
        resting = sum(
            between * stages[stage].forward_memory.delta
            for stage, (between, _) in zip(own, held.counts, strict=True)
        )
        cost = stages[held.stage]
        effect = cost.forward_memory if held.kind == FORWARD else cost.backward_memory
        activations = max(activations, resting + effect.peak)
    state = StateBytes()
    for stage in own:
        state = state.plus(stages[stage].state)
    return {
        "parameters_bytes": state.parameters,
        "gradients_bytes": state.gradients,
        "optimizer_bytes": state.optimizer,
        "activations_bytes": activations,
        "buffers_bytes": 0.0,
    }


def _sharing_blocks(planner: Planner) -> frozenset[int]:
    """Blocks with a parameter that another block uses too."""
    cached = planner.workload._cache.get("sharing")  # pyright: ignore[reportPrivateUsage]
    if cached is None:
        users: dict[Value, list[int]] = {}
        for index, block in enumerate(planner.program.blocks.blocks):
            for value in block.parameters:
                users.setdefault(value, []).append(index)
        cached = frozenset(i for found in users.values() if len(found) > 1 for i in found)
        planner.workload._cache["sharing"] = cached  # pyright: ignore[reportPrivateUsage]
    return cached  # type: ignore[return-value]


def tied_parameters(planner: Planner, plan: Plan) -> list[tuple[tuple[int, ...], int]]:
    """Trained parameters used on several stages: the stages, and the bytes of one device's part."""
    found: dict[Value, tuple[set[int], int]] = {}
    blocks = planner.program.blocks.blocks
    sharing = _sharing_blocks(planner)
    for stage in plan.stages:
        for index, program in zip(stage.blocks, stage.programs, strict=True):
            if index not in sharing:
                continue
            for value, use in zip(blocks[index].parameters, program.parameters, strict=True):
                if use.gradient is not None:
                    stages, _ = found.setdefault(value, (set(), use.type.size_bytes))
                    stages.add(stage.index)
    return [(tuple(sorted(s)), size) for s, size in found.values() if len(s) > 1]


__all__ = ["Simulator", "StageCost", "tied_parameters"]
