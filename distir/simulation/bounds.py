"""Lower bounds on the time and the memory of all strategies that begin with the same choices.

None is an estimate: what is left out can only add. With `n` devices per stage, `p` ranks and `m`
microbatches,

- *products*: over its devices an op has at least the FLOPs and bytes that it has on one, so each
  has at least 1/n of them, and less work never takes longer. A microbatch has to pass its forward
  products and those of the first parts of its backward passes one after the other; the busiest
  rank takes at least the mean of all, `m T / p`. Whatever else is computed, moved and sent comes
  on top. Products share one stream, so that overlapping passes hides none of them.
- *blocks*: once shapes are known, the whole model is scheduled as one stage of `n` devices. Cutting
  it makes every instruction wait for more, so `T` is at most the sum over stages. Only for what a
  stage gathers first it may wait less, as that depends on where the stage ends. So gathers delay
  nothing here, and only occupy the links.
  Where a schedule overlaps forward and backward passes, a pair is no shorter than either pass, or
  than what both do on one stream. The schedule says how many passes of a stage are in pairs at
  most; the others are not hidden.
- *whole blocks*: blocks are not divided, so that one of the ranks computes more than the mean
  (`least_load.py`).
- *recompute*: passes that compute again what they did not keep take no less time than passes that
  kept it: the `T` without recomputation bounds those with it.
- *states at rest*: sharding them adds gathers and settlements to the passes, and takes nothing
  away: the `T` without ZeRO bounds those with it. Of the update of parameters each of `z` devices
  has at least 1/z, and a smaller kernel is no faster per parameter.
- *the host*: what rests there counts nothing, and copying adds to the passes: the `T` without
  offloading bounds those with it. What is computed again is not copied; so where stages pick what
  they recompute, no activations are copied.
- *pipeline*: the rank on which a microbatch begins is busy or waits until it has come back, for
  messages, too: it passes all ranks as often as they have chunks. Where
  rank `r` holds stage `r` alone and backward passes are whole, rank `r` does nothing before the
  first microbatch has passed the stages before it, and the last has to pass them again after it:
  rank 0 takes at least `t_0 + … + t_{r-1} + m t_r`. Whatever the stages' times `t`, the largest of
  these is at least `T / (1 - (1 - 1/m)^p)`. Without a backward pass the last microbatch still has
  to pass the stages behind: `T + (m - 1) T / p`.
  Where stages pick which layers they recompute, no layer counts as recomputed.
- *memory*: all ranks together hold the model's state, and before its first backward action what one
  microbatch leaves behind; the fullest rank holds at least the mean. Here all layers count as
  recomputed that some stage may recompute. Which microbatches each rank has in flight, its schedule
  says (`least_memory.py`). With states sharded over `z` devices, each holds at least 1/z of what is
  sharded. What of it stays gathered for the backward pass, each microbatch in flight leaves behind,
  too. Where only strategies count that are fast enough, no rank has more layers than it
  computes in that time, so the others have the rest at least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Codes, Floats, Indices, distinct, distinct_rows
from distir.cost import CostModel, Work
from distir.cost.amounts import Divergence, many
from distir.factoring import microbatch_counts
from distir.schedules import (
    CompiledSchedule,
    ScheduleFamily,
    find_schedule,
)
from distir.simulation.expected import RankGrids, expected_seconds
from distir.simulation.least_load import least_load
from distir.simulation.least_memory import LayerBytes, RanksHolding, fullest_rank_bytes
from distir.simulation.many.batch import SCHEDULE
from distir.simulation.pricing.instructions import (
    narrower_products,
    product_works,
)
from distir.simulation.pricing.stages import StagePricer
from distir.simulation.wholes import SHAPING, WholeModels, Wholes, keeps_parameters
from distir.strategies import Strategies
from distir.strategy import AUTO, Strategy
from distir.transforms.recompute import POLICIES

PRODUCTS = "its products at full rate"
BLOCKS = "its blocks, without waiting"
UNDIVIDED = "its blocks, none of which is divided"
PIPELINE = "filling and draining the pipeline"
STATE = "the model's state, shared by all devices"
HELD = "state and activations, shared evenly by the ranks"
IN_FLIGHT = "state, and the activations in flight"
"""What bounds may say."""

REASONS = (PRODUCTS, BLOCKS, UNDIVIDED, PIPELINE, STATE, HELD, IN_FLIGHT)

SLACK = 1e-9
"""Relative rounding that a bound allows for."""


@dataclass(frozen=True, slots=True)
class ManyBounds:
    """None of several strategies, or of the strategies of several parts of a space, is faster than
    `seconds` per iteration, or fits in less than `size` bytes per device; and what says so, by its
    number in `REASONS`."""

    seconds: Floats
    slowed_by: Codes
    size: Floats
    filled_by: Codes

    def joined(self, other: ManyBounds) -> ManyBounds:
        """What follows from both."""
        slow, full = self.seconds >= other.seconds, self.size >= other.size
        return ManyBounds(
            np.where(slow, self.seconds, other.seconds),
            np.where(slow, self.slowed_by, other.slowed_by),
            np.where(full, self.size, other.size),
            np.where(full, self.filled_by, other.filled_by),
        )

    def taken(self, which: NDArray[Any]) -> ManyBounds:
        """Some of them."""
        return ManyBounds(
            self.seconds[which], self.slowed_by[which], self.size[which], self.filled_by[which]
        )


@dataclass(frozen=True, slots=True)
class _Products:
    """Matrix products of a microbatch on one device, by type: works of arrays of shape
    (products, microbatch sizes)."""

    works: tuple[Work, ...]

    def seconds(self, cost: CostModel, sizes: Indices, devices: Indices) -> Floats:
        """Seconds of the products at microbatch sizes of these numbers, if they are spread evenly
        over so many devices each."""
        kernels, launches = np.zeros((2, len(sizes)))
        for work in self.works:
            part = _of_sizes(work, sizes, 1 / devices)
            kernels += np.sum(cost.least_product_seconds(part), axis=0)
            launches += np.sum(cost.least_launch_seconds(part), axis=0)
        return np.asarray(cost.host_bound_seconds(kernels, launches))


class Bounds:
    """Bounds for the strategies of the workload and the cluster that `pricer` is for."""

    def __init__(self, pricer: StagePricer, step: Callable[[], None] = lambda: None) -> None:
        """`step` is called between pieces of work; it may raise to end it."""
        self._models = WholeModels(pricer, step)
        self.cost = pricer.cost
        self._pricer = pricer
        self._workload = pricer.workload
        self._overhead = pricer.cost.stack.overhead_seconds(self._workload.training)
        self._holding: dict[tuple[object, ...], RanksHolding] = {}

    @cached_property
    def _state_bytes(self) -> float:
        """Parameters, gradients and optimizer state on a single device."""
        batch = self._workload.batch_size
        alone = Strategies.of([Strategy(microbatches=microbatch_counts(batch)[-1])])
        return float(self._models.wholes(alone, splits=False).state[:, 0].sum())

    # --- the first choices -----------------------------------------------------------------------

    def begun(
        self, devices: int, ranks: Indices, microbatches: Indices, *, offloading: bool = False
    ) -> ManyBounds:
        """Per number of pipeline ranks and of microbatches: for all strategies with these numbers
        on so many devices, some of which are `offloading`."""
        passed, work = self._of_products(devices // ranks, microbatches)
        seconds = self._overhead + np.maximum(passed, microbatches * work / ranks)
        state = 0.0 if offloading else self._state_bytes / devices
        count = len(ranks)
        return ManyBounds(
            seconds * (1 - SLACK),
            _said(count, PRODUCTS),
            np.full(count, state * (1 - SLACK)),
            _said(count, STATE),
        )

    def _of_products(self, devices: Indices, microbatches: Indices) -> Floats:
        """Seconds of a microbatch's products on so many devices, of shape (2, numbers): of those
        alone that it has to pass one after the other, whether or not the rest of its backward
        passes is put off, and of all."""
        counts, which = np.unique(microbatches, return_inverse=True)
        found = np.empty((2, len(devices)))
        left: list[Indices] = [np.arange(len(counts))]
        while left:
            sizes = left.pop()
            chosen = np.flatnonzero(np.isin(which, sizes))
            own = np.searchsorted(sizes, which[chosen])
            try:
                every = self._make_products(self._workload.batch_size // counts[sizes])
            except Divergence as divergence:
                left += [sizes[divergence.where], sizes[~divergence.where]]
                continue
            for row, products in enumerate(every):
                found[row, chosen] = products.seconds(self.cost, own, devices[chosen])
        return found

    def _make_products(self, samples: Indices) -> list[_Products]:
        """The products of `_of_products` for microbatches of so many samples."""
        planner = self._pricer.planner
        kind, (_, degrees) = planner.kind(Strategy()), planner.mesh(Strategy())
        size: Any = many(samples)
        programs = planner.programs_at(kind, degrees, size, {}).kept
        narrower = narrower_products(self._workload, self.cost.cluster.device)
        found: list[_Products] = []
        for waited_for in (True, False):
            by_type: dict[str, list[Work]] = {}
            for program in programs:
                back = program.backward_parts[0].nodes if waited_for else program.backward
                for node in (*program.forward, *back):
                    for work in product_works(node, narrower):
                        by_type.setdefault(work.dtype, []).append(work)
            each = (_side_by_side(works, len(samples)) for works in by_type.values())
            found.append(_Products(tuple(each)))
        return found

    # --- all but the order -----------------------------------------------------------------------

    def ordered(self, table: Strategies, within: float = inf) -> ManyBounds:
        """For each of several strategies, whatever the order of its work. Sizes are those of
        strategies whose iterations take no longer than `within` seconds."""
        first, size = table.distinct(SHAPING)
        some = table.taken(first)
        wholes = self._models.wholes(some, self._splits(table))
        return self._of_order(wholes, some, table, size, within)

    def ordered_and_expected(
        self, table: Strategies, within: float = inf, *, roughly: bool = False
    ) -> tuple[ManyBounds, Floats]:
        """For each of several strategies its bounds, whatever the order of its work, and the
        seconds that an iteration may be expected (`roughly`) to take (`expected_seconds`). Where
        plans choose which layers recompute, that is what makes them fit."""
        first, size = table.distinct(SHAPING)
        some = table.taken(first)
        wholes = self._models.wholes(some, self._splits(table))
        bounds = self._of_order(wholes, some, table, size, within)
        expected = expected_seconds(self._pricer, wholes.taken(size), table, roughly=roughly)
        chosen = np.flatnonzero(table.column("recompute") == AUTO)
        if len(chosen) and self._workload.training:
            expected[chosen] = self._expected_of_mixtures(table.taken(chosen), roughly=roughly)
        return bounds, expected

    def _expected_of_mixtures(self, table: Strategies, *, roughly: bool) -> Floats:
        """Expected seconds of strategies whose layers recompute as little as room allows: between
        what two policies take, if some layers have one and the others the other; if nothing fits,
        what they take that holds least."""
        room = np.broadcast_to(self.cost.room_bytes(table.communicators), len(table))
        each = [
            self.ordered_and_expected(_with(table, recompute=policy), roughly=roughly)
            for policy in POLICIES
        ]
        held: Floats = np.array([bounds.size for bounds, _ in each])
        seconds: Floats = np.array([expected for _, expected in each])
        found: Floats = np.where(held <= room, seconds, inf).min(axis=0)
        for more, less in combinations(range(len(POLICIES)), 2):
            at = np.flatnonzero((held[more] > room) & (held[less] <= room))
            share = (room[at] - held[less, at]) / (held[more, at] - held[less, at])
            mixed = (1 - share) * seconds[less, at] + share * seconds[more, at]
            found[at] = np.minimum(found[at], mixed)
        least = held.argmin(axis=0)
        return np.where(np.isfinite(found), found, seconds[least, np.arange(len(table))])

    def unsharded(self, table: Strategies, within: float = inf) -> ManyBounds:
        """The same from programs without what sharding and offloading add."""
        first, size = table.distinct(SHAPING)
        some = table.taken(first)
        whole = self._models.wholes(_fixed(some, **UNSHARDED), self._splits(table)).sharded(some)
        return self._of_order(whole, some, table, size, within)

    def relaxed(
        self, table: Strategies, ordered: Strategies, which: Indices
    ) -> tuple[ManyBounds, ManyBounds]:
        """Bounds from programs that keep everything, too: on the time of `ordered` strategies, and
        on the state of those of `table`, whose order may be open; `ordered[which[i]]` has the
        program of `table[i]` (`kept_whole`). They say nothing of activations but of parameters that
        stay gathered."""
        first, size = ordered.distinct(SHAPING)
        some = ordered.taken(first)
        whole = self._models.wholes(kept_whole(some), self._splits(ordered))
        rests = whole.taken(size[which]).sharded(table)
        kept = rests.read_again * keeps_parameters(table) if self._workload.training else 0.0
        resting = (rests.state.sum(axis=0) + kept) / table.column("pp")
        whole = whole.sharded(some)
        seconds, slowed_by = self._iterations(whole, some, ordered, size, knows_pairs=False)
        return (
            ManyBounds(seconds, slowed_by, *_nothing(len(ordered), HELD)),
            ManyBounds(
                *_nothing(len(table), BLOCKS), resting * (1 - SLACK), _said(len(table), HELD)
            ),
        )

    def _splits(self, table: Strategies) -> bool:
        """Whether some schedule splits its backward passes."""
        families = (find_schedule(table.values["schedule"][code]) for code in _codes(table))
        return self._workload.training and any(each.splits_backward for each in families)

    def _of_order(
        self, whole: Wholes, some: Strategies, table: Strategies, size: Indices, within: float
    ) -> ManyBounds:
        """The bounds of the strategies of `table`, of which each has the shape of that one of
        `some` whose number is in `size`, and the model of that number in `whole`."""
        seconds, slowed_by = self._iterations(whole, some, table, size)
        held = np.maximum(0.0, whole.held) if self._workload.training else 0.0
        mean = ((whole.state.sum(axis=0) + held) / some.column("pp"))[size]
        fullest, filled_by = mean, _said(len(table), HELD)
        if self._workload.training and len(whole.layers):
            in_flight = self._in_flight(whole, table, size, within)
            fullest = np.maximum(mean, in_flight)
            filled_by[in_flight > mean] = REASONS.index(IN_FLIGHT)
        return ManyBounds(seconds, slowed_by, fullest * (1 - SLACK), filled_by)

    def _iterations(
        self,
        whole: Wholes,
        some: Strategies,
        table: Strategies,
        size: Indices,
        *,
        knows_pairs: bool = True,
    ) -> tuple[Floats, Codes]:
        """Seconds of the strategies' iterations, and the numbers of the reasons; see `_of_order`.
        `knows_pairs`: schedules are made to count passes in pairs, which is for a small part of a
        space."""
        codes = table.codes.get("schedule", np.zeros(len(table), np.int16)).astype(np.int64)
        alone = table.column("chunks") == 1
        schedules = len(table.values["schedule"])
        overlapped = self._overlapped(table, known=knows_pairs)
        _, pairs = distinct_rows(overlapped.T)
        key = ((size * schedules + codes) * 2 + alone) * (1 + int(pairs.max(initial=0))) + pairs
        first, which = distinct(key)
        seconds, slowed_by = self._least_seconds(
            whole.taken(size[first]),
            some.taken(size[first]),
            codes[first],
            alone[first],
            overlapped[:, first],
        )
        return seconds[which], slowed_by[which]

    def _least_seconds(
        self,
        whole: Wholes,
        table: Strategies,
        schedule: Indices,
        alone: NDArray[np.bool_],
        overlapped: Floats,
    ) -> tuple[Floats, Codes]:
        """Seconds of iterations, and the numbers of the reasons, of models with the schedules of
        these numbers among those of the table; `alone` says which have one chunk, `overlapped` the
        fractions of passes in pairs."""
        ranks, count = table.column("pp"), table.column("microbatches")
        passes: list[Floats] = list(whole.passes)
        forward, backward, first_part, second_part = passes
        if self._workload.training:
            families = [find_schedule(name) for name in table.values["schedule"]]
            splits = np.array([each.splits_backward for each in families])[schedule]
            plain = np.array([_is_plain(each) for each in families])[schedule] & alone
            both = np.minimum(backward, first_part + second_part)
            work = forward + np.where(splits, both, backward)
            work = np.where(overlapped.any(axis=0), self._in_pairs(whole, overlapped, splits), work)
            # Nothing waits for the second part of a backward pass.
            once = forward + np.where(splits, np.minimum(backward, first_part), backward)
            once = once + self._passing_seconds(whole, table)
            waiting = np.where(plain, work / (1 - (1 - 1 / count) ** ranks), 0.0)
            waiting = np.maximum(waiting, once)
            copies = np.array([each.copies for each in families])[schedule]
        else:
            work = forward
            waiting = work + (count - 1) * work / ranks + self._passing_seconds(whole, table)
            copies = np.ones(len(table), np.int64)
        layers, quickest, other = whole.undivided
        load = least_load(layers, quickest, other, -(-ranks // copies))
        reasons = {
            BLOCKS: (count * work + whole.optimizer + whole.refresh) / ranks,
            UNDIVIDED: count * load / copies,
            PIPELINE: waiting,
        }
        each = np.stack(list(reasons.values()))
        numbers = np.array([REASONS.index(reason) for reason in reasons], np.int16)
        seconds = (self._overhead + each.max(axis=0)) * (1 - SLACK)
        return seconds, numbers[each.argmax(axis=0)]

    def _passing_seconds(self, whole: Wholes, table: Strategies) -> Floats:
        """Seconds in which a microbatch moves between ranks at least."""
        grids = RankGrids(self._pricer, kept_whole(table))  # what is sharded moves no rank
        found = grids.passing_seconds(whole.sent_forward)
        if self._workload.training:
            found = found + grids.passing_seconds(whole.sent_backward)
        return found * np.maximum(1, table.column("chunks"))

    @staticmethod
    def _in_pairs(whole: Wholes, overlapped: Floats, splits: NDArray[np.bool_]) -> Floats:
        """Seconds of the passes of a microbatch at least, of which these fractions, of forward and
        of backward passes, are in overlapped pairs; some schedules split backward passes."""
        ahead, back = overlapped
        passes: list[Floats] = list(whole.passes)
        forward, backward, first, second = passes
        backward = np.where(splits, np.minimum(backward, first + second), backward)
        forward_alone, backward_alone = (1 - ahead) * forward, (1 - back) * backward
        found = np.maximum(forward + backward_alone, backward + forward_alone)
        for of_stream in whole.occupied:
            on_stream: list[Floats] = list(of_stream)
            on_forward, on_backward, on_first, on_second = on_stream
            least = np.where(splits, np.minimum(on_backward, on_first + on_second), on_backward)
            on_both = ahead * on_forward + back * least
            found = np.maximum(found, forward_alone + backward_alone + on_both)
        return found

    def _overlapped(self, table: Strategies, *, known: bool) -> Floats:
        """Of the forward and of the backward passes of each strategy the fraction in overlapped
        pairs, of the stage that has most, or 1 if that is not to be `known`; of shape
        (2, strategies)."""
        families = [find_schedule(name) for name in table.values["schedule"]]
        codes = table.codes.get("schedule", np.zeros(len(table), np.int16))
        overlaps = np.array([each.overlaps and self._workload.training for each in families])
        chosen = np.flatnonzero(overlaps[codes])
        found = np.zeros((2, len(table)))
        if not known:
            found[:, chosen] = 1.0
        elif len(chosen):
            some = table.taken(chosen)
            first, which = some.distinct(SCHEDULE)
            schedules = (self._pricer.planner.schedule(some[int(place)]) for place in first)
            found[:, chosen] = np.array([_fractions_in_pairs(each) for each in schedules])[which].T
        return found

    def _in_flight(self, whole: Wholes, table: Strategies, size: Indices, within: float) -> Floats:
        """Bytes of the fullest rank, with the microbatches in flight that schedules say."""
        layers = [
            LayerBytes(count, np.sum(at_rest, axis=0), left_behind, seconds)
            for count, *at_rest, left_behind, seconds, _ in whole.layers
        ]
        blocks = len(self._workload.program.blocks.blocks)
        others = blocks - np.sum([each.count for each in layers], axis=0).astype(np.int64)[size]
        _, schedule = table.distinct(SCHEDULE)
        first, which = distinct(schedule * (1 + blocks) + others)
        holding = [self._holding_of(table[int(place)], int(others[place])) for place in first]
        each = (within - self._overhead) / table.column("microbatches")
        return fullest_rank_bytes(layers, size, holding, which, each)

    def _holding_of(self, strategy: Strategy, others: int) -> RanksHolding:
        """What ranks hold if there are so many blocks beside the layers."""
        key = (*(getattr(strategy, name) for name in SCHEDULE), others)
        if key not in self._holding:
            schedule = self._pricer.planner.schedule(strategy)
            self._holding[key] = RanksHolding.of(schedule, others)
        return self._holding[key]


UNSHARDED: dict[str, Any] = {"zero": 0, "zero_degree": 0, "offload": ""}
KEPT: dict[str, Any] = {"recompute": "none", "recompute_every": 1, "recompute_layers": 0}
"""Choices with which nothing is sharded or on the host, and everything is kept."""


def kept_whole(table: Strategies) -> Strategies:
    """The strategies that have nothing sharded or offloaded, and keep everything."""
    return _fixed(table, **UNSHARDED, **KEPT)


def _with(table: Strategies, **fixed: Any) -> Strategies:
    """The strategies with these choices."""
    values = {**table.values, **{name: (value,) for name, value in fixed.items()}}
    codes = {name: codes for name, codes in table.codes.items() if name not in fixed}
    return Strategies(values, codes, len(table))


def _fixed(table: Strategies, **fixed: Any) -> Strategies:
    """The strategies with these choices, which shard nothing, so that no parameters stay
    gathered."""
    kept = {"parameters": "none", "all": "activations"}
    gathered = [kept.get(each, each) for each in table.values["keep_gathered"]]
    table = _with(table, **fixed)
    values = {**table.values, "keep_gathered": (different := tuple(dict.fromkeys(gathered)))}
    codes = {name: codes for name, codes in table.codes.items() if len(values[name]) > 1}
    if "keep_gathered" in codes:
        renamed = np.array([different.index(each) for each in gathered], np.int16)
        codes["keep_gathered"] = renamed[codes["keep_gathered"]]
    return Strategies(values, codes, len(table))


def _said(count: int, reason: str) -> Codes:
    """A reason, for each of several strategies."""
    return np.full(count, REASONS.index(reason), np.int16)


def _nothing(count: int, reason: str) -> tuple[Floats, Codes]:
    """No bounds of several strategies."""
    return np.zeros(count), _said(count, reason)


def _codes(table: Strategies) -> list[int]:
    """The codes of the schedules that occur."""
    codes = table.codes.get("schedule")
    return [0] if codes is None else np.unique(codes).tolist()


def _is_plain(family: ScheduleFamily) -> bool:
    """Whether, with one chunk, rank r holds stage r alone and backward passes are whole."""
    alone = family.placement == "loop" and family.copies == 1
    return alone and not family.splits_backward and not family.overlaps


def _fractions_in_pairs(compiled: CompiledSchedule) -> tuple[float, float]:
    """Of the forward and of the backward passes of a stage the fraction in overlapped pairs, where
    it is largest."""
    counts = np.zeros((2, compiled.stages))
    for both, count in zip(compiled.pairs, compiled.pair_counts.sum(axis=0), strict=True):
        counts[[0, 1], both] += count
    ahead, back = counts.max(axis=1) / compiled.source.microbatches
    return float(ahead), float(back)


def _side_by_side(works: Sequence[Work], sizes: int) -> Work:
    """Works of one kind and type, at several sizes, as arrays of shape (works, sizes)."""
    flops, read, written, launches = (
        np.stack([np.broadcast_to(np.asarray(each, np.float64), sizes) for each in amounts])
        for amounts in zip(
            *((w.flops, w.bytes_read, w.bytes_written, w.launches) for w in works), strict=True
        )
    )
    return Work(works[0].kind, flops, read, written, works[0].dtype, launches)


def _of_sizes(work: Work, sizes: Indices, share: Floats) -> Work:
    """A share of works (`_side_by_side`) at the size of each of these numbers."""
    flops, read, written, launches = (
        np.asarray(each)[:, sizes] * share
        for each in (work.flops, work.bytes_read, work.bytes_written, work.launches)
    )
    return Work(work.kind, flops, read, written, work.dtype, launches)
