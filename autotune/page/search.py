"""How searches went, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.objectives.costs import regret
from autotune.study.trial import Curve, regret_curve

if TYPE_CHECKING:
    from autotune.result import TuneResult


def search_of(result: TuneResult) -> dict[str, Any] | None:
    """The one search of a study, with the regret of every trial; None where nothing was found."""
    if result.best is None or result.best.cost is None:
        return None
    name = f"{result.sampler}, seed {result.seed}"
    curve = regret_curve(result.trials, result.best.cost)
    tried = [
        regret(trial.cost, result.best.cost) if trial.feasible and trial.cost is not None else None
        for trial in result.trials
    ]
    return {**searches({name: [curve]}, exhaustive=result.grid is not None), "tried": tried}


def searches(curves: Mapping[str, Sequence[Curve]], *, exhaustive: bool) -> dict[str, Any]:
    """Searches by sampler, one curve per seed. `exhaustive`: whether 0 is the best of all."""
    return {
        "samplers": [
            {"label": name, "curves": [list(curve) for curve in of_sampler]}
            for name, of_sampler in curves.items()
        ],
        "zero": "best of the exhaustive grid" if exhaustive else "best known",
    }
