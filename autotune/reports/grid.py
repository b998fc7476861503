"""The report of an exhaustive evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autotune.exhaustive.grid import Grid
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.reports.advice import without_best
from autotune.reports.quantities import described, heading
from autotune.reports.ranking import ranking_table
from autotune.reports.study import setbacks
from distir.units import percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.exhaustive.certified import Certificate

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
        f"{problem.of_space(grid.space_size)}; evaluated "
        f"{grid.evaluated:,} in {grid.seconds:.2f} s{stopped}; {grid.feasible:,} feasible.\n"
    )
    if grid.ranked:
        title = f"Best {min(top, len(grid.ranked))}"
        yield ranking_table(grid.ranked, objective, title, top)
        yield from _front(grid, objective)
    else:
        yield from _without_best(problem, objective, grid)
    setback = setbacks(grid.evaluated, grid.infeasible, grid.failures)
    yield from map(Text, setback)


def _without_best(
    problem: Problem, objective: Objective, found: Grid | Certificate
) -> Iterator[RenderableType]:
    from rich.text import Text

    answer, said = without_best(problem, objective, found)
    yield Text(answer, style="bold red")
    yield from map(Text, said)


def _front(grid: Grid, objective: Objective) -> Iterator[RenderableType]:
    """The trade against memory, where there is one."""
    if len(grid.front) > 1:
        title = (
            f"Plans that no other beats in both {heading(objective.metric)} and {_other(objective)}"
        )
        yield ranking_table(grid.front, objective, title, FRONT)


def _other(objective: Objective) -> str:
    from autotune.exhaustive.collect import second_metric

    return heading(second_metric(objective.metric))


def certificate_report(
    problem: Problem, objective: Objective, certificate: Certificate
) -> RenderableType:
    """What certified search found, and what it ruled out by what."""
    from rich.console import Group

    return Group(*_certificate_parts(problem, objective, certificate))


def _certificate_parts(
    problem: Problem, objective: Objective, certificate: Certificate
) -> Iterator[RenderableType]:
    from rich.text import Text

    size, evaluated = certificate.space_size, certificate.evaluated
    yield Text(problem.title, style="bold")
    yield from (Text(note) for note in problem.notes)
    yield Text(
        f"{problem.of_space(size)}; evaluated {evaluated:,} "
        f"({percent(evaluated / size)}){certificate.rest}, in {certificate.seconds:.2f} s."
    )
    for reason, count in certificate.ruled_out.items():
        yield Text(f"  {count:,} ruled out ({reason})")
    if not certificate.complete and certificate.ranked:
        gain = certificate.may_gain(certificate.best)
        left = "nothing is proved yet" if gain is None else f"others may save {percent(gain)}"
        left = "only the best is proved" if certificate.proved else left
        yield Text(f"Interrupted: {left}.", style="bold red")
    if certificate.ranked:
        proved = "the best of all" if certificate.proved else "the best so far"
        yield Text(f"\n{described(certificate.ranked[0].strategy)}: {proved}.", style="bold green")
        if certificate.proved:
            yield Text(
                "The proof assumes that the stages of every strategy begin where distir begins "
                "them."
            )
        yield Text("")
        best = certificate.ranked
        yield ranking_table(best, objective, f"Best {len(best)}", len(best))
    else:
        yield Text("")
        yield from _without_best(problem, objective, certificate)
