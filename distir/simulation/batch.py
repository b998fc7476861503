"""Many strategies at once: the one place where plans become arrays.

Strategies whose programs differ in sizes alone share one program, in which every size is `Many`:
one number per plan. From there on the fast engine's own functions run, each decision made for all
plans together. Three things are shared further:

1. strategies that differ in their pipeline alone share the costs of blocks (a *point*);
2. a stage is a run of blocks, and stages of equal blocks are evaluated for a few lengths: in
   between, what they take and hold is known (`stage_columns`);
3. strategies with the same schedule go through it together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distir.cost.amounts import many
from distir.plan.grid import Grid
from distir.simulation.fast import rank_seconds, transfer_seconds
from distir.simulation.report import make_metrics
from distir.simulation.result import METRICS
from distir.simulation.stage_columns import Layout, StageRows, Wanted, add_points
from distir.simulation.table import SimulationTable
from distir.strategy import Strategy

if TYPE_CHECKING:
    from distir.schedules import CompiledSchedule
    from distir.simulation.fast import Simulator

PIPELINE = ("schedule", "chunks")
"""Fields of a strategy that do not matter to the programs of its blocks."""

SIZES = ("dp", "tp", "cp", "ep", "pp", "microbatches")
"""Fields that matter only through the degrees of the mesh and the samples of a microbatch."""

_FIELDS = [each.name for each in fields(Strategy)]
_point_of = attrgetter(*(name for name in _FIELDS if name not in PIPELINE))
_kind_of = attrgetter(*(name for name in _FIELDS if name not in (*PIPELINE, *SIZES)))


def simulate_many(simulator: Simulator, strategies: Sequence[Strategy]) -> SimulationTable:
    """The metrics of strategies as columns, equal to simulating them one by one."""
    count = len(strategies)
    metrics = {name: np.full(count, np.nan) for name in METRICS}
    invalid: dict[int, str] = {}
    batch = _Batch(simulator)
    for index, strategy in enumerate(strategies):
        reason = simulator.explain(strategy)
        if reason is None:
            batch.add(index, strategy)
        else:
            invalid[index] = reason
    batch.evaluate(metrics)
    with np.errstate(invalid="ignore"):
        feasible = metrics["peak_memory_bytes"] <= simulator.cluster.device.memory_bytes
    return SimulationTable(strategies, metrics, feasible, invalid, simulator.simulate)


@dataclass(slots=True)
class _Members:
    """Strategies with one schedule: positions in the table, and layouts."""

    splits: bool
    indices: list[int] = field(default_factory=list[int])
    layouts: list[int] = field(default_factory=list[int])


class _Batch:
    """Strategies sorted by what they share."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.planner = simulator.planner
        self.devices: list[int] = []
        """By layout: what a strategy and its schedule ask of a point, stages on ranks."""
        self._layouts: dict[object, int] = {}
        self._points: dict[tuple[object, bool], dict[int, Layout]] = {}
        self._members: dict[CompiledSchedule, _Members] = {}

    def add(self, index: int, strategy: Strategy) -> None:
        """Sorts a strategy in, at its position in the table."""
        compiled = self.planner.schedule(strategy)
        if compiled not in self._members:
            self._members[compiled] = _Members(compiled.splits_backward)
        members = self._members[compiled]
        point, own = (_point_of(strategy), members.splits), compiled.stages_of_ranks
        layout = self._layouts.setdefault((point, own), len(self._layouts))
        if layout == len(self.devices):
            self.devices.append(strategy.devices)
            self._points.setdefault(point, {})[layout] = Layout(strategy, compiled)
        members.indices.append(index)
        members.layouts.append(layout)

    def evaluate(self, metrics: dict[str, NDArray[np.float64]]) -> None:
        """Fills the columns in."""
        rows = self._stage_rows()
        workload, cost = self.simulator.workload, self.simulator.cost
        devices = np.array(self.devices)
        for compiled, members in self._members.items():
            numbers, places = np.array(members.layouts), np.array(members.indices)
            for own, group in rows.alike(numbers):
                stages, tied = group.stages(members.splits), group.tied()
                transfers = transfer_seconds(compiled, group.hop)
                time = self.simulator.schedule(compiled, stages, transfers)
                ranks = rank_seconds(compiled, time, stages, tied, workload.training)
                own_devices: Any = many(devices[numbers[own]])
                padding: Any = many(rows.padding[numbers[own]])
                found = make_metrics(workload, cost, own_devices, ranks, padding)
                for name, values in found.items():
                    metrics[name][places[own]] = values

    def _stage_rows(self) -> StageRows:
        alike: dict[object, list[Wanted]] = {}
        for (_, splits), layouts in self._points.items():
            strategy = next(iter(layouts.values())).strategy
            mesh, degrees = self.planner.mesh(strategy)
            samples = self.planner.workload.batch_size // strategy.microbatches
            grid = Grid.of(mesh, degrees, strategy.pp, strategy.placement)
            wanted = Wanted(strategy, splits, samples, degrees, grid, layouts)
            alike.setdefault((mesh, splits, _kind_of(strategy)), []).append(wanted)
        rows = StageRows(self.simulator, len(self._layouts))
        for points in alike.values():
            add_points(self.simulator, points, rows)
        rows.finish()
        return rows
