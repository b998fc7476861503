"""Models as one stage, many at once: what bounds are made of (`bounds.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats, Indices
from distir.cost.amounts import Amount, Divergence, larger, smaller
from distir.ir.core import Value
from distir.plan import BlockProgram, ModelPrograms, Stage
from distir.plan.model import in_one_stage
from distir.plan.planner import ProgramKind
from distir.schedules import BACKWARD, COST_KINDS, kinds_of_actions
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.many.program_sizes import SIZES_TOGETHER, ProgramSizes, SizesOfKind, kinds_of
from distir.simulation.pricing.instructions import COMPUTE, Pricing
from distir.simulation.pricing.repeats import RepeatedBlocks, repeated_blocks
from distir.simulation.pricing.stage_cost import ChargedBlock, StageCost, UnpricedStage
from distir.simulation.pricing.stages import LINKS, StagePricer
from distir.simulation.pricing.state import state_bytes
from distir.simulation.pricing.tied import (
    UNSHARED,
    TiedUse,
    charged_elsewhere_in_stage,
    gradients_of,
    tied_bytes,
)
from distir.simulation.pricing.to_price import ToPrice, price_together
from distir.strategies import FIELDS, Strategies
from distir.strategy import KEEPS_PARAMETERS

ORDERING = ("schedule", "chunks")
"""Choices that order the work of devices and do not change it."""

SHAPING = tuple(name for name in FIELDS if name not in ORDERING)
"""All other choices."""

STREAMS = (COMPUTE, "dp", "cp", "tp", LINKS)
"""Streams that a device has for the passes of blocks."""

LAYER_KINDS = 3
"""Kinds of layers whose bytes are looked at one by one: the most frequent ones."""

_STATE = ("parameters", "gradients", "optimizer")
_AT_REST = (*_STATE, "inputs")


@dataclass(frozen=True, slots=True)
class Wholes:
    """Models as one stage: seconds of the kinds of action, of shape (kinds, strategies), and those
    in which they occupy `STREAMS`, of shape (streams, kinds, strategies); what else there is once
    per step; what a forward pass leaves behind; what bounds leave out and expectations do not:
    seconds of settling that no pass hides and of the first gather, bytes handed on between blocks,
    bytes of each part of these if devices that have the same send parts, and seconds in which the
    parts are gathered, and bytes of gradients that a device settles, of parameters that one block
    uses and of those that several use; bytes of parameters that are left behind, too, where they
    stay gathered (`BlockProgram.read_again_bytes`); bytes that a device sends at least forward and
    backward between any two blocks; bytes at rest (`_AT_REST`); how many blocks
    come more than once, and the seconds in which a microbatch is computed in the quickest of them,
    and in the longest of the others; and layers by kind: their number, bytes at rest (`_STATE`),
    bytes left behind, seconds that a microbatch computes, and bytes of parameters that may stay
    gathered, of shape (layer kinds, `LAYER`, strategies)."""

    passes: Floats
    occupied: Floats
    optimizer: Floats
    refresh: Floats
    held: Floats
    settling: Floats
    gathering: Floats
    handed_on: Floats
    part: Floats
    joining: Floats
    own_gradients: Floats
    tied_gradients: Floats
    read_again: Floats
    sent_forward: Floats
    sent_backward: Floats
    state: Floats
    undivided: Floats
    layers: Floats

    ONCE: ClassVar = 13
    UNDIVIDED: ClassVar = 3
    LAYER: ClassVar = 4 + len(_STATE)
    ROWS: ClassVar = (
        (1 + len(STREAMS)) * COST_KINDS + ONCE + len(_AT_REST) + UNDIVIDED + LAYER * LAYER_KINDS
    )

    @classmethod
    def of(cls, rows: Floats) -> Wholes:
        """From rows in the order of the fields."""
        streams = len(STREAMS) * COST_KINDS
        passes, occupied, once, state, undivided, layers = np.split(
            rows, np.cumsum([COST_KINDS, streams, cls.ONCE, len(_AT_REST), cls.UNDIVIDED])
        )
        occupied = occupied.reshape(len(STREAMS), COST_KINDS, rows.shape[1])
        layers = layers.reshape(LAYER_KINDS, cls.LAYER, rows.shape[1])
        every: list[Floats] = [passes, occupied, *once, state, undivided, layers]
        return cls(*every)

    def taken(self, which: Indices) -> Wholes:
        """The models with these numbers."""
        return Wholes(*(getattr(self, each.name)[..., which] for each in fields(self)))

    def sharded(self, table: Strategies) -> Wholes:
        """What is at rest at least, if these models, which are not sharded, are sharded as the
        strategies of the table say, what they keep gathered stays, and what they offload is not
        there; each device updates its share at least, and nothing else there is once per step."""
        parts = _sharing(table)
        layers, state = self.layers.copy(), self.state.copy()
        _, *at_rest, left_behind, _, read_again = range(self.LAYER)
        layers[:, at_rest] /= parts
        state[: len(parts)] /= parts
        if any(table.values["offload"]):
            stay = np.stack([_stays(OFFLOADED[name], table) for name in _STATE])
            layers[:, at_rest] *= stay
            state[: len(parts)] *= stay
        here = _stays("activations", table)
        kept = keeps_parameters(table) & (parts[0] > 1)
        layers[:, left_behind] = layers[:, left_behind] * here + layers[:, read_again] * kept
        held = self.held * here + self.read_again * kept
        return replace(
            self,
            optimizer=self.optimizer * updated_share(table),
            refresh=np.zeros(len(table)),
            held=held,
            state=state,
            layers=layers,
        )


def _sharing(table: Strategies) -> Indices:
    """Over how many devices each strategy shards `_STATE` at most, of shape (3, strategies)."""
    zero, degree = table.column("zero"), table.column("zero_degree")
    devices = np.where(degree > 0, degree, table.column("dp")) * table.column("cp")
    return np.stack([np.where(zero >= level, devices, 1) for level in (3, 2, 1)])


def updated_share(table: Strategies) -> Floats:
    """The least fraction of the parameters of its part of the mesh that a device of each strategy
    updates; 0 where the host does."""
    return _stays("optimizer", table) / _sharing(table)[-1]


OFFLOADED = {"parameters": "parameters", "gradients": "optimizer", "optimizer": "optimizer"}
"""By what is at rest the name under which strategies offload it."""


def _stays(offloaded: str, table: Strategies) -> NDArray[np.bool_]:
    """Whether each strategy leaves on its devices what it may offload by this name."""
    stays = [offloaded not in each.split(",") for each in table.values["offload"]]
    return np.array(stays)[table.codes.get("offload", np.zeros(len(table), np.int16))]


def keeps_parameters(table: Strategies) -> NDArray[np.bool_]:
    """Whether each strategy keeps gathered parameters for the backward pass."""
    keeps = [each in KEEPS_PARAMETERS for each in table.values["keep_gathered"]]
    return np.array(keeps)[table.codes.get("keep_gathered", np.zeros(len(table), np.int16))]


class _Begun(NamedTuple):
    """The model as one stage of a kind's programs, before it is priced."""

    programs: ModelPrograms
    kept: Sequence[BlockProgram]
    """The blocks as they leave most behind and take least."""
    together: Sequence[BlockProgram]
    """The same with all uses of a parameter in one stage."""
    stage: UnpricedStage


