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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import islice, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags, Floats, Indices, distinct, product
from distir.errors import ScheduleError
from distir.plan import Planner
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART, CompiledSchedule
from distir.schedules.compiled.steps import find_steps
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
        is kept. See `bounds` for the other arguments. Plans with equally many stages are refined
        together."""
        sums = np.zeros((len(rounded), rounded.shape[-1] + 1, *rounded.shape[1:-1]))
        np.cumsum(np.moveaxis(rounded, -1, 1), axis=1, out=sums[:, 1:])
        used = [*map(int, np.unique(which))]
        compiled = {number: _order(orders[number]).compiled for number in used}
        ranks = np.zeros(len(orders), np.int64)
        ranks[used] = [len(compiled[number].stages_of_ranks) for number in used]
        found, lengths = list(bounds), np.array([*map(len, bounds)])
        for length in np.unique(lengths).tolist():
            own = np.flatnonzero(lengths == length)
            own = own[np.lexsort((which[own], ranks[which[own]]))]
            search = _Refinement(sums, rows[own], orders, which[own], self._bound, self._training)
            before = np.array([bounds[place] for place in map(int, own)])
            after = search.refined(before, None if fit is None else _of_some(fit, own))
            for place, each in zip(map(int, own), after.tolist(), strict=True):
                found[place] = tuple(each)
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
    return lambda some, stages: fit(own[some], stages)


class KnownCuts:
    """Cuts that were found, to be shared by the plans of a simulator."""

    def __init__(self, bound: HostBound, training: bool) -> None:
        self.balanced, self.refined = Partitions(), RefinedCuts(bound, training)


class _Refinement:
    """Looks for shorter iterations of plans with equally many stages. In arrays per plan and per
    move of a plan, those with the same order are adjacent, and orders with equally many ranks."""

    def __init__(
        self,
        sums: Floats,
        rows: Indices,
        orders: Sequence[Order | None],
        which: Indices,
        bound: HostBound,
        training: bool,
    ) -> None:
        """`sums` are seconds of all blocks before each block, of shape (rows, blocks + 1, 3, cost
        kinds); `rows` has the row of each plan, and `which` its order."""
        self.sums, self.rows, self.which = sums, rows, which
        self.paths = {number: _paths(_order(orders[number])) for number in {*map(int, which)}}
        self.bound, self.training = bound, training

    def refined(self, bounds: Stages, fit: Fit | None) -> Stages:
        """Bounds after all moves."""
        found, plans = bounds.copy(), np.arange(len(bounds))
        longest, moves = np.full(len(bounds), np.inf), _moves(bounds.shape[1] - 1)
        at_once = max(1, NUMBERS_AT_ONCE // moves.steps.size)
        while len(plans):
            parts = [plans[first : first + at_once] for first in range(0, len(plans), at_once)]
            plans = np.concatenate(
                [self._moved(moves, some, found, longest, fit) for some in parts]
            )
        return found

    def _moved(
        self, moves: _Moves, plans: Indices, found: Stages, longest: Floats, fit: Fit | None
    ) -> Indices:
        """Makes the best move of each plan in `found` and `longest`; returns the plans that have
        one. Where `longest` is infinite, it becomes what an iteration takes without a move."""
        near = self._near(moves, plans, found[plans])
        unknown = np.flatnonzero(np.isinf(longest[plans]))
        if len(unknown):
            longest[plans[unknown]] = self._iterations(near, unknown, np.zeros_like(unknown))
        at_most = longest[plans] * (1 - LEAST_GAIN)
        own, move = np.nonzero(moves.possible(np.diff(found[plans])))
        least = self._least(near, own, move)
        chosen = np.flatnonzero(least <= at_most[own])
        if fit is not None:
            after = found[plans[own[chosen]]] + moves.steps[move[chosen]]
            chosen = chosen[fit(plans[own[chosen]], after)]
        own, move, least = own[chosen], move[chosen], least[chosen]
        chosen = _first_of_each(own, least, near.uneven(own, move), TRIED)
        own, move = own[chosen], move[chosen]
        if not len(own):
            return own
        seconds = self._iterations(near, own, move)
        chosen = _first_of_each(own, seconds, move, 1) & (seconds <= at_most[own])
        own, move = own[chosen], move[chosen]
        found[plans[own]] += moves.steps[move]
        longest[plans[own]] = seconds[chosen]
        return plans[own]

    def _near(self, moves: _Moves, plans: Indices, bounds: Stages) -> _Near:
        """Plans, and the passes of stages that begin and end up to one block before or after where
        these do."""
        edges = np.clip(bounds[..., None] + np.arange(-1, 2), 0, self.sums.shape[1] - 1)
        used = np.array([self.paths[number].kinds for number in self.which[plans].tolist()])
        (kinds,) = np.nonzero(used.any(axis=0))
        sums: Floats = self.sums[self.rows[plans, None, None], edges][..., kinds]
        each = np.maximum(sums[:, 1:, None, :] - sums[:, :-1, :, None], 0.0)
        bounded = _whole(self.bound(each[..., STREAMS, :], each[..., LAUNCHES, :]))
        seconds = np.maximum(bounded, each[..., LINKS, :])
        found = seconds.reshape(*seconds.shape[:2], 9, -1) * used[:, None, None, kinds]
        return _Near(moves, self.which[plans], kinds, found)

    def _iterations(self, near: _Near, own: Indices, move: Indices) -> Floats:
        """How long iterations are after moves, one each of plans `own`, which are given by their
        positions in `near`."""
        seconds, which = near.of_all_kinds(own, move), near.which[own]
        found = np.empty(len(own))
        ranks = np.array([self.paths[number].ranks for number in which.tolist()])
        for count in np.unique(ranks).tolist():
            first, end = np.searchsorted(ranks, [count, count + 1]).tolist()
            orders = [(self.paths[number], some) for number, some in _adjacent(which[first:end])]
            found[first:end] = _lengths(orders, seconds[first:end], self.training)
        for number, some in _adjacent(which):
            paths = self.paths[number]
            found[some] += paths.rest(paths.along(seconds[some])[: paths.ranks])
        return found

    def _least(self, near: _Near, own: Indices, move: Indices) -> Floats:
        """Seconds that iterations take at least by the simplest paths through the schedule; see
        `_iterations`."""
        seconds, found = near.after(own, move), np.empty(len(own))
        for number, some in _adjacent(near.which[own]):
            paths = self.paths[number]
            along = paths.along(seconds[some], near.kinds)
            found[some] = np.maximum.reduce(along) + paths.rest(along[: paths.ranks])
        return found


@dataclass(frozen=True, slots=True)
class _Near:
    """Plans, and their stages as they are after moves."""

    moves: _Moves
    which: Indices
    """The order of each plan."""
    kinds: Indices
    """The cost kinds that any of their schedules has."""
    seconds: Floats
    """Of shape (plans, stages, 9, kinds); see `_Moves.stages`."""

    def after(self, own: Indices, move: Indices) -> Floats:
        """Seconds of stages of plans after a move each, of shape (moves, stages, kinds)."""
        stages = self.seconds.shape[1]
        first = own[:, None] * stages + np.arange(stages, dtype=np.int64)
        at = self.moves.stages[move] + 9 * first
        return cast("Floats", self.seconds.reshape((-1, len(self.kinds))).take(at, axis=0))

    def of_all_kinds(self, own: Indices, move: Indices) -> Floats:
        """`after` with all cost kinds."""
        found = np.zeros((len(own), self.seconds.shape[1], COST_KINDS))
        found[..., self.kinds] = self.after(own, move)
        return found

    def uneven(self, own: Indices, move: Indices) -> Floats:
        """How uneven stages are after moves."""
        after = self.after(own, move)
        whole = sum(after[..., kind] for kind in range(after.shape[2]))
        return np.einsum("ms,ms->m", whole, whole)


def _adjacent(numbers: Indices) -> list[tuple[int, slice]]:
    """Numbers of which equal ones are adjacent: each, and where it is."""
    edges = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist()
    return [(int(numbers[a]), slice(a, b)) for a, b in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class _Moves:
    """Moves of borders. The first moves none."""

    steps: Indices
    """By how many blocks borders move, of shape (moves, stages + 1)."""
    stages: Indices
    """Of shape (moves, stages): the number of each stage among those that begin and end up to one
    block before or after where it does, of which there are nine."""
    shrinking: Sequence[tuple[Indices, Indices]]
    """Stages that get shorter, one of each move or stage 0, and how many blocks they lose."""

    def possible(self, lengths: Indices) -> Flags:
        """Which moves leave every stage a block, of shape (plans, moves), given how many blocks
        stages have, of shape (plans, stages). To move none is no move."""
        found = np.ones((len(lengths), len(self.steps)), np.bool_)
        for stage, lost in self.shrinking:
            found &= lengths.take(stage, axis=1) > lost
        found[:, 0] = False
        return found


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
    lost = np.maximum(steps[:, :-1] - steps[:, 1:], 0)
    order = np.argsort(-lost, axis=1, kind="stable")[:, : int((lost > 0).sum(axis=1).max())]
    each = np.arange(len(steps))
    shrinking = [(stage, lost[each, stage]) for stage in order.T]
    return _Moves(steps, 3 * (steps[:, :-1] + 1) + steps[:, 1:] + 1, shrinking)


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
        self.steps = _Steps.of(compiled)

    def along(self, seconds: Floats, kinds: Indices | None = None) -> Floats:
        """The seconds along all paths, of shape (paths, plans), those in which ranks are busy
        first, given those of stages, of shape (plans, stages, kinds); None: all cost kinds."""
        times = self._all if kinds is None else self._all[..., kinds]
        flat = seconds.reshape(len(seconds), -1)
        return product(times.reshape(len(times), -1), flat.T)

    def rest(self, busy: Floats) -> Floats:
        """Seconds of the microbatches that are not run, from those in which ranks are busy, of
        shape (ranks, plans)."""
        return np.maximum.reduce(busy) * self._further


@lru_cache(maxsize=1 << 10)
def _paths(order: Order) -> _Paths:
    return _Paths(order)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The actions of a schedule in steps: an action comes as soon as those are done that it needs.
    Arrays have the shape (steps, ranks)."""

    cost: NDArray[np.int16]
    """The cost number of the action of a rank; one more than all if there is none."""
    needed: NDArray[np.int16]
    """The number, from 1, of the step with the action for whose message it waits, or 0."""
    sender: NDArray[np.int16]
    """The rank of that action."""
    first: Indices
    """The step of the first action of each rank."""

    @classmethod
    def of(cls, compiled: CompiledSchedule) -> _Steps:
        """The steps of a schedule."""
        steps = find_steps(compiled)
        shape = int(steps.step.max()) + 1, len(compiled.stages_of_ranks)
        at, none = (steps.step, steps.rank), compiled.stages * COST_KINDS
        needed, sender = np.zeros((2, *shape), np.int16)
        cost = np.full(shape, none, np.int16)
        cost[at] = steps.cost
        needed[at] = np.where(steps.needs >= 0, steps.step[steps.needs] + 1, 0)
        sender[at] = np.where(steps.needs >= 0, steps.rank[steps.needs], 0)
        return cls(cost, needed, sender, np.argmax(cost < none, axis=0))


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


