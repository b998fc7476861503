"""How searches went, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.costs import regret
from autotune.trial import Trial

if TYPE_CHECKING:
    from autotune.result import TuneResult

Curve = Sequence[float | None]
"""Per trial the fraction that the best so far loses against the best known; None before anything
feasible is found."""


def regret_curve(trials: Sequence[Trial], best_cost: float) -> list[float | None]:
    """The `Curve` of a search."""
    found: list[float | None] = []
    least: float | None = None
    for trial in trials:
        if trial.feasible and trial.cost is not None and (least is None or trial.cost < least):
            least = trial.cost
        found.append(None if least is None else regret(least, best_cost))
    return found


def search_of(result: TuneResult) -> dict[str, Any] | None:
    """The one search of a study; None where nothing was found."""
    if result.best is None or result.best.cost is None:
        return None
    name = f"{result.sampler}, seed {result.seed}"
    curve = regret_curve(result.trials, result.best.cost)
    return searches({name: [curve]}, exhaustive=result.grid is not None)


def searches(curves: Mapping[str, Sequence[Curve]], *, exhaustive: bool) -> dict[str, Any]:
    """Searches by sampler, one curve per seed. `exhaustive`: whether 0 is the best of all."""
    return {
        "samplers": [
            {"label": name, "curves": [list(curve) for curve in of_sampler]}
            for name, of_sampler in curves.items()
        ],
        "zero": "best of the exhaustive grid" if exhaustive else "best known",
    }
