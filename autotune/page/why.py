"""Why the best plan wins, as plain data and sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from autotune.objectives.simulator import needed_bytes
from autotune.page.contents import Block, Chart, Table, Text
from autotune.page.time import plan_bars
from autotune.questions.break_even import (
    BreakEven,
    bandwidth_break_evens,
    memory_break_even,
    other_batches,
)
from autotune.questions.usual import usual_plans
from autotune.reports.breakdown import Breakdown, breakdown
from autotune.reports.why import next_layout, sentence
from autotune.study.trial import Trial
from distir.units import format_bytes, format_bytes_per_second, short_bytes, short_number

if TYPE_CHECKING:
    from autotune.problem import Problem
    from distir.simulation import Simulator
    from distir.strategy import Strategy

MOST_CANDIDATES = 6
"""Layouts among which another winner is looked for."""


def rivals(problem: Problem, best: Strategy, layouts: Sequence[Trial]) -> dict[str, Breakdown]:
    """The best plan, the best of the next layout, and the usual defaults that differ from both,
    by what they are."""
    found = {"best": breakdown(problem, best)}
    others = [each for each in layouts if each.strategy == best]
    best_trial = others[0] if others else None
    after = next_layout(layouts, best_trial) if best_trial is not None else None
    if after is not None:
        found["the next layout"] = breakdown(problem, after.strategy)
    for name, strategy in usual_plans(problem, node_of(problem)).items():
        if all(strategy != each.strategy for each in found.values()):
            found[name] = breakdown(problem, strategy)
    return found


def node_of(problem: Problem) -> int:
    """Devices of the innermost level of the cluster."""
    simulator = cast("Simulator", problem.simulator)
    return min(problem.devices, simulator.cluster.devices_per_unit[0])


def why_blocks(problem: Problem, best: Strategy, layouts: Sequence[Trial]) -> list[Block]:
    """The best against others, and what would have to change for another plan to win."""
    compared = rivals(problem, best, layouts)
    blocks: list[Block] = [
        Text(
            sentence(
                f"{name} ({each.strategy.label})", compared["best"], each, problem.memory_bytes
            )
        )
        for name, each in list(compared.items())[1:]
    ]
    alike = [name for name, plan in usual_plans(problem, node_of(problem)).items() if plan == best]
    blocks += [Text(f"The best plan is the same as {name}.") for name in alike]
    shown = {
        f"{name}{'' if each.feasible else ' (does not fit)'}": each.seconds
        for name, each in compared.items()
    }
    caption = "Seconds of an iteration, mean over pipeline ranks. " + "; ".join(
        f"{name}: {each.strategy.label}, {short_bytes(each.needed_bytes)} per device"
        for name, each in compared.items()
    )
    blocks.append(
        Chart("bars", "Where the time goes", plan_bars(shown), caption, 44 + 40 * len(shown))
    )
    return [*blocks, *_changes(problem, best, layouts)]


def _changes(problem: Problem, best: Strategy, layouts: Sequence[Trial]) -> list[Block]:
    candidates = [best, *(each.strategy for each in layouts if each.strategy != best)]
    candidates = candidates[:MOST_CANDIDATES]
    if len(candidates) < 2:
        return []
    simulator = cast("Simulator", problem.simulator)
    points = bandwidth_break_evens(simulator, candidates, best)
    rows = [_break_even_row(each, format_bytes_per_second) for each in points]
    needed = {each: float(needed_bytes(simulator.simulate(each).metrics)) for each in candidates}
    less = memory_break_even(needed, best, problem.memory_bytes)
    rows.append(_break_even_row(less, format_bytes))
    rows += [
        [
            "batch",
            str(problem.batch_size),
            f"{each.batch_size}",
            each.winner.label if each.winner is not None else "no candidate fits",
            "another layout" if each.changed else "the same layout",
        ]
        for each in other_batches(problem, candidates, best)
    ]
    caption = (
        f"Found by simulating the best plans of {len(candidates)} layouts unchanged: on other "
        "hardware, another variant of a layout may be better still."
    )
    head = ("what changes", "now", "to", "then the fastest is", "")
    changes = Table(head, rows, caption, texts=len(head))
    return [Text("What would have to change for another plan to win:"), changes]


def _break_even_row(point: BreakEven, unit: Callable[..., str]) -> list[str]:
    now = unit(point.now, digits=3)
    if point.winner is None and unit is format_bytes:
        return [point.what, now, "less", "no candidate needs less", ""]
    if point.factor is None or point.winner is None:
        tried = "16 times more" if point.larger else "a sixteenth"
        return [point.what, now, tried, "still the best plan", ""]
    times = f"{short_number(point.factor)} times"
    return [point.what, now, unit(point.now * point.factor, digits=3), point.winner.label, times]


def out_of_reach(trials: Sequence[Trial], best: Trial | None, memory_bytes: float) -> Table | None:
    """Plans that would beat the best if devices had more memory, the least missing first."""
    rows: list[list[str]] = []
    for trial in trials:
        if trial.cost is None or (
            best is not None and best.cost is not None and trial.cost >= best.cost
        ):
            continue
        needs = (1 + trial.evaluation.violation) * memory_bytes
        gain: Any = ""
        if best is not None and best.cost:
            gain = f"{100 * abs(trial.cost - best.cost) / abs(best.cost):.1f} %"
        rows.append([trial.label, short_bytes(needs), gain])
    if not rows:
        return None
    caption = "Of all strategies of the space; exact."
    return Table(("would win with more memory", "needs per device", "better by"), rows, caption)
