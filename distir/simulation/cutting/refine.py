"""Moves the borders of stages as long as that makes an iteration shorter, for many plans at once.

Stages of equal weight (`partition.py`) are right while a pipeline is full and every rank holds one.
With few microbatches per rank, filling and draining count as much; and ranks that hold several
stages take turns between them, so that a heavy one holds up other ranks though the sums over ranks
are equal. Here the schedule itself is run, with few microbatches, and with stages that take what
their blocks take one by one. Of the moves that the simplest paths through the schedule do not rule
out, a few are tried, and the best is made, until none helps.

All seconds are whole numbers of small parts, so that sums have no rounding errors: plans are
refined alike, alone and together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags, Floats, Indices
from distir.errors import ScheduleError
from distir.plan import Planner
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART, CompiledSchedule
from distir.simulation.cutting.partition import MOST_KEPT, Bounds, Partitions
from distir.strategy import Strategy

ROUNDS = 2
"""Microbatches per rank with which schedules are run."""

FURTHER_ROUNDS = 6
"""Further microbatches per rank, at most. Each is taken to last as long as the busiest rank
computes, as in a pipeline that is full."""

FEW_ROUNDS = 4
"""Microbatches per rank up to which stages are refined of which each has a rank of its own: filling
and draining the pipeline matters then."""

STEPS = 50
"""Seconds of the heaviest block, forward and backward, after rounding. Plans whose seconds round to
equal numbers are refined alike, so that their cuts are found once."""

LEAST_GAIN = 3e-3
"""A move is made if it makes an iteration shorter by this fraction, or more."""

TRIED = 8
"""At most as many moves of a plan are tried at a time."""

MOST_STAGES_FOR_PAIRS = 24
"""With more stages, borders are moved one at a time, and not two that are next to each other."""

MOST_ACTIONS = 1 << 11
"""Schedules with more actions are not run: stages stay balanced."""

FEW_COLUMNS = 4
"""Fewer plans than these are run one by one: an operation on arrays takes longer than several on
numbers."""

SPARE_BYTES = 0.02
"""Fraction of a device's bytes that refined stages leave, at least: what blocks hold is an
estimate, and what fits with balanced stages has to fit with refined ones."""

NUMBERS_AT_ONCE = 1 << 20
"""Plans times moves times stages that are looked at together, to bound memory."""

Stages = NDArray[np.int64]
"""The first block of every stage, and the number of blocks: of shape (plans, stages + 1)."""


HostBound = Callable[[Any, Any], Any]
"""Seconds of a pass, from those of its streams and of its launches."""

Fit = Callable[[Indices, Any], Flags]
"""Whether plans, given by their positions, fit in memory with `Stages`."""

STREAMS, LAUNCHES, LINKS = range(3)
"""The order of what passes take (see `BlockPass`)."""


class Order(NamedTuple):
    """The order in which ranks run the stages that they hold."""

    compiled: CompiledSchedule
    """A schedule with few microbatches."""
    further: int
    """Microbatches beside those of the schedule."""


def order_of(planner: Planner, strategy: Strategy) -> Order | None:
    """The order of a strategy's schedule, None where stages stay balanced: where ranks hold one
    stage each and the pipeline is full for long, where passes are overlapped, as what these hide
    behind each other is not known of blocks, and where there are too many actions. Strategies with
    the same schedule have the same order, and so have most that differ in nothing but a large
    number of microbatches."""
    compiled, ranks, count = planner.schedule(strategy), strategy.pp, strategy.microbatches
    alone = all(len(held) == 1 for held in compiled.stages_of_ranks)
    if compiled.stages == 1 or compiled.pairs or (alone and count > FEW_ROUNDS * ranks):
        return None
    order = Order(compiled, 0)
    few = ROUNDS * ranks + count % ranks
    if count > few:
        try:
            short = planner.schedule(replace(strategy, microbatches=few))
        except ScheduleError:  # there is none with so few
            short = compiled
        if short is not compiled and short.stages_of_ranks == compiled.stages_of_ranks:
            order = Order(short, min(count - few, FURTHER_ROUNDS * ranks))
    return order if order.compiled.count_matrix.sum() <= MOST_ACTIONS else None


def rounded_passes(passes: Floats) -> Indices:
    """What the passes of blocks take, of shape (plans, 3, cost kinds, blocks), as whole numbers, of
    which the heaviest block of each plan has `STEPS` forward and backward."""
    longest = passes.max(axis=1)
    both = longest[:, FORWARD] + longest[:, BACKWARD]
    heaviest = np.maximum(both.max(axis=1), 1e-300)[:, None, None, None]
    return _whole(STEPS * passes / heaviest).astype(np.int64)


def _whole(seconds: Floats) -> Floats:
    """Rounded away from halves: ratios of sizes often are halves, and errors would decide."""
    return np.floor(seconds + 0.4321)


class RefinedCuts:
    """The bounds of stages after all moves. The last ones that were found are kept."""

    def __init__(self, bound: HostBound, training: bool) -> None:
        self._bound, self._training = bound, training
        self._known: dict[tuple[bytes, Order, Bounds], Bounds] = {}

    def bounds(
        self,
        rounded: Indices,
        orders: Sequence[Order | None],
        rows: Indices,
        which: Indices,
        bounds: Sequence[Bounds],
    ) -> list[Bounds]:
        """The bounds of the stages of plans after all moves, from those before. Plan i has the
        seconds `rounded[rows[i]]` (see `rounded_passes`) and the order `orders[which[i]]`."""
        names: dict[tuple[int, int], bytes] = {}
        keys: list[tuple[bytes, Order, Bounds]] = []
        missing: dict[Order, dict[tuple[bytes, Order, Bounds], int]] = {}
        for place, (row, number) in enumerate(zip(map(int, rows), map(int, which), strict=True)):
            order = orders[number]
            assert order is not None
            if (row, number) not in names:
                used = np.sign(order.compiled.count_matrix.sum(axis=0))
                names[row, number] = (rounded[row] * used[:, None]).astype(np.uint16).tobytes()
            key = names[row, number], order, bounds[place]
            keys.append(key)
            if key not in self._known:
                missing.setdefault(order, {})[key] = place
        for order, own in missing.items():
            places = list(own.values())
            refined = self._refined(order, rounded[rows[places]], [bounds[n] for n in places])
            self._known |= zip(own, refined, strict=True)
        found = [self._known[key] for key in keys]
        for key in list(islice(self._known, max(0, len(self._known) - MOST_KEPT))):
            del self._known[key]
        return found

    def fitting(
        self,
        rounded: Indices,
        orders: Sequence[Order | None],
        rows: Indices,
        which: Indices,
        bounds: Sequence[Bounds],
        fit: Fit,
    ) -> list[Bounds]:
        """`bounds` of plans that are short of memory, by moves after which they fit. As they hold
        different bytes, hardly two have the same cut, and none is kept."""
        found = list(bounds)
        for number in sorted({*map(int, which)}):
            order, own = orders[number], np.flatnonzero(which == number)
            assert order is not None

            def fits(some: Indices, stages: Stages, own: Indices = own) -> Flags:
                return fit(own[some], stages)

            places = [*map(int, own)]
            refined = self._refined(order, rounded[rows[own]], [bounds[n] for n in places], fits)
            for place, each in zip(places, refined, strict=True):
                found[place] = each
        return found

    def _refined(
        self, order: Order, rounded: Indices, bounds: Sequence[Bounds], fit: Fit | None = None
    ) -> list[Bounds]:
        passes = rounded.astype(np.float64)
        search = _Refinement(order, passes, self._bound, self._training, fit)
        return [tuple(each) for each in search.refined(np.array(bounds)).tolist()]


class KnownCuts:
    """Cuts that were found, to be shared by the plans of a simulator."""

    def __init__(self, bound: HostBound, training: bool) -> None:
        self.balanced, self.refined = Partitions(), RefinedCuts(bound, training)


class _Refinement:
    """Looks for shorter iterations of plans with one order."""

    def __init__(
        self, order: Order, passes: Floats, bound: HostBound, training: bool, fit: Fit | None
    ) -> None:
        self.order, self.compiled, self.training = order, order.compiled, training
        self.ranks, self.bound, self.fit = _rank_order(order.compiled), bound, fit
        self.blocks = passes.shape[-1]
        self.sums = np.zeros((len(passes), self.blocks + 1, 3, len(self.ranks.kinds)))
        """Seconds of all blocks before each block."""
        used = passes[:, :, self.ranks.kinds].transpose(0, 3, 1, 2)
        np.cumsum(used, axis=1, out=self.sums[:, 1:])

    def refined(self, bounds: Stages) -> Stages:
        """Bounds after all moves."""
        found, plans = bounds.copy(), np.arange(len(bounds))
        longest = np.full(len(bounds), np.inf)
        while len(plans):
            better = [self._moved(some, found, longest) for some in self._parts(plans)]
            plans = np.concatenate(better)
        return found

    def _parts(self, plans: Indices) -> Iterator[Indices]:
        """Parts of the plans that are small enough for memory."""
        numbers = _moves(self.compiled.stages).steps.size
        at_once = max(1, NUMBERS_AT_ONCE // numbers)
        for first in range(0, len(plans), at_once):
            yield plans[first : first + at_once]

    def _moved(self, plans: Indices, found: Stages, longest: Floats) -> Indices:
        """Makes the best move of each plan in `found` and `longest`; returns the plans that have
        one. Where `longest` is infinite, it becomes what an iteration takes without a move."""
        moves = _moves(self.compiled.stages)
        near = self._near(plans, found[plans])
        every = np.arange(len(plans))
        unknown = every[np.isinf(longest[plans])]
        if len(unknown):
            longest[plans[unknown]] = self._iterations(near, unknown, np.zeros_like(unknown))
        at_most = longest[plans] * (1 - LEAST_GAIN)
        after = found[plans, None] + moves.steps
        possible: Flags = np.all(after[..., 1:] > after[..., :-1], axis=2)
        possible[:, 0] = False
        own, move = np.nonzero(possible)
        least, uneven = self._least(near, own, move)
        chosen = np.flatnonzero(least <= at_most[own])
        if self.fit is not None:
            chosen = chosen[self.fit(plans[own[chosen]], after[own[chosen], move[chosen]])]
        own, move = own[chosen], move[chosen]
        chosen = _first_of_each(own, least[chosen], uneven[chosen], TRIED)
        own, move = own[chosen], move[chosen]
        if not len(own):
            return own
        seconds = self._iterations(near, own, move)
        chosen = _first_of_each(own, seconds, move, 1) & (seconds <= at_most[own])
        own, move = own[chosen], move[chosen]
        found[plans[own]], longest[plans[own]] = after[own, move], seconds[chosen]
        return plans[own]

    # --- seconds ----------------------------------------------------------------------------------

    def _near(self, plans: Indices, bounds: Stages) -> Floats:
        """Seconds of the passes of stages that begin and end up to one block before or after where
        these do, of shape (plans, stages, 9, cost kinds); see `_Moves.stages`."""
        edges = np.clip(bounds[..., None] + np.arange(-1, 2), 0, self.blocks)
        sums: Floats = self.sums[plans[:, None, None], edges]
        each = np.maximum(sums[:, 1:, None, :] - sums[:, :-1, :, None], 0.0)
        bounded = _whole(self.bound(each[..., STREAMS, :], each[..., LAUNCHES, :]))
        seconds = np.maximum(bounded, each[..., LINKS, :])
        found = np.zeros((*seconds.shape[:2], 9, COST_KINDS))
        found[..., self.ranks.kinds] = seconds.reshape(*seconds.shape[:2], 9, -1)
        return found

    def _stages(self, near: Floats, own: Indices, move: Indices) -> Floats:
        """Seconds of the stages of plans, given by their positions in `near`, after a move each: of
        shape (cost kinds, stages, columns)."""
        every = np.arange(self.compiled.stages)
        found: Floats = near[own[:, None], every, _moves(self.compiled.stages).stages[move]]
        return np.ascontiguousarray(found.transpose(2, 1, 0))

    def _iterations(self, near: Floats, own: Indices, move: Indices) -> Floats:
        """How long an iteration is; see `_stages`."""
        stages = self._stages(near, own, move)
        actions = stages.swapaxes(0, 1).reshape(-1, len(own))
        end, begin = _run(self.compiled, actions)
        length: Floats = np.max(end - begin if self.training else end, axis=0)
        return length + self._further(self.ranks.busy(stages))

    def _further(self, busy: Floats) -> Floats:
        """Seconds of the microbatches that are not run, from those in which ranks are busy."""
        rounds = self.order.further / self.ranks.microbatches
        busiest: Floats = np.max(busy, axis=0)
        return busiest * rounds

    def _least(self, near: Floats, own: Indices, move: Indices) -> tuple[Floats, Floats]:
        """Seconds that iterations take at least by the simplest paths through the schedule, and how
        uneven stages are; see `_stages`.

        A path goes down the pipeline to a rank, on through all actions of this rank, and back from
        its lowest stage; or all the way down and back to the rank's first backward pass, then on
        through the actions that are left.
        """
        ranks, stages = self.ranks, self._stages(near, own, move)
        forward, busy = stages[FORWARD], ranks.busy(stages)
        before = np.zeros((2, self.compiled.stages + 1, len(own)))
        np.cumsum(forward, axis=0, out=before[0, 1:])
        if ranks.backward is not None:
            np.cumsum(stages[ranks.backward], axis=0, out=before[1, 1:])
        down, up = before
        drained = 0.0 if ranks.splits else up[ranks.lowest]
        around = down[ranks.lowest] + drained
        if ranks.backward is not None:
            warm = ranks.sums(forward[ranks.stage] * ranks.warm[:, None])
            returned = down[-1:] + up[-1:] - up[ranks.returned + 1]
            around = np.maximum(around, returned - warm + drained)
        whole = stages[ranks.kinds].sum(axis=0)
        least = (busy + around).max(axis=0) + self._further(busy)
        return least, (whole * whole).sum(axis=0)


@dataclass(frozen=True, slots=True)
class _Moves:
    """Moves of borders. The first moves none."""

    steps: Indices
    """By how many blocks borders move, of shape (moves, stages + 1)."""
    stages: Indices
    """Of shape (moves, stages): the number of each stage among those that begin and end up to one
    block before or after where it does, of which there are nine."""


@lru_cache(maxsize=256)
def _moves(stages: int) -> _Moves:
    """One border one block back or on; or two that are next to each other."""
    inner = range(1, stages)
    moved: list[dict[int, int]] = [{}]
    moved += [{border: step} for border in inner for step in (-1, 1)]
    if stages <= MOST_STAGES_FOR_PAIRS:
        moved += [
            {a: one, b: other} for a, b in pairwise(inner) for one in (-1, 1) for other in (-1, 1)
        ]
    steps = np.zeros((len(moved), stages + 1), np.int64)
    for row, own in zip(steps, moved, strict=True):
        row[list(own)] = list(own.values())
    return _Moves(steps, 3 * (steps[:, :-1] + 1) + steps[:, 1:] + 1)


class _RankOrder:
    """What ranks do under a schedule. An *entry* is a stage on a rank; entries are listed rank by
    rank."""

    def __init__(self, compiled: CompiledSchedule) -> None:
        held = compiled.stages_of_ranks
        self.stage = np.array([*chain.from_iterable(held)], np.int64)
        sizes = np.array([*map(len, held)])
        self.first = np.cumsum(sizes) - sizes
        """The first entry of each rank."""
        self.lowest = np.array([*map(min, held)])
        """The lowest stage of each rank."""
        self.splits = compiled.splits_backward
        self.kinds = np.flatnonzero(compiled.count_matrix.any(axis=0)).tolist()
        """Cost kinds of all actions."""
        self.backward = next((k for k in (INPUT_PART, BACKWARD) if k in self.kinds), None)
        """The cost kind of the actions for which the stages before wait."""
        self.counts = compiled.matrix_alone
        """Of shape (entries, cost kinds)."""
        forward = compiled.count_matrix[:, FORWARD]
        self.microbatches = int(forward[self.stage == 0].sum())
        warm, returned = _before_backward(compiled)
        self.warm = np.array(warm, np.float64)
        """Forward passes of each entry before the first backward pass of the rank."""
        self.returned = np.array(returned)
        """The stage of the first backward pass of each rank; -1 if there is none."""

    def sums(self, values: Floats) -> Floats:
        """Sums over the entries of ranks, from shape (entries, columns)."""
        return np.add.reduceat(values, self.first, axis=0)

    def busy(self, stages: Floats) -> Floats:
        """Seconds of all actions of each rank, of shape (ranks, columns)."""
        every: Any = 0.0
        for kind in self.kinds:
            every = every + stages[kind, self.stage] * self.counts[:, kind, None]
        return self.sums(every)


@lru_cache(maxsize=1 << 10)
def _rank_order(compiled: CompiledSchedule) -> _RankOrder:
    return _RankOrder(compiled)


def _before_backward(compiled: CompiledSchedule) -> tuple[list[int], list[int]]:
    """The forward passes of each entry before the first backward pass of its rank, and the stage of
    that; -1 if there is none."""
    found: list[int] = []
    stages: list[int] = []
    for held, repeated in zip(compiled.stages_of_ranks, compiled.repeated_costs, strict=True):
        counts, stage = dict.fromkeys(held, 0), -1
        for pattern, times in repeated:
            back = next((n for n, cost in enumerate(pattern) if cost % COST_KINDS != FORWARD), None)
            for cost in pattern[:back]:
                counts[cost // COST_KINDS] += times if back is None else 1
            if back is not None:
                stage = pattern[back] // COST_KINDS
                break
        found += counts.values()
        stages.append(stage)
    return found, stages


def _first_of_each(own: Indices, first: Floats, second: NDArray[Any], count: int) -> Flags:
    """The `count` first of each plan by two numbers. `own` ascends."""
    order = np.lexsort((second, first, own))
    chosen = np.zeros(len(own), np.bool_)
    chosen[order] = np.arange(len(own)) - np.searchsorted(own, own) < count
    return chosen


def _run(compiled: CompiledSchedule, seconds: Floats) -> tuple[Floats, Floats]:
    """When ranks are done, and when they begin, of shape (ranks, columns), given the seconds of
    actions, of shape (stages · cost kinds, columns); messages take no time."""
    if seconds.shape[1] < FEW_COLUMNS:
        each = [_run_alone(compiled, column) for column in seconds.T.tolist()]
        end, begin = np.array(each).transpose(1, 2, 0)
        return end, begin
    flat, none = compiled.flat, np.zeros(seconds.shape[1])
    free = [none] * len(compiled.stages_of_ranks)
    ended: list[Floats] = []
    for rank, cost, needed in zip(flat.rank, flat.cost, flat.needs, strict=True):
        begin = free[rank]
        if needed >= 0:
            begin = np.maximum(begin, ended[needed])
        free[rank] = end = begin + seconds[cost]
        ended.append(end)
    begin = [ended[action] - seconds[flat.cost[action]] for action in flat.first]
    return np.stack(free), np.stack(begin)


def _run_alone(
    compiled: CompiledSchedule, seconds: Sequence[float]
) -> tuple[list[float], list[float]]:
    """`_run` of one column."""
    flat = compiled.flat
    free = [0.0] * len(compiled.stages_of_ranks)
    ended: list[float] = []
    for rank, cost, needed in zip(flat.rank, flat.cost, flat.needs, strict=True):
        begin = free[rank]
        if needed >= 0 and ended[needed] > begin:
            begin = ended[needed]
        free[rank] = end = begin + seconds[cost]
        ended.append(end)
    return free, [ended[action] - seconds[flat.cost[action]] for action in flat.first]


__all__ = ["SPARE_BYTES", "KnownCuts", "Order", "RefinedCuts", "order_of", "rounded_passes"]
