"""How many devices: the best plan of each number of them, for one and the same batch.

Strong scaling: more devices share the same work, so that fewer samples are left for each. The
efficiency of a number of devices is what one of them does, against one of the fewest that have a
plan which fits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.exhaustive.certified import can_be_certified, certify
from autotune.exhaustive.grid import LONGEST_SECONDS, evaluate_grid
from autotune.objectives.objective import Objective
from autotune.problem import Problem, default_batch_size, problem_of
from autotune.rendering import Shown
from autotune.statement import Goal, ProblemStatement
from autotune.study.trial import Trial
from autotune.study.verdict import all_failed
from autotune.watch import Phase, not_shown
from distir.errors import DistirError
from distir.limits import MOST_DEVICES
from distir.metrics import METRICS, throughput_samples_per_second

__all__ = ["MOST_COUNTS", "Scaling", "ScalingStep", "device_counts", "scale"]

MOST_COUNTS = 64
"""Numbers of devices that are looked at for one answer."""


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """One number of devices, and its best plan."""

    devices: int
    best: Trial | None
    """None if nothing fits, or no strategy divides the batch and the model so."""
    reason: str | None
    """Why there is no plan."""
    proved: bool
    """Whether every strategy of the space was evaluated or ruled out."""
    seconds: float
    efficiency: float | None = None
    """Samples per second and device, against those of the fewest devices that have a plan."""

    def to_dict(self, batch_size: int) -> dict[str, Any]:
        """As plain JSON values."""
        found = self.best.outcome(batch_size) if self.best else {"strategy": None, "metrics": None}
        return {
            "devices": self.devices,
            **found,
            "efficiency": self.efficiency,
            "proved": self.proved,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Scaling(Shown):
    """The best plans of several numbers of devices. In a notebook it shows itself as a table."""

    problem: Problem
    """The problem with the most devices."""
    objective: Objective
    steps: tuple[ScalingStep, ...] = field(default=())
    left: tuple[int, ...] = ()
    """Numbers of devices that were not looked at any more because of an interrupt."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        problem = self.problem
        return {
            "model": problem.model,
            "cluster": problem.cluster,
            "mode": problem.mode,
            "batch_size": problem.batch_size,
            "settings": problem.settings,
            "space": problem.space_name,
            "objective": self.objective.name,
            "metric": self.objective.metric,
            "interrupted": bool(self.left),
            "points": [each.to_dict(problem.batch_size) for each in self.steps],
        }


def device_counts(text: str) -> list[int]:
    """`8:1024` as powers of two with both ends, `8,24,64` as a list.

    Raises `DistirError` for anything else."""
    try:
        least, colon, most = text.partition(":")
        if not colon:
            return _checked(sorted({int(each) for each in text.split(",")}), text)
        ends = int(least), int(most)
    except ValueError as error:
        raise _not_counts(text) from error
    if not 1 <= ends[0] <= ends[1] <= MOST_DEVICES:
        raise _not_counts(text)
    powers = (1 << place for place in range(ends[1].bit_length()))
    return sorted({*ends, *(each for each in powers if ends[0] < each < ends[1])})


def _checked(counts: list[int], text: str) -> list[int]:
    if len(counts) > MOST_COUNTS or not 1 <= counts[0] <= counts[-1] <= MOST_DEVICES:
        raise _not_counts(text)
    return counts


def _not_counts(text: str) -> DistirError:
    return DistirError(
        f"{text!r} does not state numbers of devices; expected the smallest and the largest, such "
        f"as 8:1024, or up to {MOST_COUNTS} numbers, such as 8,24,64"
    )


def scale(
    statement: ProblemStatement, goal: Goal, counts: Sequence[int], *, phase: Phase = not_shown
) -> tuple[Problem, Objective, tuple[ScalingStep, ...]]:
    """The best plan of every number of devices, with the problem of the most devices. An interrupt
    leaves those that were looked at, if there are any.

    Unless a batch is stated, it is the usual one of the most devices. Raises `DistirError` if no
    number of devices has a plan: none is valid, none fits, or all trials fail.
    """
    batch = statement.batch_size or default_batch_size(max(counts), statement.mode)
    with phase("reading"):
        largest = problem_of(replace(statement, devices=max(counts), batch_size=batch))
    objective = goal.over(largest)
    steps: list[ScalingStep] = []
    try:
        with phase("scaling", len(counts)) as advance:
            for devices in counts:
                step = _step(largest, goal, devices)
                steps.append(step)
                advance(1, step.best, step.seconds)
    except KeyboardInterrupt:
        if not steps:
            raise
    if len(steps) == len(counts) and all(step.best is None for step in steps):
        raise DistirError(f"no number of devices has a plan: {steps[-1].reason}")
    # A metric of one's own has a name only once it was measured.
    for best in [step.best for step in steps if step.best is not None][:1]:
        objective.settle_names(best.evaluation.metrics)
    return largest, objective, _with_efficiency(steps)


def _step(largest: Problem, goal: Goal, devices: int) -> ScalingStep:
    clock = time.perf_counter()
    assert largest.changed is not None  # problems that were stated can be changed
    best, reason, proved = None, None, True
    try:
        problem = largest.changed(devices=devices, batch_size=largest.batch_size)
        problem.check_not_empty()
        objective = goal.over(problem)
        if can_be_certified(problem, objective):
            found = certify(problem, objective, seconds=LONGEST_SECONDS, nearest=False)
            if found.interrupted:
                raise KeyboardInterrupt
            best, proved, closest = found.best, found.proved, found.closest
        else:
            grid = evaluate_grid(problem.space, objective, top=1)
            if not grid.complete:
                raise KeyboardInterrupt
            best, proved, closest = grid.best, grid.complete, grid.closest
            if grid.all_failed:
                raise DistirError(all_failed(grid.failures))
        if best is None:
            reason = "nothing fits" if closest is None else closest.evaluation.reason
    except DistirError as error:
        reason = str(error)
    return ScalingStep(devices, best, reason, proved, time.perf_counter() - clock)


def _with_efficiency(steps: Sequence[ScalingStep]) -> tuple[ScalingStep, ...]:
    name = throughput_samples_per_second.name
    assert name in METRICS
    rates = {s.devices: s.best.metric(name) for s in steps if s.best is not None}
    known = {devices: rate / devices for devices, rate in rates.items() if rate}
    first = next(iter(known.values()), None)
    return tuple(
        replace(s, efficiency=known[s.devices] / first) if first and s.devices in known else s
        for s in steps
    )
