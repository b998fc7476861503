"""The report of an exhaustive evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autotune.grid import Grid
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.reports.advice import advice
from autotune.reports.quantities import heading
from autotune.reports.ranking import ranking_table
from autotune.reports.study import setbacks

if TYPE_CHECKING:
    from rich.console import RenderableType

FRONT = 10
"""Rows of the front that are shown."""


def grid_report(problem: Problem, objective: Objective, grid: Grid, top: int) -> RenderableType:
    """The `top` best strategies of the grid, or what to do where nothing fits."""
    from rich.console import Group

    return Group(*_parts(problem, objective, grid, top))


def _parts(
    problem: Problem, objective: Objective, grid: Grid, top: int
) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(problem.title, style="bold")
    yield from (Text(note) for note in problem.notes)
    stopped = "" if grid.complete else ", interrupted"
    yield Text(
        f"{grid.space_size:,} valid strategies in the space {problem.space_name}; evaluated "
        f"{grid.evaluated:,} in {grid.seconds:.2f} s{stopped}; {grid.feasible:,} feasible.\n"
    )
    if grid.ranked:
        title = f"Best {min(top, len(grid.ranked))}"
        yield ranking_table(grid.ranked, objective, title, top)
        yield from _front(grid, objective)
    else:
        yield Text("Nothing fits.", style="bold red")
        yield from (Text(line) for line in advice(problem, objective, grid.closest))
    infeasible = grid.evaluated - grid.feasible - grid.failed
    yield from (Text(line) for line in setbacks(grid.evaluated, infeasible, grid.failures))


def _front(grid: Grid, objective: Objective) -> Iterator[RenderableType]:
    """The trade against memory, where there is one."""
    if len(grid.front) > 1:
        title = f"What nothing beats in both {heading(objective.metric)} and {_other(objective)}"
        yield ranking_table(grid.front, objective, title, FRONT)


def _other(objective: Objective) -> str:
    from autotune.collect import second_metric

    return heading(second_metric(objective.metric))
