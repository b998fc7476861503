"""Simulates many strategies at once. Nothing here is done strategy by strategy.

Strategies whose programs differ only in sizes have one *program kind* and share one program, in
which every size is `Many`: an array with one number per program size. The functions of the fast
engine run on these arrays, and make each decision for all sizes together. Four things are shared:

1. strategies that differ only in their schedule have one *program size*, and share the costs of
   blocks (`program_sizes.py`);
2. equal stages, whatever their position, are priced once (`shared_stages.py`);
3. program kinds that differ only in what is recomputed or kept share the programs of equal blocks
   and their prices (`priced_programs.py`);
4. strategies whose schedules are equal, or differ only in how often patterns repeat, run through
   them together (`pipeline/many.py`), and what ranks make of it is found for all schedules with
   the same stages on the same ranks (`ranks/many.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from distir.arrays import Indices, distinct
from distir.errors import StrategyError
from distir.metrics import (
    METRICS,
    Iteration,
    beyond_reason,
    measured,
    peak_memory_bytes,
    reason_beyond,
)
from distir.plan.planner import ProgramKind
from distir.simulation.cutting.refine import KnownCuts, Order, order_of
from distir.simulation.cutting.together import NO_ORDER, Arrangements
from distir.simulation.many.adding import StageAdder
from distir.simulation.many.program_sizes import (
    ProgramSizes,
    SizesOfKind,
    kinds_of,
    several_together,
)
from distir.simulation.many.stage_rows import NO_PAIRS, Shape, StageRows
from distir.simulation.pricing.stage_table import StageTable
from distir.simulation.pricing.stages import StagePricer
from distir.simulation.ranks.many import (
    LinkLevels,
    host_bytes,
    iterations,
    schedules_together,
)
from distir.simulation.result import SimulationResult
from distir.simulation.table import SimulationTable
from distir.strategies import Strategies
from distir.strategy import AUTO, Strategy

if TYPE_CHECKING:
    from distir.schedules import CompiledSchedule, PeakInFlight
    from distir.schedules.compiled.costs import Pairs

SCHEDULE = ("schedule", "chunks", "pp", "microbatches")
"""The choices of a strategy on which its compiled schedule depends."""

NUMBERS_AT_ONCE = 1 << 19
"""Stages times strategies that run through a schedule together, to bound memory."""


def simulate_many(
    pricer: StagePricer,
    known_cuts: KnownCuts,
    table: Strategies,
    explain: Callable[[Strategies], Mapping[int, str]],
    simulate: Callable[[Strategy], SimulationResult],
) -> SimulationTable:
    """The metrics of strategies as columns; they equal those of `simulate`, which simulates one
    strategy, up to rounding. `explain` gives the reasons why strategies are invalid, by their
    positions."""
    metrics = {name: np.full(len(table), np.nan) for name in METRICS.names()}
    invalid = dict(explain(table))
    on_host = np.zeros(len(table))
    valid = np.ones(len(table), np.bool_)
    valid[list(invalid)] = False
    for place in np.flatnonzero(valid & (table.column("recompute") == AUTO)).tolist():
        # What such a plan recomputes is found plan by plan.
        valid[place] = False
        try:
            alone = simulate(table[place])
        except StrategyError as error:
            invalid[place] = str(error)
            continue
        on_host[place] = max(stage.host_bytes for stage in alone.stages)
        for name, value in alone.metrics.items():
            metrics[name][place] = value
    if valid.any():
        some = table if valid.all() else table.taken(np.flatnonzero(valid))
        every = np.flatnonzero(valid)
        for own, which in _pricers(pricer, some):
            batch = _Batch(own, known_cuts, some if len(which) == len(some) else some.taken(which))
            found, places = batch.evaluate(), every[which]
            on_host[places] = found.host_bytes
            wrong = np.flatnonzero(beyond_reason(found))
            with np.errstate(all="ignore") if len(wrong) else nullcontext():
                for name, values in measured(found).items():
                    metrics[name][places] = values
                    metrics[name][places[wrong]] = np.nan
            for at in wrong:
                invalid[int(places[at])] = reason_beyond(found, int(at))
    with np.errstate(invalid="ignore"):
        feasible = pricer.cost.fits(metrics[peak_memory_bytes.name], table.communicators)
    feasible &= pricer.cost.fits_host(on_host)
    return SimulationTable(table, metrics, feasible, invalid, simulate)


def _pricers(pricer: StagePricer, table: Strategies) -> list[tuple[StagePricer, Indices]]:
    """Pricers, each with the positions of the strategies that it prices."""
    every = np.arange(len(table))
    if pricer.without_fixed_overlap is pricer:
        return [(pricer, every)]
    first, schedule = table.distinct(SCHEDULE)
    pairs = [bool(pricer.planner.schedule(table[int(place)]).pairs) for place in first]
    overlaps = np.array(pairs)[schedule]
    both = (pricer, every[~overlaps]), (pricer.without_fixed_overlap, every[overlaps])
    return [(own, which) for own, which in both if len(which)]


class _Batch:
    """Strategies, sorted by what they share. What they share is numbered: `schedule[i]` is the
    number of the schedule of strategy `i`, and so on."""

    def __init__(self, pricer: StagePricer, known_cuts: KnownCuts, table: Strategies) -> None:
        self.pricer, self.known_cuts, self.table = pricer, known_cuts, table
        planner = pricer.planner
        first, self.schedule = table.distinct(SCHEDULE)
        scheduled = [table[int(place)] for place in first]
        self.schedules = [planner.schedule(each) for each in scheduled]
        shapes: dict[Shape, int] = {}
        chunks = table.column("chunks")[first]
        of_schedule = [
            shapes.setdefault((compiled.stages_of_ranks, int(count)), len(shapes))
            for compiled, count in zip(self.schedules, chunks, strict=True)
        ]
        flights: dict[PeakInFlight, int] = {}
        of_flight = [
            flights.setdefault(compiled.peak_in_flight, len(flights)) for compiled in self.schedules
        ]
        orders: dict[Order | None, int] = {None: NO_ORDER}
        of_order = [orders.setdefault(order_of(planner, own), len(orders)) for own in scheduled]
        pairs: dict[Pairs, int] = {(): NO_PAIRS}
        of_pairs = [pairs.setdefault(each.pairs, len(pairs)) for each in self.schedules]
        self.pairs = list(pairs)
        shape, flight, order, overlapped = (
            np.array(each)[self.schedule] for each in (of_schedule, of_flight, of_order, of_pairs)
        )
        splits = np.array([each.splits_backward for each in self.schedules])[self.schedule]

        self.kinds, kind, degrees, of_degrees = kinds_of(planner, table)
        _, rest = table.distinct(("pp", "microbatches"))
        first, size = distinct(_paired(_paired(kind, of_degrees), rest))
        self.sizes = ProgramSizes(
            degrees=degrees[of_degrees[first]],
            samples=pricer.workload.batch_size // table.column("microbatches")[first],
            ranks=table.column("pp")[first],
            communicators=table.communicators[first],
            splits=np.bincount(size, weights=splits) > 0,
        )
        self.kind_of_size = kind[first]  # ascends, as sizes are numbered kind by kind
        first, self.arrangement = distinct(
            _paired(_paired(_paired(_paired(size, shape), flight), order), overlapped)
        )
        self.arrangements = Arrangements(
            list(shapes),
            list(flights),
            list(orders),
            *(each[first] for each in (size, shape, flight, order)),
        )
        self.pairs_of_arrangement = overlapped[first]

    # --- evaluation -------------------------------------------------------------------------------

    def evaluate(self) -> Iteration:
        """The iterations of all strategies."""
        rows = self._add_stages()
        workload, cost = self.pricer.workload, self.pricer.cost
        levels, table = LinkLevels(cost, rows.rankings), StageTable(rows.pool)
        count = len(self.table)
        iteration, peak = np.empty(count), np.empty(count)
        bubble, communication = np.empty(count), np.empty(count)
        on_host = np.zeros(count)
        offloads = any(self.table.values["offload"])
        order = np.argsort(self.schedule, kind="stable")
        ends = np.cumsum(np.bincount(self.schedule, minlength=len(self.schedules)))
        begins = ends - np.bincount(self.schedule, minlength=len(self.schedules))
        for together in schedules_together(self.schedules):
            schedules = [self.schedules[number] for number in together]
            chosen = np.concatenate([order[begins[number] : ends[number]] for number in together])
            place = np.repeat(np.arange(len(together)), (ends - begins)[together])
            for part in self._parts(schedules[0], chosen, rows):
                some = chosen[part]
                group = rows.group(self.arrangement[some])
                found = iterations(self.pricer, schedules, place[part], table, levels, group)
                iteration[some], peak[some], bubble[some], communication[some] = found
                if offloads:
                    on_host[some] = host_bytes(schedules, place[part], table, group)
        devices = np.prod([self.table.column(name) for name in ("dp", "tp", "cp", "pp")], axis=0)
        return Iteration(
            workload=workload,
            cost=cost,
            devices=devices,
            seconds=iteration + cost.stack.overhead_seconds(workload.training),
            bubble_seconds=bubble,
            communication_seconds=communication,
            peak_memory_bytes=peak,
            padding_fraction=rows.padding[self.arrangements.size[self.arrangement]],
            communicators=self.table.communicators,
            host_bytes=on_host,
        )

    def _parts(
        self, compiled: CompiledSchedule, chosen: Indices, rows: StageRows
    ) -> Iterator[Indices]:
        """Parts of the chosen strategies that run together, as ascending positions among them: a
        part has one shape, in it the same ranks add up gradients, and it is small enough for
        memory."""
        most = max(1, NUMBERS_AT_ONCE // compiled.stages)
        own = self.arrangement[chosen]
        kinds = _paired(self.arrangements.shape[own], rows.tied_of_arrangement[own])
        for kind in np.unique(kinds):
            alike = np.flatnonzero(kinds == kind)
            for first in range(0, len(alike), most):
                yield alike[first : first + most]

    def _add_stages(self) -> StageRows:
        """The rows of all stages."""
        rows = StageRows(self.arrangements, self.pairs, self.pairs_of_arrangement)
        adder = StageAdder(rows, self.pricer, self.known_cuts, self.sizes)
        bounds = np.searchsorted(self.kind_of_size, np.arange(len(self.kinds) + 1))
        # Kinds that share programs are added together, and those with one mesh one after the other,
        # as only the last programs and prices are kept.
        alike: dict[object, dict[object, list[tuple[ProgramKind, str, Indices]]]] = {}
        for number, (kind, placement) in enumerate(self.kinds):
            which = np.arange(int(bounds[number]), int(bounds[number + 1]))
            on_mesh = alike.setdefault((kind.mesh, placement), {})
            on_mesh.setdefault(kind.sharing, []).append((kind, placement, which))
        blocks = len({*self.pricer.workload.program.blocks.representative})
        for on_mesh in alike.values():
            every = [SizesOfKind.of(kinds, self.sizes) for kinds in on_mesh.values()]
            for parts in several_together(every, blocks):
                adder.add(parts)
        adder.finish()
        return rows


def _paired(first: Indices, second: Indices) -> Indices:
    """One number per pair of numbers, in the order of the first, then of the second."""
    if not len(second):
        return first
    return first.astype(np.int64) * (int(second.max()) + 1) + second
