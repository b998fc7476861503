"""What an iteration may be expected to take: estimates, where `bounds.py` has what is sure.

The stages of a pipeline are taken to be alike, and what blocks in the middle of the model hand on
to be what all stages send. With these the schedule is run as it is (`pipeline/many.py`), so that
filling, draining and messages that nothing hides count as they do in a simulation. Then ranks add
up the gradients of parameters that blocks of several ranks use, and of stages that they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.ir.core import Value
from distir.mesh import MESH_CHOICES
from distir.plan.grid import DeviceGrid
from distir.schedules import (
    BACKWARD,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    CompiledSchedule,
    find_schedule,
)
from distir.simulation.many.batch import NUMBERS_AT_ONCE, SCHEDULE
from distir.simulation.pipeline.many import alike_schedules, run_alike_columns
from distir.simulation.pricing.instructions import Pricing, narrower_products
from distir.simulation.pricing.stages import StagePricer
from distir.simulation.pricing.tied import tied_seconds
from distir.simulation.ranks.many import LinkLevels
from distir.simulation.wholes import Wholes
from distir.strategies import Strategies
from distir.strategy import Strategy


def expected_seconds(
    pricer: StagePricer, whole: Wholes, table: Strategies, *, roughly: bool = False
) -> Floats:
    """Expected seconds of an iteration of each strategy, given its model as one stage; `roughly`:
    without running schedules, which are many where strategies have little in common."""
    training = pricer.workload.training
    ranks = table.column("pp")
    once = (whole.settling + whole.optimizer + whole.refresh + whole.gathering) / ranks
    found: Floats = once + pricer.cost.stack.overhead_seconds(training)
    alone = ranks == 1
    work = whole.passes[FORWARD] + (whole.passes[BACKWARD] if training else 0.0)
    found[alone] += (table.column("microbatches") * work)[alone]
    piped = np.flatnonzero(~alone)
    if len(piped):
        pipelines = _Pipelines(pricer, whole.taken(piped), table.taken(piped))
        found[piped] += pipelines.rough_seconds() if roughly else pipelines.seconds()
    return found


class _Pipelines:
    """The pipelines of strategies with several ranks."""

    def __init__(self, pricer: StagePricer, whole: Wholes, table: Strategies) -> None:
        self._cost, self._training = pricer.cost, pricer.workload.training
        self._pricer, self._whole, self._table = pricer, whole, table
        self._grids = RankGrids(pricer, table)

    def seconds(self) -> Floats:
        """Seconds from the first action of a rank to its last one, of the rank that takes
        longest, and in which ranks add up gradients."""
        first, schedule = self._table.distinct(SCHEDULE)
        different = [self._pricer.planner.schedule(self._table[int(place)]) for place in first]
        found = np.empty(len(self._table))
        for alike in alike_schedules(different):
            number = np.full(len(different), -1)
            number[alike] = np.arange(len(alike))
            which = number[schedule]
            schedules = [different[each] for each in alike]
            for some in self._parts(schedules[0], np.flatnonzero(which >= 0)):
                found[some] = self._run(schedules, which[some], some)
        return found

    def rough_seconds(self) -> Floats:
        """The same, if with `v` chunks the first microbatch waits for `(p - 1) / v` stages, with
        split backward passes for a third of that, if every rank waits for a message per microbatch,
        and nothing is added up."""
        whole, table, once = self._whole, self._table, 1
        ranks, count, chunks = (table.column(name) for name in ("pp", "microbatches", "chunks"))
        passes: list[Floats] = list(whole.passes)
        work = passes[FORWARD]
        filling: Floats = (ranks - 1) / np.maximum(chunks, 1)
        if self._training:
            families = [find_schedule(name) for name in table.values["schedule"]]
            codes = table.codes.get("schedule", np.zeros(len(table), np.int16))
            splits: Flags = np.array([each.splits_backward for each in families])[codes]
            parts = passes[INPUT_PART] + passes[WEIGHT_PART]
            work = work + np.where(splits, parts, passes[BACKWARD])
            filling = filling * np.where(splits, 1 / 3, 1.0)
            once = 2
        between = self._grids.passing_seconds(whole.handed_on) / (ranks - 1)
        return (count + filling) * work / ranks + (count + once * (ranks - 1)) * between

    @cached_property
    def _tying(self) -> list[float]:
        return _tying_blocks(self._pricer) if self._training else []

    @staticmethod
    def _parts(compiled: CompiledSchedule, chosen: Indices) -> Iterator[Indices]:
        most = max(1, NUMBERS_AT_ONCE // (compiled.stages + len(compiled.pairs)))
        yield from np.split(chosen, range(most, len(chosen), most))

    def _run(self, schedules: Sequence[CompiledSchedule], which: Indices, some: Indices) -> Floats:
        """The seconds of some strategies, whose schedules are alike."""
        compiled, whole = schedules[0], self._whole.taken(some)
        stages, pairs = compiled.stages, compiled.pairs
        seconds = np.zeros((stages + len(pairs), COST_KINDS, len(some)))
        seconds[:stages] = whole.passes / stages
        if pairs:
            seconds[stages:, FORWARD] = _beside(whole) / stages
        moving = np.zeros_like(seconds)
        for (stage, step), ways in compiled.routes.items():
            kinds = [FORWARD] if step > 0 else [BACKWARD, INPUT_PART]
            moving[stage, kinds] = self._message_seconds(whole, some, ways)
        for place, (forward, backward) in enumerate(pairs, start=stages):
            moving[place, FORWARD] = moving[forward, FORWARD]
            moving[place, BACKWARD] = moving[backward, BACKWARD]
        shape = -1, len(some)
        goes_on = self._cost.stack.goes_on(max(map(len, compiled.stages_of_ranks)))
        time = run_alike_columns(
            schedules, which, seconds.reshape(shape), moving.reshape(shape), goes_on=goes_on
        )
        if not self._training:
            return time.end.max(axis=0)
        return (time.end - time.begin).max(axis=0) + self._adding_up(compiled, whole, some)

    def _message_seconds(
        self, whole: Wholes, some: Indices, ways: Sequence[tuple[int, int]]
    ) -> Floats:
        """Seconds of messages, whole or in parts, whichever is faster."""
        at_once = self._grids.message_seconds(whole.handed_on, some, ways)
        in_parts = self._grids.message_seconds(whole.part, some, ways) + whole.joining
        return np.minimum(at_once, in_parts)

    def _adding_up(self, compiled: CompiledSchedule, whole: Wholes, some: Indices) -> Floats:
        """Seconds in which ranks add up gradients that several have."""
        stages, held = compiled.stages, compiled.stages_of_ranks
        ranks_of = [
            tuple(rank for rank, own in enumerate(held) if stage in own) for stage in range(stages)
        ]
        found = np.zeros(len(some))
        if len(ranks_of[0]) > 1:
            share = ranks_of.count(ranks_of[0]) / stages
            found += self._grids.adding_seconds(share * whole.own_gradients, some, ranks_of[0])
        last = stages - 1
        tying = {rank for at in self._tying for rank in ranks_of[min(int(at * stages), last)]}
        ranks = tuple(sorted(tying))
        return found + self._grids.adding_seconds(whole.tied_gradients, some, ranks)


def _tying_blocks(pricer: StagePricer) -> list[float]:
    """Where in the model the blocks are that use the largest of the parameters that several use:
    the part of the time on one device before the middle of the block; 0 of the first one, 1 of the
    last."""
    program, planner, strategy = pricer.workload.program, pricer.planner, Strategy()
    users: dict[Value, list[int]] = {}
    for block, own in enumerate(program.shared_uses):
        for value in own:
            users.setdefault(value, []).append(block)
    largest = max(users, key=lambda value: value.type.num_elements, default=None)
    if largest is None:
        return []
    grid = DeviceGrid.of(*planner.mesh(strategy), 1, strategy.placement)
    product = narrower_products(pricer.workload, pricer.cost.cluster.device)
    programs = planner.model_programs(strategy).kept
    seconds = np.array(pricer.weights(programs, Pricing(pricer.cost, grid, product)))
    middles = (np.cumsum(seconds) - seconds / 2) / seconds.sum()
    middles[[0, -1]] = 0.0, 1.0
    return middles[users[largest]].tolist()


def _beside(whole: Wholes) -> Floats:
    """Seconds of a forward pass beside the backward pass of another microbatch: as long as either,
    and as what both do on one stream."""
    both = whole.occupied[:, FORWARD] + whole.occupied[:, BACKWARD]
    return np.maximum(np.maximum(whole.passes[FORWARD], whole.passes[BACKWARD]), both.max(axis=0))


class RankGrids:
    """Where the ranks of strategies lie: what they send each other, and add up."""

    def __init__(self, pricer: StagePricer, table: Strategies) -> None:
        self._cost = cost = pricer.cost
        first, which = table.distinct((*MESH_CHOICES, "pp", "placement"))
        grids: dict[object, tuple[int, DeviceGrid]] = {}
        numbers: list[int] = []
        for strategy in (table[int(place)] for place in first):
            mesh = pricer.planner.mesh(strategy)
            grid = DeviceGrid.of(*mesh, strategy.pp, strategy.placement)
            number, _ = grids.setdefault((grid.ranks, grid.devices), (len(grids), grid))
            numbers.append(number)
        self._place: Indices = np.array(numbers, np.int64)[which]
        self._grids = [grid for _, grid in grids.values()]
        self._links = LinkLevels(cost, self._grids)
        levels = range(len(cost.cluster.levels))
        self._fixed = np.array([cost.hop_seconds(0.0, level) for level in levels])
        self._per_byte = np.array([cost.hop_seconds(1.0, level) for level in levels]) - self._fixed

    def message_seconds(
        self, size_bytes: Floats, some: Indices, ways: Sequence[tuple[int, int]]
    ) -> Floats:
        """Seconds of messages of some strategies over the slowest of the ways, which are pairs of
        ranks."""
        present, which = np.unique(self._place[some], return_inverse=True)
        levels = self._links.levels(present.tolist(), ways)[:, which]
        return (self._fixed[levels] + size_bytes * self._per_byte[levels]).max(axis=0)

    def adding_seconds(self, size_bytes: Floats, some: Indices, ranks: tuple[int, ...]) -> Floats:
        """Seconds in which ranks of some strategies add up so many bytes."""
        places, found = self._place[some], np.zeros(len(some))
        if len(ranks) > 1:
            different: list[int] = np.unique(places).tolist()
            for place in different:
                here = places == place
                grid = self._grids[place]
                found[here] = tied_seconds(grid, self._cost, ranks, size_bytes[here])
        return found

    def passing_seconds(self, size_bytes: Floats) -> Floats:
        """Seconds of the messages of each strategy from one rank to the next, from the first to the
        last, if each has so many bytes."""
        fixed, per_byte = np.zeros((2, len(self._grids)))
        for place, grid in enumerate(self._grids):
            levels = self._links.levels([place], list(pairwise(range(grid.ranks.degree))))
            fixed[place] = self._fixed[levels].sum()
            per_byte[place] = self._per_byte[levels].sum()
        return fixed[self._place] + size_bytes * per_byte[self._place]


__all__ = ["RankGrids", "expected_seconds"]
