"""What stages take and hold, for many plans at once: a row per point and run of blocks.

Rows of stages that have the same kinds of blocks in the same order differ in how often the longest
run of equal ones repeats. Few lengths of it are evaluated; what lies between follows (`_between`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distir.cost import CostModel
from distir.cost.amounts import Divergence, Many, many
from distir.cost.collectives import CollectiveKind, Copies
from distir.plan import BlockProgram, Plan, Stage
from distir.plan.grid import Grid
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, WEIGHT_PART
from distir.simulation.block_cost import PassCost, drain
from distir.simulation.fast import Settling, StageCost
from distir.simulation.instructions import Pricing
from distir.simulation.memory import MemoryEffect
from distir.simulation.partition import balance_ranks_of_many, balanced_cuts_of_many
from distir.simulation.report import padding_fraction
from distir.simulation.state import StateBytes
from distir.simulation.tied import (
    NOWHERE,
    Elsewhere,
    TiedGradients,
    elsewhere,
    tied_bytes,
    tied_seconds,
)
from distir.strategy import Strategy

if TYPE_CHECKING:
    from distir.schedules import CompiledSchedule
    from distir.simulation.fast import Simulator

Column = NDArray[np.float64]
Places = NDArray[np.int64]
Ranks = tuple[tuple[int, ...], ...]

FIRST = 5
"""Length of a run of equal blocks from which on one more block adds what the next one does: one at
either end is different, and a rhythm shows after two more."""

USES = 1 << 16
"""More than there are ways in which stages of alike points are charged elsewhere."""

TOLERANCE = 1e-11
"""Relative difference up to which a stage's numbers are taken to lie on a line."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a strategy and its schedule ask of a point: stages on ranks."""

    strategy: Strategy
    schedule: CompiledSchedule


@dataclass(frozen=True, slots=True)
class Wanted:
    """A point and its layouts, by their number. `splits`: whether the backward pass comes in two
    parts."""

    strategy: Strategy
    splits: bool
    samples: int
    degrees: tuple[int, ...]
    grid: Grid
    layouts: Mapping[int, Layout]


# --- prices at many points ------------------------------------------------------------------------


class ManyPricing(Pricing):
    """Seconds at many points, whose meshes differ in their degrees."""

    __slots__ = ("groups",)

    def __init__(self, cost: CostModel, grid: Grid) -> None:
        super().__init__(cost, grid)
        object.__setattr__(self, "groups", {})

    def collective(
        self,
        kind: CollectiveKind,
        mesh_axes: tuple[str, ...],
        size_bytes: float,
        times: float = 1,
        copies: Copies | None = None,
    ) -> float:
        """Group by group."""
        groups = self._groups(mesh_axes)
        sizes = np.broadcast_to(np.asarray(size_bytes), sum(len(points) for _, points in groups))
        found = np.empty(len(sizes))
        for group, points in groups:
            found[points] = self.cost.collective_seconds(kind, sizes[points], group, copies=copies)
        return times * found.view(Many)  # type: ignore[return-value]

    def _groups(self, mesh_axes: tuple[str, ...]) -> list[tuple[Any, Places]]:
        known: dict[tuple[str, ...], list[tuple[Any, Places]]] = self.groups  # type: ignore[attr-defined]
        if mesh_axes not in known:
            spaced = [each for each in self.grid.mesh if each.name in mesh_axes]
            both = [number for each in spaced for number in (each.degree, each.stride)]
            keys = np.stack(np.broadcast_arrays(*both), axis=-1).reshape(-1, len(both))
            distinct, which = np.unique(keys, axis=0, return_inverse=True)
            known[mesh_axes] = [
                (
                    self.cost.cluster.product_group(
                        tuple((int(a), int(b)) for a, b in key.reshape(-1, 2))
                    ),
                    np.flatnonzero(which == number),
                )
                for number, key in enumerate(distinct)
            ]
        return known[mesh_axes]


# --- a stage as numbers ---------------------------------------------------------------------------

