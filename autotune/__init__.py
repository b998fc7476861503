"""Finds the best way to distribute a model over a cluster. Start with `tune`, or with `python
-m autotune --help`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.api import Search, solve, tune
    from autotune.grid import Grid, evaluate_grid
    from autotune.objectives import Evaluation, Objective
    from autotune.problem import Problem, load_problem
    from autotune.result import TuneResult
    from autotune.trial import Trial

__all__ = [
    "Evaluation",
    "Grid",
    "Objective",
    "Problem",
    "Search",
    "Trial",
    "TuneResult",
    "evaluate_grid",
    "load_problem",
    "solve",
    "tune",
]

_HOME = {
    "Evaluation": "autotune.objectives",
    "Grid": "autotune.grid",
    "Objective": "autotune.objectives",
    "Problem": "autotune.problem",
    "Search": "autotune.api",
    "Trial": "autotune.trial",
    "TuneResult": "autotune.result",
    "evaluate_grid": "autotune.grid",
    "load_problem": "autotune.problem",
    "solve": "autotune.api",
    "tune": "autotune.api",
}


def __getattr__(name: str) -> Any:
    """Imports public names when they are first used, so that `autotune --help` stays quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
