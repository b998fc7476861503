"""Seconds of chains of blocks on the streams of a device.

What a block adds depends on the state in which the block before it left the streams. There are few
such states, so that what a pattern of blocks adds is found once per state, and repeated patterns
take no longer to price than single ones. `chains_many.py` is the array version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TypeAlias

import numpy as np

from distir.arrays import Indices
from distir.cost.amounts import Amount, taken, total
from distir.simulation.pricing.instructions import COMPUTE, Instruction
from distir.simulation.pricing.repeats import Count, RepeatedBlocks
from distir.simulation.pricing.timeline import (
    LONG_AGO,
    Moments,
    Start,
    latest_of,
    pass_moments,
)
from distir.simulation.pricing.timeline_many import FormStep, PassForm, form_of


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of passes that start with all streams idle and end when all streams are idle."""

    seconds: float
    compute: float
    """Seconds in which compute is busy, or waits for the host."""
    exposed: tuple[tuple[str, float], ...] = ()
    """By stream, the seconds in which compute waits for it."""

    def longer(self, seconds: float, stream: str) -> PassCost:
        """The cost if compute waits for a stream for some seconds more."""
        exposed = dict(self.exposed)
        exposed[stream] = exposed.get(stream, 0.0) + seconds
        return PassCost(self.seconds + seconds, self.compute, tuple(sorted(exposed.items())))


def _waited_at_the_end(free: Mapping[str, float], end: float) -> dict[str, float]:
    """Seconds that compute waits at the end of a chain, when all streams are free at `end`; by
    stream, the first of those that are free last."""
    tail = end - free.get(COMPUTE, 0.0)
    last = next(stream for stream, at in free.items() if at >= end)
    return {last: tail} if tail > 0 else {}


SAME_STATE = 1e-12
"""Relative difference of times up to which streams count as being in the same state."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of a block as instructions, with the values that it gets and hands on.

    Passes are compared by identity: equal blocks share their passes.
    """

    instructions: tuple[Instruction, ...]
    inputs: tuple[object, ...]
    """Values from the block before."""
    outputs: tuple[object, ...]
    """Values for the block after."""
    gathers: tuple[Instruction, ...] = ()
    """What is gathered for the block, in this pass or in another one."""
    scatters: tuple[Instruction, ...] = ()
    """What the gradient stream does once the block has been computed."""

    @classmethod
    def of(
        cls,
        instructions: Sequence[Instruction],
        inputs: Sequence[object],
        outputs: Sequence[object],
        *,
        gathers: Sequence[Instruction] = (),
        scatters: Sequence[Instruction] = (),
    ) -> Pass:
        """A pass in which consecutive compute instructions are merged where nothing else could
        start between them."""
        condensed = _condensed(instructions, inputs, outputs)
        return cls(condensed, tuple(inputs), tuple(outputs), tuple(gathers), tuple(scatters))

    @cached_property
    def is_free_at_any_time(self) -> bool:
        """Whether some instruction on a stream other than compute may wait for nothing: in this
        block, or in a later block that gets a value which this block has neither made nor got."""
        awaited = set(self.inputs)
        for each in self.instructions:
            waits = each.after_compute or not awaited.isdisjoint(each.reads)
            if each.stream not in (None, COMPUTE) and not waits:
                return True
            if each.stream is not None or waits:
                awaited.update(each.writes)
        return not awaited.issuperset(self.outputs)

    @cached_property
    def form(self) -> PassForm:
        """What the pass has in common with those that differ in their seconds alone."""
        numbers: dict[object, int] = {}
        number = numbers.setdefault
        inputs = tuple([number(value, len(numbers)) for value in self.inputs])
        steps: list[FormStep] = []
        for each in self.instructions:
            reads = tuple([numbers[value] for value in each.reads if value in numbers])
            writes = tuple([number(value, len(numbers)) for value in each.writes])
            steps.append(FormStep(each.stream, each.after_compute, reads, writes))
        outputs = tuple([number(value, len(numbers)) for value in self.outputs])
        return form_of(inputs, tuple(steps), outputs, self.handed_times)

    @cached_property
    def streams(self) -> frozenset[str]:
        """The streams of the pass, without compute."""
        return frozenset(each.stream for each in self.instructions if each.stream) - {COMPUTE}

    @cached_property
    def handed_times(self) -> tuple[int, ...]:
        """Per output, the number of its border time: outputs of one instruction share a time."""
        makers: dict[object, int] = {
            value: number for number, each in enumerate(self.instructions) for value in each.writes
        }
        numbers: dict[object, int] = {}
        keys = ((value in makers, makers.get(value, value)) for value in self.outputs)
        return tuple(numbers.setdefault(key, len(numbers)) for key in keys)

    def moments(self, start: Start) -> Moments:
        """The times of the pass, as delays after the times at its start."""
        if start not in self._moments:
            outputs = [
                self.outputs[self.handed_times.index(number)]
                for number in range(len(set(self.handed_times)))
            ]
            found = pass_moments(self.instructions, self.inputs, outputs, start)
            self._moments[start] = found
        return self._moments[start]

    @cached_property
    def _moments(self) -> dict[Start, Moments]:
        return {}

    @cached_property
    def launch_seconds(self) -> float:
        """Seconds that the host takes to launch all instructions."""
        return total([each.launch_seconds for each in (*self.instructions, *self.scatters)])

    def seconds_on(self, stream: str) -> float:
        """Seconds in which a stream is occupied."""
        return total([each.seconds for each in self.instructions if each.stream == stream])

    @cached_property
    def scatter_seconds(self) -> float:
        """Seconds in which gradients are shared out."""
        return total([each.seconds for each in self.scatters])

    @property
    def scattered_along(self) -> str | None:
        """The communication stream of the last of `scatters`; None if there are none."""
        return self.scatters[-1].stream if self.scatters else None

    @cached_property
    def gather_seconds(self) -> float:
        """Seconds in which the block's parameters are gathered."""
        return total([each.seconds for each in self.gathers])

    @cached_property
    def link_seconds(self) -> float:
        """Seconds in which the block's parameters are gathered and its gradients are shared out."""
        return total([each.seconds for each in (*self.gathers, *self.scatters)])

    @property
    def links_along(self) -> str | None:
        """The communication stream of the last collective that shares out the block's gradients, or
        gathers its parameters; None if there is none."""
        on_links = [each.stream for each in (*self.gathers, *self.scatters) if each.stream]
        return on_links[-1] if on_links else None


