"""What one block costs: seconds and bytes of its passes, summarised once for all equal blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from distir.cost.amounts import is_all, is_positive, larger, select
from distir.simulation.instructions import COMPUTE, Instruction


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of a run of instructions that starts with all streams idle and ends when all are:
    `compute` busy time and, per mesh axis, the time that compute waited for it."""

    seconds: float
    compute: float
    exposed: tuple[tuple[str, float], ...] = ()


@dataclass(slots=True)
class Timeline:
    """List scheduling: an instruction starts when its stream is free and its operands are ready.

    `ready` and `cause` hold, per value made by communication, when it is ready and which stream
    made it. Values not in it are ready.
    """

    free: dict[str, float] = field(default_factory=dict)
    ready: dict[object, float] = field(default_factory=dict)
    cause: dict[object, str] = field(default_factory=dict)
    compute: float = 0.0
    exposed: dict[str, float] = field(default_factory=dict)

    def run(self, instructions: Sequence[Instruction]) -> None:
        """Schedules instructions in order."""
        ready, cause, free = self.ready, self.cause, self.free
        for each in instructions:
            stream = each.stream
            start, why = 0.0, ""
            for value in each.reads:
                # What a stream made itself is there before the stream is free.
                if value in ready and cause[value] != stream:
                    start, why = _later(start, why, ready[value], cause[value])
            if each.after_compute:
                start = larger(start, free.get(COMPUTE, 0.0))
            if stream is None:
                if why:
                    for value in each.writes:
                        ready[value], cause[value] = start, why
                continue
            begin = free.get(stream, 0.0)
            if stream == COMPUTE:
                self.compute += each.seconds
                waited = larger(start - begin, 0.0)
                if is_positive(waited):
                    self.exposed[why] = self.exposed.get(why, 0.0) + waited
            end = larger(start, begin) + each.seconds
            free[stream] = end
            for value in each.writes:
                ready[value], cause[value] = end, stream

    def finish(self) -> PassCost:
        """Waits for all streams."""
        end = larger(0.0, *self.free.values())
        tail = end - self.free.get(COMPUTE, 0.0)
        exposed = dict(self.exposed)
        for stream, free in self.free.items():
            last = select(free >= end, tail, 0.0)
            if is_positive(last):
                exposed[stream] = exposed.get(stream, 0.0) + last
                tail = tail - last
        return PassCost(end, self.compute, tuple(sorted(exposed.items())))


def _later(first: float, why: str, second: float, cause: str) -> tuple[float, str]:
    """The later of two times, and what made it."""
    if why in ("", cause):
        return larger(first, second), cause
    return (second, cause) if second > first else (first, why)


TOLERANCE = 1e-12
"""Relative difference of times below which two blocks are taken to be in the same rhythm."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One direction of a block: instructions, and the values that cross its borders."""

    instructions: tuple[Instruction, ...]
    inputs: tuple[object, ...]
    outputs: tuple[object, ...]

    @property
    def launch_seconds(self) -> float:
        """Time of the host to launch all of it."""
        return sum(each.launch_seconds for each in self.instructions)


@dataclass(frozen=True, slots=True)
class ChainCost:
    """Seconds of a chain of passes, and when each of its blocks has been computed: `(of the first,
    of the last, count)` per run of equal blocks, in between at most what lies on a line."""

    cost: PassCost
    block_ends: tuple[tuple[float, float, int], ...]


HostBound: TypeAlias = Callable[[float, float], float]
"""Seconds of a stretch of program, from what its streams and what its launches take."""


