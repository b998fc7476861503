"""`recompute = auto`: which layers recompute, and how, so that ranks fit and take least time.

Each layer keeps everything, or recomputes by one of `POLICIES`. What that takes and holds is known
per layer; early ranks of 1F1B have more microbatches in flight, so that more of their layers
recompute. For every rank this is a knapsack with a choice per layer: as most layers are equal, all
ways are tried, or where there are too many, it is solved by dynamic programming over bytes. What
passes through a rank for a moment depends on neighbours, so plans are simulated, and the room of
ranks is corrected by what they then held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import pairwise
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats
from distir.metrics import iteration_seconds
from distir.plan import Plan
from distir.schedules import PeakInFlight
from distir.simulation.result import SimulationResult
from distir.strategy import Strategy
from distir.transforms.recompute import POLICIES

MOST_WAYS = 1 << 14
"""Ways to choose for the layers of a rank, of which equal ones count once, that are all tried."""

PIECES = 8192
"""Pieces that the free bytes of a rank are counted in where there are more; a layer's bytes are
rounded up."""

TRIES = 7
"""How often the room of ranks is corrected."""

FURTHER = 1.25
"""Times what a rank holds too much, or too little, by which its room is corrected at first."""

MOVES = 8
"""How often the slowest rank hands a block on."""


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """What the policies make of the blocks of a model; arrays are of shape (policies, blocks)."""

    kinds: tuple[int, ...]
    """The kind of every block; blocks of one kind are alike."""
    seconds: Floats
    """Seconds of both passes."""
    after_forward: Floats
    """Bytes that a microbatch leaves between F and B."""
    after_backward: Floats
    """Bytes that a microbatch leaves between B and W."""
    state: Floats
    """Bytes of model state, of shape (blocks,)."""


@dataclass(frozen=True, slots=True)
class Planning:
    """What is needed to look for a plan of one strategy."""

    uniform: Callable[[Strategy], Plan]
    """The plan of a strategy in which all layers do the same."""
    planned: Callable[[Sequence[int], Sequence[str]], Plan]
    """The plan with stages that begin at these blocks, and a policy per block."""
    simulate: Callable[[Plan], SimulationResult]
    costs: Callable[[Plan], LayerCosts]
    room_bytes: float
    """Bytes that tensors may take on a device."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A plan, and what it takes; infinitely long if it does not fit."""

    plan: Plan
    result: SimulationResult

    @property
    def seconds(self) -> float:
        """Seconds of an iteration."""
        found = self.result.metrics[iteration_seconds.name]
        return found if self.result.feasible else float("inf")

    @property
    def cuts(self) -> tuple[int, ...]:
        """The first block of every stage but the first."""
        return tuple(stage.blocks[0] for stage in self.plan.stages[1:])


def least_recomputed(strategy: Strategy, planning: Planning) -> Plan:
    """The fastest plan found that fits: with one policy for all layers, or with a choice per layer.
    If none fits, the one with all layers recomputed in full.

    Stages are cut as they are with one policy for all layers. Then the slowest rank hands blocks to
    the ranks beside it as long as that helps.
    """
    found: list[_Found] = []
    plans = [planning.uniform(replace(strategy, recompute=policy)) for policy in POLICIES]
    for plan, policy in zip(plans, POLICIES, strict=True):
        cuts = tuple(stage.blocks[0] for stage in plan.stages[1:])
        same = planning.planned(cuts, (policy,) * plan.workload.num_blocks)
        found.append(_Found(same, planning.simulate(same)))
    costs = planning.costs(plans[0])
    best = min(reversed(found), key=lambda each: each.seconds)
    for cuts in dict.fromkeys(each.cuts for each in found):
        best = _filled(best, cuts, costs, planning)
    tried = {each.cuts for each in found}
    for _ in range(MOVES):
        moved = [cuts for cuts in _moves(best) if cuts not in tried]
        tried.update(moved)
        before = best
        for cuts in moved:
            best = _filled(best, cuts, costs, planning)
        if best is before:
            break
    return best.plan