def _condensed(
    instructions: Sequence[Instruction], inputs: Sequence[object], outputs: Sequence[object]
) -> tuple[Instruction, ...]:
    """Merges consecutive compute instructions.

    A merged instruction ends with an instruction whose results a collective or the next block
    reads, and before a collective that waits for all compute. It begins with an instruction that
    may have to wait for another stream. Views stay only where they pass on what a collective makes
    or reads.
    """
    moved = set(inputs)  # values that a stream other than compute may have made
    for each in instructions:
        if each.stream != COMPUTE and (each.stream or not moved.isdisjoint(each.reads)):
            moved.update(each.writes)
    awaited = set(outputs)  # values for which streams other than compute may wait
    for each in reversed(instructions):
        if each.stream != COMPUTE and (each.stream or not awaited.isdisjoint(each.writes)):
            awaited.update(each.reads)
    runs: list[list[Instruction]] = []
    views = 0.0  # seconds of the host for views that do not stay
    growing: list[Instruction] | None = None
    for each in instructions:
        hands_on = not awaited.isdisjoint(each.writes)
        if each.stream is None:
            if hands_on or not moved.isdisjoint(each.writes):
                runs.append([each])
            else:
                views += each.launch_seconds
        elif each.stream != COMPUTE:
            runs.append([each])
            growing = None if each.after_compute else growing
        else:
            if growing is None or not moved.isdisjoint(each.reads):
                growing = []
                runs.append(growing)
            growing.append(each)
            growing = None if hands_on else growing
    condensed = [
        _joined(run, moved, awaited) if run[0].stream == COMPUTE else run[0] for run in runs
    ]
    if views:
        condensed.append(Instruction(None, 0.0, (), (), "views", launch_seconds=views))
    return tuple(condensed)


