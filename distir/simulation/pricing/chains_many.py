"""Array version of `chains.py`: chains whose passes have equal instructions with other seconds.

The state of the streams after some blocks is a table with a row per time and a column per chain
(`progress.py`). Chains go on together wherever their next passes have one form (`patterns.py`) and
their states are times of the same streams and values, whatever came before. A repeated pattern is
scheduled copy by copy as far as states still change (`copies.py`).

tests/simulation/test_chains.py holds the two to each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, islice
from typing import Any, cast

import numpy as np

from distir.arrays import Floats, Indices
from distir.cost.amounts import Many, is_positive
from distir.simulation.pricing.chains import BlockChain, ChainCost, PassCost
from distir.simulation.pricing.copies import Copies
from distir.simulation.pricing.patterns import Pattern, Step, steps_of
from distir.simulation.pricing.progress import (
    EXPOSED,
    LAUNCHES,
    SETTLED,
    STREAMS,
    ManyBound,
    Progress,
    after_pattern,
)
from distir.simulation.pricing.timeline import Start

ALL = "all"
"""Stands for all streams other than compute."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A `BlockChain` that is asked for: its steps, how many of them are done, and which chains of a
    `Progress` it describes."""

    number: int
    steps: Sequence[Step]
    done: int
    chains: Indices

    @property
    def to_come(self) -> int:
        """How many steps are to come."""
        return len(self.steps) - self.done

    @property
    def next(self) -> Step:
        """The next step."""
        return self.steps[self.done]

    def of(self, chains: Indices) -> _Asked:
        """The same for chains with other numbers."""
        return _Asked(self.number, self.steps, self.done, chains)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Chains after some of their passes, and what is asked of them; all are asked for."""

    progress: Progress
    asked: Sequence[_Asked]


_Next = tuple[Pattern, bool, Start]
"""What chains that go on together have in common: the next pattern, whether it comes once, and what
the times of their states are times of."""


class _Waiting:
    """Chains that wait to go on, with those with which they can."""

    def __init__(self) -> None:
        self._begun: dict[_Next, list[_Begun]] = {}
        self._order: list[tuple[int, int, _Next]] = []
        self._numbers = count()

    def add(self, following: _Next, begun: _Begun) -> None:
        """Adds chains with equal next steps."""
        self._begun.setdefault(following, []).append(begun)
        to_come = max(each.to_come for each in begun.asked)
        heapq.heappush(self._order, (-to_come, next(self._numbers), following))

    def take(self) -> tuple[_Next, list[_Begun]] | None:
        """Chains that go on together, of which one has most steps to come, so that others join
        them; None if no chain is left."""
        while self._order:
            following = heapq.heappop(self._order)[-1]
            if following in self._begun:
                return following, self._begun.pop(following)
        return None


class ManyChainScheduler:
    """Array version of `ChainScheduler`: schedules chains of passes whose seconds have one number
    per program size."""

    def __init__(self, host_bound: ManyBound, num_sizes: int) -> None:
        """`host_bound`: see `ChainScheduler`."""
        self.bound, self.num_sizes = host_bound, num_sizes

    def run_all(self, chains: Sequence[BlockChain]) -> list[ChainCost]:
        """The costs of chains, as arrays with one number per element of `size_numbers`. The seconds
        that compute waits for any stream are one entry, `ALL`."""
        return run_together([(self, chains)])[0]


Together = Sequence[tuple[ManyChainScheduler, Sequence[BlockChain]]]
"""Chains of several schedulers, each of which has program sizes of its own."""

CHAINS_TOGETHER = 1 << 14
"""Chains, one for each program size, that are scheduled together, to bound memory."""


def run_together(asked: Together) -> list[list[ChainCost]]:
    """What the schedulers' `run_all` find, of which what is alike is scheduled once. All of them
    bound launches alike."""
    found: list[list[ChainCost]] = []
    first = together = 0
    for number, (own, chains) in enumerate(asked):
        more = sum(_width(chain, own.num_sizes) for chain in chains)
        if together + more > CHAINS_TOGETHER:
            found += _together(asked[first:number])
            first, together = number, 0
        together += more
    return found + _together(asked[first:])


def _width(chain: BlockChain, num_sizes: int) -> int:
    """How many chains a description describes, at so many program sizes."""
    return num_sizes if chain.size_numbers is None else len(chain.size_numbers)


def _together(asked: Together) -> list[list[ChainCost]]:
    """See `run_together`."""
    every = [(chain, own.num_sizes) for own, chains in asked for chain in chains]
    steps = iter(steps_of(every))
    runs: dict[frozenset[str] | None, _Run] = {}
    numbers = count()
    for own, chains in asked:
        by_exact: dict[frozenset[str] | None, list[_Asked]] = {}
        sizes = np.arange(own.num_sizes)
        for chain in chains:
            chosen = sizes if chain.size_numbers is None else chain.size_numbers
            each = _Asked(next(numbers), next(steps), 0, chosen)
            by_exact.setdefault(chain.exact, []).append(each)
        for exact, alike in by_exact.items():
            runs.setdefault(exact, _Run(own.bound, exact)).wait(Progress.begun(sizes), alike)
    costs: dict[int, ChainCost] = {}
    for run in runs.values():
        costs |= run.costs_of_all()
    found = (_bounded_by_links(chain, costs[n]) for n, (chain, _) in enumerate(every))
    return [list(islice(found, len(chains))) for _, chains in asked]


