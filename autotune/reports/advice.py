"""When nothing fits: what comes closest, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.reports.breakdown import Breakdown, breakdown
from autotune.trial import Trial, closest_of
from distir.errors import DistirError

MOST_TIMES_DEVICES = 64
"""How many times the devices are tried, doubling."""


def advice(problem: Problem, objective: Objective, trials: Sequence[Trial]) -> Iterator[str]:
    """Lines that say what comes closest and what would help."""
    closest = closest_of(trials)
    if closest is None:
        return
    yield f"Closest: {closest.label}. {closest.evaluation.reason or ''}"
    if not objective.cheap:
        return
    yield f"What would help: {_remedy(breakdown(problem, closest.strategy))}"
    yield from _more_devices(problem)


def _remedy(plan: Breakdown) -> str:
    activations = plan.memory.get("activations_bytes", 0.0) + plan.memory.get("buffers_bytes", 0.0)
    if 2 * activations > plan.total_bytes:
        return "activations hold most of it: a smaller --batch-size or a shorter --sequence-length."
    return (
        "the model's state (parameters, gradients, optimizer) holds most of it: more --devices, "
        "devices with more memory, a lower --precision, or --optimizer sgd."
    )


def _more_devices(problem: Problem) -> Iterator[str]:
    """How many devices of the cluster would do, found by trying."""
    if problem.changed is None:
        return
    times = 2
    while times <= MOST_TIMES_DEVICES:
        devices = problem.devices * times
        try:
            found = _first_that_fits(problem.changed(devices=devices))
        except DistirError:
            return  # this cluster, or this model, has no use for so many
        if found is not None:
            yield f"On {devices} devices of {problem.cluster}, {found} fits."
            return
        times *= 2
    yield f"Not even {problem.devices * MOST_TIMES_DEVICES} devices of {problem.cluster} would do."


def _first_that_fits(problem: Problem) -> str | None:
    """A strategy that fits, among those that need least: microbatches of one sample."""
    frugal = (
        each
        for each in problem.space.enumerate()
        if each.dp * each.microbatches == problem.batch_size and problem.simulate(each).feasible
    )
    found = next(frugal, None)
    return found.label if found else None
