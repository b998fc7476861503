"""Prices blocks and stages: their seconds and the bytes that they hold.

The sizes of programs may be `Many`, so that the same functions price one plan or many at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise, product
from typing import cast

from distir.arrays import Indices
from distir.cost import CostModel
from distir.cost.amounts import Amount, larger, smaller, total
from distir.ir.core import Value
from distir.plan import BlockProgram, Planner
from distir.plan.passes import BlockPasses, Segment, block_passes, segments
from distir.schedules import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    kinds_of_actions,
)
from distir.simulation.pricing.block_bytes import BlockBytes
from distir.simulation.pricing.chains import (
    BlockChain,
    ChainCost,
    ChainScheduler,
    HostBound,
    Pass,
    PassCost,
    PassPattern,
)
from distir.simulation.pricing.chains_many import ManyChainScheduler
from distir.simulation.pricing.instructions import COMPUTE, Pricing
from distir.simulation.pricing.known_passes import KnownPasses
from distir.simulation.pricing.memory import ChainMemory, MemoryEffect
from distir.simulation.pricing.repeats import RepeatedBlocks, mapped
from distir.simulation.pricing.stage_blocks import KnownStageBlocks
from distir.simulation.pricing.stage_cost import (
    BlockPass,
    ChargedBlock,
    OverlappedStages,
    Settling,
    StageCost,
    StepEnd,
    UnpricedStage,
)
from distir.simulation.pricing.state import StateBytes, state_bytes
from distir.simulation.pricing.step_ends import KnownStepEnds, host_seconds
from distir.simulation.pricing.to_price import ToPrice
from distir.workload import Workload

LINKS = "links"
"""Stands for the stream on which parameters are gathered and gradients shared out."""


@dataclass(frozen=True, slots=True)
class _OnMesh:
    """What is known of programs on one mesh."""

    passes: KnownPasses
    ends: KnownStepEnds
    blocks: KnownStageBlocks
    alone: dict[Pass, BlockPass] = field(default_factory=dict[Pass, BlockPass])
    passes_alone: dict[tuple[BlockProgram, bool], list[Pass]] = field(
        default_factory=dict[tuple[BlockProgram, bool], "list[Pass]"]
    )
    """The passes of a block between equal ones, by cost kind; the key says whether the parts of its
    backward pass are among them."""
    held: dict[object, tuple[Amount, ...]] = field(default_factory=dict[object, tuple[Amount, ...]])
    """Bytes that a block holds between others."""


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
        self._on_meshes: dict[object, _OnMesh] = {}
        self._latest: tuple[object, _OnMesh] | None = None
        self._effects: dict[object, Mapping[int, MemoryEffect]] = {}

    def of_many(self, num_sizes: int) -> StagePricer:
        """A pricer for blocks whose sizes are arrays with one number for each of `num_sizes`
        program sizes. It shares nothing with this pricer."""
        chains = ManyChainScheduler(self.cost.host_bound_seconds, num_sizes)
        return StagePricer(self.workload, self.cost, self.planner, ChainMemory(num_sizes), chains)

    def repriced(self, cost: CostModel) -> StagePricer:
        """A pricer with other constants or hardware, which shares what does not depend on them."""
        return StagePricer(self.workload, cost, self.planner, self._memory)

    @cached_property
    def without_fixed_overlap(self) -> StagePricer:
        """This pricer, or one for schedules with overlapped pairs where the software stack hides a
        fixed fraction of exchanges (`CostModel.without_fixed_overlap`)."""
        cost = self.cost.without_fixed_overlap
        return self if cost is self.cost else self.repriced(cost)

    @property
    def many_chains(self) -> ManyChainScheduler:
        """The scheduler of a pricer for many program sizes (`of_many`)."""
        if not isinstance(self._chains, ManyChainScheduler):
            raise TypeError("a pricer for one program size schedules chains one by one")
        return self._chains

    # --- blocks -----------------------------------------------------------------------------------

    def _known(self, pricing: Pricing) -> _OnMesh:
        """What is known on a mesh; the same is asked about again and again."""
        mesh = pricing.grid.mesh
        if self._latest is None or self._latest[0] is not mesh:
            if mesh not in self._on_meshes:
                passes, ends = KnownPasses(pricing), KnownStepEnds(self.workload, pricing)
                overlaps = self.cost.stack.overlaps_gradients
                blocks = KnownStageBlocks(passes, ends, overlaps_gradients=overlaps)
                self._on_meshes[mesh] = _OnMesh(passes, ends, blocks)
            self._latest = mesh, self._on_meshes[mesh]
        return self._latest[1]

    def weights(
        self, programs: Sequence[BlockProgram], pricing: Pricing, *, splits: bool = False
    ) -> list[float]:
        """Seconds of the forward and backward passes of blocks by themselves. `splits` says whether
        the parts of backward passes will be asked for: then these are found with them."""
        alone = self.passes_alone(programs, pricing, splits=splits)
        return [sum(each.seconds for each in own[: BACKWARD + 1]) for own in alone]

    def passes_alone(
        self, programs: Sequence[BlockProgram], pricing: Pricing, *, splits: bool
    ) -> list[tuple[BlockPass, ...]]:
        """What the passes of blocks take by themselves, by cost kind; `splits` says whether the
        parts of backward passes are among them."""
        on_mesh, listed = self._known(pricing), self._known(pricing).passes_alone
        for program in programs:
            if (program, splits) not in listed:
                alone = _alone(program, kinds_of_actions(splits))
                listed[program, splits] = on_mesh.passes.of(alone)
        passes = [listed[program, splits] for program in programs]
        known = on_mesh.alone
        every = dict.fromkeys(each for own in passes for each in own)
        missing = [each for each in every if each not in known]
        costs = self._chains.run_all([BlockChain([(PassPattern((each,)), 1)]) for each in missing])
        for each, cost in zip(missing, costs, strict=True):
            known[each] = BlockPass(
                cost.cost.seconds, cost.stream_seconds, cost.launch_seconds, each.link_seconds
            )
        return [tuple([known[each] for each in own]) for own in passes]

    def computing_of(self, program: BlockProgram, pricing: Pricing, splits: bool) -> Amount:
        """Seconds of a block's forward and backward pass that occupy the compute stream, whether
        or not the backward pass is split; if it may be, `splits`."""
        alone = _alone(program, kinds_of_actions(splits))
        passes = self._known(pricing).passes.of(alone)
        forward, whole, *parts = (each.seconds_on(COMPUTE) for each in passes)
        return forward + (smaller(whole, sum(parts)) if parts else whole)

    def block_bytes(
        self,
        programs: Sequence[BlockProgram],
        block_kinds: Sequence[int],
        pricing: Pricing,
        *,
        splits: bool,
        num_sizes: int = 1,
    ) -> BlockBytes:
        """Bytes that the different blocks of a model hold. `block_kinds` has a number for each
        block of the model; equal blocks have the same number.

        What a block needs in passing is measured between the blocks beside it.
        """
        count = 1 + max(block_kinds)
        held = BlockBytes.empty(num_sizes, count, len(kinds_of_actions(splits)))
        known = self._known(pricing)
        for kind in range(count):
            index = _typical(block_kinds, kind)
            around = tuple(programs[max(0, index - 1) : index + 2])
            key = programs[index], around, splits
            if key not in known.held:
                known.held[key] = self._held_by(programs[index], around, known, splits=splits)
            for column, size in zip(held.columns, known.held[key], strict=True):
                column[:, kind] = size
        return held

    def _held_by(
        self,
        program: BlockProgram,
        around: Sequence[BlockProgram],
        known: _OnMesh,
        *,
        splits: bool,
    ) -> tuple[Amount, ...]:
        """Bytes that a block holds, in the order of `BlockBytes.columns`, between the blocks beside
        it."""
        among = partial(known.blocks.held, splits=splits)
        alone = self._memory_of(among((program,)), (FORWARD, INPUT_PART) if splits else (FORWARD,))
        beside = self._memory_of(among(around))
        after = alone[FORWARD].delta
        return (
            state_bytes(self.workload, program).total,
            after,
            after + alone[INPUT_PART].delta if splits else 0.0,
            *(
                larger(beside[kind].peak - (beside[FORWARD].delta if kind == FORWARD else 0), 0)
                for kind in kinds_of_actions(splits)
            ),
        )

    def left_behind(
        self, blocks: Sequence[Sequence[BlockProgram]], layers: Sequence[BlockProgram]
    ) -> list[Amount]:
        """Of each of `layers`, the bytes that a microbatch's forward pass through it adds at least
        to what it leaves behind in a stage: what it adds after any of the blocks that it follows.
        `blocks` are those of the model, each with the programs that it may have, of which a layer
        is the first."""
        found: list[Amount] = []
        for layer in layers:
            pairs = dict.fromkeys(
                both
                for before, own in pairwise(blocks)
                if own[0] is layer
                for both in product(before, own)
            )
            added = [self._left(both) - self._left(both[:1]) for both in pairs]
            found.append(larger(0.0, smaller(*added)) if added else 0.0)
        return found

    def _left(self, programs: Sequence[BlockProgram]) -> float:
        """Bytes that a microbatch's forward pass leaves behind in a stage of these blocks."""
        return self._memory.after_forward([((each,), 1) for each in block_passes(programs, False)])

    def after_forward(self, blocks: Sequence[RepeatedBlocks[BlockProgram]]) -> float:
        """Bytes that a microbatch's forward pass leaves behind in a stage, given its blocks as
        repeated patterns."""
        return self._memory.after_forward(mapped(blocks, block_passes))

    def step_ends(self, blocks: Iterable[ChargedBlock], pricing: Pricing) -> list[StepEnd]:
        """What follows the last backward passes of blocks."""
        known = self._known(pricing).ends
        return [known.of(*each) for each in blocks]

    def state_of(
        self, blocks: Sequence[RepeatedBlocks[ChargedBlock]], pricing: Pricing
    ) -> StateBytes:
        """The state bytes of a stage, given its blocks as repeated patterns."""
        state = StateBytes()
        for pattern, count in blocks:
            for end in self.step_ends(pattern, pricing):
                state = state.plus(end.state, count)
        return state

    def _memory_of(
        self, blocks: tuple[BlockPasses, ...], cost_kinds: tuple[int, ...] | None = None
    ) -> Mapping[int, MemoryEffect]:
        """The effects of actions on memory in a stage with these blocks; of all actions or those of
        `cost_kinds`."""
        key = blocks, cost_kinds
        found = self._effects.get(key)
        if found is None:
            chain = [((passes,), 1) for passes in blocks]
            found = self._effects[key] = self._memory.stage(chain, cost_kinds)
        return found

    def _settling(
        self, chain: BlockChain, cost: ChainCost, stage: UnpricedStage, cost_kind: int
    ) -> Settling:
        """How the gradients of a stage are settled if its last action has this cost kind: as soon
        as they are computed, or at the end if the software stack does not overlap gradients. What
        every action shares out is shared out as soon as it is computed."""
        seconds = sum(count * end.settling_seconds[cost_kind] for end, count in stage.ends)
        scattering = chain.summed(lambda each: each.scatter_seconds)
        done, overlaps = cost.settled, self.cost.stack.overlaps_gradients
        if not overlaps:
            done = larger(done, cost.cost.seconds) + seconds
        settled = [
            (end.settled_along[cost_kind], each.scattered_along)
            for pattern, _ in stage.actions[cost_kind]
            for end, each in zip(pattern.ends, pattern.passes.passes, strict=True)
        ]
        last = [at_end or scattered for at_end, scattered in settled if at_end or scattered]
        if not overlaps:
            last += [at_end for at_end, _ in settled if at_end]
        return Settling(done, seconds + scattering, last[-1] if last else None, scattering)

    # --- stages -----------------------------------------------------------------------------------

    def unpriced_stage(
        self,
        blocks: Sequence[RepeatedBlocks[ChargedBlock]],
        pricing: Pricing,
        cost_kinds: Collection[int],
        size_numbers: Indices | None = None,
        acting: Mapping[int, Indices] | None = None,
        *,
        waits_for_gathers: bool = True,
    ) -> UnpricedStage:
        """A stage, given its blocks as repeated patterns, and the cost kinds of its actions.

        Its memory is that of actions that gather all they read themselves; its passes, which
        decide how long actions take, are steady. Without `waits_for_gathers` passes find all
        gathered that they read, so that gathers only occupy the links, and of memory nothing is
        said.

        If numbers of copies are arrays, they describe several stages, whose program sizes are
        `size_numbers`; `acting` says by cost kind which of them have such actions, if these are not
        all. Raises `Uneven` if numbers of copies decide more than sums.
        """
        splits = not {INPUT_PART, WEIGHT_PART}.isdisjoint(cost_kinds)

        known = self._known(pricing).blocks
        among = partial(known.of, splits=splits, waits_for_gathers=waits_for_gathers)
        chain = mapped(blocks, among)
        held = [(tuple([each.held for each in pattern]), count) for pattern, count in chain]
        return UnpricedStage(
            actions=known.in_actions(chain, cost_kinds),
            ends=[(each.end, count) for pattern, count in chain for each in pattern],
            memory=self._memory.turns(held, cost_kinds) if waits_for_gathers else {},
            first=blocks[0][0][0][0],
            last=blocks[-1][0][-1][0],
            size_numbers=size_numbers,
            acting=acting or {},
        )

    def price(self, stages: Sequence[UnpricedStage], pricing: Pricing) -> list[StageCost]:
        """The costs of stages."""
        asked = self.to_price(stages, (), pricing)
        return asked.costs(list(map(self._chains.run_all, asked.chains)))[0]

    def to_price(
        self, stages: Sequence[UnpricedStage], pairs: Sequence[OverlappedStages], pricing: Pricing
    ) -> ToPrice:
        """Stages and overlapped pairs: forward passes of stages beside backward passes of
        others."""
        chains = [
            [stage.chain(kind) for stage in stages if kind in stage.actions]
            for kind in range(COST_KINDS)
        ]
        chains.append([self._overlapped_chain(pair, pricing) for pair in pairs])
        return ToPrice(self, stages, chains)

    def occupied_seconds(self, stage: UnpricedStage, streams: Sequence[str]) -> list[list[float]]:
        """By stream and cost kind, the seconds in which a stage's actions occupy the stream;
        `LINKS` stands for what gathers parameters and shares out gradients."""
        chains = [stage.chain(kind) for kind in stage.actions]
        return [
            [
                chain.link_seconds
                if stream == LINKS
                else chain.summed(lambda each, stream=stream: each.seconds_on(stream))
                for chain in chains
            ]
            for stream in streams
        ]

    def price_pairs(self, pairs: Sequence[OverlappedStages], pricing: Pricing) -> list[PassCost]:
        """What overlapped pairs cost."""
        asked = self.to_price((), pairs, pricing)
        return asked.costs(list(map(self._chains.run_all, asked.chains)))[1]

    def _overlapped_chain(self, pair: OverlappedStages, pricing: Pricing) -> BlockChain:
        """The blocks of both stages side by side."""
        known = self._known(pricing)
        beside = known.passes.side_by_side(pair.forward, pair.backward)
        patterns = [(known.blocks.without_settling(passes), count) for passes, count in beside]
        return BlockChain(patterns, pair.size_numbers)

    def priced_stage(
        self,
        stage: UnpricedStage,
        chains: Mapping[int, tuple[BlockChain, ChainCost]],
    ) -> StageCost:
        """The cost of a stage at all program sizes, given the chains of its passes by cost kind and
        what they cost. Several stages in one are priced as columns (`many/pass_rows.py`)."""
        optimizer = refresh = refresh_host = 0.0
        for end, count in stage.ends:
            optimizer = optimizer + count * end.optimizer_seconds
            refresh = refresh + count * end.refresh_seconds
            refresh_host = refresh_host + count * end.refresh_host_seconds
        pattern, _ = chains[FORWARD][0].patterns[0]
        first = pattern.passes[0]
        return StageCost(
            passes={kind: cost.cost for kind, (_, cost) in chains.items()},
            memory=self._memory.effects(stage.memory),
            settling={
                cost_kind: self._settling(chain, cost, stage, cost_kind)
                for cost_kind, (chain, cost) in chains.items()
                if cost_kind in COMPLETING
            },
            optimizer=optimizer,
            refresh=refresh,
            refresh_host=refresh_host,
            first_gather=first.gather_seconds,
            first_gather_host=host_seconds(first.gathers),
            state=stage.state,
            sent_forward_bytes=_total_bytes(stage.last.outputs),
            sent_backward_bytes=_total_bytes(stage.first.input_gradients),
        )


def _alone(program: BlockProgram, kinds: Iterable[int]) -> list[Segment]:
    """A block's passes between equal ones, by kind of action."""
    return [segment for kind in kinds for segment in segments([program], kind, steady=True)]


def _typical(block_kinds: Sequence[int], kind: int) -> int:
    """The index of a block of a kind: of one between two others of this kind, if there is one."""
    inner = (n for n in range(1, len(block_kinds) - 1) if set(block_kinds[n - 1 : n + 2]) == {kind})
    return next(inner, block_kinds.index(kind))


def _total_bytes(values: Sequence[Value]) -> float:
    return total([value.type.size_bytes for value in values])


__all__ = ["LINKS", "StagePricer"]