class _Run:
    """Schedules chains step by step. Those whose next steps and whose states are alike go on
    together, whatever came before."""

    def __init__(self, bound: ManyBound, exact: frozenset[str] | None) -> None:
        """`bound`: see `ChainScheduler`; `exact`: see `exact_streams`."""
        self._bound, self._exact = bound, exact
        self._waiting = _Waiting()
        self._costs: dict[int, ChainCost] = {}

    def wait(self, progress: Progress, asked: Sequence[_Asked]) -> None:
        """Keeps the costs of chains that have ended, and puts the others with those that they can
        go on with."""
        alike: dict[tuple[Pattern, int, bool], list[_Asked]] = {}
        ended: list[_Asked] = []
        for each in asked:
            if each.to_come:
                step = each.next
                key = step.pattern, step.first, step.counts is None
                alike.setdefault(key, []).append(each)
            else:
                ended.append(each)
        if ended:
            self._end(progress, ended)
        for (pattern, _, is_single), members in alike.items():
            following = pattern, is_single, progress.start
            self._waiting.add(following, _without_others(progress, members))

    def costs_of_all(self) -> dict[int, ChainCost]:
        """The costs of all chains that wait, by their numbers."""
        while together := self._waiting.take():
            (pattern, is_single, start), members = together
            before, asked = _side_by_side(start, members)
            if is_single:
                progress = after_pattern(before, pattern, self._exact, self._bound)
            else:
                counts = np.concatenate([cast("Floats", each.next.counts) for each in asked])
                numbers = np.concatenate([each.chains for each in asked])
                copies = Copies(before.apart(), pattern, self._exact, self._bound)
                progress, asked = copies.after(counts, numbers), _renumbered(asked)
            done = [_Asked(each.number, each.steps, each.done + 1, each.chains) for each in asked]
            self.wait(progress.at_sizes(pattern.sizes), done)
        return self._costs

    def _end(self, progress: Progress, ended: Sequence[_Asked]) -> None:
        """Keeps the costs of chains that have ended."""
        sums, count = progress.sums, len(progress.start.streams)
        tail = np.maximum(progress.times[:count].max(axis=0, initial=0.0), 0.0)
        tail = tail if progress.state is None else tail[progress.state]
        streaming, exposed = sums[STREAMS] + tail, sums[EXPOSED] + tail
        seconds = np.broadcast_to(self._bound(streaming, sums[LAUNCHES]), streaming.shape)
        every = np.stack(
            [seconds, seconds - exposed, exposed, streaming, sums[LAUNCHES], sums[SETTLED]]
        )
        for each in ended:
            own = every.take(each.chains, axis=1)
            whole, compute, waited, streams, launches, settled = own.view(Many)
            cost = PassCost(whole, compute, ((ALL, waited),))
            self._costs[each.number] = ChainCost(cost, streams, launches, settled)


def _bounded_by_links(chain: BlockChain, cost: ChainCost) -> ChainCost:
    """The cost of a chain that lasts no less than its `link_seconds`."""
    links = chain.link_seconds
    if not is_positive(links):
        return cost
    late = cast("Any", links - cost.cost.seconds)
    if not is_positive(late):
        return cost
    return replace(cost, cost=cost.cost.longer(np.maximum(late, 0.0), ALL))


def _side_by_side(start: Start, begun: Sequence[_Begun]) -> tuple[Progress, Sequence[_Asked]]:
    """Chains whose states are alike as one, with the places of their program sizes among those of
    their next pattern as sizes; chains and states are numbered one after the other."""
    if len(begun) == 1 and not begun[0].asked[0].next.first:
        return begun[0].progress, begun[0].asked
    every = [each.progress for each in begun]
    num_states = [each.times.shape[1] for each in every]
    num_chains = [each.sums.shape[1] for each in every]
    numbers = [each.asked[0].next.first + each.progress.size_numbers for each in begun]
    joined = Progress(
        start,
        np.concatenate([each.times for each in every], axis=1),
        np.concatenate([each.sums for each in every], axis=1),
        np.concatenate(numbers),
    )
    if any(each.state is not None for each in every):
        states = [
            first + _numbers(each.state, count)
            for each, first, count in zip(every, _starts(num_states), num_chains, strict=True)
        ]
        joined = replace(joined, state=np.concatenate(states))
    asked = [
        each.of(first + each.chains)
        for own, first in zip(begun, _starts(num_chains), strict=True)
        for each in own.asked
    ]
    return joined, asked


def _numbers(given: Indices | None, count: int) -> Indices:
    """The numbers that are given, or `count` in order."""
    return np.arange(count, dtype=np.int64) if given is None else given


def _starts(counts: Sequence[int]) -> list[int]:
    """Where each of several groups begins that are numbered one after the other."""
    return [0, *accumulate(counts)][:-1]


def _without_others(progress: Progress, asked: Sequence[_Asked]) -> _Begun:
    """The progress of only those chains that are asked for, with their new numbers."""
    wanted = np.zeros(progress.sums.shape[1], np.bool_)
    for each in asked:
        wanted[each.chains] = True
    if wanted.all():
        return _Begun(progress, asked)
    number = np.cumsum(wanted) - 1
    renumbered = [each.of(number[each.chains]) for each in asked]
    return _Begun(progress.taken(np.flatnonzero(wanted)), renumbered)


def _renumbered(asked: Sequence[_Asked]) -> list[_Asked]:
    """The same, with chains numbered in the order in which they are asked for."""
    ends: list[int] = np.cumsum([len(each.chains) for each in asked]).tolist()
    return [
        each.of(np.arange(end - len(each.chains), end))
        for each, end in zip(asked, ends, strict=True)
    ]


__all__ = ["ManyChainScheduler", "run_together"]
