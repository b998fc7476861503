"""Plan blocks: the arrays of plans that run the waves of a schedule together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distir.simulation.pipeline.waves import Floats, Index, Ints, WavePart, WavePiece, WaveProgram

NO_CHANGE = 1e9
"""A number of repeats that stands for never: larger than any schedule has."""

CROSSED_BY_ROUNDING = 2.0**-30
"""Number of repeats: a lead that seems to have ended no longer ago than this still counts as a
lead, as rounding may have ended it."""


COSTS_AT_ONCE = 1 << 15
"""Costs of actions, over all plans, that are looked up together: they should stay in the cache."""


@dataclass(slots=True)
class PlanBlock:
    """The state of plans that run together, as views of one array, in the order that `WaveProgram`
    gives."""

    program: WaveProgram
    state: Floats
    seconds: Floats
    transfers: Floats
    free: Floats
    waits: Floats
    """Seconds that ranks have waited for other stages."""
    links: Floats
    arrived: Floats
    left: Floats

    @staticmethod
    def of(program: WaveProgram, state: Floats, seconds: Floats, transfers: Floats) -> PlanBlock:
        """A block whose fields are views of `state`, of shape (program.size, plans)."""
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
        """A block at the start of the schedule, when no action has run."""
        return PlanBlock.of(program, np.zeros((program.size, seconds.shape[1])), seconds, transfers)

    def copy(self) -> PlanBlock:
        """A copy that can be run on without changing this block."""
        return PlanBlock.of(self.program, self.state.copy(), self.seconds, self.transfers)

    def some(self, columns: Index) -> PlanBlock:
        """A copy of the plans in these columns."""
        return PlanBlock.of(
            self.program,
            np.ascontiguousarray(self.state[:, columns]),
            np.ascontiguousarray(self.seconds[:, columns]),
            np.ascontiguousarray(self.transfers[:, columns]),
        )


def walk(
    block: PlanBlock,
    part: WavePart,
    read_slots: Ints,
    sent_slots: Ints,
    goes_on: bool,
    watch: BlockWatch | None = None,
) -> None:
    """Runs the waves of a part. `watch` records starts and leads, if it is given."""
    for piece in part.pieces(max(1, COSTS_AT_ONCE // block.state.shape[1])):
        _walk(block, piece, read_slots, sent_slots, goes_on, watch)


def _walk(
    block: PlanBlock,
    piece: WavePiece,
    read_slots: Ints,
    sent_slots: Ints,
    goes_on: bool,
    watch: BlockWatch | None,
) -> None:
    """Runs the waves of a piece of a part."""
    free, links, arrived, left = block.free, block.links, block.arrived, block.left
    state, for_stage = block.state, block.waits
    ranks, queues = block.program.ranks, block.program.queues
    seconds = block.seconds.take(piece.costs, axis=0)
    arriving = None if queues else block.transfers.take(piece.read_costs, axis=0)
    leaving = None if goes_on and not queues else block.transfers.take(piece.sent_costs, axis=0)
    begun = read = sent = 0
    for own, readers, reading, to_read, senders, sending, to_send, on, first, last in piece.waves:
        now = free[own]
        if reading:
            slots = read_slots[to_read]
            before = now[:reading]
            moving = left.take(slots, axis=0)
            for i, rank in first:
                if i < reading:
                    state[3 * ranks + rank] = -moving[i]  # the start is added below
            if arriving is None:
                begin = arrived.take(slots, axis=0)
            else:
                begin = moving + arriving[read : read + reading]
                read += reading
            if watch is not None:
                watch.see(moving, before)
                watch.see(begin, before)
            np.maximum(moving, before, out=moving)
            moving -= before
            for_stage[readers] += moving
            np.maximum(begin, before, out=before)
        for i, rank in first:
            state[2 * ranks + rank] = now[i]
            if i < reading:
                state[3 * ranks + rank] += now[i]
        for i, row in last:
            state[row] = now[i]
        if watch is not None:
            watch.starts[own] += now
        now += seconds[begun : begun + len(now)]
        begun += len(now)
        if not isinstance(own, slice):
            free[own] = now
        if sending.stop:
            end = now[sending]
            slots = sent_slots[to_send]
            left[slots] = end
            if leaving is None:
                continue
            took = leaving[sent : sent + len(end)]
            sent += len(end)
            if not queues:
                free[senders] = end + took
                continue
            there = links[on]
            if watch is not None:
                watch.see(there, end)
            there = np.maximum(there, end)
            there += took
            links[on] = there
            arrived[slots] = there
            if not goes_on:
                free[senders] = there


class BlockWatch:
    """A record of one repeat: per rank the sum of the times at which its actions start, and, if
    leads are wanted, the lead of one side of every maximum over the other."""

    def __init__(self, ranks: int, rows: int, maxima: int) -> None:
        self.starts = np.zeros((ranks, rows))
        self.leads = np.empty((maxima, rows))
        self.seen = 0

    def see(self, one: Floats, other: Floats) -> None:
        """Records the leads of one side of some maxima over the other side."""
        if len(self.leads):
            until = self.seen + len(one)
            np.subtract(one, other, out=self.leads[self.seen : until])
            self.seen = until

    def until_changed(self, before: BlockWatch, exact: Floats) -> Floats:
        """The number of further repeats until the larger side of some maximum becomes the smaller
        one, if leads keep changing as they did since the repeat before."""
        if not len(self.leads):
            return np.full(len(exact), NO_CHANGE)
        change = before.leads
        change -= self.leads
        steady = np.abs(change) <= exact
        change[steady] = np.inf
        turns = self.leads
        turns /= change
        turns[(turns < -CROSSED_BY_ROUNDING) | steady] = NO_CHANGE
        return np.maximum(turns.min(axis=0), 0.0)


__all__ = ["BlockWatch", "PlanBlock", "walk"]
