"""Ranked tables of plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.objectives.costs import regret
from autotune.objectives.objective import Objective
from autotune.rendering import FirstFitting, broken_at, plain_table
from autotune.reports.quantities import ALWAYS_SHOWN, choice_heading, heading, lost, shown
from autotune.study.trial import Trial
from distir.metrics import (
    bubble_fraction,
    communication_fraction,
    iteration_seconds,
    mfu,
    peak_memory_bytes,
    throughput_samples_per_second,
)
from distir.strategy import Strategy
from search_spaces.named import DEFAULTS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

TELLING = (
    throughput_samples_per_second,
    iteration_seconds,
    peak_memory_bytes,
    mfu,
    bubble_fraction,
    communication_fraction,
)
"""Metrics that a table of plans shows, besides the one that counts."""
LABEL_WIDTH = 24
"""Characters of a line of a strategy's name, where there is little room."""
LEAST_METRICS = 3
"""Metrics for which a table gives up its columns of choices."""
TOP = 10
"""Plans that a report shows unless asked for more."""


def ranking_table(
    trials: Sequence[Trial], objective: Objective, title: str, top: int = TOP
) -> RenderableType:
    """The `top` best of `trials` (which are ranked), with their choices and metrics."""
    return Ranking(trials[: max(1, top)], objective, title)


@dataclass(frozen=True, slots=True)
class Ranking:
    """A table that leaves out its last metrics where there is no room for them, and says so."""

    best: Sequence[Trial]
    objective: Objective
    title: str

    def __rich__(self) -> RenderableType:
        metrics = _columns(self.best, self.objective)
        few = min(len(metrics), LEAST_METRICS)
        return FirstFitting(
            [
                *(self._by_choice(metrics, count) for count in range(len(metrics), few - 1, -1)),
                *(self._by_label(metrics, count) for count in range(few, 0, -1)),
            ]
        )

    def _by_choice(self, metrics: Sequence[str], count: int) -> Table:
        """One column per choice."""
        choices = shown_choices([trial.strategy for trial in self.best])
        heads = [_SHORT.get(choice, choice_heading(choice)) for choice in choices]
        rows = [[_said(getattr(trial.strategy, c)) for c in choices] for trial in self.best]
        return self._table(heads, rows, metrics, count)

    def _by_label(self, metrics: Sequence[str], count: int) -> Table:
        """The choices in one word, for narrow terminals."""
        labels = [[broken_at(trial.label, "-", LABEL_WIDTH)] for trial in self.best]
        return self._table(["strategy"], labels, metrics, count)

    def _table(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], known: Sequence[str], count: int
    ) -> Table:
        """The table with the first `count` of the known metrics."""
        metrics, left_out = known[:count], known[count:]
        table = plain_table(self.title)
        if left_out:
            table.caption = f"No room for {', '.join(map(heading, left_out))}; see --json."
            table.caption_justify = "left"
        table.add_column("#", justify="right", no_wrap=True)
        for head in heads:
            table.add_column(head, justify="right", no_wrap=True)
        counted = [aim.metric for aim in self.objective.aims]
        for metric in metrics:
            style = "bold" if metric in counted else None
            table.add_column(heading(metric), justify="right", style=style, no_wrap=True)
        table.add_column("behind", justify="right", no_wrap=True)
        for place, (trial, choices) in enumerate(zip(self.best, rows, strict=True), 1):
            measured = [shown(metric, trial.metric(metric)) for metric in metrics]
            table.add_row(str(place), *choices, *measured, _behind(trial, self.best[0]))
        return table


_SHORT = {"microbatches": "micro-\nbatches", "sequence_parallel": "seq.\npar."}
"""Headings that would be wider than what stands below them."""


def shown_choices(strategies: Sequence[Strategy]) -> list[str]:
    """Choices worth a column: those that every plan has, and those that differ from the default
    somewhere.
    """
    return [
        name
        for name, default in DEFAULTS.items()
        if name in ALWAYS_SHOWN or any(getattr(each, name) != default for each in strategies)
    ]


def _said(value: object) -> str:
    return {True: "yes", False: "-"}[value] if isinstance(value, bool) else str(value)


def _columns(trials: Sequence[Trial], objective: Objective) -> list[str]:
    """Metrics worth a column: those that count first, then those that are well known."""
    measured = trials[0].evaluation.metrics
    known = [each.name for each in TELLING if each.name in measured] or list(measured)[:6]
    counted = [aim.metric for aim in objective.aims]
    return [*counted, *(name for name in known if name not in counted)]


def _behind(trial: Trial, best: Trial) -> str:
    if trial.cost is None or best.cost is None:
        return "-"
    return lost(regret(trial.cost, best.cost))
