"""Lower bounds on the time and the memory of all strategies that begin with the same choices.

None is an estimate: what is left out can only add. With `n` devices per stage, `p` ranks and `m`
microbatches,

- *products*: over its devices an op has at least the FLOPs and bytes that it has on one, so each
  has at least 1/n of them, and less work never takes longer. A microbatch has to pass its forward
  products and those of the first parts of its backward passes one after the other; the busiest
  rank takes at least the mean of all, `m T / p`. Whatever else is computed, moved and sent comes
  on top.
- *blocks*: once shapes are known, the whole model is scheduled as one stage of `n` devices. Cutting
  it makes every instruction wait for more, so `T` is at most the sum over stages.
- *states at rest*: sharding them adds gathers and settlements to the passes, and takes nothing
  away: the `T` without ZeRO bounds those with it.
- *pipeline*: the rank on which a microbatch begins is busy or waits until it has come back. Where
  rank `r` holds stage `r` alone and backward passes are whole, rank `r` does nothing before the
  first microbatch has passed the stages before it, and the last has to pass them again after it:
  rank 0 takes at least `t_0 + … + t_{r-1} + m t_r`. Whatever the stages' times `t`, the largest of
  these is at least `T / (1 - (1 - 1/m)^p)`. Without a backward pass the last microbatch still has
  to pass the stages behind: `T + (m - 1) T / p`.
- *memory*: all ranks together hold the model's state, and before its first backward action what one
  microbatch leaves behind; the fullest rank holds at least the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from distir.cost import CostModel, OpClass, Work
from distir.plan import Plan
from distir.plan.model import Stage
from distir.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    compile_schedule,
    find_schedule,
    forward_only,
)
from distir.simulation.fast import Simulator, StageCost
from distir.strategy import Strategy

PRODUCTS = "its products at full rate"
BLOCKS = "its blocks, without waiting"
PIPELINE = "filling and draining the pipeline"
STATE = "the model's state, shared by all devices"
HELD = "state and activations, shared evenly by the ranks"
"""What bounds may say."""

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

    def joined(self, other: Bound) -> Bound:
        """What follows from both."""
        slow = self if self.seconds >= other.seconds else other
        full = self if self.size >= other.size else other
        return Bound(slow.seconds, slow.slowed_by, full.size, full.filled_by)


def weakest(bounds: Iterable[Bound]) -> Bound:
    """What holds if any one of these does."""
    every = list(bounds)
    slow = min(every, key=lambda bound: bound.seconds)
    full = min(every, key=lambda bound: bound.size)
    return Bound(slow.seconds, slow.slowed_by, full.size, full.filled_by)


@dataclass(frozen=True, slots=True)
class _Products:
    """Matrix products of a microbatch on one device, by type, one element each."""

    works: tuple[Work, ...]

    def seconds(self, cost: CostModel, devices: int) -> float:
        """What they take if they are spread evenly over so many devices."""
        parts = [work * (1 / devices) for work in self.works]
        kernels = sum(float(np.sum(cost.kernel_seconds(part))) for part in parts)
        launches = sum(float(np.sum(cost.launch_seconds(part))) for part in parts)
        return float(cost.host_bound_seconds(kernels, launches))


class Bounds:
    """Bounds for the strategies of one simulator's workload and cluster."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._workload = simulator.workload
        training = self._workload.training
        self._overhead = simulator.cost.profile.iteration_overhead_seconds if training else 0.0
        self._products: dict[tuple[int, bool], _Products] = {}
        self._seconds: dict[tuple[int, int, bool], float] = {}

    @cached_property
    def _state_bytes(self) -> float:
        """Parameters, gradients and optimizer state on a single device."""
        return self._whole(Strategy(microbatches=self._workload.batch_size)).state.total

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
            self._seconds[key] = self._products[key[1:]].seconds(self._simulator.cost, devices)
        return self._seconds[key]

    def _make_products(self, microbatches: int, waited_for: bool) -> _Products:
        found: dict[str, list[Work]] = {}
        for program in self._simulator.planner.block_programs(Strategy(microbatches=microbatches)):
            back = program.backward_parts[0].nodes if waited_for else program.backward
            for node in (*program.forward, *back):
                work = node.op.work(node.operand_types, node.result_types)
                if work.kind is OpClass.PRODUCT:
                    found.setdefault(work.dtype, []).append(work)
        return _Products(tuple(_side_by_side(works) for works in found.values()))

    # --- all but the order -----------------------------------------------------------------------

    def ordered(self, strategies: Sequence[Strategy]) -> list[Bound]:
        """For each of several strategies that differ in schedule and chunks alone."""
        whole = self._whole(strategies[0], splits=_splits(strategies))
        return [self._of_order(whole, strategy) for strategy in strategies]

    def unsharded(self, strategies: Sequence[Strategy]) -> list[Bound]:
        """The same, whatever is sharded at rest. Of memory it says nothing."""
        whole = self._whole(replace(strategies[0], zero=0), splits=_splits(strategies))
        return [
            replace(self._of_passes(whole, strategy), size=0.0, filled_by="")
            for strategy in strategies
        ]

    def _of_passes(self, whole: StageCost, strategy: Strategy) -> Bound:
        """Of forward and backward passes alone."""
        return self._of_order(replace(whole, optimizer=0.0, refresh=0.0), strategy)

    def _of_order(self, whole: StageCost, strategy: Strategy) -> Bound:
        ranks, count = strategy.pp, strategy.microbatches
        training = self._workload.training
        work = _work(whole, strategy) if training else whole.passes[FORWARD].seconds
        busiest = (count * work + whole.optimizer + whole.refresh) / ranks
        waiting = _piped(whole, work, strategy) if training else work + (count - 1) * work / ranks
        seconds = self._overhead + max(busiest, waiting)
        held = max(0.0, whole.memory[FORWARD].delta) if training else 0.0
        return Bound(
            seconds * (1 - SLACK),
            BLOCKS if busiest >= waiting else PIPELINE,
            (whole.state.total + held) / ranks * (1 - SLACK),
            HELD,
        )

    def _whole(self, strategy: Strategy, *, splits: bool = False) -> StageCost:
        """The model as one stage, on the devices of one of the strategy's stages."""
        simulator = self._simulator
        programs = simulator.planner.block_programs(strategy)
        mesh, _ = simulator.planner.mesh(strategy)
        stage = Stage(0, tuple(range(len(programs))), programs)
        # The order does not matter here, only how many ranks the devices are laid out in.
        order = compile_schedule(forward_only(strategy.pp, 1, 1))
        plan = Plan(self._workload, strategy, mesh, programs[0].sizes, (stage,), order)
        return simulator.stage_cost(plan, 0, splits=splits)


