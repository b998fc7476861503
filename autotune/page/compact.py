"""Results in short, for a notebook: the answer, a few sentences, bars and the best plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.objectives.objective import Objective
from autotune.page import time
from autotune.page.answers import best_sentence, facts_of, without_plan
from autotune.page.contents import Fact, Page, Table
from autotune.page.sections import ranking
from autotune.problem import Problem
from autotune.reports.breakdown import breakdown
from autotune.reports.study import comparison_lines, search_lines
from distir.units import short_seconds

if TYPE_CHECKING:
    from autotune.exhaustive.grid import Grid
    from autotune.result import TuneResult

FEW = 5
"""Plans in the short form of a result."""


def study_in_short(result: TuneResult) -> dict[str, Any]:
    """A search in short, for a notebook: the answer, a few sentences, where the time of the best
    plans goes, and the plans."""
    problem, objective, best = result.problem, result.objective, result.best
    lines = search_lines(result)
    bars: dict[str, Any] = {"parts": [], "rows": []}
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    if best is None:
        answer, more = without_plan(result)
        lines = [*more, *lines]
    else:
        answer = best_sentence(problem, objective, best)
        lines = [*comparison_lines(result, best), *lines]
        table = ranking(result.ranked[:FEW], objective)
        rows, head = table.rows, table.head
        if objective.cheap:
            plans = {each.label: breakdown(problem, each.strategy) for each in result.ranked[:FEW]}
            bars = time.plan_bars({name: plan.seconds for name, plan in plans.items()})
    facts = facts_of(problem, objective, best)
    return _short(problem.title, answer, facts, lines, bars, head, rows)


def plan_in_short(page: Page) -> dict[str, Any]:
    """One simulated plan in short, for a notebook."""
    bars = next((dict(chart.data) for chart in page.charts if chart.draw == "bars"), None)
    return _short(
        page.title, page.answer, page.facts, page.lead, bars or {"parts": [], "rows": []}, (), ()
    )


def page_in_short(page: Page, grid: Grid) -> dict[str, Any]:
    """A page in short, with what was found of a space."""
    lines = [f"{grid.space_size:,} strategies, evaluated in {grid.seconds:.2f} s."]
    tables = [each for s in page.sections for each in s.blocks if isinstance(each, Table)]
    head, rows = (tables[0].head, tables[0].rows) if tables else ((), ())
    nothing: dict[str, Any] = {"parts": [], "rows": []}
    return _short(page.title, page.answer, page.facts, lines, nothing, head, rows)


def _short(
    title: str,
    answer: str,
    facts: Sequence[Fact],
    lines: Sequence[str],
    bars: Mapping[str, Any],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """What the template of the short form takes. Bars are scaled to the longest."""
    longest = max((sum(row["parts"].values()) for row in bars["rows"]), default=0.0) or 1.0
    names = [part["name"] for part in bars["parts"]]
    drawn = [
        {
            "label": row["label"],
            "total": short_seconds(sum(row["parts"].values())),
            "percents": {n: round(100 * row["parts"].get(n, 0.0) / longest, 2) for n in names},
            "shown": {name: short_seconds(row["parts"].get(name, 0.0)) for name in names},
        }
        for row in bars["rows"]
    ]
    return {
        "title": title,
        "answer": answer,
        "facts": [(fact.name, fact.value, fact.detail) for fact in facts],
        "lines": list(lines),
        "bars": {"parts": bars["parts"], "rows": drawn},
        "head": head,
        "rows": rows,
    }


def grid_in_short(problem: Problem, objective: Objective, grid: Grid) -> dict[str, Any]:
    """A grid in short, for a notebook: the answer and the best plans."""
    best = grid.best
    evaluated = f"{grid.evaluated:,} of {grid.space_size:,} strategies evaluated"
    lines = [f"{evaluated} in {grid.seconds:.2f} s; {grid.feasible:,} are feasible."]
    nothing: dict[str, Any] = {"parts": [], "rows": []}
    if best is None:
        return _short(problem.title, grid.said_without_best, (), lines, nothing, (), ())
    table = ranking(grid.ranked[:FEW], objective)
    answer, facts = best_sentence(problem, objective, best), facts_of(problem, objective, best)
    return _short(problem.title, answer, facts, lines, nothing, table.head, table.rows)


__all__ = [
    "grid_in_short",
    "page_in_short",
    "plan_in_short",
    "study_in_short",
]