def _joined(
    run: Sequence[Instruction], moved: Collection[object], awaited: Collection[object]
) -> Instruction:
    """Compute instructions as one, of which the first alone may wait for other streams and the last
    alone may be awaited by them."""
    first, last = run[0], run[-1]
    reads = tuple([value for value in first.reads if value in moved])
    writes = tuple([value for value in last.writes if value in awaited])
    if first is last:
        same = len(reads) == len(first.reads) and len(writes) == len(last.writes)
        return first if same else first.of_values(reads, writes)
    seconds = total([each.seconds for each in run])
    launches = total([each.launch_seconds for each in run])
    return Instruction(COMPUTE, seconds, reads, writes, first.label, launch_seconds=launches)


@dataclass(frozen=True, slots=True)
class ChainCost:
    """Seconds of a chain of passes."""

    cost: PassCost
    stream_seconds: float
    """Seconds until all streams are free if launches take no time."""
    launch_seconds: float
    """Seconds in which the host launches all instructions."""
    settled: float = 0.0
    """When the gradient stream has settled the gradients of all blocks, from the start of the
    chain. It settles one block after the other, each after its pass has been computed."""


@dataclass(frozen=True, eq=False)
class PassPattern:
    """Passes one after the other, which a chain repeats. Compared by identity."""

    passes: tuple[Pass, ...]
    settling: tuple[float, ...] = ()
    """Per pass, seconds on the gradient stream that settle the block's gradients; none if gradients
    are not settled."""

    @cached_property
    def is_free_at_any_time(self) -> bool:
        """Whether that is so of some pass."""
        return any([each.is_free_at_any_time for each in self.passes])

    @cached_property
    def settled_passes(self) -> tuple[tuple[Pass, Amount], ...]:
        """The passes, each with the seconds on the gradient stream after it."""
        return tuple(zip(self.passes, self.settling or (0.0,) * len(self.passes), strict=True))


@dataclass(frozen=True, slots=True)
class BlockChain:
    """Passes one after the other, each of which gets the outputs of the one before.

    Where seconds are arrays with one number per program size, this describes several chains: one
    per size, or one per element of `size_numbers`.
    """

    patterns: Sequence[tuple[PassPattern, Count]]
    """Repeated patterns of passes, at least one copy each. A number of copies may be an array with
    one number per chain, of which some may be 0."""
    size_numbers: Indices | None = None
    """Of each chain the number of its program size; None: one chain per size, in order."""

    @classmethod
    def of(
        cls,
        passes: Iterable[RepeatedBlocks[Pass]],
        settling_seconds: Iterable[Sequence[float]] | None = None,
        size_numbers: Indices | None = None,
    ) -> BlockChain:
        """Patterns of passes, and per pattern and pass the seconds on the gradient stream that
        settle the block's gradients; None if gradients are not settled."""
        settling = repeat(()) if settling_seconds is None else settling_seconds
        patterns = [
            (PassPattern(tuple(pattern), tuple(own)), count)
            for (pattern, count), own in zip(passes, settling, strict=False)
        ]
        return cls(patterns, size_numbers)

    @property
    def exact(self) -> frozenset[str] | None:
        """See `exact_streams`."""
        return exact_streams([pattern for pattern, _ in self.patterns])

    @property
    def link_seconds(self) -> float:
        """Seconds in which parameters are gathered and gradients are shared out.

        A chain lasts at least as long. Scatters may still be under way when it ends, but there is
        no room for the gradients of more than one chain. So scatters must not take longer than the
        chains that they follow.
        """
        return self.summed(lambda each: each.link_seconds)

    @property
    def links_along(self) -> str:
        """The communication stream of the last collective that gathers parameters or shares out
        gradients."""
        every = [each for pattern, _ in self.patterns for each in pattern.passes]
        backwards = reversed(every)
        return next(each.links_along for each in backwards if each.links_along)

    def summed(self, seconds: Callable[[Pass], float]) -> float:
        """The sum over all copies of all passes."""
        found = 0.0
        for pattern, count in self.patterns:
            own = total(map(seconds, pattern.passes))
            if isinstance(own, np.ndarray) or own:
                found = found + count * taken(own, self.size_numbers)
        return found


HostBound: TypeAlias = Callable[[float, float], float]
"""Seconds of a stretch of program, from the seconds of its streams and of its launches."""