_KINDS = range(COST_KINDS)

AFFINE = (
    *(f"seconds {kind}" for kind in _KINDS),
    *(f"exposed {kind}" for kind in _KINDS),
    *(f"delta {kind}" for kind in _KINDS),
    "optimizer",
    "refresh",
    "state",
    "settling",
)
"""Numbers of a stage that grow by as much with every further equal block, by kind of action."""

PEAKS: dict[str, tuple[str, str | None]] = {
    **{f"peak {kind}": (f"delta {kind}", None) for kind in _KINDS},
    f"settled {BACKWARD}": ("settling", f"seconds {BACKWARD}"),
    f"settled {WEIGHT_PART}": ("settling", f"seconds {WEIGHT_PART}"),
}
"""Numbers that are the larger of two such, with the numbers that these grow as (None: not at all).
"settled" is when the gradients of all blocks would be settled if nothing kept their stream busy."""

NAMES = (*AFFINE, *PEAKS)
PLACE = {name: place for place, name in enumerate(NAMES)}


def _numbers(cost: StageCost, points: int) -> NDArray[np.float64]:
    """A stage at many points, as an array of shape (names, points)."""
    found = np.zeros((len(NAMES), points))

    def put(name: str, value: Any) -> None:
        found[PLACE[name]] = value

    for kind, (each, memory) in enumerate(zip(cost.passes, cost.memory, strict=True)):
        put(f"seconds {kind}", each.seconds)
        put(f"exposed {kind}", sum(waited for _, waited in each.exposed))
        put(f"delta {kind}", memory.delta)
        put(f"peak {kind}", memory.peak)
    for kind, each in cost.settling.items():
        ends = zip(each.block_ends, each.seconds, strict=True)
        put("settling", sum(count * seconds for (_, _, count), seconds in ends))
        put(f"settled {kind}", drain(each.block_ends, each.seconds))
    put("optimizer", cost.optimizer)
    put("refresh", cost.refresh)
    put("state", cost.state.total)
    return found


def _stage_cost(values: NDArray[np.float64], splits: bool) -> StageCost:
    """The inverse of `_numbers`, but for what metrics do not tell apart: streams, buffers, and
    which block is settled when."""
    number: dict[str, Any] = {name: values[place].view(Many) for name, place in PLACE.items()}
    kinds = _KINDS if splits else (FORWARD, BACKWARD)
    return StageCost(
        passes=tuple(
            PassCost(number[f"seconds {kind}"], 0.0, (("any", number[f"exposed {kind}"]),))
            for kind in kinds
        ),
        memory=tuple(
            MemoryEffect(number[f"delta {kind}"], number[f"peak {kind}"]) for kind in kinds
        ),
        settling={
            kind: Settling(
                ((number[f"settled {kind}"] - number["settling"], 0.0, 1),),
                (number["settling"],),
                None,
            )
            for kind in (BACKWARD, WEIGHT_PART)
        },
        optimizer=number["optimizer"],
        refresh=number["refresh"],
        state=StateBytes(number["state"]),
        sent_forward_bytes=0,
        sent_backward_bytes=0,
    )


# --- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    """What layouts must have in common to go through a schedule together."""

    grid: Grid
    tied: tuple[tuple[int, ...], ...]
    """The ranks of each group that adds up gradients."""


