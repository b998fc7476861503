"""The report of a comparison of samplers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.questions.compare import Comparison
from autotune.rendering import plain_table
from distir.units import percent

if TYPE_CHECKING:
    from rich.console import RenderableType


def compare_report(comparison: Comparison) -> RenderableType:
    """One row per sampler."""
    from rich.console import Group
    from rich.text import Text

    table = plain_table()
    table.add_column("sampler")
    for head in ("best found", "within 1 %", "mean regret", "worst", "trials to 1 %", "seconds"):
        table.add_column(head, justify="right")
    for each in sorted(
        comparison.standings, key=lambda one: (one.mean_regret is None, one.mean_regret or 0.0)
    ):
        table.add_row(
            each.sampler,
            f"{each.found} of {each.seeds}",
            f"{each.close} of {each.seeds}",
            "-" if each.mean_regret is None else percent(each.mean_regret),
            "-" if each.worst_regret is None else percent(each.worst_regret),
            "-" if each.median_trials_to_close is None else f"{each.median_trials_to_close:g}",
            f"{each.seconds:.2f}",
        )
    problem, grid = comparison.problem, comparison.grid
    best = grid.best.label if grid.best else "nothing"
    summary = (
        f"{problem.of_space(grid.space_size)}, all evaluated in "
        f"{grid.seconds:.2f} s; the best is {best}. Each search tries "
        f"{comparison.trials}; trials to 1 % is the median of those that got there."
    )
    if comparison.interrupted:
        summary += " It was interrupted: what had ended by then is shown."
    return Group(Text(problem.title, style="bold"), Text(summary), table)
