"""Array version of `chains.py`: chains whose passes have equal instructions with other seconds.

The states of the streams after some blocks are tables with a row per time and a column per chain
(`progress.py`). Chains go on together wherever their next passes have one form (`patterns.py`) and
their states are times of the same streams and values, whatever came before. A repeated pattern is
scheduled copy by copy as far as states still change (`copies.py`).

tests/simulation/test_chains.py holds the two to each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.cost.amounts import Many
from distir.simulation.pricing.chains import BlockChain, ChainCost, PassCost
from distir.simulation.pricing.copies import ManyCopies
from distir.simulation.pricing.patterns import ChainSteps, Pattern, Steps, steps_of
from distir.simulation.pricing.progress import (
    EXPOSED,
    LAUNCHES,
    LINKS,
    SCATTERED,
    SETTLED,
    STREAMS,
    ManyBound,
    ManyProgress,
    after_pattern,
)
from distir.simulation.pricing.timeline import Start

ALL = "all"
"""Stands for all streams other than compute."""


class ManyChainScheduler:
    """Array version of `ChainScheduler`: schedules chains of passes whose seconds have one number
    per program size."""

    def __init__(self, host_bound: ManyBound, num_sizes: int) -> None:
        """`host_bound`: see `ChainScheduler`."""
        self.bound, self.num_sizes = host_bound, num_sizes

    def run_all(self, chains: Sequence[BlockChain]) -> list[ChainCost]:
        """The costs of chains, as arrays with one number per element of `size_numbers`. The seconds
        that compute waits for any stream are one entry, `ALL`."""
        (found,) = run_together([(self, chains)])
        return found.costs(chains, self.num_sizes)


Together = Sequence[tuple[ManyChainScheduler, Sequence[BlockChain]]]
"""Chains of several schedulers, each of which has program sizes of its own."""

CHAINS_TOGETHER = 1 << 16
"""Chains, one for each program size, that are scheduled together, to bound memory."""


class ChainColumns(NamedTuple):
    """The costs of chains in seconds, with a number per chain; see `ChainCost`."""

    seconds: Floats
    compute: Floats
    waited: Floats
    """Seconds in which compute waits for any other stream."""
    streams: Floats
    launches: Floats
    settled: Floats
    scattering: Floats
    """Seconds in which gradients are shared out."""

    def costs(self, chains: Sequence[BlockChain], num_sizes: int) -> list[ChainCost]:
        """The costs of what describes these chains, in order."""
        numbers = np.stack(self).view(Many)
        ends = np.cumsum([0, *(_width(chain, num_sizes) for chain in chains)])
        return [_cost(*numbers[:, first:end]) for first, end in pairwise(ends)]


def _cost(
    seconds: Any, compute: Any, waited: Any, streams: Any, launches: Any, settled: Any, _: Any
) -> ChainCost:
    return ChainCost(PassCost(seconds, compute, ((ALL, waited),)), streams, launches, settled)


def run_together(asked: Together) -> list[ChainColumns]:
    """What the schedulers' `run_all` find, of all chains that are described to each, of which what
    is alike is scheduled once. All of them bound launches alike."""
    every = [(chain, own.num_sizes) for own, chains in asked for chain in chains]
    ends = np.cumsum([0, *(_width(*each) for each in every)])
    found = np.empty((len(ChainColumns._fields), ends[-1]))
    first = 0
    while first < len(every):
        most = int(ends[first]) + CHAINS_TOGETHER
        end = max(first + 1, int(np.searchsorted(ends, most, side="right")) - 1)
        _together(asked[0][0].bound, every[first:end], found[:, ends[first] : ends[end]])
        first = end
    borders = np.cumsum([0, *(len(chains) for _, chains in asked)])
    return [ChainColumns(*found[:, a:b]) for a, b in pairwise(ends[borders])]


def _width(chain: BlockChain, num_sizes: int) -> int:
    """How many chains a description describes, at so many program sizes."""
    return num_sizes if chain.size_numbers is None else len(chain.size_numbers)


def _together(bound: ManyBound, every: Sequence[tuple[BlockChain, int]], found: Floats) -> None:
    """Finds the columns of chains, each at a number of program sizes, that are scheduled
    together."""
    by_exact: dict[frozenset[str] | None, list[int]] = {}
    for number, (chain, _) in enumerate(every):
        by_exact.setdefault(chain.exact, []).append(number)
    steps = steps_of(every)
    which = np.repeat(np.arange(len(every)), [_width(*each) for each in every])
    for exact, numbers in by_exact.items():
        some = [every[number] for number in numbers]
        run = _Run(bound, exact, some, [steps[number] for number in numbers])
        own = np.isin(which, numbers) if len(by_exact) > 1 else slice(None)
        found[:, own] = run.columns()


def _sizes(chain: BlockChain, num_sizes: int) -> Indices:
    """The numbers of the program sizes of the chains that a description describes."""
    return np.arange(num_sizes) if chain.size_numbers is None else chain.size_numbers


_Waiting = tuple[Steps, Indices]
"""The steps that some chains have to come, and the numbers of these chains."""

_Next = tuple[Pattern, Start]
"""What chains that go on together have in common: the next pattern, and what the times of their
states are times of."""


class _Queue:
    """Chains that wait to go on, with those with which they can."""

    def __init__(self) -> None:
        self._waiting: dict[_Next, dict[Steps, list[Indices]]] = {}
        self._order: list[tuple[int, int, _Next]] = []
        self._numbers = count()

    def add(self, start: Start, chains: Iterable[_Waiting]) -> None:
        """Adds chains whose states are times of `start`."""
        to_come: dict[_Next, int] = {}
        for steps, columns in chains:
            following = steps.pattern, start
            self._waiting.setdefault(following, {}).setdefault(steps, []).append(columns)
            to_come[following] = max(steps.count, to_come.get(following, 0))
        for following, most in to_come.items():
            heapq.heappush(self._order, (-most, next(self._numbers), following))

    def __iter__(self) -> Iterator[tuple[_Next, list[_Waiting]]]:
        """Chains that go on together, of which one has most steps to come, so that others join
        them; until no chain is left."""
        while self._order:
            following = heapq.heappop(self._order)[-1]
            alike = self._waiting.pop(following, {})
            if alike:
                yield following, [(steps, _joined(own)) for steps, own in alike.items()]


class _Run:
    """Schedules chains step by step. Those whose next steps and whose states are alike go on
    together, whatever came before."""

    def __init__(
        self,
        bound: ManyBound,
        exact: frozenset[str] | None,
        descriptions: Sequence[tuple[BlockChain, int]],
        steps: Sequence[ChainSteps],
    ) -> None:
        """`bound`: see `ChainScheduler`; `exact`: see `exact_streams`. Of each description there
        are the number of program sizes and the steps; the chains that it describes are numbered one
        after the other."""
        self._bound, self._exact = bound, exact
        sizes = [_sizes(*each) for each in descriptions]
        self._sizes = np.concatenate(sizes)
        width = len(self._sizes)
        self._tail = np.zeros(width)
        """The seconds until all their streams are free, once compute is."""
        self._progress, self._copies = ManyProgress(width), ManyCopies(width)
        self._queue = _Queue()
        most = max(each.steps.repeated for each in steps)
        self._counts = np.empty((most, width))
        """How often chains pass the steps that do not come once, the last step first."""
        columns, begun, first = np.arange(width), list[_Waiting](), 0
        for own, each in zip(sizes, steps, strict=True):
            end = first + len(own)
            for row, counts in zip(self._counts, each.counts, strict=False):
                row[first:end] = counts
            begun.append((each.steps, columns[first:end]))
            first = end
        self._wait(Start(), begun)

    def columns(self) -> ChainColumns:
        """The costs of the chains of all descriptions."""
        for (pattern, start), chains in self._queue:
            self._go_on(pattern, start, chains)
        return self._found()

    def _wait(self, start: Start, chains: Sequence[_Waiting]) -> None:
        """Has chains wait for their next steps, or for those after them that come in them."""
        repeated = [(steps, columns) for steps, columns in chains if not steps.is_single]
        if repeated:
            columns = _joined([own for _, own in repeated])
            widths = [len(own) for _, own in repeated]
            rows = np.array([steps.repeated - 1 for steps, _ in repeated]).repeat(widths)
            counts = self._counts[rows, columns]
            if not counts.all():
                some = counts > 0
                none, those = _parted(repeated, some)
                single = [each for each in chains if each[0].is_single]
                self._wait(start, [*single, *those])
                self._behind(start, none)
                return
            self._copies.begin(columns, counts)
        self._queue.add(start, chains)

    def _behind(self, start: Start, chains: Sequence[_Waiting]) -> None:
        """Has chains wait for the steps after their next ones; or they end."""
        to_come = [(steps.rest, own) for steps, own in chains if steps.rest is not None]
        if to_come:
            self._wait(start, to_come)
        if len(to_come) < len(chains):
            columns = _joined([own for steps, own in chains if steps.rest is None])
            free = self._progress.of(columns, start).times[: len(start.streams)]
            self._tail[columns] = np.maximum.reduce(free, axis=0, initial=0.0)

    def _go_on(self, pattern: Pattern, start: Start, chains: Sequence[_Waiting]) -> None:
        """Schedules the next step of chains, or a copy of it."""
        columns = _joined([own for _, own in chains])
        widths = [len(own) for _, own in chains]
        firsts = np.array([steps.first for steps, _ in chains]).repeat(widths)
        sizes = self._sizes.take(columns) + firsts
        before = self._progress.of(columns, start)
        after, lengths = after_pattern(before, pattern, sizes, self._exact, self._bound)
        single = [own for steps, own in chains if steps.is_single]
        if len(single) < len(chains):
            if single:  # one copy each, beside chains with several
                self._copies.begin(_joined(single), 1.0)
            after, left = self._copies.after(columns, before, after, pattern, lengths, self._bound)
            chains, going = _parted(chains, left)
            self._queue.add(after.start, going)
        self._progress.put(columns, after)
        self._behind(after.start, chains)

    def _found(self) -> ChainColumns:
        """What all chains cost; they last no less than their `link_seconds`."""
        sums = self._progress.sums
        streaming, exposed = sums[STREAMS] + self._tail, sums[EXPOSED] + self._tail
        seconds = np.broadcast_to(self._bound(streaming, sums[LAUNCHES]), streaming.shape)
        late = np.maximum(sums[LINKS] - seconds, 0.0)
        return ChainColumns(
            seconds=seconds + late,
            compute=seconds - exposed,
            waited=exposed + late,
            streams=streaming,
            launches=sums[LAUNCHES],
            settled=sums[SETTLED],
            scattering=sums[SCATTERED],
        )


def _joined(several: Sequence[Indices]) -> Indices:
    """The numbers of some chains and of others."""
    return several[0] if len(several) == 1 else np.concatenate(several)


def _parted(chains: Sequence[_Waiting], left: Flags) -> tuple[list[_Waiting], list[_Waiting]]:
    """Chains of which no copies are `left`, and those of which some are."""
    done: list[_Waiting] = []
    going: list[_Waiting] = []
    first = 0
    for steps, columns in chains:
        own = left[first : first + len(columns)]
        first += len(columns)
        some = np.count_nonzero(own)
        if some == 0:
            done.append((steps, columns))
        elif some == len(columns):
            going.append((steps, columns))
        else:
            going.append((steps, columns[own]))
            done.append((steps, columns[~own]))
    return done, going


__all__ = ["ChainColumns", "ManyChainScheduler", "run_together"]
