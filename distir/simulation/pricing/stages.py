"""Prices blocks and stages: their seconds and the bytes that they hold.

The sizes of programs may be `Many`, so that the same functions price one plan or many at once.
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
from distir.simulation.pricing.chains import BlockChain, ChainCost, ChainScheduler, HostBound, Pass
from distir.simulation.pricing.chains_many import ManyChainScheduler
from distir.simulation.pricing.instructions import Instruction, Pricing
from distir.simulation.pricing.memory import ChainMemory, MemoryEffect
from distir.simulation.pricing.repeats import RepeatedBlocks, mapped
from distir.simulation.pricing.stage_cost import (
    ChargedBlock,
    Settling,
    StageCost,
    StepEnd,
    UnpricedStage,
)
from distir.simulation.pricing.state import StateBytes, state_bytes
from distir.simulation.pricing.tied import ChargedElsewhere
from distir.workload import Workload


class StagePricer:
    """Prices the blocks and stages of one workload on one cluster; it keeps what they share."""

    def __init__(
        self,
        workload: Workload,
        cost: CostModel,
        planner: Planner,
        memory: ChainMemory,
        chains: ChainScheduler | ManyChainScheduler | None = None,
    ) -> None:
        self.workload, self.cost, self.planner = workload, cost, planner
        self._memory = memory
        self._chains = chains or ChainScheduler(cast("HostBound", cost.host_bound_seconds))
        self._instructions: dict[object, tuple[Instruction, ...]] = {}
        self._known_passes: dict[object, dict[Segment, Pass]] = {}
        self._weights: dict[object, float] = {}
        self._step_ends: dict[object, StepEnd] = {}

    def of_many(self, num_sizes: int) -> StagePricer:
        """A pricer for blocks whose sizes are arrays with one number for each of `num_sizes`
        program sizes. It shares nothing with this pricer."""
        chains = ManyChainScheduler(self.cost.host_bound_seconds, num_sizes)
        return StagePricer(self.workload, self.cost, self.planner, ChainMemory(), chains)

    def repriced(self, cost: CostModel) -> StagePricer:
        """A pricer with other constants or hardware, which shares what does not depend on them."""
        return StagePricer(self.workload, cost, self.planner, self._memory)

    # --- blocks -----------------------------------------------------------------------------------

    def _passes(self, segments: Sequence[Segment], pricing: Pricing) -> list[Pass]:
        known = self._known_passes.setdefault(pricing.grid.mesh, {})
        for segment in segments:
            if segment not in known:
                ops = composed(segment)
                instructions = [each for node in ops.nodes for each in self._priced(node, pricing)]
                known[segment] = Pass.of(instructions, ops.handed, ops.handing)
        return [known[segment] for segment in segments]

    def _priced(self, node: Node, pricing: Pricing) -> tuple[Instruction, ...]:
        """The instructions of a node; they are kept, as a node may be in several passes."""
        key = (node, pricing.grid.mesh)
        if key not in self._instructions:
            self._instructions[key] = pricing.of_node(node)
        return self._instructions[key]

    def weight(self, program: BlockProgram, pricing: Pricing) -> float:
        """Seconds of a block's forward and backward pass by themselves."""
        key = (program, pricing.grid.mesh)
        if key not in self._weights:
            segments = [Segment(program, cost_kind) for cost_kind in (FORWARD, BACKWARD)]
            chains = [BlockChain([((each,), 1)]) for each in self._passes(segments, pricing)]
            self._weights[key] = sum(each.cost.seconds for each in self._chains.run_all(chains))
        return self._weights[key]

    def block_bytes(
        self,
        programs: Sequence[BlockProgram],
        block_kinds: Sequence[int],
        splits: bool,
        num_sizes: int = 1,
    ) -> BlockBytes:
        """Bytes that the different blocks of a model hold. `block_kinds` has a number for each
        block of the model; equal blocks have the same number.

        What a block needs in passing is measured between the blocks beside it.
        """
        count = 1 + max(block_kinds)
        held = BlockBytes.empty(num_sizes, count, COST_KINDS if splits else INPUT_PART)
        for kind in range(count):
            index = _typical(block_kinds, kind)
            alone = self._memory_of(programs[index : index + 1], splits)
            held.state[:, kind] = state_bytes(self.workload, programs[index]).total
            held.after_forward[:, kind] = alone[FORWARD].delta
            if splits:
                held.after_backward[:, kind] = alone[FORWARD].delta + alone[INPUT_PART].delta
            beside = self._memory_of(programs[max(0, index - 1) : index + 2], splits)
            for cost_kind, effect in enumerate(beside):
                left = beside[FORWARD].delta if cost_kind == FORWARD else 0
                held.passing[cost_kind][:, kind] = larger(effect.peak - left, 0)
        return held

    def _memory_of(
        self, programs: Sequence[BlockProgram], splits: bool
    ) -> tuple[MemoryEffect, ...]:
        """The effects of actions on memory in a stage with these blocks."""
        return self._memory.stage([((passes,), 1) for passes in block_passes(programs, splits)])

    def _step_end(self, program: BlockProgram, pricing: Pricing, away: ChargedElsewhere) -> StepEnd:
        """What follows a block's last backward pass, without the parameters `away`."""
        key = (program, pricing.grid.mesh, away)
        if key not in self._step_ends:
            elements = program.trained_elements(without=away.held)
            buckets = {
                BACKWARD: pricing.buckets(program, away.added),
                WEIGHT_PART: pricing.buckets(program, away.added_late),
            }
            self._step_ends[key] = StepEnd(
                {kind: sum(each.seconds for each in of_kind) for kind, of_kind in buckets.items()},
                {
                    kind: of_kind[-1].stream if of_kind else None
                    for kind, of_kind in buckets.items()
                },
                pricing.optimizer(self.workload, elements) if self.workload.training else 0.0,
                sum(each.seconds for each in pricing.refresh(program, away.held)),
                state_bytes(self.workload, program, away.held, away.added),
            )
        return self._step_ends[key]

    def _settling(self, chain: ChainCost, stage: UnpricedStage, cost_kind: int) -> Settling:
        """How the gradients of a stage are settled if its last action has this cost kind: as soon
        as they are computed, or at the end if the software stack does not overlap gradients."""
        blocks = stage.ordered(cost_kind)
        seconds = sum(
            count * taken(end.settling_seconds[cost_kind], stage.size_numbers)
            for pattern, count in blocks
            for _, end in pattern
        )
        done = chain.settled
        if not self.cost.stack.overlaps_gradients:
            done = chain.cost.seconds + seconds
        along = (
            end.settled_along[cost_kind]
            for pattern, _ in reversed(blocks)
            for _, end in reversed(pattern)
        )
        return Settling(done, seconds, next((axis for axis in along if axis), None))

    # --- stages -----------------------------------------------------------------------------------

    def unpriced_stage(
        self,
        blocks: Sequence[RepeatedBlocks[ChargedBlock]],
        pricing: Pricing,
        splits: bool,
        size_numbers: Indices | None = None,
    ) -> UnpricedStage:
        """A stage, given its blocks as repeated patterns.

        If numbers of copies are arrays, they describe several stages, whose program sizes are
        `size_numbers`. Raises `Uneven` if numbers of copies decide more than sums.
        """

        def with_passes(chain: Sequence[ChargedBlock]) -> list[tuple[BlockPasses, StepEnd]]:
            passes = block_passes([program for program, _ in chain], splits)
            ends = (self._step_end(program, pricing, away) for program, away in chain)
            return list(zip(passes, ends, strict=True))

        chain = mapped(blocks, with_passes)
        passes = [(tuple(each for each, _ in pattern), count) for pattern, count in chain]
        return UnpricedStage(
            blocks=chain,
            memory=self._memory.stage(passes, size_numbers),
            sent_forward_bytes=_total_bytes(blocks[-1][0][-1][0].outputs),
            sent_backward_bytes=_total_bytes(blocks[0][0][0][0].input_gradients),
            size_numbers=size_numbers,
        )

    def price(self, stages: Sequence[UnpricedStage], pricing: Pricing) -> list[StageCost]:
        """The costs of stages, all of which have the same cost kinds."""
        by_cost_kind: list[list[ChainCost]] = []
        for cost_kind in range(len(stages[0].memory)):
            chains = [self._chain(stage, cost_kind, pricing) for stage in stages]
            by_cost_kind.append(self._chains.run_all(chains))
        return [
            self._priced_stage(stage, costs)
            for stage, costs in zip(stages, zip(*by_cost_kind, strict=True), strict=True)
        ]

    def _chain(self, stage: UnpricedStage, cost_kind: int, pricing: Pricing) -> BlockChain:
        """The passes of a stage in actions of one cost kind."""
        blocks = stage.ordered(cost_kind)
        passes = [
            (tuple(self._passes([each[cost_kind] for each, _ in pattern], pricing)), count)
            for pattern, count in blocks
        ]
        if cost_kind not in COMPLETING:
            return BlockChain(passes, size_numbers=stage.size_numbers)
        settling = [
            [end.settling_seconds[cost_kind] for _, end in pattern] for pattern, _ in blocks
        ]
        return BlockChain(passes, settling, stage.size_numbers)

    def _priced_stage(self, stage: UnpricedStage, chains: Sequence[ChainCost]) -> StageCost:
        """The cost of a stage, given the costs of its passes by cost kind."""
        optimizer = refresh = 0.0
        state, numbers = StateBytes(), stage.size_numbers
        for pattern, count in stage.blocks:
            for _, end in pattern:
                optimizer = optimizer + count * taken(end.optimizer_seconds, numbers)
                refresh = refresh + count * taken(end.refresh_seconds, numbers)
                state = state.plus(end.state.at(numbers), count)
        return StageCost(
            passes=tuple(chain.cost for chain in chains),
            memory=stage.memory,
            settling={
                cost_kind: self._settling(chain, stage, cost_kind)
                for cost_kind, chain in enumerate(chains)
                if cost_kind in COMPLETING
            },
            optimizer=optimizer,
            refresh=refresh,
            state=state,
            sent_forward_bytes=stage.sent_forward_bytes,
            sent_backward_bytes=stage.sent_backward_bytes,
        )


def _typical(block_kinds: Sequence[int], kind: int) -> int:
    """The index of a block of a kind: of one between two others of this kind, if there is one."""
    inner = (n for n in range(1, len(block_kinds) - 1) if set(block_kinds[n - 1 : n + 2]) == {kind})
    return next(inner, block_kinds.index(kind))


def _total_bytes(values: Sequence[Value]) -> float:
    return sum(value.type.size_bytes for value in values)


__all__ = ["StagePricer"]