def _filled(best: _Found, cuts: tuple[int, ...], costs: LayerCosts, planning: Planning) -> _Found:
    """The best of `best` and of what these cuts allow."""
    schedule, room_bytes = best.plan.schedule, planning.room_bytes
    bounds = (0, *cuts, best.plan.workload.num_blocks)
    known: dict[tuple[str, ...], _Found] = {}
    # What a rank holds is its own affair: for each, the most room with which it fits is searched.
    room = np.full(len(schedule.stages_of_ranks), room_bytes)
    fits, exceeds = np.full(len(room), -np.inf), np.full(len(room), np.inf)
    for _ in range(TRIES):
        picked, needed = pick(costs, bounds, schedule.peak_in_flight, room)
        if picked not in known:
            plan = planning.planned(cuts, picked)
            known[picked] = _Found(plan, planning.simulate(plan))
        held = np.array([report.peak_memory_bytes for report in known[picked].result.stages])
        over = held > room_bytes
        # With any room from what the choice was taken to need, it is the same.
        least = np.minimum(room, needed)
        exceeds = np.where(over, np.minimum(exceeds, least), exceeds)
        fits = np.where(over, fits, np.maximum(fits, room))
        between = np.isfinite(fits) & np.isfinite(exceeds)
        with np.errstate(invalid="ignore"):
            halfway = (fits + exceeds) / 2
        further = np.where(over, least, room) + (room_bytes - held) * FURTHER
        room = np.where(between, halfway, further)
    if np.isfinite(fits).all():
        picked, _ = pick(costs, bounds, schedule.peak_in_flight, fits)
        if picked not in known:
            plan = planning.planned(cuts, picked)
            known[picked] = _Found(plan, planning.simulate(plan))
    return min(best, *known.values(), key=lambda each: each.seconds)


def _moves(found: _Found) -> Iterator[tuple[int, ...]]:
    """Cuts with which the slowest rank has a block less."""
    bounds = [0, *found.cuts, found.plan.workload.num_blocks]
    busy = [
        sum(seconds for share, seconds in report.seconds.items() if share != "bubble")
        for report in found.result.stages
    ]
    slowest = int(np.argmax(busy))
    for stage in found.plan.schedule.stages_of_ranks[slowest]:
        for cut, step in ((stage, 1), (stage + 1, -1)):
            if 0 < cut < len(bounds) - 1 and bounds[stage + 1] - bounds[stage] > 1:
                moved = [*bounds]
                moved[cut] += step
                yield tuple(moved[1:-1])


def pick(
    costs: LayerCosts, bounds: Sequence[int], flight: PeakInFlight, room: Floats
) -> tuple[tuple[str, ...], Floats]:
    """A policy per block, with which every rank holds at most its `room` and takes least time; and
    the bytes that each rank then holds. Where no choice does, its layers hold as little as they
    can."""
    chosen = np.zeros(bounds[-1], np.int64)
    needed = np.zeros(len(room))
    first = 0
    for rank, stages in enumerate(flight.stages_of_ranks):
        counts = np.array(flight.counts, np.float64)[:, first : first + len(stages)]
        first += len(stages)
        blocks = [block for stage in stages for block in range(bounds[stage], bounds[stage + 1])]
        places = [at for at, stage in enumerate(stages) for _ in range(*_run(bounds, stage))]
        forward, backward = (counts[:, places, part] for part in (0, 1))
        kept = forward * costs.after_forward[0, blocks] + backward * costs.after_backward[0, blocks]
        fullest = int(kept.sum(axis=1).argmax())
        held = forward[fullest] * costs.after_forward[:, blocks]
        held = held + backward[fullest] * costs.after_backward[:, blocks]
        state = float(costs.state[blocks].sum())
        chosen[blocks] = knapsack(costs.seconds[:, blocks], held, float(room[rank]) - state)
        needed[rank] = state + held[chosen[blocks], np.arange(len(blocks))].sum()
    ordered: list[int] = _ordered(chosen, costs.kinds, bounds).tolist()
    return tuple(POLICIES[choice] for choice in ordered), needed


def _run(bounds: Sequence[int], stage: int) -> tuple[int, int]:
    return bounds[stage], bounds[stage + 1]


