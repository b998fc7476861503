"""What blocks and stages take and hold: of one plan, or of many whose sizes are `Many`.

Knows no strategy, schedule or result: who simulates one plan or many asks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from distir.arrays import Indices
from distir.cost import CostModel
from distir.cost.amounts import larger, taken
from distir.ir.core import Node, Value
from distir.plan import BlockProgram, Planner
from distir.plan.passes import BlockPasses, Segment, block_passes, composed
from distir.schedules import BACKWARD, COMPLETING, COST_KINDS, FORWARD, INPUT_PART, WEIGHT_PART
from distir.simulation.pricing.block_bytes import BlockBytes
from distir.simulation.pricing.chains import BlockChain, ChainCost, Chains, HostBound, Pass
from distir.simulation.pricing.chains_many import ColumnChains
from distir.simulation.pricing.instructions import Instruction, Pricing
from distir.simulation.pricing.memory import ChainMemory, MemoryEffect
from distir.simulation.pricing.repeats import Run, mapped
from distir.simulation.pricing.stage_cost import (
    Charged,
    Settling,
    StageCost,
    StepEnd,
    UnpricedStage,
)
from distir.simulation.pricing.state import StateBytes, state_bytes
from distir.simulation.pricing.tied import Elsewhere
from distir.workload import Workload


class StagePricer:
    """Prices stages of one workload on one cluster; what they share is kept."""

    def __init__(
        self,
        workload: Workload,
        cost: CostModel,
        planner: Planner,
        memory: ChainMemory,
        chains: Chains | ColumnChains | None = None,
    ) -> None:
        self.workload, self.cost, self.planner = workload, cost, planner
        self._memory = memory
        self._chains = chains or Chains(cast("HostBound", cost.host_bound_seconds))
        self._instructions: dict[object, tuple[Instruction, ...]] = {}
        self._known_passes: dict[object, dict[Segment, Pass]] = {}
        self._weights: dict[object, float] = {}
        self._step_ends: dict[object, StepEnd] = {}

    def of_many(self, points: int) -> StagePricer:
        """One of blocks and stages whose sizes are so many numbers each; without what this one
        remembers of others."""
        chains = ColumnChains(self.cost.host_bound_seconds, points)
        return StagePricer(self.workload, self.cost, self.planner, ChainMemory(), chains)

    def repriced(self, cost: CostModel) -> StagePricer:
        """With other constants or hardware; what does not depend on them is shared."""
        return StagePricer(self.workload, cost, self.planner, self._memory)

    @property
    def capacity(self) -> float:
        """Bytes of memory of a device."""
        return self.cost.cluster.device.memory_bytes

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
            elements = program.trained_elements(without=away.held)
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
        if not self.cost.stack.overlaps_gradients:
            done = chain.cost.seconds + seconds
        along = (end.along[kind] for word, _ in reversed(runs) for _, end in reversed(word))
        return Settling(done, seconds, next((axis for axis in along if axis), None))

    # --- stages -----------------------------------------------------------------------------------

    def unpriced_stage(
        self,
        blocks: Sequence[Run[Charged]],
        pricing: Pricing,
        splits: bool,
        places: Indices | None = None,
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


def _typical(kinds: Sequence[int], kind: int) -> int:
    """The place of a block of a kind, between others of this kind if there is such a place."""
    inner = (n for n in range(1, len(kinds) - 1) if set(kinds[n - 1 : n + 2]) == {kind})
    return next(inner, kinds.index(kind))


def _total_bytes(values: Sequence[Value]) -> float:
    return sum(value.type.size_bytes for value in values)


__all__ = ["StagePricer"]