def _lengths(orders: Sequence[tuple[_Paths, slice]], seconds: Floats, training: bool) -> Floats:
    """How long schedules are on equally many ranks, each from the time at which the rank begins if
    they train; messages take no time. `seconds` of actions have the shape (plans, stages, cost
    kinds); orders come with their plans."""
    plans, ranks = len(seconds), orders[0][0].ranks
    numbers = np.zeros((plans, seconds[0].size + 1))
    numbers[:, :-1] = seconds.reshape(plans, -1)
    steps = max(len(paths.steps.cost) for paths, _ in orders)
    took, needed = np.zeros((steps, plans, ranks)), np.zeros((steps, plans, ranks), np.int64)
    begins = np.zeros((plans, ranks), np.int64)
    for paths, some in orders:
        own = paths.steps
        count = len(own.cost)
        every = np.arange(some.start, some.stop, dtype=np.int64)[:, None]
        took[:count, some] = numbers[some].T[own.cost].swapaxes(1, 2)
        slots = own.needed.astype(np.int64) * (plans * ranks) + own.sender
        needed[:count, some] = slots[:, None] + every * ranks
        begins[some] = (own.first * plans + every) * ranks + np.arange(ranks)
    ended = np.zeros((1 + steps, plans, ranks))
    flat, begin = ended.reshape(-1), np.empty((plans, ranks))
    for step in range(steps):
        flat.take(needed[step], out=begin, mode="clip")
        np.maximum(begin, ended[step], out=begin)
        np.add(begin, took[step], out=ended[step + 1])
    end = ended[-1]
    if training:
        end = end - (flat[plans * ranks :].take(begins) - took.reshape(-1).take(begins))
    found: Floats = end.max(axis=1)
    return found


__all__ = ["SPARE_BYTES", "KnownCuts", "Order", "RefinedCuts", "order_of", "rounded_passes"]
