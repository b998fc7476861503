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
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags, Floats, Indices, distinct, edges, product
from distir.errors import ScheduleError
from distir.plan import Planner
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART, CompiledSchedule
from distir.simulation.cutting.partition import MOST_KEPT, Bounds, Partitions
from distir.simulation.cutting.ranges import HostBound, Ranges, whole
from distir.simulation.cutting.running import ActionSteps, Numbers, Schedules, lengths
from distir.strategy import Strategy

ROUNDS = 2
"""Microbatches per rank with which schedules are run."""

FURTHER_ROUNDS = 6
"""Further microbatches per rank, at most. Each is taken to last as long as the busiest rank
computes, as in a pipeline that is full."""

FEW_ROUNDS = 4
"""Microbatches per rank up to which stages are refined of which each has a rank of its own: filling
and draining the pipeline matters then."""

NAME_BYTES = 16
"""Bytes of the name of what the blocks of a plan take; the seconds themselves are kilobytes."""

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

SPARE_BYTES = 0.02
"""Fraction of a device's bytes that refined stages leave, at least: what blocks hold is an
estimate, and what fits with balanced stages has to fit with refined ones."""

NUMBERS_AT_ONCE = 1 << 18
"""Plans times moves times stages that are looked at together, to bound memory."""

EXACT = 1 << 24
"""Sums of whole numbers up to this one have no rounding errors in 32 bits."""

Stages = NDArray[np.int64]
"""The first block of every stage, and the number of blocks: of shape (plans, stages + 1)."""


Fit = Callable[[Indices, Indices, Indices], Flags]
"""Whether plans, given by their positions, fit in memory with bounds: those of all plans one after
the other, and where those of each begin."""


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
            short = planner.schedule_of(strategy, few)
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
    return whole(STEPS * passes / heaviest).astype(np.int64)


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
        first, case = distinct(rows * len(orders) + which)
        names: list[tuple[bytes, Order]] = []
        known_names: dict[tuple[int, tuple[int, ...]], bytes] = {}
        for row, number in zip(map(int, rows[first]), map(int, which[first]), strict=True):
            order = _order(orders[number])
            kinds = _occurring(order)
            if (row, kinds) not in known_names:
                known_names[row, kinds] = _name(rounded[row], kinds)
            names.append((known_names[row, kinds], order))
        cases: list[int] = case.tolist()
        keys = [(*names[at], own) for at, own in zip(cases, bounds, strict=True)]
        known = list(map(self._known.get, keys))
        missing = {keys[at]: at for at in reversed(range(len(keys))) if known[at] is None}
        if missing:
            places = np.array([*missing.values()])
            before = [bounds[place] for place in missing.values()]
            refined = self.moved(rounded, orders, rows[places], which[places], before)
            self._known |= zip(missing, refined, strict=True)
        found = [own or self._known[key] for own, key in zip(known, keys, strict=True)]
        for key in list(islice(self._known, max(0, len(self._known) - MOST_KEPT))):
            del self._known[key]
        return found

    def moved(
        self,
        rounded: Indices,
        orders: Sequence[Order | None],
        rows: Indices,
        which: Indices,
        bounds: Sequence[Bounds],
        fit: Fit | None = None,
    ) -> list[Bounds]:
        """The bounds of the stages of plans after all moves, or after moves with which they `fit`:
        plans that are short of memory hold different bytes, hardly two have the same cut, and none
        is kept. See `bounds` for the other arguments."""
        first, row = distinct(rows)
        ranges = Ranges(rounded[rows[first]], self._bound)
        schedules, which = _schedules(orders, which)
        found = list(bounds)
        for part in ranges.parts():
            own = np.flatnonzero((part.start <= row) & (row < part.stop))
            own = own[np.argsort(which[own], kind="stable")]
            table = _Table.of(ranges, part, schedules)
            search = _Refinement(
                table,
                schedules,
                row[own] - part.start,
                which[own],
                [bounds[place] for place in map(int, own)],
                self._training,
            )
            after = search.refined(None if fit is None else _of_some(fit, own))
            for place, each in zip(own.tolist(), after, strict=True):
                found[place] = each
        return found


def _name(passes: Indices, occurring: tuple[int, ...]) -> bytes:
    """A name of what the passes of a plan take that occur in a schedule."""
    own = passes * np.array(occurring)[:, None]
    return blake2b(own.astype(np.uint16).tobytes(), digest_size=NAME_BYTES).digest()


@lru_cache(maxsize=1 << 10)
def _occurring(order: Order) -> tuple[int, ...]:
    """By cost kind whether a schedule has actions of it: 0 or 1."""
    return tuple(np.sign(order.compiled.count_matrix.sum(axis=0)).tolist())


def _order(order: Order | None) -> Order:
    assert order is not None
    return order


