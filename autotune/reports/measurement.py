"""The report of a plan that was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distir.units import short_bytes, short_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.distributed.measuring import Measurement
    from autotune.problem import Problem


def measurement_report(problem: Problem, result: Any, measured: Measurement) -> RenderableType:
    """Seconds and bytes, simulated for the problem's cluster and measured on this machine."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    found = measured.to_dict()
    where = measured.environment()
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "simulated", "measured"):
        table.add_column(heading, justify="right" if heading else "left")
    simulated = result.metrics
    seconds, peak = "iteration_seconds", "peak_memory_bytes"
    table.add_row("iteration", short_seconds(simulated[seconds]), short_seconds(found[seconds]))
    table.add_row("memory", short_bytes(simulated[peak]), short_bytes(found[peak]))
    steps = (
        f"{found['steps']} steps on {where['processes']} processes, fastest "
        f"{short_seconds(found['minimum'])}, spread {found['spread']:.0%}; {where['computes']}"
    )
    about = (
        f"Simulated for {problem.cluster}, in tensors; measured here, with all memory of the "
        "fullest process."
    )
    return Group(
        Text(problem.title, style="bold"),
        Text(result.strategy.label),
        table,
        Text(steps),
        Text(about),
    )
