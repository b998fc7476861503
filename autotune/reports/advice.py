"""When nothing fits: what comes closest, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import compress, count, groupby, islice, takewhile
from typing import TYPE_CHECKING, Any

from autotune.objectives.objective import Objective
from autotune.objectives.simulator import needed_bytes
from autotune.problem import Problem
from autotune.reports.breakdown import Breakdown, breakdown
from autotune.reports.quantities import choice_heading, memory_use
from autotune.study.trial import Trial
from distir.errors import DistirError
from distir.factoring import microbatch_counts
from distir.metrics import iteration_seconds
from distir.strategies import FIELDS
from distir.strategy import Strategy
from distir.units import percent, short_bytes, short_seconds
from distir.workload import OPTIMIZERS

if TYPE_CHECKING:
    from autotune.exhaustive.certificate import Certificate
    from autotune.exhaustive.grid import Grid

MOST_TIMES_DEVICES = 64
"""How many times the devices are tried, doubling."""
MOST_TRIED = 200
"""Strategies that are simulated for one remedy."""
TRIED_TOGETHER = 40
"""So many at a time: most of what they cost is shared."""


def without_best(
    problem: Problem, objective: Objective, found: Grid | Certificate
) -> tuple[str, list[str]]:
    """What is said of a space in which nothing was found that fits: the answer, what misses by
    least, and, where the space was gone through, what would help."""
    said = advice(problem, objective, found.closest) if found.complete else None
    return found.said_without_best, [*(said or closest_line(found.closest))]


def advice(problem: Problem, objective: Objective, closest: Trial | None) -> Iterator[str]:
    """Lines that say what comes closest and what would help."""
    yield from closest_line(closest)
    if closest is None:
        return
    if not objective.cheap:
        return
    fitting = what_would_fit(problem, closest.strategy)
    if fitting is not None:
        yield fitting
    yield f"What would help: {_remedy(problem, breakdown(problem, closest.strategy))}"
    yield from _more_choices(problem)
    yield from _more_devices(problem)


def closest_line(closest: Trial | None) -> Iterator[str]:
    """The plan that misses by least, if there is one."""
    if closest is not None:
        reason = closest.evaluation.reason or "for which no reason is given"
        yield f"Closest: {closest.label}, {reason}"


OVERHEAD = 1 / 3
"""Share of an iteration from which its fixed overhead says more than its plan."""
BEARABLE = 0.1
"""Share that it has with the batch that is named."""

SAVINGS: tuple[dict[str, Any], ...] = (
    {"zero": 1},
    {"recompute": "selective"},
    {"zero": 3},
    {"zero": 1, "recompute": "selective"},
    {"recompute": "full"},
    {"zero": 3, "recompute": "selective"},
    {"zero": 1, "recompute": "full"},
    {"zero": 3, "recompute": "full"},
    {"zero": 3, "recompute": "full", "offload": "activations"},
    {"zero": 2, "recompute": "full", "offload": "optimizer"},
    {"zero": 3, "recompute": "full", "offload": "optimizer,parameters"},
    {"zero": 3, "recompute": "full", "offload": "optimizer,parameters,activations"},
)
"""Changes that save memory."""


def what_would_fit(problem: Problem, strategy: Strategy) -> str | None:
    """A sentence that names the least change of a plan with which it would fit, on the same
    degrees; None if there is none, or it fits. Of changes of as many choices the fastest is the
    least."""
    made = _least_change(problem, strategy)
    if made is None:
        return None
    used = memory_use(problem.simulate(made).metrics, problem.memory_bytes)
    return f"With {_said_changes(strategy, made)} it would fit: {used}."


def kept_out(problem: Problem) -> str | None:
    """A sentence about the plan that comes to mind first, plain data parallelism, if it does not
    fit: what it needs, and with what least change it would fit. None if it fits or cannot be
    made."""
    dp = problem.devices
    pieces = microbatch_counts(max(1, problem.batch_size // dp))[-1]
    plain = Strategy(dp=dp, microbatches=pieces)
    if problem.space.impossible(plain):
        return None
    evaluation = problem.simulate(plain)
    if evaluation.feasible:
        return None
    made = _least_change(problem, plain)
    change = "no ZeRO, recomputation or offloading would do"
    if made is not None:
        change = f"{_said_changes(plain, made)} would do"
    needed = short_bytes(needed_bytes(evaluation.metrics))
    limit = short_bytes(problem.memory_bytes)
    return f"Kept out by memory: dp {dp} alone needs {needed} of {limit}; {change}."


def _least_change(problem: Problem, strategy: Strategy) -> Strategy | None:
    """Of the plans that fit, the fastest of those with fewest changes; None if none fits."""
    batch = problem.batch_size // strategy.dp
    most = microbatch_counts(batch)[-1]
    savings = SAVINGS if problem.mode == "training" else ()
    made = (
        _changed(problem, replace(strategy, microbatches=pieces), saving)
        for pieces in _more_microbatches(strategy.microbatches, most)
        for saving in ({}, *savings)
    )
    different = {each for each in made if each is not None and each != strategy}
    by_changes = sorted(different, key=lambda each: len(_changes(strategy, each)))
    for _, alike in groupby(by_changes, key=lambda each: len(_changes(strategy, each))):
        tried = list(alike)
        table = problem.simulator.simulate_many(tried)
        seconds = table.metrics[iteration_seconds.name]
        found = [n for n, feasible in enumerate(table.feasible) if feasible]
        if found:
            return tried[min(found, key=lambda n: (seconds[n], tried[n].label))]
    return None


def _more_microbatches(known: int, most: int) -> list[int]:
    """Numbers of microbatches from one on, doubling, to the `most` that there can be."""
    doubled = takewhile(lambda each: each < most, (known << n for n in count()))
    return [*(each for each in doubled if most % each == 0), most]


def _changed(problem: Problem, strategy: Strategy, saving: Mapping[str, Any]) -> Strategy | None:
    """The plan with a saving on top of its own, if that is possible."""
    zero = max(strategy.zero, saving.get("zero", 0)) if strategy.dp * strategy.cp > 1 else 0
    again = saving.get("recompute", strategy.recompute)
    offload = saving.get("offload", strategy.offload)
    made = replace(strategy, zero=zero, recompute=again, offload=offload)
    return None if problem.space.impossible(made) else made


def _changes(before: Strategy, after: Strategy) -> list[str]:
    """The choices in which plans differ."""
    return [name for name in FIELDS if getattr(before, name) != getattr(after, name)]


def _said_changes(before: Strategy, after: Strategy) -> str:
    said = [f"{choice_heading(name)} {getattr(after, name)}" for name in _changes(before, after)]
    return " and ".join(said)


def conclusions(problem: Problem, plan: Breakdown) -> Iterator[str]:
    """What to conclude from a plan's time, where a reader may take it for more than it is."""
    overhead = plan.seconds.get("overhead", 0.0)
    rest = plan.total_seconds - overhead
    if overhead < OVERHEAD * plan.total_seconds or rest <= 0:
        return
    times = 1
    while overhead > BEARABLE * (overhead + times * rest):
        times *= 2
    yield (
        f"The batch is too small to tell plans apart: {short_seconds(overhead)} of the "
        f"{short_seconds(plan.total_seconds)} are the fixed overhead of a step. With --batch-size "
        f"{times * problem.batch_size} it would be less than {percent(BEARABLE)}."
    )


