"""What a space looks like, as plain data."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.exhaustive.landscape import FEASIBLE, Landscape, ordered
from autotune.objectives.costs import regret
from autotune.objectives.evaluation import finite
from autotune.objectives.simulator import needed_bytes
from autotune.reports.quantities import choice_heading, choice_value
from autotune.study.trial import Trial
from distir.metrics import iteration_seconds, peak_memory_bytes
from distir.strategies import FIELDS

if TYPE_CHECKING:
    from autotune.problem import Problem

MOST_LINES = 600
"""Strategies in parallel coordinates; more would be one blot."""


def points_of_trials(trials: Sequence[Trial], best: float | None) -> dict[str, Any]:
    """Trials as points, with all their choices that vary."""
    memory = peak_memory_bytes.name
    return _points(
        [{name: getattr(trial.strategy, name) for name in FIELDS} for trial in trials],
        [trial.metric(iteration_seconds.name) for trial in trials],
        [
            float(needed_bytes(trial.evaluation.metrics)) if trial.metric(memory) else None
            for trial in trials
        ],
        [["feasible", "infeasible", "failed"].index(trial.state) for trial in trials],
        [trial.cost for trial in trials],
        [trial.evaluation.reason for trial in trials],
        best,
        len(trials),
    )


def points_of_space(landscape: Landscape, best: float | None) -> dict[str, Any]:
    """The sample of a space as points, with all their choices that vary. Reasons follow from what
    a strategy needs; failures have none here."""
    points = landscape.points
    every = np.arange(len(points))
    return _points(
        points.strategies.choices(FIELDS, every),
        _plain(points.seconds.tolist()),
        _plain(points.needed.tolist()),
        points.states.tolist(),
        _plain(points.costs.tolist()),
        [None] * len(points),
        best,
        landscape.seen,
    )


def _plain(values: Iterable[float]) -> list[float | None]:
    return [value if finite(value) else None for value in values]


def _points(
    strategies: Sequence[dict[str, Any]],
    seconds: Sequence[float | None],
    needed: Sequence[float | None],
    states: Sequence[int],
    costs: Sequence[float | None],
    reasons: Sequence[str | None],
    best: float | None,
    total: int,
) -> dict[str, Any]:
    """Columns: what is drawn of points, and their choices as places in lists of values."""
    varying: list[dict[str, Any]] = []
    fixed: dict[str, Any] = {}
    for name in FIELDS:
        column = [each[name] for each in strategies]
        values = ordered(list(dict.fromkeys(column)))
        if len(values) < 2:
            if values:
                fixed[name] = values[0]
            continue
        place = {value: at for at, value in enumerate(values)}
        codes = [place[each] for each in column]
        varying.append({**_choice(name, values), "codes": codes})
    return {
        "seconds": _short(seconds),
        "needed": [None if value is None else round(value) for value in needed],
        "states": list(states),
        "behind": _short(
            [
                None if cost is None or best is None or state != FEASIBLE else regret(cost, best)
                for cost, state in zip(costs, states, strict=True)
            ]
        ),
        "reasons": {str(at): reason for at, reason in enumerate(reasons) if reason},
        "choices": varying,
        "fixed": fixed,
        "total": total,
    }


def _choice(name: str, values: Iterable[object]) -> dict[str, Any]:
    """A choice with its values, in words."""
    said = [choice_value(value) for value in values]
    return {"name": name, "label": choice_heading(name), "values": said}


def _short(values: Sequence[float | None]) -> list[float | None]:
    """Values in five digits: a page is to be small."""
    return [None if value is None else float(f"{value:.5g}") for value in values]


def front_of(trials: Sequence[Trial]) -> list[list[Any]]:
    """The Pareto front: seconds, bytes that are needed, label."""
    found: list[list[Any]] = []
    for trial in trials:
        seconds = trial.metric(iteration_seconds.name)
        if seconds is not None and trial.metric(peak_memory_bytes.name) is not None:
            found.append([seconds, float(needed_bytes(trial.evaluation.metrics)), trial.label])
    return sorted(found)


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """The feasible trials than which none is both faster and needs less."""
    found: list[Trial] = []
    least = float("inf")
    known = [trial for trial in trials if trial.feasible and front_of([trial])]
    for trial in sorted(known, key=lambda trial: front_of([trial])[0]):
        ((_, needed, _),) = front_of([trial])
        if needed < least:
            least = needed
            found.append(trial)
    return found


def time_and_memory(
    points: dict[str, Any], front: Sequence[Trial], best: Trial | None, problem: Problem
) -> dict[str, Any]:
    """Time against memory, with the front and the limit."""
    return {
        "points": points,
        "front": front_of(front),
        "best": front_of([best] if best is not None else []),
        "limit": problem.memory_bytes,
    }


def parallel(points: dict[str, Any]) -> dict[str, Any]:
    """Choices of strategies side by side, and how far each is behind: of those that are feasible as
    many as can be told apart, a quarter of them the best there are, the others evenly over the
    space. Where nothing is feasible, what strategies need."""
    states = points["states"]
    fitting = [at for at, state in enumerate(states) if state == FEASIBLE]
    column = "behind" if fitting else "needed"
    known = [at for at in fitting or range(len(states)) if points[column][at] is not None]
    order = sorted(known, key=lambda at: (points[column][at], at))
    best = order[: MOST_LINES // 4]
    others = sorted(order[len(best) :])
    step = max(1, -(-len(others) // (MOST_LINES - len(best))))
    chosen = sorted({*best, *others[::step]})
    return {
        "choices": [
            {**each, "codes": [each["codes"][at] for at in chosen]} for each in points["choices"]
        ],
        "last": {
            "name": "behind" if fitting else "needs",
            "unit": "fraction" if fitting else "bytes",
            "values": [points[column][at] for at in chosen],
        },
        "total": len(known),
    }


def heat_maps(landscape: Landscape, best: float | None) -> dict[str, Any]:
    """For any two choices that vary, per two values: how far the best strategy that has both is
    behind the best of all, how many there are, and how many of them fit. Exact."""
    choices = landscape.choices
    pairs: dict[str, list[list[Any]]] = {}
    places = {name: _places(landscape.values(name)) for name in choices}
    for (first, second), cells in landscape.pairs.items():
        if first not in places or second not in places:
            continue
        pairs[f"{first},{second}"] = [
            [
                places[first][one],
                places[second][other],
                _short([regret(cell.best, best)])[0]
                if cell.feasible and best is not None
                else None,
                cell.count,
                cell.feasible,
            ]
            for (one, other), cell in cells.items()
        ]
    return {
        "choices": [_choice(name, places[name]) for name in choices],
        "pairs": pairs,
    }


def _places(values: Sequence[Hashable]) -> dict[Hashable, int]:
    return {value: at for at, value in enumerate(values)}


def effects(landscape: Landscape, best: float | None) -> dict[str, Any]:
    """How much each choice matters, the most first: the share of the variance of log cost that it
    explains by itself, and per value how far the best that has it is behind. Exact."""
    rows: list[dict[str, Any]] = []
    for name in landscape.choices:
        values: list[dict[str, Any]] = []
        for value in landscape.values(name):
            cell = landscape.cells[name, value]
            reached = cell.feasible and best is not None
            values.append(
                {
                    "value": choice_value(value),
                    "behind": regret(cell.best, best) if reached and best is not None else None,
                    "count": cell.count,
                    "feasible": cell.feasible,
                }
            )
        label = choice_heading(name)
        rows.append({"choice": label, "explained": landscape.explained(name), "values": values})
    return {
        "rows": sorted(rows, key=lambda row: -row["explained"]),
        "count": landscape.spread.count,
    }