def _of_some(fit: Fit, own: Indices) -> Fit:
    return lambda some, flat, begins: fit(own[some], flat, begins)


class KnownCuts:
    """Cuts that were found, to be shared by the plans of a simulator."""

    def __init__(self, bound: HostBound, training: bool) -> None:
        self.balanced, self.refined = Partitions(), RefinedCuts(bound, training)


class _Schedules(NamedTuple):
    """The schedules of plans that are refined together, those with fewer stages first."""

    paths: Sequence[_Paths]
    kinds: Flags
    """Whether a schedule has actions of a cost kind, of shape (schedules, cost kinds)."""
    runs: Schedules


def _schedules(orders: Sequence[Order | None], which: Indices) -> tuple[_Schedules, Indices]:
    """The schedules of plans with the orders `which`, and the schedule of each plan."""
    first, order = distinct(which)
    own = [_order(orders[number]) for number in map(int, which[first])]
    stages = np.array([each.compiled.stages for each in own])
    by_stages = np.argsort(stages, kind="stable")
    number = np.empty_like(by_stages)
    number[by_stages] = np.arange(len(own))
    paths = [_paths(own[place]) for place in map(int, by_stages)]
    kinds = np.array([each.kinds for each in paths])
    runs = Schedules.of([each.steps for each in paths], stages[by_stages].tolist())
    return _Schedules(paths, kinds, runs), number[order]


class _Table(NamedTuple):
    """What stages take in several rows of what blocks take; see `Ranges`."""

    seconds: Numbers
    """Of shape (rows · ranges, cost kinds)."""
    numbers: Indices
    """The number of the range from each bound to each other, of shape (bounds, bounds)."""
    ranges: int
    """The number of ranges."""

    @classmethod
    def of(cls, ranges: Ranges, rows: slice, schedules: _Schedules) -> _Table:
        """The table of some rows, in as few bits as all sums along schedules need."""
        seconds = ranges.seconds(rows, np.flatnonzero(schedules.kinds.any(axis=0)).tolist())
        most = float(seconds.max()) * max(paths.most_actions for paths in schedules.paths)
        numbers: Numbers = seconds.astype(np.float32 if most < EXACT else np.float64, copy=False)
        return cls(numbers.reshape(-1, COST_KINDS), ranges.numbers, seconds.shape[1])