def _remedy(problem: Problem, plan: Breakdown) -> str:
    training = problem.mode == "training"
    activations = plan.memory.get("activations_bytes", 0.0) + plan.memory.get("buffers_bytes", 0.0)
    if 2 * activations > plan.total_bytes:
        again = "recomputation, " if training and plan.strategy.recompute == "none" else ""
        return (
            f"activations hold most of it: {again}a smaller --batch-size or a shorter "
            "--sequence-length."
        )
    if not training:
        return (
            "parameters hold most of it: more --devices, devices with more memory, or a lower "
            "--precision."
        )
    sharded = "ZeRO, " if plan.strategy.zero < 3 and plan.strategy.dp * plan.strategy.cp > 1 else ""
    leanest = min(OPTIMIZERS, key=lambda name: OPTIMIZERS[name].num_moments)
    others = f"a lower --precision, or --optimizer {leanest}"
    if problem.settings.get("optimizer") == leanest:
        others = "or a lower --precision"
    return (
        f"the model's state (parameters, gradients, optimizer) holds most of it: {sharded}more "
        f"--devices, devices with more memory, {others}."
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
    left = MOST_TRIED
    while left and (batch := list(islice(tried, min(TRIED_TOGETHER, left)))):
        fits = problem.simulator.simulate_many(batch).feasible
        found = next(compress(batch, fits), None)
        if found is not None:
            return found.label
        left -= len(batch)
    return None
