"""The report of several numbers of devices: a table, and a plot in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from autotune.questions.scale import Scaling, ScalingStep
from autotune.rendering import FirstFitting, plain_table
from autotune.reports.drawing import draw, new_figure
from autotune.reports.quantities import heading, shown
from distir.metrics import (
    dollars_per_million_tokens,
    dollars_to_train,
    iteration_seconds,
    joules_per_token,
    throughput_samples_per_second,
    time_to_train_seconds,
)
from distir.units import percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

SHOWN = (
    throughput_samples_per_second,
    iteration_seconds,
    time_to_train_seconds,
    dollars_to_train,
    dollars_per_million_tokens,
    joules_per_token,
)
"""Metrics that have a column, where they are known."""
LEFT_OUT = (
    joules_per_token,
    iteration_seconds,
    dollars_per_million_tokens,
    time_to_train_seconds,
    dollars_to_train,
    throughput_samples_per_second,
)
"""Metrics in the order in which their columns go where there is no room, that of the objective last
of all: what was asked for by a price or by tokens stays longer than what follows from others."""
BEFORE_BARS = 2
"""How many of them go before the bars of the efficiency do."""
BAR = 10
"""Characters of a bar that stands for all of the efficiency."""


def scaling_report(scaling: Scaling) -> RenderableType:
    """A row per number of devices."""
    from rich.console import Group

    return Group(*_parts(scaling))


def _parts(scaling: Scaling) -> Iterator[RenderableType]:
    from rich.text import Text

    problem, metric = scaling.problem, scaling.objective.metric
    goal = "largest" if scaling.objective.maximize else "smallest"
    yield Text(problem.title, style="bold")
    yield Text(
        f"The plan with the {goal} {heading(metric)} for each number of devices, in the space "
        f"{problem.space_name}; the batch is {problem.batch_size} throughout.\n"
    )
    metrics = [scaling.objective.metric, *(each.name for each in SHOWN)]
    measured = {name for s in scaling.steps if s.best for name in s.best.evaluation.metrics}
    names = [name for name in dict.fromkeys(metrics) if name in measured]
    order = [each.name for each in LEFT_OUT if each.name in names and each.name != metric]
    forms = [(order[:count], True) for count in range(1 + min(BEFORE_BARS, len(order)))]
    forms += [(order[:count], False) for count in range(1 + len(order))]
    yield FirstFitting([_table(scaling.steps, names, *form) for form in forms])
    for step in scaling.steps:
        if step.best is None:
            yield Text(f"{step.devices:,} devices: {step.reason}")
    if scaling.left:
        left = ", ".join(f"{each:,}" for each in scaling.left)
        yield Text(f"Interrupted before {left} devices were tried.", style="bold red")
    unproved = [f"{step.devices:,}" for step in scaling.steps if step.best and not step.proved]
    if unproved:
        yield Text(f"Not proved to be the best: the plans for {', '.join(unproved)} devices.")


def _table(
    steps: Sequence[ScalingStep], known: Sequence[str], left_out: Sequence[str], has_bars: bool
) -> Table:
    """The table of the known metrics without those left out."""
    names = [name for name in known if name not in left_out]
    efficiency = _bar if has_bars else _efficiency
    table = plain_table()
    if left_out:
        table.caption = f"No room for {', '.join(map(heading, left_out))}; see --json."
        table.caption_justify = "left"
    table.add_column("devices", justify="right", no_wrap=True)
    for name in names:
        table.add_column(heading(name), justify="right", no_wrap=True)
    table.add_column("efficiency", justify="left" if has_bars else "right", no_wrap=True)
    table.add_column("plan", no_wrap=True)
    for step in steps:
        if step.best is not None:
            measured = (shown(name, step.best.metric(name)) for name in names)
            table.add_row(
                f"{step.devices:,}", *measured, efficiency(step.efficiency), step.best.label
            )
    return table


def _efficiency(efficiency: float | None) -> str:
    return "-" if efficiency is None else percent(efficiency)


def _bar(efficiency: float | None) -> str:
    if efficiency is None:
        return "-"
    full = min(BAR, round(BAR * efficiency))
    return f"{'█' * full}{'░' * (BAR - full)} {percent(efficiency)}"


def draw_scaling(scaling: Scaling, path: str) -> None:
    """Draws throughput, efficiency and, where there is a price, cost over the number of devices."""
    draw(_figure(scaling), path, "How many devices")


def _figure(scaling: Scaling) -> Any:
    steps = [step for step in scaling.steps if step.best is not None]
    curves: list[tuple[str, list[float]]] = [
        (heading(each.name), [_value(step, each.name) for step in steps])
        for each in (throughput_samples_per_second, dollars_to_train, dollars_per_million_tokens)
        if all(step.best and each.name in step.best.evaluation.metrics for step in steps)
    ]
    curves.insert(1, ("efficiency, %", [100 * (step.efficiency or 0.0) for step in steps]))
    curves = curves[:3]
    figure: Any = new_figure((5 * len(curves), 4.2))
    devices = [step.devices for step in steps]
    for axes, (name, values) in zip(figure.subplots(1, len(curves)), curves, strict=True):
        axes.plot(devices, values, marker="o")
        axes.set_xscale("log", base=2)
        axes.set(xlabel="devices", title=name, ylim=(0, 1.05 * max(values)))
        axes.set_xticks(devices, [f"{each:,}" for each in devices])
        axes.grid(alpha=0.3)
    first = figure.axes[0]
    ideal = [curves[0][1][0] * each / devices[0] for each in devices]
    first.plot(devices, ideal, linestyle="--", linewidth=0.8, color="gray", label="ideal")
    first.set(ylim=(0, 1.05 * ideal[-1]))
    first.legend()
    figure.suptitle(scaling.problem.title, fontsize=10)
    return figure


def _value(step: ScalingStep, name: str) -> float:
    value = None if step.best is None else step.best.metric(name)
    return 0.0 if value is None else value
