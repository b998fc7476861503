"""The report of one simulated plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from autotune.problem import Problem
from autotune.rendering import FirstFitting, plain_table
from autotune.reports.advice import conclusions, what_would_fit
from autotune.reports.breakdown import breakdown
from autotune.reports.quantities import (
    described,
    heading,
    lists_told,
    memory_use,
    narrow_heading,
    shown,
)
from distir.metrics import (
    METRICS,
    iteration_seconds,
    padding_fraction,
    peak_memory_bytes,
    reserved_memory_bytes,
)
from distir.units import Unit, percent, short_bytes, short_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from distir.cost import Band
    from distir.simulation.communication import CollectiveUse

ELSEWHERE = (padding_fraction.name, peak_memory_bytes.name, reserved_memory_bytes.name)
"""Metrics that have a sentence of their own, where there is something to say."""
MOST_STAGES = 16
"""Stages that get a row each; of longer pipelines the middle is left out."""


def simulation_report(
    problem: Problem, result: Any, collectives: Sequence[CollectiveUse] = ()
) -> RenderableType:
    """Metrics of a `SimulationResult`, what each stage's time and memory are made of, and what a
    device communicates."""
    from rich.console import Group

    return Group(*_parts(problem, result, collectives))


def _recomputed(result: Any) -> str:
    """What the layers of every stage recompute, where that is chosen per layer."""
    by_stage = [getattr(stage, "recomputed", {}) for stage in result.stages]
    if not any(by_stage):
        return ""
    said = (
        ", ".join(f"{count} {policy}" for policy, count in sorted(own.items())) for own in by_stage
    )
    return f"Layers recompute, stage by stage: {'; '.join(said)}."


def on_host(result: Any) -> str:
    """What a device has in the memory of its host, where something is offloaded."""
    held = max((getattr(stage, "host_bytes", 0.0) for stage in result.stages), default=0.0)
    limit = getattr(result, "host_limit_bytes", inf)
    return f"On hosts: {short_bytes(held)} of {short_bytes(limit)} per device." if held else ""


def _parts(
    problem: Problem, result: Any, collectives: Sequence[CollectiveUse]
) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(problem.title, style="bold")
    yield from (Text(note) for note in problem.notes)
    yield Text(described(result.strategy))
    if known := lists_told(problem.known_lists(result.strategy)):
        yield Text(known)
    if result.feasible:
        used = memory_use(result.metrics, problem.memory_bytes)
        yield Text(f"Fits: {used} on the fullest device.", style="green")
    else:
        yield Text(f"Does not fit: {result.reason}", style="bold red")
        fitting = what_would_fit(problem, result.strategy)
        if fitting is not None:
            yield Text(fitting)
    yield from (Text(line) for line in (_recomputed(result), on_host(result)) if line)
    for label, (size, padded) in getattr(result, "padding", {}).items():
        waste = shown(padding_fraction.name, result.metrics[padding_fraction.name])
        yield Text(
            f"Padded: {label} from {size:,} to {padded:,}, so that it can be split evenly; "
            f"{waste} waste."
        )
    yield Text("")
    known = [name for name in METRICS.names() if name in result.metrics and name not in ELSEWHERE]
    measured = "; ".join(f"{heading(name)} {shown(name, result.metrics[name])}" for name in known)
    yield Text(measured if result.feasible else f"On devices with enough memory: {measured}")
    if problem.band is not None and result.feasible:
        yield Text(_band(problem.band, result.metrics[iteration_seconds.name]))
    plan = breakdown(problem, result.strategy)
    yield from (Text(line) for line in conclusions(plan))
    yield Text("")
    seconds = [stage.seconds for stage in result.stages]
    memory = [stage.memory for stage in result.stages]
    yield _table(
        "Seconds per stage (exposed; they add up to the iteration)", seconds, short_seconds
    )
    yield _table("Memory per stage, at its peak", _without_empty(memory), short_bytes)
    if collectives:
        yield _communication(collectives)


def _without_empty(stages: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """The shares of stages without those that are nothing on every stage."""
    names = [name for name in stages[0] if any(stage[name] for stage in stages)]
    return [{name: stage[name] for name in names} for stage in stages]


def _band(band: Band, seconds: float) -> str:
    """Where a measured time would be."""
    least, most = band.interval(seconds)
    return (
        f"Two measured runs in three would take {short_seconds(least)} to "
        f"{short_seconds(most)} (± {percent(band.relative)})."
    )


def _communication(collectives: Sequence[CollectiveUse]) -> Table:
    """What a device communicates in a step, by mesh axis and kind."""
    table = plain_table("Communication per device and step")
    table.add_column("axis", no_wrap=True)
    table.add_column("kind")  # words break where there is no room; numbers never do
    table.add_column("over")
    for what in ("count", "bytes", "exposed", "hidden"):
        table.add_column(what, justify="right", no_wrap=True)
    for each in collectives:
        table.add_row(
            each.along,
            each.op,
            each.level,
            f"{each.count:,.4g}",
            short_bytes(each.size_bytes),
            short_seconds(each.exposed),
            short_seconds(each.hidden),
        )
    return table


def _table(title: str, stages: Sequence[Mapping[str, float]], unit: Unit) -> RenderableType:
    """A row per stage; in two or three tables below each other where there is no room for one."""
    from rich.console import Group

    names = [*dict.fromkeys(name for stage in stages for name in stage), "total"]

    def parts(count: int) -> RenderableType:
        size = -(-len(names) // count)
        cut = [names[first : first + size] for first in range(0, len(names), size)]
        titles = [title, *(f"{title}, continued" for _ in cut[1:])]
        made = (_part(t, stages, c, unit) for t, c in zip(titles, cut, strict=True))
        return Group(*made)

    return FirstFitting([parts(count) for count in (1, 2, 3)])


def _part(
    title: str, stages: Sequence[Mapping[str, float]], names: Sequence[str], unit: Unit
) -> Table:
    table = plain_table(title)
    table.add_column("stage", justify="right")
    for name in names:
        table.add_column(_head(name), justify="right", no_wrap=True)
    for index in _rows(len(stages)):
        if index is None:
            table.add_row("…")
            continue
        stage = {**stages[index], "total": sum(stages[index].values())}
        table.add_row(str(index), *(unit(stage.get(name, 0.0)) for name in names))
    return table


def _head(name: str) -> str:
    """A kind of time or memory as the head of a narrow column."""
    words = narrow_heading(name)
    return {"optimizer": "opti-\nmizer", "overhead": "over-\nhead"}.get(words, words)


def _rows(stages: int) -> list[int | None]:
    """Indices of the stages to show, `None` for those left out."""
    if stages <= MOST_STAGES:
        return list(range(stages))
    half = MOST_STAGES // 2
    return [*range(half), None, *range(stages - half, stages)]
