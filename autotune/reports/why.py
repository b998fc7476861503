"""Why the best plan is the best: what it spends, against the next layout and against pure data
parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.objectives.costs import equal
from autotune.problem import Problem
from autotune.rendering import FirstFitting, broken_at, plain_table
from autotune.reports.advice import what_would_fit
from autotune.reports.breakdown import Breakdown, breakdown
from autotune.reports.quantities import lost
from autotune.study.trial import Trial, layout
from distir.metrics import iteration_seconds
from distir.shares import share_heading
from distir.strategy import Strategy
from distir.units import Unit, short_bytes, short_seconds
from search_spaces import SearchSpace

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from autotune.result import TuneResult

SMALL = 0.02
"""Share of the iteration (or of memory) below which a difference is not worth a word."""


def why(result: TuneResult, best: Trial) -> Iterator[RenderableType]:
    """Sentences and tables that explain `best`; nothing where no simulator stands behind the
    objective.
    """
    if not result.objective.cheap:
        return
    problem = result.problem
    rivals = {"best": breakdown(problem, best.strategy)}
    runner_up = next_layout(result.layouts, best)
    if runner_up is not None:
        rivals["the next layout"] = breakdown(problem, runner_up.strategy)
    alone = data_parallel(problem, [best, runner_up])
    if alone is not None:
        rivals["pure data parallelism"] = breakdown(problem, alone)
    for name, rival in list(rivals.items())[1:]:
        yield sentence(
            f"{name} ({rival.strategy.label})", rivals["best"], rival, problem.memory_bytes
        ) + _rescue(problem, rival)
    yield ""
    yield breakdown_table(rivals, problem.memory_bytes)


def _rescue(problem: Problem, rival: Breakdown) -> str:
    """What would make a rival fit that does not."""
    fitting = None if rival.feasible else what_would_fit(problem, rival.strategy)
    return "" if fitting is None else f" {fitting}"


def next_layout(candidates: Sequence[Trial], best: Trial) -> Trial | None:
    """The best candidate with other degrees than `best`."""
    taken = layout(best.strategy)
    return next((trial for trial in candidates if layout(trial.strategy) != taken), None)


def data_parallel(problem: Problem, shown_already: Sequence[Trial | None]) -> Strategy | None:
    """The fastest pure data-parallel strategy, or the one closest to fitting; `None` if it is
    shown or impossible.
    """
    space: SearchSpace = problem.space.restricted(tp=(1,), pp=(1,), cp=(1,), ep=(1,))
    layouts = {layout(trial.strategy) for trial in shown_already if trial is not None}
    if not space.count() or (problem.devices, 1, 1, 1, 1) in layouts:
        return None

    def order(strategy: Strategy) -> tuple[float, float]:
        evaluation = problem.simulate(strategy)
        return (evaluation.violation, evaluation.metrics[iteration_seconds.name])

    return min(space.enumerate(), key=order)


def sentence(name: str, best: Breakdown, rival: Breakdown, memory_bytes: float) -> str:
    """How `rival` compares with `best`, the large differences first."""
    if not rival.feasible:
        needs, has = short_bytes(rival.needed_bytes), short_bytes(memory_bytes)
        held = _largest(rival.memory)
        return (
            f"Compared with {name}: that does not fit; it needs {needs} of {has} on stage "
            f"{rival.fullest_stage} ({held})."
        )
    slower = rival.total_seconds - best.total_seconds
    if equal(rival.total_seconds, best.total_seconds):
        return f"Compared with {name}: that takes just as long."
    gap = lost(abs(slower) / best.total_seconds)
    word = "slower" if slower >= 0 else "faster"
    lead = f"{short_seconds(abs(slower))} per iteration ({gap}) {word}"
    more, less = _differences(best, rival)
    parts = [f"{amount} more {kind}" for kind, amount in more] + [
        f"{amount} less {kind}" for kind, amount in less
    ]
    with_parts = f", with {', '.join(parts)}." if parts else "."
    return f"Compared with {name}: that is {lead}{with_parts}"


def _differences(
    best: Breakdown, rival: Breakdown
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    worth = SMALL * best.total_seconds / 4
    changes = {
        kind: rival.seconds.get(kind, 0.0) - best.seconds.get(kind, 0.0)
        for kind in {**best.seconds, **rival.seconds}
    }
    order = sorted(changes.items(), key=lambda item: -abs(item[1]))
    worded = [(share_heading(kind), value) for kind, value in order if abs(value) > worth]
    more = [(kind, short_seconds(value)) for kind, value in worded if value > 0]
    less = [(kind, short_seconds(-value)) for kind, value in worded if value < 0]
    return more, less


def _largest(memory: Mapping[str, float]) -> str:
    """The largest holders of memory: `optimizer 20 GiB, activations 11 GiB`."""
    order = sorted(memory.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{share_heading(name)} {short_bytes(value)}" for name, value in order)


def breakdown_table(plans: Mapping[str, Breakdown], limit_bytes: float) -> RenderableType:
    """Time by kind and memory by holder, one column per plan; what is reserved, and the limit."""
    widths = (1000, 24, 16, 12)
    return FirstFitting([_breakdowns(plans, limit_bytes, width) for width in widths])


def _breakdowns(plans: Mapping[str, Breakdown], limit_bytes: float, width: int) -> Table:
    """The table with heads of at most `width` characters, where hyphens allow that."""
    table = plain_table("Where time and memory go")
    table.add_column("")
    for name, plan in plans.items():
        fits = "" if plan.feasible else "\n(does not fit)"
        head = f"{name}\n{broken_at(plan.strategy.label, '-', width)}{fits}"
        table.add_column(head, justify="right", no_wrap=True)
    columns = list(plans.values())
    _rows(table, [plan.seconds for plan in columns], short_seconds, "iteration, mean over stages")
    _rows(table, [plan.memory for plan in columns], short_bytes, "peak memory, fullest stage")
    if any(plan.reserved_bytes for plan in columns):
        table.add_row("reserve", *(short_bytes(plan.reserved_bytes) for plan in columns))
        table.add_row("limit", *(short_bytes(limit_bytes) for _ in columns), style="bold")
    return table


def _rows(table: Table, columns: Sequence[Mapping[str, float]], unit: Unit, total: str) -> None:
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name, 0.0) for column in columns]
        if any(values):
            table.add_row(share_heading(name), *(unit(value) for value in values))
    table.add_row(
        total,
        *(unit(sum(column.values())) for column in columns),
        style="bold",
        end_section=True,
    )
