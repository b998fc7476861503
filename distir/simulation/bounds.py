"""Lower bounds on the time and the memory of all strategies that begin with the same choices.

None is an estimate: what is left out can only add. With `n` devices per stage, `p` ranks and `m`
microbatches,

- *products*: over its devices an op has at least the FLOPs and bytes that it has on one, so each
  has at least 1/n of them, and less work never takes longer. A microbatch has to pass its forward
  products and those of the first parts of its backward passes one after the other; the busiest
  rank takes at least the mean of all, `m T / p`. Whatever else is computed, moved and sent comes
  on top. Products share one stream, so that overlapping passes hides none of them.
- *blocks*: once shapes are known, the whole model is scheduled as one stage of `n` devices. Cutting
  it makes every instruction wait for more, so `T` is at most the sum over stages. Only for what a
  stage gathers first it may wait less, as that depends on where the stage ends. So gathers delay
  nothing here, and only occupy the links.
  Where a schedule overlaps forward and backward passes, the longer ones of the two count alone.
- *states at rest*: sharding them adds gathers and settlements to the passes, and takes nothing
  away: the `T` without ZeRO bounds those with it.
- *pipeline*: the rank on which a microbatch begins is busy or waits until it has come back. Where
  rank `r` holds stage `r` alone and backward passes are whole, rank `r` does nothing before the
  first microbatch has passed the stages before it, and the last has to pass them again after it:
  rank 0 takes at least `t_0 + … + t_{r-1} + m t_r`. Whatever the stages' times `t`, the largest of
  these is at least `T / (1 - (1 - 1/m)^p)`. Without a backward pass the last microbatch still has
  to pass the stages behind: `T + (m - 1) T / p`.
  Where stages pick which layers they recompute, no layer counts as recomputed.
- *memory*: all ranks together hold the model's state, and before its first backward action what one
  microbatch leaves behind; the fullest rank holds at least the mean. Here all layers count as
  recomputed that some stage may recompute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Codes, Floats, Indices
from distir.cost import CostModel, OpClass, Work
from distir.cost.amounts import Divergence
from distir.plan import Stage
from distir.plan.model import in_one_stage
from distir.plan.planner import ProgramKind
from distir.schedules import COST_KINDS, FORWARD, ScheduleFamily, find_schedule
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.many.program_sizes import ProgramSizes, kinds_of
from distir.simulation.pricing.repeats import repeated_blocks
from distir.simulation.pricing.stage_cost import StageCost, UnpricedStage
from distir.simulation.pricing.stages import StagePricer
from distir.simulation.pricing.tied import charged_elsewhere_in_stage
from distir.strategies import FIELDS, Strategies
from distir.strategy import Strategy

ORDERING = ("schedule", "chunks")
"""Choices that order the work of devices and do not change it."""


PRODUCTS = "its products at full rate"
BLOCKS = "its blocks, without waiting"
PIPELINE = "filling and draining the pipeline"
STATE = "the model's state, shared by all devices"
HELD = "state and activations, shared evenly by the ranks"
"""What bounds may say."""

REASONS = (PRODUCTS, BLOCKS, PIPELINE, STATE, HELD)

SLACK = 1e-9
"""Relative rounding that a bound allows for."""


@dataclass(frozen=True, slots=True)
class Bound:
    """No strategy in question is faster than `seconds` per iteration, or fits in less than `size`
    bytes per device; and what says so."""

    seconds: float = 0.0
    slowed_by: str = ""
    size: float = 0.0
    filled_by: str = ""


@dataclass(frozen=True, slots=True)
class ManyBounds:
    """`Bound` of several strategies or parts of a space; what says so by its number in
    `REASONS`."""

    seconds: Floats
    slowed_by: Codes
    size: Floats
    filled_by: Codes

    @classmethod
    def of(cls, bounds: Sequence[Bound]) -> ManyBounds:
        """Single bounds side by side."""
        return cls(
            np.array([each.seconds for each in bounds]),
            np.array([REASONS.index(each.slowed_by) for each in bounds], np.int16),
            np.array([each.size for each in bounds]),
            np.array([REASONS.index(each.filled_by) for each in bounds], np.int16),
        )

    def joined(self, other: ManyBounds) -> ManyBounds:
        """What follows from both."""
        slow, full = self.seconds >= other.seconds, self.size >= other.size
        return ManyBounds(
            np.where(slow, self.seconds, other.seconds),
            np.where(slow, self.slowed_by, other.slowed_by),
            np.where(full, self.size, other.size),
            np.where(full, self.filled_by, other.filled_by),
        )

    def taken(self, which: NDArray[Any]) -> ManyBounds:
        """Some of them."""
        return ManyBounds(
            self.seconds[which], self.slowed_by[which], self.size[which], self.filled_by[which]
        )


@dataclass(frozen=True, slots=True)
class _Wholes:
    """Models as one stage: seconds of the kinds of action, of shape (kinds, strategies), and what
    else there is once per step; bytes at rest and what a forward pass leaves behind."""

    passes: Floats
    optimizer: Floats
    refresh: Floats
    state: Floats
    held: Floats

    NAMES: ClassVar = (*range(COST_KINDS), "optimizer", "refresh", "state", "held")

    @classmethod
    def of(cls, rows: Floats) -> _Wholes:
        """From rows in the order of `NAMES`."""
        return cls(rows[:COST_KINDS], *rows[COST_KINDS:])


@dataclass(frozen=True, slots=True)
class _Products:
    """Matrix products of a microbatch on one device, by type, one element each."""

    works: tuple[Work, ...]

    def seconds(self, cost: CostModel, devices: int) -> float:
        """Seconds of the products if they are spread evenly over `devices`."""
        parts = [work * (1 / devices) for work in self.works]
        kernels = sum(float(np.sum(cost.kernel_seconds(part))) for part in parts)
        launches = sum(float(np.sum(cost.launch_seconds(part))) for part in parts)
        return float(cost.host_bound_seconds(kernels, launches))


class Bounds:
    """Bounds for the strategies of the workload and the cluster that `pricer` is for."""

    def __init__(self, pricer: StagePricer, step: Callable[[], None] = lambda: None) -> None:
        """`step` is called between pieces of work; it may raise to end it."""
        self._step = step
        self._pricer = pricer
        self._workload = pricer.workload
        self._overhead = pricer.cost.stack.overhead_seconds(self._workload.training)
        self._products: dict[tuple[int, bool], _Products] = {}
        self._seconds: dict[tuple[int, int, bool], float] = {}

    @cached_property
    def _state_bytes(self) -> float:
        """Parameters, gradients and optimizer state on a single device."""
        alone = Strategies.of([Strategy(microbatches=self._workload.batch_size)])
        return float(self._wholes(alone).state[0])

    # --- the first choices -----------------------------------------------------------------------

    def begun(self, devices: int, ranks: int, microbatches: int) -> Bound:
        """For all strategies with these numbers of devices, pipeline ranks and microbatches."""
        passed = self._of_products(devices // ranks, microbatches, waited_for=True)
        work = self._of_products(devices // ranks, microbatches)
        seconds = self._overhead + max(passed, microbatches * work / ranks)
        return Bound(
            seconds * (1 - SLACK),
            PRODUCTS,
            self._state_bytes / devices * (1 - SLACK),
            STATE,
        )

    def _of_products(self, devices: int, microbatches: int, *, waited_for: bool = False) -> float:
        """Seconds of a microbatch's products on `devices` devices; of those alone that it has to
        pass one after the other, whether or not the rest of its backward passes is put off."""
        key = (devices, microbatches, waited_for)
        if key not in self._seconds:
            if key[1:] not in self._products:
                self._products[key[1:]] = self._make_products(microbatches, waited_for)
            self._seconds[key] = self._products[key[1:]].seconds(self._pricer.cost, devices)
        return self._seconds[key]

    def _make_products(self, microbatches: int, waited_for: bool) -> _Products:
        found: dict[str, list[Work]] = {}
        for program in self._pricer.planner.block_programs(Strategy(microbatches=microbatches)):
            back = program.backward_parts[0].nodes if waited_for else program.backward
            for node in (*program.forward, *back):
                work = node.op.work(node.operand_types, node.result_types)
                if work.kind is OpClass.PRODUCT:
                    found.setdefault(work.dtype, []).append(work)
        return _Products(tuple(_side_by_side(works) for works in found.values()))

    # --- all but the order -----------------------------------------------------------------------

    def ordered(self, table: Strategies) -> ManyBounds:
        """For each of several strategies, whatever the order of its work."""
        return self._of_order(self._wholes(table), table)

    def unsharded(self, table: Strategies) -> ManyBounds:
        """The same, whatever is sharded at rest. Of memory it says nothing."""
        kept = {"parameters": "none", "all": "activations"}
        gathered = tuple(kept.get(each, each) for each in table.values["keep_gathered"])
        values = {**table.values, "zero": (0,), "zero_degree": (0,), "keep_gathered": gathered}
        codes = {name: codes for name, codes in table.codes.items() if len(values[name]) > 1}
        whole = self._wholes(Strategies(values, codes, len(table)))
        alone = replace(whole, optimizer=np.zeros(len(table)), refresh=np.zeros(len(table)))
        found = self._of_order(alone, table)
        return replace(found, size=np.zeros(len(table)))

    def _of_order(self, whole: _Wholes, table: Strategies) -> ManyBounds:
        ranks, count = table.column("pp"), table.column("microbatches")
        passes: list[Floats] = list(whole.passes)
        forward, backward, first_part, second_part = passes
        held = np.zeros(len(table))
        if self._workload.training:
            families = [find_schedule(name) for name in table.values["schedule"]]
            codes = table.codes.get("schedule", np.zeros(len(table), np.int16))
            splits = np.array([each.splits_backward for each in families])[codes]
            plain = np.array([_is_plain(each) for each in families])[codes]
            plain &= table.column("chunks") == 1
            both = np.minimum(backward, first_part + second_part)
            work = forward + np.where(splits, both, backward)
            # Of an overlapped pair, what is certain is that it is no shorter than either pass.
            overlaps = np.array([each.overlaps for each in families])[codes]
            work = np.where(overlaps, np.maximum(forward, np.minimum(both, backward)), work)
            # Nothing waits for the second part of a backward pass.
            once = forward + np.where(splits, np.minimum(backward, first_part), backward)
            waiting = np.where(plain, work / (1 - (1 - 1 / count) ** ranks), once)
            held = np.maximum(0.0, whole.held)
        else:
            work = forward
            waiting = work + (count - 1) * work / ranks
        busiest = (count * work + whole.optimizer + whole.refresh) / ranks
        return ManyBounds(
            (self._overhead + np.maximum(busiest, waiting)) * (1 - SLACK),
            np.where(waiting > busiest, REASONS.index(PIPELINE), REASONS.index(BLOCKS)),
            (whole.state + held) / ranks * (1 - SLACK),
            np.full(len(table), REASONS.index(HELD)),
        )

    def _wholes(self, table: Strategies) -> _Wholes:
        """The model as one stage, on the devices of one of each strategy's stages."""
        first, which = table.distinct(name for name in FIELDS if name not in ORDERING)
        some = table.taken(first)
        families = (find_schedule(table.values["schedule"][code]) for code in _codes(table))
        splits = self._workload.training and any(each.splits_backward for each in families)
        kinds, kind, degrees, mesh = kinds_of(self._pricer.planner, some)
        sizes = ProgramSizes(
            degrees=degrees[mesh],
            samples=self._workload.batch_size // some.column("microbatches"),
            ranks=some.column("pp"),
            communicators=some.communicators,
            splits=np.full(len(some), splits),
        )
        found = np.zeros((len(_Wholes.NAMES), len(sizes)))
        for number, (each, placement) in enumerate(kinds):
            self._add(found, each, placement, np.flatnonzero(kind == number), sizes)
        return _Wholes.of(found[:, which])

    def _add(
        self, found: Floats, kind: ProgramKind, placement: str, which: Indices, sizes: ProgramSizes
    ) -> None:
        """Fills in program sizes of one kind, in parts if the sizes lead to different programs."""
        self._step()
        try:
            cost = self._stage(kind, placement, sizes.taken(which))
        except Divergence as divergence:
            for where in (divergence.where, ~divergence.where):
                self._add(found, kind, placement, which[where], sizes)
            return
        seconds = [each.seconds for each in cost.passes]
        seconds += [0.0] * (COST_KINDS - len(seconds))
        held = cost.memory[FORWARD].delta
        numbers = (*seconds, cost.optimizer, cost.refresh, cost.state.total, held)
        for place, number in enumerate(numbers):
            found[place, which] = number

    def _stage(self, kind: ProgramKind, placement: str, sizes: ProgramSizes) -> StageCost:
        pricer = self._pricer.of_many(len(sizes))
        priced = PricedPrograms(pricer, kind, placement, sizes)
        programs, pricing = priced.of(kind), priced.pricing
        program, every = self._workload.program, tuple(range(len(programs.kept)))
        # With the uses of a parameter in one stage, its gradient moves least; in several, less of
        # it is held.
        variants = dict.fromkeys(
            (in_one_stage(program, every, programs.kept), programs.kept, programs.recomputed)
        )
        unpriced: list[UnpricedStage] = []
        for each in variants:
            stage = Stage(0, every, each)
            uses = charged_elsewhere_in_stage(program, ((0,),), [stage], 0)
            blocks = repeated_blocks(list(zip(each, uses, strict=True)))
            splits = bool(sizes.splits.any())
            unpriced.append(pricer.unpriced_stage(blocks, pricing, splits, waits_for_gathers=False))
        costs = pricer.price(unpriced, pricing)
        of = dict(zip(variants, costs, strict=True))
        least = of[programs.recomputed] if programs.most else costs[0]
        return replace(costs[0], state=of[programs.kept].state, memory=least.memory)


def _codes(table: Strategies) -> list[int]:
    """The codes of the schedules that occur."""
    codes = table.codes.get("schedule")
    return [0] if codes is None else np.unique(codes).tolist()


def _is_plain(family: ScheduleFamily) -> bool:
    """Whether, with one chunk, rank r holds stage r alone and backward passes are whole."""
    alone = family.placement == "loop" and family.copies == 1
    return alone and not family.splits_backward and not family.overlaps


def _side_by_side(works: Sequence[Work]) -> Work:
    """Works of one kind and type as arrays."""
    counts = np.array(
        [(w.flops, w.bytes_read, w.bytes_written, w.launches) for w in works], np.float64
    )
    flops, read, written, launches = counts.T
    return Work(works[0].kind, flops, read, written, works[0].dtype, launches)