class StageRows:
    """The rows of all points, and which of them the layouts have for their stages."""

    def __init__(self, simulator: Simulator, layouts: int) -> None:
        self.cost = simulator.cost
        self.levels = len(simulator.cluster.levels)
        self._parts: list[NDArray[np.float64]] = []
        self._count = 0
        self._values: NDArray[np.float64] = np.empty((0, 0))
        self._rows: list[Places] = [np.empty(0, np.int64)] * layouts
        self._tied: list[tuple[float, ...]] = [()] * layouts
        self.padding = np.zeros(layouts)
        self._kinds: dict[object, tuple[int, _Kind]] = {}
        self._kind_of = np.zeros(layouts, np.int64)

    def add(self, values: NDArray[np.float64]) -> int:
        """Adds rows, the columns of `values`; returns the number of the first."""
        self._parts.append(values)
        self._count += values.shape[1]
        return self._count - values.shape[1]

    def describe(
        self, layout: int, rows: Places, grid: Grid, tied: Mapping[tuple[int, ...], float]
    ) -> None:
        """Says which rows the stages of a layout are, where its ranks lie, and which of them add
        up gradients, for how long."""
        key = (grid.ranks, grid.devices, tuple(tied))
        number, _ = self._kinds.setdefault(key, (len(self._kinds), _Kind(grid, tuple(tied))))
        self._kind_of[layout] = number
        self._rows[layout] = rows
        self._tied[layout] = tuple(tied.values())

    def finish(self) -> None:
        """All rows are there."""
        self._values = np.concatenate(self._parts, axis=1) if self._parts else self._values
        self._parts = []

    def alike(self, layouts: Places) -> Iterator[tuple[Places, LayoutGroup]]:
        """Layouts that can go through a schedule together, with their places among `layouts`."""
        numbers = self._kind_of[layouts]
        for number, kind in self._kinds.values():
            places = np.flatnonzero(numbers == number)
            if len(places):
                yield places, self._group(layouts[places], kind)

    def _group(self, layouts: Places, kind: _Kind) -> LayoutGroup:
        rows = np.array([self._rows[layout] for layout in layouts]).T
        seconds = np.array([self._tied[layout] for layout in layouts]).T
        return LayoutGroup(Pricing(self.cost, kind.grid), self._values, rows, kind.tied, seconds)


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """Layouts that can go through a schedule together. `rows` are of shape (stages, layouts)."""

    pricing: Pricing
    values: NDArray[np.float64]
    rows: Places
    tied_ranks: tuple[tuple[int, ...], ...]
    tied_seconds: NDArray[np.float64]

    def stages(self, splits: bool) -> list[StageCost]:
        """What the stages take and hold, in all layouts."""
        return [_stage_cost(self.values[: len(NAMES), rows], splits) for rows in self.rows]

    def hop(self, stage: int, step: int, here: int, there: int) -> float:
        """Seconds of the message from a stage to the next (1) or the previous one (-1)."""
        level = self.pricing.level(here, there)
        place = len(NAMES) + 2 * level + (step < 0)
        return self.values[place, self.rows[stage]].view(Many)  # type: ignore[return-value]

    def tied(self) -> list[TiedGradients]:
        """The gradients that ranks add up between them."""
        return [
            TiedGradients(ranks, 0, seconds.view(Many))  # type: ignore[arg-type]
            for ranks, seconds in zip(self.tied_ranks, self.tied_seconds, strict=True)
        ]


# --- points ---------------------------------------------------------------------------------------


def add_points(simulator: Simulator, points: Sequence[Wanted], rows: StageRows) -> None:
    """Evaluates points whose programs differ in sizes alone; where they turn out to differ
    otherwise, part by part."""
    try:
        found = _Points(simulator, points, rows.levels).evaluate()
    except Divergence as divergence:
        for where in (divergence.where, ~divergence.where):
            part = [point for point, chosen in zip(points, where, strict=True) if chosen]
            add_points(simulator, part, rows)
        return
    values, padding, layouts = found
    first = rows.add(values)
    for number, own, place, tied in layouts:
        rows.describe(number, first + own, points[place].grid, tied)
        rows.padding[number] = padding[place]