class _Prepared(NamedTuple):
    """Kinds with one mesh, before they are priced."""

    own: Sequence[SizesOfKind]
    priced: PricedPrograms
    begun: Sequence[_Begun]
    asked: ToPrice

    @property
    def sizes(self) -> ProgramSizes:
        """The sizes at which programs are made."""
        return self.own[0].shared


class WholeModels:
    """Prices models as one stage, for the strategies of the workload and the cluster that `pricer`
    is for."""

    def __init__(self, pricer: StagePricer, step: Callable[[], None] = lambda: None) -> None:
        """`step` is called between pieces of work; it may raise to end it."""
        self._step = step
        self._pricer = pricer
        self._workload = pricer.workload

    def wholes(self, table: Strategies, splits: bool) -> Wholes:
        """The model as one stage, on the devices of one of each strategy's stages; `splits` says
        whether some of their schedules split the backward pass."""
        first, which = table.distinct(SHAPING)
        some = table.taken(first)
        kinds, kind, degrees, mesh = kinds_of(self._pricer.planner, some)
        sizes = ProgramSizes(
            degrees=degrees[mesh],
            samples=self._workload.batch_size // some.column("microbatches"),
            ranks=some.column("pp"),
            communicators=some.communicators,
            splits=np.full(len(some), splits),
        )
        found = np.zeros((Wholes.ROWS, len(sizes)))
        alike: dict[object, list[tuple[ProgramKind, str, Indices]]] = {}
        for number, (each, placement) in enumerate(kinds):
            wanted = (each, placement, np.flatnonzero(kind == number))
            alike.setdefault((each.mesh, placement), []).append(wanted)
        prepared: list[_Prepared] = []
        for kinds_alike in alike.values():
            prepared += self._prepared(SizesOfKind.of(kinds_alike, sizes), sizes)
            if sum(len(each.sizes) for each in prepared) >= SIZES_TOGETHER:
                self._fill(found, prepared, sizes)
                prepared = []
        self._fill(found, prepared, sizes)
        return Wholes.of(found[:, which])

    def _prepared(self, own: Sequence[SizesOfKind], sizes: ProgramSizes) -> list[_Prepared]:
        """Kinds with one mesh, as one or in parts if the sizes lead to different programs. Programs
        are made once, at all sizes of these kinds."""
        shared, splits = own[0].shared, bool(sizes.splits.any())
        pricer = self._pricer.of_many(len(shared))
        priced = PricedPrograms(pricer, own[0].kind, own[0].placement, shared)
        try:
            begun = [self._begun(each.kind, priced, splits) for each in own]
            asked = pricer.to_price([each.stage for each in begun], (), priced.pricing)
        except Divergence as divergence:
            return self._parted(own, divergence, sizes)
        return [_Prepared(own, priced, begun, asked)]

    def _parted(
        self, own: Sequence[SizesOfKind], divergence: Divergence, sizes: ProgramSizes
    ) -> list[_Prepared]:
        """Kinds in parts, each of which has one program."""
        both = zip(*(each.parted(divergence) for each in own), strict=True)
        parts = ([each for each in part if len(each.which)] for part in both)
        return [each for part in parts if part for each in self._prepared(part, sizes)]

    def _fill(self, found: Floats, prepared: Sequence[_Prepared], sizes: ProgramSizes) -> None:
        """Fills in the rows of a `Wholes` at the sizes of kinds, which are priced together."""
        splits = bool(sizes.splits.any())
        for each, (costs, _) in zip(
            prepared, price_together([each.asked for each in prepared]), strict=True
        ):
            try:
                every = [
                    self._rows(begun, cost, each.priced, splits)
                    for begun, cost in zip(each.begun, costs, strict=True)
                ]
            except Divergence as divergence:
                self._fill(found, self._parted(each.own, divergence, sizes), sizes)
                continue
            for rows, own in zip(every, each.own, strict=True):
                for row, amount in enumerate(rows):
                    found[row, own.which] = np.broadcast_to(amount, len(own.shared))[own.places]

    def _begun(self, kind: ProgramKind, priced: PricedPrograms, splits: bool) -> _Begun:
        """The model of a kind as one stage."""
        self._step()
        programs = priced.of(kind)
        # With the uses of a parameter in one stage, its gradient moves least; in several, less of
        # it is held.
        kept = programs.kept
        if programs.chooses:
            # A layer that is computed again copies less to the host.
            kept = [each.hosted.without if each.hosted is not None else each for each in kept]
        together = in_one_stage(self._workload.program, tuple(range(len(kept))), kept)
        blocks = self._charged(together)
        stage = priced.pricer.unpriced_stage(
            blocks, priced.pricing, kinds_of_actions(splits), waits_for_gathers=False
        )
        return _Begun(programs, kept, together, stage)

    def _charged(self, chosen: Sequence[BlockProgram]) -> list[RepeatedBlocks[ChargedBlock]]:
        """The blocks of the model, all of which are in one stage."""
        stage = Stage(0, tuple(range(len(chosen))), tuple(chosen))
        uses = charged_elsewhere_in_stage(self._workload.program, ((0,),), [stage], 0)
        return repeated_blocks(list(zip(chosen, uses, strict=True)))

    def _rows(
        self, begun: _Begun, cost: StageCost, priced: PricedPrograms, splits: bool
    ) -> list[Amount]:
        """The rows of a `Wholes`."""
        pricer, pricing, programs = priced.pricer, priced.pricing, begun.programs
        state = pricer.state_of(self._charged(programs.kept), pricing)
        least = programs.recomputed if programs.chooses else begun.together
        held = pricer.after_forward(repeated_blocks(least))
        passes: list[Amount] = [each.seconds for each in cost.passes.values()]
        missing: list[Amount] = [0.0] * (COST_KINDS - len(passes))
        occupied: list[Amount] = []
        for of_stream in pricer.occupied_seconds(begun.stage, STREAMS):
            occupied += [*of_stream, *missing]
        once: list[Amount] = [cost.optimizer, cost.refresh, held]
        settled = cost.settling.get(BACKWARD)
        hidden = passes[BACKWARD] if settled is not None else 0.0
        middle = programs.kept[len(programs.kept) // 2]
        once += [
            0.0 if settled is None else larger(0.0, settled.done - hidden),
            cost.first_gather,
            *_handed_on(middle, pricing),
            *self._gradient_bytes(programs.kept),
            sum(each.read_again_bytes for each in begun.kept),
            *_least_sent(programs.kept, pricing),
        ]
        at_rest: list[Amount] = [getattr(state, name) for name in _AT_REST]
        undivided = self._undivided(pricer, begun.together, pricing, splits)
        layers = self._layers(pricer, programs, pricing, splits)
        return [*passes, *missing, *occupied, *once, *at_rest, *undivided, *layers]

    def _gradient_bytes(self, programs: Sequence[BlockProgram]) -> tuple[Amount, Amount]:
        """Bytes of gradients that a device settles: of parameters that one block uses, and of those
        that several use."""
        if not self._workload.training:
            return 0.0, 0.0
        shared = self._workload.program.shared_parameters
        blocks = self._workload.program.blocks.blocks
        alone: list[TiedUse] = []
        tied: dict[object, TiedUse] = {}
        alike = Counter(zip(programs, shared, strict=True))
        for block, key in enumerate(zip(programs, shared, strict=True)):
            copies, (_, positions) = alike.pop(key, 0), key
            for position in gradients_of(*key) if copies or positions else ():
                if position != UNSHARED:
                    value = blocks[block].parameters[position]
                    tied.setdefault(value, TiedUse(block, position, 1))
                elif copies:
                    alone.append(TiedUse(block, position, copies))
        own, of_several = (
            tied_bytes(self._workload, programs, uses) for uses in (alone, tied.values())
        )
        return own, of_several

    def _undivided(
        self,
        pricer: StagePricer,
        programs: Sequence[BlockProgram],
        pricing: Pricing,
        splits: bool,
    ) -> list[Amount]:
        """How many of the blocks come more than once, the seconds in which a microbatch is computed
        in the quickest of these, and in the longest of the others."""
        if not self._workload.training:
            return [0.0] * Wholes.UNDIVIDED
        counts = Counter(programs)
        seconds = {each: pricer.computing_of(each, pricing, splits) for each in counts}
        often = [each for each, count in counts.items() if count > 1]
        once = [seconds[each] for each, count in counts.items() if count == 1]
        quickest: Amount = smaller(*(seconds[each] for each in often)) if often else 0.0
        return [float(sum(counts[each] for each in often)), quickest, larger(0.0, *once)]

    def _layers(
        self, pricer: StagePricer, programs: ModelPrograms, pricing: Pricing, splits: bool
    ) -> list[Amount]:
        """The rows of layers: of blocks that come more than once and share no parameters. One that
        some stage may recompute leaves no more behind than recomputed."""
        if not self._workload.training:
            return []
        sharing = self._workload.program.sharing_blocks
        pairs = zip(programs.kept, programs.recomputed, strict=True)
        alone = Counter(both for place, both in enumerate(pairs) if place not in sharing)
        layers = [(both, count) for both, count in alone.most_common(LAYER_KINDS) if count > 1]
        left = pricer.left_behind(
            [
                (kept, recomputed) if programs.chooses else (kept,)
                for kept, recomputed in zip(programs.kept, programs.recomputed, strict=True)
            ],
            [kept for (kept, _), _ in layers],
        )
        rows: list[Amount] = []
        for ((layer, _), count), held in zip(layers, left, strict=True):
            state = state_bytes(self._workload, layer)
            at_rest = (getattr(state, name) for name in _STATE)
            computing = pricer.computing_of(layer, pricing, splits)
            rows += [float(count), *at_rest, held, computing, layer.read_again_bytes]
        return rows


def _handed_on(program: BlockProgram, pricing: Pricing) -> tuple[Amount, Amount, Amount]:
    """Bytes that a block hands on; those of a part, if each of the devices that have the same sends
    one; and seconds in which they gather the parts."""
    whole = _bytes(program.outputs)
    along = pricing.scattered_along(program.outputs_repeated_along)
    if not along:
        return whole, whole, 0.0
    joining = pricing.collective("all_gather", along, cast("float", whole))
    return whole, whole / pricing.grid.members(along), joining


def _least_sent(programs: Sequence[BlockProgram], pricing: Pricing) -> tuple[Amount, Amount]:
    """Bytes that a device sends at least, forward and backward, wherever stages begin."""
    forward = dict.fromkeys((each.outputs, each.outputs_repeated_along) for each in programs[:-1])
    backward = dict.fromkeys(
        (each.input_gradients, each.input_gradients_repeated_along) for each in programs[1:]
    )
    ahead, back = (
        [
            _bytes(values) / pricing.grid.members(pricing.scattered_along(along))
            for values, along in ways
        ]
        for ways in (forward, backward)
    )
    return smaller(*ahead) if ahead else 0.0, smaller(*back) if back else 0.0


def _bytes(values: Sequence[Value]) -> Amount:
    return sum(value.type.size_bytes for value in values)


__all__ = ["ORDERING", "SHAPING", "WholeModels", "Wholes", "keeps_parameters", "updated_share"]
