"""The figures of one simulated plan, for notebooks: `distir.simulate(…).plot.time()`."""

from __future__ import annotations

from autotune.page import compact, reports
from autotune.page.contents import Section
from autotune.page.notebook import Figures, once
from distir.simulation import SimulationResult
from distir.simulation.result import FIGURES


@FIGURES.register("plan")
def simulation_figures(result: SimulationResult) -> Figures:
    """The figures `time` and `memory` of a result of the simulator."""
    made = once(lambda: reports.simulation_page(result))

    def sections() -> list[Section]:
        return list(made().sections)

    return Figures(
        result.strategy.label,
        {"time": sections, "memory": sections},
        lambda: compact.plan_in_short(made()),
    )


__all__ = ["simulation_figures"]