@dataclass(frozen=True, slots=True)
class _StreamState:
    """The state of the streams between two blocks. Times are relative to when compute is free."""

    free: Mapping[str, float]
    """When each stream is free."""
    idle_since: float
    """Since when all other streams are free."""
    border: tuple[tuple[float, str], ...]
    """When values for the next block are ready, and which stream makes them."""
    handed: tuple[int, ...] = ()
    """Per value for the next block, the number of its border time."""

    @property
    def times(self) -> tuple[float, ...]:
        """All times, in the order of `Start`."""
        return (*self.free.values(), self.idle_since, *(at for at, _ in self.border))

    @property
    def start(self) -> Start:
        """What the times are times of."""
        return Start(tuple(self.free), tuple(why for _, why in self.border), self.handed)


@dataclass(frozen=True, slots=True)
class _PatternCost:
    """What a pattern of passes adds to a chain, for a given state before it."""

    seconds: float
    """Seconds until compute is free after the pattern."""
    compute: float
    """Seconds in which compute is busy."""
    exposed: Mapping[str, float]
    """By stream, the seconds in which compute waits for it."""
    launch: float
    """Seconds in which the host launches the pattern."""
    after: int
    """Number of the state after the pattern."""
    rests: tuple[tuple[float, float], ...] = ((0.0, 0.0),)
    """Per pass, the part of `seconds` and of `launch` that belongs to later passes."""

    def then(self, other: _PatternCost) -> _PatternCost:
        """The cost of both patterns, one after the other."""
        exposed = dict(self.exposed)
        for stream, seconds in other.exposed.items():
            exposed[stream] = exposed.get(stream, 0.0) + seconds
        rests = ((a + other.seconds, b + other.launch) for a, b in self.rests)
        return _PatternCost(
            self.seconds + other.seconds,
            self.compute + other.compute,
            exposed,
            self.launch + other.launch,
            other.after,
            (*rests, *other.rests),
        )


def exact_streams(patterns: Collection[PassPattern]) -> frozenset[str] | None:
    """The streams of a chain, if it has an instruction that waits for nothing, so that it matters
    how long ago a stream became free; None if it has no such instruction."""
    if not any([pattern.is_free_at_any_time for pattern in patterns]):
        return None
    passes = {each for pattern in patterns for each in pattern.passes}
    return frozenset([stream for each in passes for stream in each.streams])


