"""When nothing fits: what comes closest, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.reports.breakdown import Breakdown, breakdown
from autotune.trial import Trial
from distir.errors import DistirError

MOST_TIMES_DEVICES = 64
"""How many times the devices are tried, doubling."""
MOST_TRIED = 200
"""Strategies that are simulated for one remedy."""


def advice(problem: Problem, objective: Objective, closest: Trial | None) -> Iterator[str]:
    """Lines that say what comes closest and what would help."""
    yield from closest_line(closest)
    if closest is None:
        return
    if not objective.cheap:
        return
    yield f"What would help: {_remedy(breakdown(problem, closest.strategy))}"
    yield from _more_choices(problem)
    yield from _more_devices(problem)


def closest_line(closest: Trial | None) -> Iterator[str]:
    """The plan that misses by least, if there is one."""
    if closest is not None:
        yield f"Closest: {closest.label}. {closest.evaluation.reason or ''}"


def _remedy(plan: Breakdown) -> str:
    activations = plan.memory.get("activations_bytes", 0.0) + plan.memory.get("buffers_bytes", 0.0)
    if 2 * activations > plan.total_bytes:
        again = "recomputation, " if plan.strategy.recompute == "none" else ""
        return (
            f"activations hold most of it: {again}a smaller --batch-size or a shorter "
            "--sequence-length."
        )
    sharded = "ZeRO, " if plan.strategy.zero < 3 and plan.strategy.dp * plan.strategy.cp > 1 else ""
    return (
        f"the model's state (parameters, gradients, optimizer) holds most of it: {sharded}more "
        "--devices, devices with more memory, a lower --precision, or --optimizer sgd."
    )


def _more_choices(problem: Problem) -> Iterator[str]:
    """Whether ZeRO and recomputation would do, where they were not looked at."""
    if problem.changed is None or problem.space_name != "small" or problem.mode != "training":
        return
    found = _first_that_fits(problem.changed(space="standard"))
    if found is not None:
        yield f"With --space standard, {found} fits on these devices."


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
    """A strategy that fits, among those that need least: microbatches of one sample, as much
    recomputed and sharded as the space has.
    """
    space = problem.space
    policies, most_sharded = space.values("recompute"), max(space.values("zero"), default=0)
    frugal = space.restricted(
        schedule=("1f1b",), recompute=("full",) if "full" in policies else policies
    )
    tried = (
        each
        for each in frugal.enumerate()
        if each.dp * each.microbatches == problem.batch_size
        and (each.zero == most_sharded or each.dp == 1)
    )
    fitting = (each for each in islice(tried, MOST_TRIED) if problem.simulate(each).feasible)
    found = next(fitting, None)
    return found.label if found else None
