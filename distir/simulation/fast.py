"""The fast engine: never touches a device or an equal block twice.

Equal blocks are summarised once and composed; all devices of a stage are one; only stage ×
microbatch actions are scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from distir.cost import Cluster, CostModel, CostProfile, load_profile
from distir.cost.amounts import Places, larger, taken
from distir.errors import StrategyError
from distir.ir.core import Node, Value
from distir.plan import BlockProgram, Plan, Planner
from distir.plan.feasibility import explain_many
from distir.plan.passes import BlockPasses, Segment, block_passes, composed
from distir.schedules import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    CompiledSchedule,
    InFlight,
)
from distir.simulation.block_cost import (
    BlockChain,
    ChainCost,
    Chains,
    HostBound,
    Pass,
)
from distir.simulation.chain_columns import ColumnChains
from distir.simulation.fitting import BlockBytes, Chain, Flights, Plans, fitted_bounds
from distir.simulation.instructions import Instruction, Pricing, narrower_products
from distir.simulation.memory import ChainMemory, MemoryEffect
from distir.simulation.partition import Partitions, rounded_weights
from distir.simulation.pipeline import PipelineTime, run_pipeline
from distir.simulation.ranks import rank_seconds
from distir.simulation.report import make_result
from distir.simulation.result import SimulationResult
from distir.simulation.runs import Run, mapped, runs_of
from distir.simulation.stage_cost import (
    Charged,
    Settling,
    StageCost,
    StepEnd,
    UnpricedStage,
    action_seconds,
)
from distir.simulation.state import StateBytes, state_bytes
from distir.simulation.table import SimulationTable
from distir.simulation.tied import Elsewhere, elsewhere, tied_gradients
from distir.strategies import Strategies
from distir.strategy import Strategy
from distir.workload import Workload


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
        software stacks that fuse alike, and whose devices have the same types."""
        self.workload = workload
        self.cluster = cluster
        self.cost = CostModel(cluster, profile or load_profile())
        fuse = self.cost.profile.fuses_elementwise
        narrow = narrower_products(workload, cluster.device) is not None
        self.planner = planner or Planner(workload, fuse=fuse, narrow=narrow)
        own = self.planner
        if own.workload is not workload or (own.fuse, own.narrow) != (fuse, narrow):
            raise ValueError("the planner is of another workload, fuses otherwise, or narrows")
        self._instructions: dict[object, tuple[Instruction, ...]] = {}
        self._known_passes: dict[object, dict[Segment, Pass]] = {}
        self._chains: Chains | ColumnChains = Chains(
            cast("HostBound", self.cost.host_bound_seconds)
        )
        self._weights: dict[object, float] = {}
        self._step_ends: dict[object, StepEnd] = {}
        self._stages: dict[object, StageCost] = {}
        self._cuts: dict[object, tuple[int, ...]] = {}
        self.partitions = Partitions()
        self._memory = ChainMemory()

    def repriced(self, profile: CostProfile, cluster: Cluster) -> Simulator:
        """A simulator with other constants or hardware; what does not depend on them is shared."""
        made = Simulator(self.workload, cluster, profile, planner=self.planner)
        made._memory = self._memory
        return made

    def explain(self, strategy: Strategy) -> str | None:
        """Why a strategy cannot run on this cluster with this workload, or None."""
        if strategy.devices > self.cluster.num_devices:
            return (
                f"dp x tp x cp x pp = {strategy.dp} x {strategy.tp} x {strategy.cp} x "
                f"{strategy.pp} = {strategy.devices} devices; the cluster has "
                f"{self.cluster.num_devices}"
            )
        return self.planner.explain(strategy)

    def explain_many(self, strategies: Strategies) -> dict[int, str]:
        """Why strategies cannot run, by their positions; those that can are not in it."""
        reasons = explain_many(self.workload, strategies)
        first, which = strategies.distinct(("dp", "tp", "cp", "pp"))
        for number, place in enumerate(first.tolist()):
            if strategies[place].devices > self.cluster.num_devices:
                reason = self.explain(strategies[place]) or ""
                reasons |= dict.fromkeys(np.flatnonzero(which == number).tolist(), reason)
        return reasons

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
        pricing, flight = self.pricing(whole), whole.schedule.in_flight
        key = (tuple(map(id, programs)), flight, pricing.grid.mesh)
        if key not in self._cuts:
            self._cuts[key] = self._balanced(programs, flight, strategy.chunks, pricing)
        return self.planner.plan(strategy, self._cuts[key])

    def _balanced(
        self, programs: Sequence[BlockProgram], flight: InFlight, chunks: int, pricing: Pricing
    ) -> tuple[int, ...]:
        """Where stages begin, without the first: as balanced by time as fits in memory."""
        weights = np.array([[self.weight(program, pricing) for program in programs]])
        rounded, alone = rounded_weights(weights), np.zeros(1, np.int64)
        shape = (flight.stages_of_ranks, chunks)
        (bounds,) = self.partitions.bounds(rounded, [shape], alone, alone)
        different = list(dict.fromkeys(programs))
        kinds = [different.index(program) for program in programs]
        held = self.block_bytes(programs, kinds, WEIGHT_PART in flight.kinds)
        chain = Chain(np.array(kinds), rounded.astype(np.float64), held, self.capacity)
        plans = Plans(np.array([bounds]), alone, alone, Flights.of([flight]), alone)
        ((_, fitted),) = fitted_bounds(chain, [plans])
        return tuple(fitted[0].tolist() if len(fitted) else bounds)[1:-1]

    @property
    def capacity(self) -> float:
        """Bytes of memory of a device."""
        return self.cluster.device.memory_bytes

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
        seconds = action_seconds(stages)
        time = self.schedule(plan.schedule, stages, self._transfers(plan, stages))
        return chrome_trace(plan, self.cost, time, seconds)

    # --- blocks -----------------------------------------------------------------------------------

    def _passes(self, segments: Sequence[Segment], pricing: Pricing) -> list[Pass]:
        known = self._known_passes.setdefault(pricing.grid.mesh, {})
        for segment in segments:
            if segment not in known:
                own = composed(segment)
                instructions = [each for node in own.nodes for each in self._priced(node, pricing)]
                known[segment] = Pass.of(instructions, own.handed, own.handing)
        return [known[segment] for segment in segments]

    def _priced(self, node: Node, pricing: Pricing) -> tuple[Instruction, ...]:
        """The instructions of a node, which may be in several passes."""
        key = (node, pricing.grid.mesh)
        if key not in self._instructions:
            self._instructions[key] = pricing.of_node(node)
        return self._instructions[key]

    def weight(self, program: BlockProgram, pricing: Pricing) -> float:
        """Seconds of both passes of a block on its own."""
        key = (program, pricing.grid.mesh)
        if key not in self._weights:
            alone = [Segment(program, kind) for kind in (FORWARD, BACKWARD)]
            chains = [BlockChain([((each,), 1)]) for each in self._passes(alone, pricing)]
            self._weights[key] = sum(each.cost.seconds for each in self._chains.run_all(chains))
        return self._weights[key]

    def block_bytes(
        self, programs: Sequence[BlockProgram], kinds: Sequence[int], splits: bool, plans: int = 1
    ) -> BlockBytes:
        """What the different blocks hold, and need in passing between their neighbours. `kinds` say
        which of them each block of the model is."""
        held = BlockBytes.empty(plans, 1 + max(kinds), COST_KINDS if splits else INPUT_PART)
        for kind in range(1 + max(kinds)):
            place = _typical(kinds, kind)
            alone = self._memory_of(programs[place : place + 1], splits)
            held.state[:, kind] = state_bytes(self.workload, programs[place]).total
            held.after_forward[:, kind] = alone[FORWARD].delta
            if splits:
                held.after_backward[:, kind] = alone[FORWARD].delta + alone[INPUT_PART].delta
            beside = self._memory_of(programs[max(0, place - 1) : place + 2], splits)
            for action, effect in enumerate(beside):
                own = beside[FORWARD].delta if action == FORWARD else 0
                held.passing[action][:, kind] = larger(effect.peak - own, 0)
        return held

    def _memory_of(
        self, programs: Sequence[BlockProgram], splits: bool
    ) -> tuple[MemoryEffect, ...]:
        return self._memory.stage([((own,), 1) for own in block_passes(programs, splits)])

    def _step_end(self, program: BlockProgram, pricing: Pricing, away: Elsewhere) -> StepEnd:
        """`away`: what of the block is charged elsewhere."""
        key = (program, pricing.grid.mesh, away)
        if key not in self._step_ends:
            elements = sum(
                use.owned_type.num_elements
                for position, use in enumerate(program.parameters)
                if use.gradient is not None and position not in away.held
            )
            buckets = {
                BACKWARD: pricing.buckets(program, away.added),
                WEIGHT_PART: pricing.buckets(program, away.added_late),
            }
            self._step_ends[key] = StepEnd(
                {kind: sum(each.seconds for each in own) for kind, own in buckets.items()},
                {kind: own[-1].stream if own else None for kind, own in buckets.items()},
                pricing.optimizer(self.workload, elements) if self.workload.training else 0.0,
                sum(each.seconds for each in pricing.refresh(program, away.held)),
                state_bytes(self.workload, program, away.held, away.added),
            )
        return self._step_ends[key]

    def _settling(self, chain: ChainCost, stage: UnpricedStage, kind: int) -> Settling:
        """Gradients are settled as soon as they are computed, or, where the stack does not overlap
        that with anything, at the end."""
        runs = stage.ordered(kind)
        seconds = sum(
            count * taken(end.services[kind], stage.places)
            for word, count in runs
            for _, end in word
        )
        done = chain.settled
        if not self.cost.profile.overlaps_gradients:
            done = chain.cost.seconds + seconds
        along = (end.along[kind] for word, _ in reversed(runs) for _, end in reversed(word))
        return Settling(done, seconds, next((axis for axis in along if axis), None))

    # --- stages -----------------------------------------------------------------------------------

    def _stage_costs(self, plan: Plan) -> list[StageCost]:
        pricing = self.pricing(plan)
        splits = plan.schedule.splits_backward
        return [self._stage_cost(plan, index, pricing, splits) for index in range(len(plan.stages))]

    def of_many(self, points: int) -> Simulator:
        """One of blocks and stages whose sizes are so many numbers each; without what this one
        remembers of others."""
        made = Simulator(self.workload, self.cluster, self.cost.profile, planner=self.planner)
        made._chains = ColumnChains(self.cost.host_bound_seconds, points)
        made.partitions = self.partitions
        return made

    def _stage_cost(self, plan: Plan, index: int, pricing: Pricing, splits: bool) -> StageCost:
        programs, uses = plan.stages[index].programs, elsewhere(plan, index)
        key = (programs, pricing.grid.mesh, uses, splits)
        if key not in self._stages:
            runs = runs_of(list(zip(programs, uses, strict=True)))
            unpriced = self.unpriced_stage(runs, pricing, splits)
            (self._stages[key],) = self.price([unpriced], pricing)
        return self._stages[key]

    def unpriced_stage(
        self,
        blocks: Sequence[Run[Charged]],
        pricing: Pricing,
        splits: bool,
        places: Places | None = None,
    ) -> UnpricedStage:
        """A chain of blocks, wanted at these `places` as in `BlockChain`. Raises `Uneven` where
        lengths of runs that differ decide more than sums."""

        def with_passes(chain: Sequence[Charged]) -> list[tuple[BlockPasses, StepEnd]]:
            passes = block_passes([program for program, _ in chain], splits)
            ends = (self._step_end(program, pricing, away) for program, away in chain)
            return list(zip(passes, ends, strict=True))

        runs = mapped(blocks, with_passes)
        passes = [(tuple(own for own, _ in word), count) for word, count in runs]
        return UnpricedStage(
            runs=runs,
            memory=self._memory.stage(passes, places),
            sent_forward_bytes=_total_bytes(blocks[-1][0][-1][0].outputs),
            sent_backward_bytes=_total_bytes(blocks[0][0][0][0].input_gradients),
            places=places,
        )

    def price(self, stages: Sequence[UnpricedStage], pricing: Pricing) -> list[StageCost]:
        """What the actions of stages take, which have the same kinds of action."""
        costs: list[list[ChainCost]] = []
        for kind in range(len(stages[0].memory)):
            costs.append(self._chains.run_all([self._chain(e, kind, pricing) for e in stages]))
        return [
            self._priced_stage(stage, own)
            for stage, own in zip(stages, zip(*costs, strict=True), strict=True)
        ]

    def _chain(self, stage: UnpricedStage, kind: int, pricing: Pricing) -> BlockChain:
        """The passes of a stage in one kind of action."""
        runs = stage.ordered(kind)
        passes = [
            (tuple(self._passes([own[kind] for own, _ in word], pricing)), count)
            for word, count in runs
        ]
        if kind not in COMPLETING:
            return BlockChain(passes, places=stage.places)
        services = [[end.services[kind] for _, end in word] for word, _ in runs]
        return BlockChain(passes, services, stage.places)

    def _priced_stage(self, stage: UnpricedStage, chains: Sequence[ChainCost]) -> StageCost:
        """`chains`: what its kinds of action take."""
        optimizer = refresh = 0.0
        state, places = StateBytes(), stage.places
        for word, count in stage.runs:
            for _, end in word:
                optimizer = optimizer + count * taken(end.optimizer_seconds, places)
                refresh = refresh + count * taken(end.refresh_seconds, places)
                state = state.plus(end.state.at(places), count)
        return StageCost(
            passes=tuple(chain.cost for chain in chains),
            memory=stage.memory,
            settling={
                kind: self._settling(chain, stage, kind)
                for kind, chain in enumerate(chains)
                if kind in COMPLETING
            },
            optimizer=optimizer,
            refresh=refresh,
            state=state,
            sent_forward_bytes=stage.sent_forward_bytes,
            sent_backward_bytes=stage.sent_backward_bytes,
        )

    # --- the whole -------------------------------------------------------------------------------

    def _result(self, plan: Plan, stages: Sequence[StageCost]) -> SimulationResult:
        transfers = self._transfers(plan, stages)
        tied = tied_gradients(plan, self.cost) if plan.workload.training else []
        time = self.schedule(plan.schedule, stages, transfers)
        ranks = rank_seconds(plan.schedule, time, stages, tied, plan.workload.training)
        return make_result(plan, self.cost, ranks)

    def schedule(
        self,
        compiled: CompiledSchedule,
        stages: Sequence[StageCost],
        transfers: Sequence[float],
    ) -> PipelineTime:
        """When actions start, given what they and messages take."""
        goes_on = self.cost.profile.goes_on(max(map(len, compiled.stages_of_ranks)))
        return run_pipeline(compiled, action_seconds(stages), transfers, goes_on=goes_on)

    def _transfers(self, plan: Plan, stages: Sequence[StageCost]) -> list[float]:
        """Seconds of the message that each kind of action sends."""
        pricing = self.pricing(plan)

        def hop(stage: int, step: int, here: int, there: int) -> float:
            programs, cost = plan.stages[stage].programs, stages[stage]
            if step > 0:
                along, size = programs[-1].outputs_repeated_along, cost.sent_forward_bytes
            else:
                along, size = programs[0].input_gradients_repeated_along, cost.sent_backward_bytes
            return pricing.message(size, along, here, there)

        return _transfer_seconds(plan.schedule, hop)


def _typical(kinds: Sequence[int], kind: int) -> int:
    """The place of a block of a kind, between others of this kind if there is such a place."""
    inner = (n for n in range(1, len(kinds) - 1) if set(kinds[n - 1 : n + 2]) == {kind})
    return next(inner, kinds.index(kind))


def _transfer_seconds(
    compiled: CompiledSchedule, hop: Callable[[int, int, int, int], float]
) -> list[float]:
    """Seconds of messages by `stage · COST_KINDS + kind`. `hop` gives those of what a stage sends
    to the next (1) or the previous one (-1), from one rank to another."""
    seconds = [0.0] * (compiled.stages * COST_KINDS)
    for (stage, step), pairs in compiled.routes.items():
        longest = larger(*(hop(stage, step, *pair) for pair in pairs))
        for kind in (FORWARD,) if step > 0 else (BACKWARD, INPUT_PART):
            seconds[stage * COST_KINDS + kind] = longest
    return seconds


def _total_bytes(values: Sequence[Value]) -> float:
    return sum(value.type.size_bytes for value in values)


__all__ = ["Simulator"]