class _Points:
    """Points that share one program."""

    def __init__(self, simulator: Simulator, points: Sequence[Wanted], levels: int) -> None:
        self.simulator = simulator.fresh()
        self.workload = simulator.workload
        self.points = points
        self.levels = levels
        self.splits = points[0].splits
        strategy = points[0].strategy
        degrees = tuple(
            many([point.degrees[axis] for point in points])
            for axis in range(len(points[0].degrees))
        )
        samples = many([point.samples for point in points])
        planner = simulator.planner
        self.programs = planner.programs_at(strategy, samples, degrees)  # type: ignore[arg-type]
        mesh, _ = planner.mesh(strategy)
        ranks = many([point.strategy.pp for point in points])
        grid = Grid.of(mesh, degrees, ranks, strategy.placement)  # type: ignore[arg-type]
        self.pricing = ManyPricing(simulator.cost, grid)
        kinds: dict[BlockProgram, int] = {}
        self.kinds = [kinds.setdefault(program, len(kinds)) for program in self.programs]
        self._templates: dict[object, NDArray[np.float64]] = {}
        self._uses: dict[tuple[Elsewhere, ...], int] = {}

    def evaluate(
        self,
    ) -> tuple[
        NDArray[np.float64],
        NDArray[np.float64],
        list[tuple[int, Places, int, dict[tuple[int, ...], float]]],
    ]:
        """Rows; per point the fraction of padding; per layout its number, its rows, its point and
        what its ranks add up."""
        width = len(self.programs) + 1
        numbers, places, bounds = self._bounds()
        known: dict[object, tuple[Places, dict[tuple[int, ...], Any]]] = {}
        codes: list[Places] = []
        tied: list[dict[tuple[int, ...], float]] = []
        for number, place, own in zip(numbers, places, bounds, strict=True):
            point = self.points[place]
            layout = point.layouts[number]
            key = (layout.schedule.stages_of_ranks, own.tobytes())
            if key not in known:
                known[key] = self._shared(layout, own)
            uses, sizes = known[key]
            codes.append(((place * width + own[:-1]) * width + own[1:]) * USES + uses)
            tied.append(
                {
                    ranks: float(
                        tied_seconds(
                            point.grid,
                            self.simulator.cost,
                            ranks,
                            float(np.broadcast_to(size, len(self.points))[place]),
                        )
                    )
                    for ranks, size in sizes.items()
                }
            )
        distinct, inverse = np.unique(np.concatenate(codes), return_inverse=True)
        values = self._rows(distinct)
        ends = np.cumsum([len(own) for own in codes])
        rows = np.split(inverse, ends[:-1])
        return (
            values,
            self._padding(),
            [
                (number, own, place, shared)
                for number, place, own, shared in zip(numbers, places, rows, tied, strict=True)
            ],
        )

    def _padding(self) -> NDArray[np.float64]:
        """Per point the fraction of products on padding, made once for equal sizes."""
        sizes = self.programs[0].sizes
        found = np.zeros(len(self.points))
        if sizes.padded:
            padded = np.stack([np.broadcast_to(n, len(found)) for n in sizes.padded.values()])
            distinct, which = np.unique(padded, axis=1, return_inverse=True)
            for number, column in enumerate(distinct.T):
                longer = dict(zip(sizes.padded, map(int, column), strict=True))
                found[which == number] = padding_fraction(self.workload, longer)
        return found

    def _shared(self, layout: Layout, bounds: Places) -> tuple[Places, dict[tuple[int, ...], Any]]:
        """What stages are charged for elsewhere, numbered, and what ranks add up between them."""
        own = layout.schedule.stages_of_ranks
        count = len(bounds) - 1
        copied = sum(map(len, own)) > count
        if not (self.workload.program.sharing_blocks or copied):
            return np.zeros(count, np.int64), {}
        stages = tuple(
            Stage(index, tuple(range(a, b)), self.programs[a:b])
            for index, (a, b) in enumerate(pairwise(bounds.tolist()))
        )
        mesh = self.programs[0].placed.mesh
        plan = Plan(
            self.workload, layout.strategy, mesh, self.programs[0].sizes, stages, layout.schedule
        )
        uses = np.zeros(count, np.int64)
        for stage in range(count):
            found = elsewhere(plan, stage)
            if any(each != NOWHERE for each in found):
                uses[stage] = self._uses.setdefault(found, len(self._uses) + 1)
        return uses, dict(tied_bytes(plan)) if self.workload.training else {}

    # --- where stages begin ---------------------------------------------------------------------

    def _bounds(self) -> tuple[list[int], list[int], list[Places]]:
        """Per layout its number, its point, and the bounds of its stages."""
        alike: dict[tuple[int, int, Ranks], list[tuple[int, int]]] = {}
        for place, point in enumerate(self.points):
            for number, layout in point.layouts.items():
                own = layout.schedule.stages_of_ranks
                key = (layout.strategy.stages, layout.strategy.chunks, own)
                alike.setdefault(key, []).append((number, place))
        weights = self._weights()
        numbers: list[int] = []
        places: list[int] = []
        bounds: list[Places] = []
        for (stages, chunks, own), members in alike.items():
            chosen = [place for _, place in members]
            cuts = balanced_cuts_of_many(weights[chosen], stages)
            if chunks > 1 and stages > 1:
                rank_of = {stage: rank for rank, held in enumerate(own) for stage in held}
                order = [rank_of[stage] for stage in range(stages)]
                cuts = balance_ranks_of_many(weights[chosen], cuts, order)
            ends = np.full((len(members), 1), len(self.programs))
            numbers += [number for number, _ in members]
            places += chosen
            bounds += list(np.concatenate([0 * ends, cuts, ends], axis=1))
        return numbers, places, bounds

    def _weights(self) -> NDArray[np.float64]:
        """Seconds of blocks, of shape (points, blocks)."""
        of_program = {
            program: np.broadcast_to(
                np.asarray(self.simulator.weight(program, self.pricing)), len(self.points)
            )
            for program in dict.fromkeys(self.programs)
        }
        return np.stack([of_program[program] for program in self.programs], axis=1)

    # --- stages ---------------------------------------------------------------------------------

    def _rows(self, codes: Places) -> NDArray[np.float64]:
        """The columns of stages. A code counts, digit by digit, points, first blocks, last blocks
        and what is charged for elsewhere; codes ascend."""
        width = len(self.programs) + 1
        rest, uses = np.divmod(codes, USES)
        rest, end = np.divmod(rest, width)
        point, begin = np.divmod(rest, width)
        found = np.empty((len(NAMES) + 2 * self.levels, len(codes)))
        spans, which = np.unique((begin * width + end) * USES + uses, return_inverse=True)
        alike: dict[object, tuple[_Template, list[tuple[int, int]]]] = {}
        for number, span in enumerate(spans):
            of_blocks, charged = divmod(int(span), USES)
            template, length = self._template(*divmod(of_blocks, width), charged)
            alike.setdefault(template.key, (template, []))[1].append((number, length))
        order = np.argsort(which, kind="stable")
        starts = np.searchsorted(which[order], np.arange(len(spans) + 1))
        for template, members in alike.values():
            rows = np.concatenate([order[starts[n] : starts[n + 1]] for n, _ in members])
            lengths = np.concatenate(
                [np.full(starts[n + 1] - starts[n], length) for n, length in members]
            )
            found[: len(NAMES), rows] = self._stages(template, lengths, point[rows])
        hops = self._hops()
        kinds = np.array(self.kinds)
        found[len(NAMES) :: 2] = hops[0][:, kinds[end - 1], point]
        found[len(NAMES) + 1 :: 2] = hops[1][:, kinds[begin], point]
        return found

    def _template(self, begin: int, end: int, charged: int) -> tuple[_Template, int]:
        """The stage of these blocks without its longest run of equal ones, and its length."""
        uses = [NOWHERE] * (end - begin)
        if charged:
            uses = next(found for found, number in self._uses.items() if number == charged)
        alike = zip(self.kinds[begin:end], uses, strict=True)
        runs = [(*each, len(list(group))) for each, group in groupby(alike)]
        longest = max(range(len(runs)), key=lambda place: runs[place][2])
        length = runs[longest][2]
        runs[longest] = (*runs[longest][:2], 0)
        return _Template(tuple(runs), longest), length

    def _stages(self, template: _Template, lengths: Places, points: Places) -> NDArray[np.float64]:
        """Numbers of stages whose longest run has these lengths, at these points."""
        found = np.empty((len(NAMES), len(lengths)))
        long = lengths > FIRST
        if len(set(lengths[long].tolist())) > 2:  # otherwise it takes no longer to evaluate all
            most = int(lengths.max())
            low, next_, high = (self._at(template, n) for n in (FIRST, FIRST + 1, most))
            between, exact = _between(low, next_, high, most)
            chosen = np.flatnonzero(long & exact[points])
            found[:, chosen] = between(lengths[chosen], points[chosen])
            rest = np.flatnonzero(~(long & exact[points]))
        else:
            rest = np.arange(len(lengths))
        for length in np.unique(lengths[rest]):
            own = rest[lengths[rest] == length]
            found[:, own] = self._at(template, int(length))[:, points[own]]
        return found

    def _at(self, template: _Template, length: int) -> NDArray[np.float64]:
        """Numbers of a stage at all points, of shape (names, points)."""
        key = (template.key, length)
        if key not in self._templates:
            of_kind = dict(zip(self.kinds, self.programs, strict=True))
            programs: list[BlockProgram] = []
            uses: list[Elsewhere] = []
            for kind, own, count in template.runs:
                programs += [of_kind[kind]] * (count or length)
                uses += [own] * (count or length)
            cost = self.simulator.make_stage_cost(programs, uses, self.pricing, self.splits)
            self._templates[key] = _numbers(cost, len(self.points))
        return self._templates[key]

    def _hops(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds of messages forward and backward, of shape (levels, kinds of block, points)."""
        programs = list(dict.fromkeys(self.programs))
        shape = (self.levels, len(programs), len(self.points))
        forward, backward = np.empty(shape), np.empty(shape)
        for number, program in enumerate(programs):
            sent = sum(value.type.size_bytes for value in program.outputs)
            returned = sum(value.type.size_bytes for value in program.input_gradients)
            ahead, back = program.outputs_repeated_along, program.input_gradients_repeated_along
            for level in range(self.levels):
                forward[level, number] = self.pricing.message_at(level, sent, ahead)
                backward[level, number] = self.pricing.message_at(level, returned, back)
        return forward, backward


@dataclass(frozen=True, slots=True)
class _Template:
    """Runs of equal blocks `(kind, what is charged for elsewhere, count)`; the count of the
    longest is left open."""

    runs: tuple[tuple[int, Elsewhere, int], ...]
    longest: int

    @property
    def key(self) -> object:
        """What makes it the same."""
        return self.runs


def _between(
    low: NDArray[np.float64], following: NDArray[np.float64], high: NDArray[np.float64], most: int
) -> tuple[Any, NDArray[np.bool_]]:
    """The numbers of stages between the lengths FIRST and `most`, and at which points they lie on
    a line: there the number at FIRST + 1 does too."""
    slope = (high - low) / (most - FIRST)
    affine = slice(0, len(AFFINE))
    missed = np.abs(low[affine] + slope[affine] - following[affine])
    exact = np.all(missed <= TOLERANCE * np.abs(high[affine]), axis=0)
    growth = {
        name: [slope[PLACE[each]] if each else np.zeros(low.shape[1]) for each in names]
        for name, names in PEAKS.items()
    }

    def at(lengths: Places, points: Places) -> NDArray[np.float64]:
        found = low[:, points] + (lengths - FIRST) * slope[:, points]
        for name, both in growth.items():
            # The one that grows less is the larger at the low end, if it ever is.
            less, more = np.minimum(*both)[points], np.maximum(*both)[points]
            place = PLACE[name]
            found[place] = np.maximum(
                low[place, points] + (lengths - FIRST) * less,
                high[place, points] - (most - lengths) * more,
            )
        return found

    return at, np.asarray(exact)
