"""Ranked tables of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.objectives.objective import Objective
from autotune.reports.quantities import HEADINGS, heading, percent, shown
from autotune.trial import Trial, regret

if TYPE_CHECKING:
    from rich.table import Table

TOP = 10
"""Plans that a report shows unless asked for more."""


def ranking_table(
    trials: Sequence[Trial], objective: Objective, title: str, top: int = TOP
) -> Table:
    """The `top` best of `trials` (which are ranked), with their choices and metrics."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    best = trials[: max(1, top)]
    choices = list(best[0].strategy.to_dict())
    metrics = _columns(best, objective)
    table.add_column("#", justify="right")
    for choice in choices:
        table.add_column(choice.replace("_", " "), justify="right")
    for metric in metrics:
        style = "bold" if metric == objective.metric else None
        table.add_column(heading(metric), justify="right", style=style)
    table.add_column("loss", justify="right")
    for place, trial in enumerate(best, 1):
        values = [str(value) for value in trial.strategy.to_dict().values()]
        measured = [shown(metric, trial.metric(metric)) for metric in metrics]
        table.add_row(str(place), *values, *measured, _loss(trial, best[0]))
    return table


def _columns(trials: Sequence[Trial], objective: Objective) -> list[str]:
    """Metrics worth a column: the one that counts first, then those that are well known."""
    measured = trials[0].evaluation.metrics
    known = [name for name in HEADINGS if name in measured] or list(measured)[:6]
    return [objective.metric, *(name for name in known if name != objective.metric)]


def _loss(trial: Trial, best: Trial) -> str:
    if trial.cost is None or best.cost is None:
        return "-"
    return percent(regret(trial.cost, best.cost))