class ChainScheduler:
    """Schedules chains of passes; it keeps what patterns add to the states that occur."""

    def __init__(self, host_bound: HostBound) -> None:
        """`host_bound` says how launches delay a chain: the host launches from the start of the
        chain on, which bounds the end of the chain and of each block in it."""
        self._host_bound = host_bound
        self._states = [_StreamState({}, 0.0, ())]
        self._costs: dict[tuple[int, tuple[Pass, ...], frozenset[str] | None], _PatternCost] = {}
        self._left_by: dict[object, list[int]] = {}
        self._tails: dict[int, tuple[float, Mapping[str, float]]] = {}

    def run_all(self, chains: Sequence[BlockChain]) -> list[ChainCost]:
        """The costs of chains."""
        return list(map(self.run, chains))

    def run(self, chain: BlockChain) -> ChainCost:
        """The cost of a chain."""
        exact = chain.exact
        costs: dict[int, tuple[_PatternCost, int]] = {}
        streams = launches = settled = 0.0
        state = 0
        for pattern, count in chain.patterns:
            left = count
            while left:
                cost = self._pattern_cost(state, pattern.passes, exact)
                times = left if cost.after == state else 1
                first = streams + cost.seconds, launches + cost.launch
                last = streams + times * cost.seconds, launches + times * cost.launch
                if any(pattern.settling):
                    ends = self._pass_ends(cost, first, last)
                    settled = settled_at(ends, pattern.settling, times, settled)
                costs[id(cost)] = cost, costs.get(id(cost), (cost, 0))[1] + times
                streams, launches = last
                state, left = cost.after, left - times
        tail, waited = self._tail(state)
        exposed = dict(waited)
        bound = self._host_bound(streams + tail, launches)
        compute = bound - (streams + tail)
        for cost, times in costs.values():
            compute += times * cost.compute
            for stream, seconds in cost.exposed.items():
                exposed[stream] = exposed.get(stream, 0.0) + times * seconds
        cost = PassCost(bound, compute, tuple(sorted(exposed.items())))
        links = chain.link_seconds
        if links > bound:
            cost = cost.longer(links - bound, chain.links_along)
        return ChainCost(cost, streams + tail, launches, settled)

    def _pass_ends(
        self, cost: _PatternCost, first: tuple[float, float], last: tuple[float, float]
    ) -> list[tuple[float, float]]:
        """When each pass of a repeated pattern has been computed, in the first and in the last
        copy, given the seconds of streams and launches at the end of these copies."""
        return [
            (
                self._host_bound(first[0] - rest, first[1] - launch),
                self._host_bound(last[0] - rest, last[1] - launch),
            )
            for rest, launch in cost.rests
        ]

    def _pattern_cost(
        self, state: int, pattern: tuple[Pass, ...], exact: frozenset[str] | None
    ) -> _PatternCost:
        key = (state, pattern, exact)
        if key not in self._costs:
            cost = self._pass_cost(self._states[state], pattern[0], exact)
            for each in pattern[1:]:
                cost = cost.then(self._pattern_cost(cost.after, (each,), exact))
            self._costs[key] = cost
        return self._costs[key]

    def _pass_cost(
        self, before: _StreamState, each: Pass, exact: frozenset[str] | None
    ) -> _PatternCost:
        """What a single pass adds. `exact`: see `exact_streams`."""
        start = before.start.of_first(len(each.inputs))
        moments = each.moments(start)
        new = len(start.border) - len(before.border)
        times = moments.at((*before.times, *[0.0] * new))
        took = times[moments.streams[COMPUTE]]
        border = tuple(latest_of(made, times) if made else (took, "") for made in moments.border)
        border = tuple((at - took, why) if why else (0.0, "") for at, why in border)
        # Whatever waits for a border value starts no earlier than that is ready. So it does not
        # matter how much earlier a stream became free, unless an instruction waits for nothing.
        floor = LONG_AGO
        if exact is None:
            floor = min((0.0, *(at for at, why in border if why)))
        free = {
            stream: max(times[number] - took, floor)
            for stream, number in moments.streams.items()
            if stream != COMPUTE
        }
        idle_since = max(before.idle_since - took, floor)
        if exact is not None and exact <= free.keys():
            idle_since = 0.0  # there is no other stream
        after = _StreamState(free, idle_since, border, each.handed_times)
        number = self._number(after, each, took)
        return _PatternCost(
            took, moments.compute, moments.waited(times), each.launch_seconds, number
        )

    def _number(self, state: _StreamState, left_by: Pass, seconds: float) -> int:
        """The number of a state that a pass of this many seconds has left; the number of a known
        state if it is the same to rounding."""
        known = self._left_by.setdefault((left_by, state.start), [])
        for number in known:
            if _are_same(state.times, self._states[number].times, seconds):
                return number
        number = len(self._states)
        known.append(number)
        self._states.append(state)
        return number

    def _tail(self, state: int) -> tuple[float, Mapping[str, float]]:
        """Seconds from a state until all streams are free, and by stream how long compute waits."""
        if state not in self._tails:
            free = {COMPUTE: 0.0, **self._states[state].free}
            end = max(free.values())
            self._tails[state] = end, _waited_at_the_end(free, end)
        return self._tails[state]


def _are_same(times: Sequence[float], others: Sequence[float], seconds: float) -> bool:
    """Whether times are the same to the rounding of times as large as `seconds`."""
    return all(
        abs(a - b) <= SAME_STATE * max(abs(a), abs(b), seconds)
        for a, b in zip(times, others, strict=True)
    )


def settled_at(
    ends: Sequence[tuple[float, float]], seconds: Sequence[float], count: int, busy_until: float
) -> float:
    """When the gradient stream has settled the gradients of `count` copies of a pattern.

    The stream is busy until `busy_until`. It settles one block after the other, block i of the
    pattern in `seconds[i]`, and not before its pass is computed: at `ends[i][0]` in the first copy
    of the pattern and at `ends[i][1]` in the last.

    The end is decided by the first or by the last copy of some block, as the copies between are
    computed no later than linear interpolation says.
    """
    whole = sum(seconds)
    queued, prompt, before = busy_until, LONG_AGO, 0.0
    for (first, last), own in zip(ends, seconds, strict=True):
        if own > 0:
            queued, prompt = max(queued, first - before), max(prompt, last - before)
        before += own
    return max(queued + count * whole, prompt + whole) if whole > 0 else busy_until
