"""A block of plans that go through waves of actions together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distir.simulation.pipeline.waves import Floats, Index, Ints, Part, WaveProgram

FARTHEST = 1e9
"""Repeats; more than there are."""

ROUNDING = 2.0**-30
"""Repeats; since when a lead may be over that rounding says is not."""


@dataclass(slots=True)
class PlanBlock:
    """Plans that are run together, as views of one array (`WaveProgram` says in which order)."""

    program: WaveProgram
    state: Floats
    seconds: Floats
    transfers: Floats
    free: Floats
    waits: Floats
    """For stages."""
    links: Floats
    arrived: Floats
    left: Floats

    @staticmethod
    def of(program: WaveProgram, state: Floats, seconds: Floats, transfers: Floats) -> PlanBlock:
        """A block with views of `state`, (program.size, plans)."""
        ranks = program.ranks
        return PlanBlock(
            program,
            state,
            seconds,
            transfers,
            state[:ranks],
            state[ranks : 2 * ranks],
            state[program.links],
            state[program.arrived],
            state[program.left],
        )

    @staticmethod
    def new(program: WaveProgram, seconds: Floats, transfers: Floats) -> PlanBlock:
        """Nothing has happened yet."""
        return PlanBlock.of(program, np.zeros((program.size, seconds.shape[1])), seconds, transfers)

    def copy(self) -> PlanBlock:
        """What may change is copied."""
        return PlanBlock.of(self.program, self.state.copy(), self.seconds, self.transfers)

    def some(self, columns: Index) -> PlanBlock:
        """A copy of some plans."""
        return PlanBlock.of(
            self.program,
            np.ascontiguousarray(self.state[:, columns]),
            np.ascontiguousarray(self.seconds[:, columns]),
            np.ascontiguousarray(self.transfers[:, columns]),
        )


def walk(
    block: PlanBlock,
    part: Part,
    read_slots: Ints,
    sent_slots: Ints,
    goes_on: bool,
    watch: Watch | None = None,
) -> None:
    """Runs waves; `watch` sees what happens."""
    free, links, arrived, left = block.free, block.links, block.arrived, block.left
    seconds, transfers, state = block.seconds, block.transfers, block.state
    ranks, queues = block.program.ranks, block.program.queues
    for_stage = block.waits
    for wave in part.waves:
        now = free[wave.ranks]
        if wave.reading:
            slots = read_slots[wave.read]
            before = now[: wave.reading]
            moving = left.take(slots, axis=0)
            for i, rank in wave.first:
                if i < wave.reading:
                    state[3 * ranks + rank] = -moving[i]  # the start is added below
            if queues:
                begin = arrived.take(slots, axis=0)
            else:
                begin = moving + transfers[wave.read_costs]
            if watch is not None:
                watch.see(moving, before)
                watch.see(begin, before)
            np.maximum(moving, before, out=moving)
            moving -= before
            for_stage[wave.readers] += moving
            np.maximum(begin, before, out=before)
        for i, rank in wave.first:
            state[2 * ranks + rank] = now[i]
            if i < wave.reading:
                state[3 * ranks + rank] += now[i]
        for i, row in wave.last:
            state[row] = now[i]
        if watch is not None:
            watch.starts[wave.ranks] += now
        now += seconds[wave.costs]
        if not isinstance(wave.ranks, slice):
            free[wave.ranks] = now
        if wave.sending.stop:
            end = now[wave.sending]
            slots = sent_slots[wave.sent]
            left[slots] = end
            if not queues:
                if not goes_on:
                    free[wave.senders] = end + transfers[wave.sent_costs]
                continue
            there = links[wave.links]
            if watch is not None:
                watch.see(there, end)
            there = np.maximum(there, end)
            there += transfers[wave.sent_costs]
            links[wave.links] = there
            arrived[slots] = there
            if not goes_on:
                free[wave.senders] = there


class Watch:
    """What happens in a repeat: what starts add up to, by rank, and, if it matters, by how much
    either side of each maximum is ahead."""

    def __init__(self, ranks: int, rows: int, maxima: int) -> None:
        self.starts = np.zeros((ranks, rows))
        self.leads = np.empty((maxima, rows))
        self.seen = 0

    def see(self, one: Floats, other: Floats) -> None:
        """Takes down the lead of one side of some maxima."""
        if len(self.leads):
            until = self.seen + len(one)
            np.subtract(one, other, out=self.leads[self.seen : until])
            self.seen = until

    def until_changed(self, before: Watch, exact: Floats) -> Floats:
        """In how many more repeats some maximum changes sides, if leads go on to change as they did
        since the repeat before."""
        if not len(self.leads):
            return np.full(len(exact), FARTHEST)
        change = before.leads
        change -= self.leads
        steady = np.abs(change) <= exact
        change[steady] = np.inf
        turns = self.leads
        turns /= change
        turns[(turns < -ROUNDING) | steady] = FARTHEST
        return np.maximum(turns.min(axis=0), 0.0)


__all__ = ["PlanBlock", "Watch", "walk"]