class _Refinement:
    """Looks for shorter iterations of plans, which are in the order of their schedules: plans with
    equally many stages are adjacent."""

    def __init__(
        self,
        table: _Table,
        schedules: _Schedules,
        rows: Indices,
        which: Indices,
        bounds: Sequence[Bounds],
        training: bool,
    ) -> None:
        """`rows` has the row of each plan in the table, and `which` its schedule, in ascending
        order."""
        self.table, self.schedules, self.training = table, schedules, training
        self.rows, self.which = rows, which
        begins = edges(schedules.runs.stages[which]).tolist()
        self.alike = [
            _Alike(begin, np.array(bounds[begin:end]), len(table.numbers))
            for begin, end in pairwise(begins)
        ]
        self.longest = np.full(len(bounds), np.inf)
        """How long iterations are; infinite where it is not known."""

    def refined(self, fit: Fit | None) -> list[Bounds]:
        """Bounds after all moves, or after all with which plans `fit`."""
        sizes = [np.full(len(own.bounds), own.moves.steps.size) for own in self.alike]
        size, plans = np.concatenate(sizes), np.arange(len(self.rows))
        while len(plans):
            begins = edges(np.cumsum(size[plans]) // NUMBERS_AT_ONCE).tolist()
            parts = [self._moved(plans[begin:end], fit) for begin, end in pairwise(begins)]
            plans = np.concatenate(parts)
        return [tuple(each) for own in self.alike for each in own.bounds.tolist()]

    def _moved(self, plans: Indices, fit: Fit | None) -> Indices:
        """Makes the best move of each of some plans; returns the plans that have one."""
        every = self._bounded(plans)
        unmoved = every.taken(every.move == 0)
        if len(unmoved.plan):
            self.longest[unmoved.plan] = self._iterations(unmoved)
        at_most = self.longest * (1 - LEAST_GAIN)
        shorter = (every.move > 0) & (every.least <= at_most[every.plan])
        tried = self._tried(every.taken(shorter), fit)
        if not len(tried.plan):
            return tried.plan
        seconds = self._iterations(tried)
        best = _first_of_each(tried.plan, seconds, tried.move, 1)
        best &= seconds <= at_most[tried.plan]
        made = tried.taken(best)
        self.longest[made.plan] = seconds[best]
        for own, some in self._split(made.plan):
            own.make(made.plan[some], made.move[some])
        return made.plan

    def _bounded(self, plans: Indices) -> _Bounded:
        """All moves of some plans that leave each stage a block; and none, where it is not known
        how long the iteration is."""
        found: list[_Bounded] = []
        for own, some in self._split(plans):
            possible = own.possible(plans[some])
            possible[:, 0] = np.isinf(self.longest[plans[some]])
            place, move = np.nonzero(possible)
            plan = plans[some][place]
            seconds = self._after(own, plan, move)
            least, rest = np.empty((2, len(plan)))
            which = self.which[plan]
            for begin, end in pairwise(edges(which).tolist()):
                paths = self.schedules.paths[int(which[begin])]
                along = paths.along(seconds[begin:end])
                least[begin:end] = np.maximum.reduce(along)
                rest[begin:end] = paths.rest(along[: paths.ranks])
            found.append(_Bounded(plan, move, least + rest, rest))
        return _Bounded(*map(np.concatenate, zip(*found, strict=True)))

    def _tried(self, moves: _Bounded, fit: Fit | None) -> _Bounded:
        """Those of some moves that are tried."""
        if fit is not None and len(moves.plan):
            moves = moves.taken(self._fitting(moves, fit))
        chosen = np.bincount(moves.plan)[moves.plan] <= TRIED
        crowded = moves.taken(~chosen)
        uneven = self._uneven(crowded)
        chosen[~chosen] = _first_of_each(crowded.plan, crowded.least, uneven, TRIED)
        return moves.taken(chosen)

    def _fitting(self, moves: _Bounded, fit: Fit) -> Flags:
        """Whether plans fit after moves."""
        after = [
            own.bounds[moves.plan[some] - own.first] + own.moves.steps[moves.move[some]]
            for own, some in self._split(moves.plan)
        ]
        widths = np.repeat([each.shape[1] for each in after], [len(each) for each in after])
        flat = np.concatenate([each.ravel() for each in after])
        return fit(moves.plan, flat, np.cumsum(widths) - widths)

    def _iterations(self, moves: _Bounded) -> Floats:
        """How long iterations are after moves."""
        seconds = [
            self._after(own, moves.plan[some], moves.move[some])
            for own, some in self._split(moves.plan)
        ]
        which = self.which[moves.plan]
        return lengths(self.schedules.runs, which, seconds, self.training) + moves.rest

    def _uneven(self, moves: _Bounded) -> Floats:
        """How uneven stages are after moves."""
        found = np.empty(len(moves.plan))
        for own, some in self._split(moves.plan):
            plan = moves.plan[some]
            after = self._after(own, plan, moves.move[some])
            kinds = self.schedules.kinds[self.which[plan]].astype(after.dtype)
            whole = np.einsum("msk,mk->ms", after, kinds).astype(np.float64)
            found[some] = np.einsum("ms,ms->m", whole, whole)
        return found

    def _after(self, own: _Alike, plan: Indices, move: Indices) -> Numbers:
        """Seconds of stages after moves, of shape (moves, stages, cost kinds)."""
        at = self.table.numbers.take(own.held[plan - own.first] + own.moves.held[move])
        at += (self.rows[plan] * self.table.ranges)[:, None]
        return self.table.seconds.take(at, axis=0)

    def _split(self, plans: Indices) -> Iterator[tuple[_Alike, slice]]:
        """Plans, in ascending order, by how many stages they have: those that are alike, and where
        some of these are among the plans."""
        begins = np.searchsorted(plans, [own.first for own in self.alike]).tolist()
        for own, begin, end in zip(self.alike, begins, [*begins[1:], len(plans)], strict=True):
            if begin < end:
                yield own, slice(begin, end)


class _Alike:
    """Plans with equally many stages, and the moves that were made."""

    def __init__(self, first: int, bounds: Stages, count: int) -> None:
        """`first` is the number of the first plan, and `count` that of all bounds of blocks."""
        self.first, self.bounds = first, bounds
        self.moves = _moves(bounds.shape[1] - 1, count)
        self.held = bounds[:, :-1] * count + bounds[:, 1:]
        """The ranges that stages hold, numbered among those from each bound to each other."""

    def possible(self, plans: Indices) -> Flags:
        """Which moves leave every stage of some plans a block, of shape (plans, moves)."""
        bounds = self.bounds[plans - self.first]
        return self.moves.possible(bounds[:, 1:] - bounds[:, :-1])

    def make(self, plans: Indices, move: Indices) -> None:
        """Makes moves, one of each of some plans."""
        self.bounds[plans - self.first] += self.moves.steps[move]
        self.held[plans - self.first] += self.moves.held[move]


class _Bounded(NamedTuple):
    """Moves of plans, and how long iterations are at least after each."""

    plan: Indices
    """The plan of each move, in ascending order."""
    move: Indices
    """The number of the move, in ascending order for each plan."""
    least: Floats
    """Seconds of an iteration by the simplest paths through the schedule."""
    rest: Floats
    """Seconds of the microbatches that are not run."""

    def taken(self, some: Flags) -> _Bounded:
        """Some of the moves."""
        at = np.flatnonzero(some)
        return _Bounded(self.plan[at], self.move[at], self.least[at], self.rest[at])


@dataclass(frozen=True, slots=True)
class _Moves:
    """Moves of borders. The first moves none."""

    steps: Indices
    """By how many blocks borders move, of shape (moves, stages + 1)."""
    held: Indices
    """By how much the numbers of the ranges that stages hold change (see `_Alike.held`), of shape
    (moves, stages)."""
    shrinking: Sequence[tuple[Indices, Indices]]
    """Stages that get shorter, one of each move or stage 0, and how many blocks they lose."""

    def possible(self, lengths: Indices) -> Flags:
        """Which moves leave every stage a block, of shape (plans, moves), given how many blocks
        stages have, of shape (plans, stages)."""
        found = np.ones((len(lengths), len(self.steps)), np.bool_)
        for stage, lost in self.shrinking:
            found &= lengths.take(stage, axis=1) > lost
        return found


@lru_cache(maxsize=256)
def _moves(stages: int, count: int) -> _Moves:
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
    lost = np.maximum(steps[:, :-1] - steps[:, 1:], 0)
    order = np.argsort(-lost, axis=1, kind="stable")[:, : int((lost > 0).sum(axis=1).max())]
    each = np.arange(len(steps))
    shrinking = [(stage, lost[each, stage]) for stage in order.T]
    return _Moves(steps, steps[:, :-1] * count + steps[:, 1:], shrinking)


class _Paths:
    """The simplest paths through a schedule, as numbers of times that they pass through stages:
    arrays of shape (stages · cost kinds, paths).

    A path goes down the pipeline to a rank, on through all actions of this rank, and back from its
    lowest stage; or all the way down and back to the rank's first backward pass, then on through
    the actions that are left.
    """

    def __init__(self, order: Order) -> None:
        compiled = order.compiled
        held, counts = compiled.stages_of_ranks, compiled.matrix_alone
        self.ranks = len(held)
        self.kinds: Flags = np.any(counts, axis=0)
        """The number of ranks; whether there are actions of each cost kind."""
        shape = (self.ranks, compiled.stages, COST_KINDS)
        busy, warm = np.zeros((2, *shape))
        passes, returned = _before_backward(compiled)
        entries = [(rank, stage) for rank, own in enumerate(held) for stage in own]
        for (rank, stage), own, first in zip(entries, counts, passes, strict=True):
            busy[rank, stage] = own
            warm[rank, stage, FORWARD] = first
        lowest = np.array([*map(min, held)])[:, None]
        stages = np.arange(compiled.stages)
        around, behind = np.zeros((2, *shape))
        around[..., FORWARD] = stages < lowest
        backward = next((kind for kind in (INPUT_PART, BACKWARD) if self.kinds[kind]), None)
        if backward is not None:
            behind[..., FORWARD] = 1
            behind[..., backward] = stages > np.array(returned)[:, None]
            if not compiled.splits_backward:
                around[..., backward] += stages < lowest
                behind[..., backward] += stages < lowest
            behind -= warm
        every = (busy, busy + around, busy + behind)[: 2 if backward is None else 3]
        self._all: Floats = np.concatenate(every)
        """All actions of each rank, then all paths, of shape (paths, stages, cost kinds)."""
        first_stage = [at for at, (_, stage) in enumerate(entries) if stage == 0]
        microbatches = int(compiled.count_matrix[first_stage, FORWARD].sum())
        self._further = order.further / microbatches
        self.steps = ActionSteps.of(compiled)

    def along(self, seconds: Numbers) -> Numbers:
        """The seconds along all paths, of shape (paths, plans), those in which ranks are busy
        first, given those of stages, of shape (plans, stages, cost kinds)."""
        times = self._all.reshape(len(self._all), -1).astype(seconds.dtype)
        return product(times, seconds.reshape(len(seconds), -1).T)

    @cached_property
    def most_actions(self) -> int:
        """As many actions, or more, as there are along each path, the simplest and others."""
        return max(len(self.steps.cost), int(np.abs(self._all).sum(axis=(1, 2)).max()))

    def rest(self, busy: Numbers) -> Floats:
        """Seconds of the microbatches that are not run, from those in which ranks are busy, of
        shape (ranks, plans)."""
        return np.maximum.reduce(busy).astype(np.float64) * self._further


@lru_cache(maxsize=1 << 10)
def _paths(order: Order) -> _Paths:
    return _Paths(order)


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


__all__ = ["SPARE_BYTES", "KnownCuts", "Order", "RefinedCuts", "order_of", "rounded_passes"]
