"""Plans of which none is better in all that is looked for, and how much such plans cover."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from autotune.objectives.aims import Aim
from autotune.objectives.objective import Objective
from autotune.study.trial import Trial, ranked

Point: TypeAlias = tuple[float, ...]
"""A plan's costs, one per aim; smaller is better."""


@dataclass(frozen=True)
class Pareto:
    """The Pareto front of a search for several objectives."""

    aims: tuple[Aim, ...]
    plans: Sequence[Trial]
    """Feasible trials that no other one equals or beats in every aim, the best in the first aim
    first."""
    points: tuple[Point, ...]
    """Their costs."""
    worst: Point
    """The largest costs of feasible trials, the reference point of the hypervolume."""

    @cached_property
    def hypervolume(self) -> float:
        """The volume between the front and `worst`, in the product of the aims' units."""
        return hypervolume(self.points, self.worst)

    @cached_property
    def share(self) -> float | None:
        """The hypervolume as a share of the box between the best and the worst values; None where
        all trials have the same value of an aim."""
        box = 1.0
        for least, most in zip(map(min, zip(*self.points, strict=True)), self.worst, strict=True):
            box *= most - least
        return self.hypervolume / box if box else None

    @property
    def reference(self) -> Mapping[str, float]:
        """The worst value of each metric."""
        return {
            aim.metric: -cost if aim.maximize else cost
            for aim, cost in zip(self.aims, self.worst, strict=True)
        }


def pareto_of(trials: Iterable[Trial], objective: Objective) -> Pareto | None:
    """The front of the trials; None where there is one aim alone, or nothing feasible."""
    if not objective.others:
        return None
    known: list[tuple[Trial, Point]] = []
    for trial in ranked(trials):
        point = objective.all_costs(trial.evaluation)
        if point is not None:
            known.append((trial, point))
    if not known:
        return None
    front: dict[Point, Trial] = {}
    for trial, point in sorted(known, key=lambda each: each[1]):
        if not any(covers(better, point) for better in front):
            front[point] = trial
    worst = tuple(map(max, zip(*(point for _, point in known), strict=True)))
    return Pareto(objective.aims, list(front.values()), tuple(front), worst)


def covers(one: Point, other: Point) -> bool:
    """Whether one is at least as good in every aim."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def hypervolume(points: Iterable[Point], reference: Point) -> float:
    """The volume of all that some point covers and that covers `reference`, by slices along the
    last aim (Zitzler 2001; While et al. 2006, "A faster algorithm for calculating hypervolume")."""
    inside = sorted({each for each in points if covers(each, reference)}, key=lambda each: each[-1])
    if not inside:
        return 0.0
    if len(reference) == 1:
        return reference[0] - inside[0][0]
    borders = [*(point[-1] for point in inside[1:]), reference[-1]]
    total = 0.0
    for count, (point, border) in enumerate(zip(inside, borders, strict=True), 1):
        if border > point[-1]:
            area = hypervolume((each[:-1] for each in inside[:count]), reference[:-1])
            total += area * (border - point[-1])
    return total