def _splits(strategies: Iterable[Strategy]) -> bool:
    return any(find_schedule(each.schedule).splits_backward for each in strategies)


def _work(whole: StageCost, strategy: Strategy) -> float:
    """Seconds that all stages together spend on a microbatch, at least."""
    return whole.passes[FORWARD].seconds + _backward(whole, strategy, (INPUT_PART, WEIGHT_PART))


def _piped(whole: StageCost, work: float, strategy: Strategy) -> float:
    """Seconds from the first action to the last of the first rank, at least."""
    family = find_schedule(strategy.schedule)
    plain = family.placement == "loop" and family.copies == 1 and not family.splits_backward
    if plain and strategy.chunks == 1:
        return work / (1 - (1 - 1 / strategy.microbatches) ** strategy.pp)
    # Nothing waits for the second part of a backward pass.
    return whole.passes[FORWARD].seconds + _backward(whole, strategy, (INPUT_PART,))


def _backward(whole: StageCost, strategy: Strategy, parts: Sequence[int]) -> float:
    """Seconds of a backward pass, at least; of these parts of it, where the schedule has parts."""
    seconds = whole.passes[BACKWARD].seconds
    if not find_schedule(strategy.schedule).splits_backward:
        return seconds
    return min(seconds, sum(whole.passes[kind].seconds for kind in parts))


def _side_by_side(works: Sequence[Work]) -> Work:
    """Works of one kind and type as arrays."""
    counts = np.array(
        [(w.flops, w.bytes_read, w.bytes_written, w.launches) for w in works], np.float64
    )
    flops, read, written, launches = counts.T
    return Work(works[0].kind, flops, read, written, works[0].dtype, launches)
