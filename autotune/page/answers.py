"""The answer of a report: a sentence, what is told beside it, and the facts shown large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotune.objectives.objective import Objective
from autotune.objectives.simulator import needed_bytes
from autotune.page.contents import Fact
from autotune.problem import Problem
from autotune.reports.advice import advice, closest_line
from autotune.reports.quantities import described, heading, shown
from autotune.study.trial import Trial
from distir.metrics import (
    find_metric,
    iteration_seconds,
    mfu,
    peak_memory_bytes,
    reserved_memory_bytes,
    throughput_samples_per_second,
)
from distir.units import percent, short_bytes, short_days, short_seconds

if TYPE_CHECKING:
    from autotune.result import TuneResult
    from distir.cost import Band


def best_sentence(problem: Problem, objective: Objective, best: Trial) -> str:
    """The answer: the plan, what it reaches, how sure that is, and how much memory is left."""
    metrics, band = best.evaluation.metrics, problem.band
    metric = objective.metric
    named, value = heading(metric), shown(metric, best.metric(metric))
    # A rate has its unit for a name.
    reached = f"That gives {value} {named}" if "/" in named else f"Its {named} is {value}"
    known = find_metric(metric) if objective.cheap else None
    if band is not None and known is not None and known.timed:
        reached += f" (± {percent(band.relative)})"
    sentence = f"Best: {described(best.strategy)}. {reached}"
    if peak_memory_bytes.name in metrics:
        room = problem.memory_bytes - needed_bytes(metrics)
        sentence += f", with {short_bytes(room)} of {short_bytes(problem.memory_bytes)} to spare"
    return f"{sentence}."


def without_plan(result: TuneResult) -> tuple[str, list[str]]:
    """The answer where there is no plan, and what can be said all the same."""
    said = result.said_without_best
    if result.interrupted:
        return said, [*closest_line(result.closest)]
    if result.closest is None:
        return said, []
    return said, [*advice(result.problem, result.objective, result.closest)]


def to_measure(result: TuneResult) -> list[str]:
    """Which plans to measure where simulated ones are too close to call."""
    if not result.as_good or result.best is None:
        return []
    rivals = [each for each in result.layouts if each.strategy != result.best.strategy]
    band, metric = result.problem.band, result.objective.metric
    first = result.best.metric(metric)
    close = [
        each.label
        for each in rivals
        if band is not None
        and first
        and (value := each.metric(metric))
        and not band.separates(first, value)
    ]
    if not close:
        return ["All of them have the same layout as the best."]
    return [
        f"To decide, measure the best against the best of other layouts: {', '.join(close[:4])}."
    ]


def facts_of(problem: Problem, objective: Objective, best: Trial | None) -> list[Fact]:
    """What is shown large of the best plan, if there is one."""
    if best is None:
        return []
    band = problem.band if objective.cheap else None
    found = metric_facts(problem.memory_bytes, best.evaluation.metrics, band)
    if objective.metric in [name for name, _ in LARGE]:
        return found
    value = shown(objective.metric, best.metric(objective.metric))
    return [Fact(heading(objective.metric), value, "the objective"), *found]


_LONG_SECONDS = 600.0
"""From here on an iteration is also told in minutes, hours or days."""
LARGE = (
    (throughput_samples_per_second.name, "samples per second"),
    (iteration_seconds.name, "iteration"),
    (peak_memory_bytes.name, "memory of a device"),
    (mfu.name, "MFU"),
)


def metric_facts(
    memory_bytes: float, metrics: Mapping[str, float], band: Band | None
) -> list[Fact]:
    """What is shown large, of devices with so much memory."""
    found: list[Fact] = []
    for name, label in LARGE:
        value = metrics.get(name)
        if value is None:
            continue
        said, detail = shown(name, value), ""
        if name == peak_memory_bytes.name:
            needed = needed_bytes(metrics)
            said = f"{short_bytes(needed)} of {short_bytes(memory_bytes)}"
            detail = _room(needed / memory_bytes)
            if reserve := metrics.get(reserved_memory_bytes.name):
                detail += f"; {short_bytes(value)} in tensors, {short_bytes(reserve)} reserve"
        elif name == iteration_seconds.name and band is not None:
            least, most = band.interval(value)
            detail = f"two runs in three: {short_seconds(least)} to {short_seconds(most)}"
        elif name == throughput_samples_per_second.name and band is not None:
            detail = f"± {percent(band.relative)}"
        if name == iteration_seconds.name and value >= _LONG_SECONDS:
            detail = f"{short_days(value)}; {detail}" if detail else short_days(value)
        found.append(Fact(label, said, detail))
    return found


def _room(filled: float) -> str:
    """How much is left, or too much, where this share of the memory is filled."""
    if filled <= 1:
        return f"{percent(1 - filled)} headroom"
    return f"{percent(filled - 1)} too much" if filled < 2 else f"{filled:.1f} times the capacity"


__all__ = [
    "LARGE",
    "best_sentence",
    "facts_of",
    "metric_facts",
    "to_measure",
    "without_plan",
]