def knapsack(seconds: Floats, held: Floats, free: float) -> NDArray[np.int64]:
    """The row of each column that is chosen: least seconds, with at most `free` bytes in all."""
    if free <= held.min(axis=0).sum():
        return held.argmin(axis=0)
    columns = _alike(seconds, held)
    firsts = [own[0] for own in columns]
    rows = [_worth_a_choice(seconds[:, first], held[:, first]) for first in firsts]
    ways = [
        comb(len(own) + len(some) - 1, len(some) - 1)
        for own, some in zip(columns, rows, strict=True)
    ]
    if prod(ways) > MOST_WAYS:
        return _by_pieces(seconds, held, free)
    # Of alike columns it only counts how many have which row, so that all ways can be tried.
    shared = [_shares(len(own), len(some)) for own, some in zip(columns, rows, strict=True)]
    each = list(zip(shared, rows, firsts, strict=True))
    taken = reduce(np.add.outer, [share @ held[some, first] for share, some, first in each])
    lasts = reduce(np.add.outer, [share @ seconds[some, first] for share, some, first in each])
    best = np.unravel_index(np.where(taken <= free, lasts, np.inf).argmin(), ways)
    chosen = np.empty(held.shape[1], np.int64)
    for own, some, share, way in zip(columns, rows, shared, best, strict=True):
        chosen[own] = np.repeat(some, share[way])
    return chosen


def _alike(seconds: Floats, held: Floats) -> list[list[int]]:
    """The columns, those that are equal together."""
    alike: dict[bytes, list[int]] = {}
    for number, column in enumerate(np.concatenate([seconds, held]).T):
        alike.setdefault(column.tobytes(), []).append(number)
    return list(alike.values())


def _worth_a_choice(seconds: Floats, held: Floats) -> list[int]:
    """The rows of a column, from that which takes least time: each of those that follow holds
    less."""
    order = np.lexsort((held, seconds))
    before = np.minimum.accumulate(np.append(np.inf, held[order[:-1]]))
    return order[held[order] < before].tolist()


@lru_cache(maxsize=256)
def _shares(count: int, kinds: int) -> NDArray[np.int64]:
    """All ways in which `count` things are of so many kinds: the number of each kind, of shape
    (ways, kinds)."""
    others = np.indices((count + 1,) * (kinds - 1)).reshape(kinds - 1, (count + 1) ** (kinds - 1))
    left = count - others.sum(axis=0)
    return np.concatenate([left[None, left >= 0], others[:, left >= 0]]).T


def _by_pieces(seconds: Floats, held: Floats, free: float) -> NDArray[np.int64]:
    """The same, if bytes are counted in `PIECES` of what is free, of which each column takes whole
    ones."""
    least = held.min(axis=0)
    pieces = np.ceil((held - least) / (free - least.sum()) * PIECES)
    pieces = np.minimum(pieces, PIECES + 1).astype(np.int64)
    # `best[n]`: the least seconds of the columns so far with at most n pieces.
    best = np.zeros(PIECES + 1)
    choices = np.zeros((held.shape[1], PIECES + 1), np.int8)
    for column, choice in enumerate(choices):
        before, best = best, np.full(PIECES + 1, np.inf)
        for row, used in enumerate(pieces[:, column].tolist()):
            option, found = before[: PIECES + 1 - used] + seconds[row, column], best[used:]
            choice[used:][option < found] = row
            np.minimum(option, found, out=found)
    left, chosen = PIECES, np.zeros(held.shape[1], np.int64)
    for column in range(held.shape[1] - 1, -1, -1):
        chosen[column] = choices[column, left]
        left -= int(pieces[chosen[column], column])
    return chosen


def _ordered(
    chosen: NDArray[np.int64], kinds: Sequence[int], bounds: Sequence[int]
) -> NDArray[np.int64]:
    """The same choices for the same kinds of block in every stage; those that keep least first, so
    that equal layers are beside each other."""
    ordered = chosen.copy()
    numbers = np.array(kinds)
    for begin, end in pairwise(bounds):
        for kind in np.unique(numbers[begin:end]):
            places = begin + np.flatnonzero(numbers[begin:end] == kind)
            ordered[places] = np.sort(chosen[places])[::-1]
    return ordered


__all__ = ["LayerCosts", "Planning", "knapsack", "least_recomputed", "pick"]
