"""Ranked tables of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.objectives.objective import Objective
from autotune.reports.quantities import heading, percent, shown
from autotune.trial import Trial, regret

if TYPE_CHECKING:
    from rich.table import Table

TELLING = (
    "throughput_samples_per_second",
    "iteration_seconds",
    "mfu",
    "peak_memory_bytes",
    "bubble_fraction",
    "communication_fraction",
)
"""Metrics that a table of plans shows, besides the one that counts."""
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
    table.add_column("#", justify="right", no_wrap=True)
    for choice in choices:
        table.add_column(choice.replace("_", " "), justify="right", no_wrap=True)
    for metric in metrics:
        style = "bold" if metric == objective.metric else None
        table.add_column(heading(metric), justify="right", style=style, no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    for place, trial in enumerate(best, 1):
        values = [str(value) for value in trial.strategy.to_dict().values()]
        measured = [shown(metric, trial.metric(metric)) for metric in metrics]
        table.add_row(str(place), *values, *measured, _loss(trial, best[0]))
    return table


def _columns(trials: Sequence[Trial], objective: Objective) -> list[str]:
    """Metrics worth a column: the one that counts first, then those that are well known."""
    measured = trials[0].evaluation.metrics
    known = [name for name in TELLING if name in measured] or list(measured)[:6]
    return [objective.metric, *(name for name in known if name != objective.metric)]


def _loss(trial: Trial, best: Trial) -> str:
    if trial.cost is None or best.cost is None:
        return "-"
    return percent(regret(trial.cost, best.cost))
