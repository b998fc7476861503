"""Several objectives at once: metrics of the simulator, or of what a plug-in gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.objectives.aims import Aim, aims_in, each_once
from autotune.objectives.objective import Objective
from distir.errors import DistirError
from distir.metrics import find_metric

if TYPE_CHECKING:
    from autotune.problem import Problem
    from autotune.statement import Goal


def objective_of_several(
    problem: Problem, goal: Goal, objectives: str | Sequence[str]
) -> Objective:
    """All that `objectives` names as one objective, over the simulator of `problem`."""
    if goal.metric is not None or goal.direction is not None:
        raise DistirError(
            "--metric and --direction apply to a single objective, but --objectives names several; "
            "write a direction as in throughput,memory=minimize"
        )
    aims = aims_in(objectives)
    if len(aims) == 1:
        (aim,) = aims
        towards = f" --direction {aim.direction}" if aim.direction else ""
        raise DistirError(
            f"--objectives names one objective, {aim.metric}; expected several, such as "
            f"throughput,memory; for a single one, use --objective {aim.metric}{towards}"
        )
    stated = find_metric(goal.objective) if isinstance(goal.objective, str) else None
    if stated is not None:
        aims = each_once([replace(aim, metric=_simulated_name(aim.metric)) for aim in aims])
        if goal.objective != type(goal).objective and stated.name != aims[0].metric:
            raise DistirError(
                f"--objective is {goal.objective} and --objectives is {objectives}; expected "
                "one of them, or a plug-in whose metrics --objectives names"
            )
        each = [problem.objective(aim.metric) for aim in aims]
        needy = (made for made in each if _needs_something(made.metric))
        made = next(needy, each[0])  # whose simulator tells what the others need, too
    else:
        made = problem.objective(goal.objective)
    first, *others = (_as_it_says(aim, made, is_first=aim is aims[0]) for aim in aims)
    return replace(
        made,
        name=",".join(aim.metric for aim in aims) if made.trusted else made.name,
        metric=first.metric,
        direction=first.direction,
        others=tuple(others),
    )


def _simulated_name(metric: str) -> str:
    """The simulator's own name of a metric, which may be called otherwise as an objective."""
    known = find_metric(metric)
    return metric if known is None else known.name


def _as_it_says(aim: Aim, objective: Objective, *, is_first: bool) -> Aim:
    """An aim with the direction that an objective says of its own metric, if nobody states one. An
    objective that does not name its metric means the first."""
    own = aim.metric == objective.metric or (is_first and not objective.metric)
    return replace(aim, direction=objective.direction) if own and not aim.direction else aim


def _needs_something(metric: str) -> bool:
    known = find_metric(metric)
    return known is not None and bool(known.needs)
