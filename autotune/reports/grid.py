"""The report of an exhaustive evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autotune.grid import Grid
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.reports.advice import advice
from autotune.reports.ranking import ranking_table
from autotune.reports.study import setbacks

if TYPE_CHECKING:
    from rich.console import RenderableType


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
        f"{len(grid.trials):,} in {grid.seconds:.2f} s{stopped}; {len(grid.ranked):,} feasible.\n"
    )
    if grid.ranked:
        title = f"Best {min(top, len(grid.ranked))}"
        yield ranking_table(grid.ranked, objective, title, top)
    else:
        yield Text("Nothing fits.", style="bold red")
        yield from (Text(line) for line in advice(problem, objective, grid.trials))
    yield from (Text(line) for line in setbacks(grid.trials))