def run_chain(runs: Sequence[tuple[Pass, int]], host_bound: HostBound) -> ChainCost:
    """Schedules `count` times each pass, one after the other, each fed by the one before.

    Once two equal blocks have left the streams in the same state relative to compute, all that
    follow will: the rest is a multiple. The host launches from the start on and runs ahead of the
    streams where it can: it bounds the whole, and what has been computed by any time.
    """
    timeline = Timeline()
    border: list[tuple[float, str]] = []
    ends: list[tuple[float, float, int]] = []
    launched = 0.0

    def computed(after: int) -> float:
        """When the block that is `after` blocks behind the last one scheduled is computed."""
        at = timeline.free.get(COMPUTE, 0.0) + after * step
        return host_bound(at, launched + after * launch)

    for each, count in runs:
        launch, step = each.launch_seconds, 0.0
        streams = {i.stream for i in each.instructions if i.stream is not None}
        done = 0
        before: _State | None = None
        while done < count:
            start = _State.of(timeline, streams, border)
            timeline.ready = {
                value: at for value, (at, _) in zip(each.inputs, border, strict=False)
            }
            timeline.cause = {
                value: why for value, (_, why) in zip(each.inputs, border, strict=False)
            }
            timeline.run(each.instructions)
            border = [
                (timeline.ready.get(value, 0.0), timeline.cause.get(value, COMPUTE))
                for value in each.outputs
            ]
            done += 1
            launched += launch
            ends.append((computed(0), computed(0), 1))
            after = _State.of(timeline, streams, border)
            if before is not None and after.same_rhythm(start) and done < count:
                step = after.compute_free - start.compute_free
                rest = count - done
                ends.append((computed(1), computed(rest), rest))
                launched += rest * launch
                border = [(at + rest * step, why) for at, why in border]
                _skip(timeline, start, after, streams, rest)
                done = count
            before = start
    cost = timeline.finish()
    bound = host_bound(cost.seconds, launched)
    waited = bound - cost.seconds
    return ChainCost(replace(cost, seconds=bound, compute=cost.compute + waited), tuple(ends))


@dataclass(frozen=True, slots=True)
class _State:
    """Where the streams stand between two blocks."""

    compute_free: float
    compute: float
    exposed: Mapping[str, float]
    free: Mapping[str, float]
    border: tuple[tuple[float, str], ...]

    @classmethod
    def of(
        cls, timeline: Timeline, streams: set[str], border: Sequence[tuple[float, str]]
    ) -> _State:
        free = {stream: timeline.free.get(stream, 0.0) for stream in streams}
        at = timeline.free.get(COMPUTE, 0.0)
        return cls(at, timeline.compute, dict(timeline.exposed), free, tuple(border))

    def same_rhythm(self, other: _State) -> bool:
        """Whether all times are later by the same amount, in every plan."""
        step = self.compute_free - other.compute_free
        slack = TOLERANCE * self.compute_free
        return (
            len(self.border) == len(other.border)
            and all(is_all(abs(self.free[s] - other.free[s] - step) <= slack) for s in self.free)
            and all(
                mine[1] == theirs[1] and is_all(abs(mine[0] - theirs[0] - step) <= slack)
                for mine, theirs in zip(self.border, other.border, strict=True)
            )
        )


def _skip(timeline: Timeline, start: _State, after: _State, streams: set[str], count: int) -> None:
    """Adds `count` more blocks like the last one."""
    step = after.compute_free - start.compute_free
    for stream in streams:
        timeline.free[stream] = timeline.free.get(stream, 0.0) + count * step
    timeline.compute += count * (after.compute - start.compute)
    for stream, waited in after.exposed.items():
        timeline.exposed[stream] = waited + count * (waited - start.exposed.get(stream, 0.0))


def drain(
    ends: Sequence[tuple[float, float, int]], services: Sequence[float], done: float = 0.0
) -> float:
    """When a stream that serves one request per block, in order, each not before the block has
    been computed, is done. `services` are seconds per block, run by run as in `ends`; the stream
    is busy until `done`.

    In a run of equal blocks the last to finish is decided by the first or the last of them: those
    between are computed no later than a line from one to the other says.
    """
    for (first, last, count), service in zip(ends, services, strict=True):
        queued = larger(done, first) + count * service
        prompt = last + service
        done = select(service > 0, larger(queued, prompt), done)
    return done
