"""When nothing fits: what comes closest, and what would help."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from distir.units import short_bytes, short_seconds
from distir.workload import OPTIMIZERS, PRECISIONS
from search_spaces.named import DEFAULTS, SPACES

if TYPE_CHECKING:
    from autotune.exhaustive.certificate import Certificate
    from autotune.exhaustive.grid import Grid
    from distir.cost import Cluster
    from search_spaces import SearchSpace

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
    enough = enough_for(problem)
    yield f"What would help: {_remedies(problem, closest.strategy, enough)}"
    yield from enough.lines()


def closest_line(closest: Trial | None) -> Iterator[str]:
    """The plan that misses by least, if there is one."""
    if closest is not None:
        reason = closest.evaluation.reason or "with no reason given"
        yield f"Closest: {closest.label}, {reason}"


AS_USUAL = (
    "axes",
    "cp_exchange",
    "zero_degree",
    "recompute_every",
    "keep_gathered",
    "chunks",
    "placement",
)
"""Choices that save no memory, or less than their defaults do."""
FRUGAL: dict[str, Any] = {
    **{name: DEFAULTS[name] for name in AS_USUAL},
    "schedule": "1f1b",
    "recompute": "full",
}
"""Values of choices with which plans need little memory."""

OVERHEAD = 1 / 3
"""Share of an iteration from which its fixed overhead says more than its plan."""

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
    change = "neither ZeRO, recomputation nor offloading is enough"
    if made is not None:
        change = f"with {_said_changes(plain, made)} it would fit"
    needed = short_bytes(needed_bytes(evaluation.metrics))
    limit = short_bytes(problem.memory_bytes)
    return f"Ruled out by memory: dp {dp} alone needs {needed} of {limit}; {change}."


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
    return [*(each for each in _doubled(known, most - 1) if most % each == 0), most]


def _doubled(first: int, most: int) -> Iterator[int]:
    """`first`, twice as many and so on, up to `most`."""
    return takewhile(lambda each: each <= most, (first << n for n in count()))


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


def conclusions(plan: Breakdown) -> Iterator[str]:
    """What to conclude from a plan's time, where a reader may take it for more than it is."""
    overhead = plan.seconds.get("overhead", 0.0)
    if overhead < OVERHEAD * plan.total_seconds:
        return
    yield (
        f"The batch is too small to tell plans apart: {short_seconds(overhead)} of the "
        f"{short_seconds(plan.total_seconds)} are the fixed overhead of a step. With a larger "
        "--batch-size, plans differ more clearly."
    )


def _remedies(problem: Problem, strategy: Strategy, enough: Enough) -> str:
    """What holds most of the memory, and what would take less of it."""
    plan = breakdown(problem, strategy)
    activations = plan.memory.get("activations_bytes", 0.0) + plan.memory.get("buffers_bytes", 0.0)
    if 2 * activations > plan.total_bytes:
        holder, helpful = "activations hold", [*_less_activations(problem, strategy)]
    elif problem.mode != "training":
        holder, helpful = "parameters hold", [*_less_state(problem, strategy)]
    else:
        holder = "the model's state (parameters, gradients, optimizer) holds"
        helpful = [*_less_state(problem, strategy)]
    devices = ["more --devices"] if enough.takes_more_devices else []
    return f"{holder} most of it: {_any_of([*helpful, *devices, 'devices with more memory'])}."


def _any_of(names: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b, or c`."""
    if len(names) > 2:
        return f"{', '.join(names[:-1])}, or {names[-1]}"
    return " or ".join(names)


def _less_activations(problem: Problem, strategy: Strategy) -> Iterator[str]:
    """What makes a plan need less for activations."""
    now = needed_bytes(problem.simulate(strategy).metrics)
    if _needed(problem, strategy, {"recompute": "full"}) < now:
        yield "recomputation"
    least = strategy.dp * strategy.microbatches
    few = _needed(problem, strategy, {"microbatches": 1}, batch_size=strategy.dp)
    if min(few, _needed(problem, strategy, {}, batch_size=least)) < now:
        yield "a smaller --batch-size"
    half = max(problem.workload.sequence_lengths, default=0) // 2
    if _needed(problem, strategy, {}, sequence_length=half) < now:
        yield "a shorter --sequence-length"
    yield from _option(problem, strategy, "precision", _precisions(problem))


def _less_state(problem: Problem, strategy: Strategy) -> Iterator[str]:
    """What makes a plan need less for parameters, gradients and the optimizer."""
    now = needed_bytes(problem.simulate(strategy).metrics)
    if _needed(problem, strategy, {"zero": 3}) < now:
        yield "ZeRO"
    leanest = min(OPTIMIZERS, key=lambda name: OPTIMIZERS[name].num_moments)
    yield from _option(problem, strategy, "precision", _precisions(problem))
    yield from _option(problem, strategy, "optimizer", [leanest])


def _option(
    problem: Problem, strategy: Strategy, name: str, values: Sequence[str]
) -> Iterator[str]:
    """The option with the one of the values with which a plan needs least, if that is less than it
    needs now."""
    needed = {value: _needed(problem, strategy, {}, **{name: value}) for value in values}
    least = min(needed, key=lambda value: needed[value], default="")
    if least and needed[least] < needed_bytes(problem.simulate(strategy).metrics):
        yield f"--{name} {least}"


def _precisions(problem: Problem) -> list[str]:
    """Those that the devices have, as far as that is known, the usual one first."""
    cluster: Cluster | None = getattr(problem.simulator, "cluster", None)
    if cluster is None:
        return []
    device = cluster.device
    there = filter(device.supports, PRECISIONS)
    return sorted(there, key=lambda each: each != device.usual_precision)


def _needed(
    problem: Problem, strategy: Strategy, choices: Mapping[str, Any], **stated: Any
) -> float:
    """Bytes that a plan needs with other choices, of a problem of which something else is `stated`;
    infinitely many where there is no such problem or plan."""
    made = replace(strategy, **choices)
    try:
        if stated:
            if problem.changed is None:
                return math.inf
            problem = problem.changed(**stated)
        if problem.space.impossible(made):
            return math.inf
        return float(needed_bytes(problem.simulate(made).metrics))
    except DistirError:
        return math.inf


@dataclass(frozen=True, slots=True)
class Enough:
    """How many devices would do, and in which space, as far as that was tried."""

    devices: int
    """Those of the problem."""
    tried: int
    """The most that were tried."""
    found: Mapping[str, tuple[int, str]]
    """By space the fewest devices on which something fits, and what."""
    spaces: tuple[str, ...]
    """Spaces that were looked at, the problem's own first."""
    cluster: str

    @property
    def takes_more_devices(self) -> bool:
        """Whether something fits on more devices."""
        return any(devices > self.devices for devices, _ in self.found.values())

    def lines(self) -> Iterator[str]:
        """What there is to say of it."""
        for space, (devices, label) in sorted(self.found.items(), key=lambda item: item[1][0]):
            where = f"on {devices} devices of {self.cluster}"
            where = "on these devices" if devices == self.devices else where
            richer = space != self.spaces[0]
            fits = f"With --space {space}, {label} fits {where}."
            yield fits if richer else f"{where[:1].upper()}{where[1:]}, {label} fits."
        without = [space for space in self.spaces if space not in self.found]
        if self.tried > self.devices and self.spaces[0] in without:
            yield (
                f"Nothing was found in the space {_any_of(without)} that fits on up to "
                f"{self.tried} devices of {self.cluster}."
            )


def enough_for(problem: Problem) -> Enough:
    """Looks for numbers of devices of the cluster that would do, doubling, in the problem's space
    and in the next richer one: where many devices are not enough, fewer may be that share state and
    recompute."""
    own, found, tried = problem.space_name, dict[str, tuple[int, str]](), problem.devices
    spaces = (own, *_next_richer(own))
    for devices in _doubled(problem.devices, MOST_TIMES_DEVICES * problem.devices):
        left = [each for each in spaces if each not in found]
        here = left if devices > problem.devices else [each for each in left if each != own]
        try:
            fitting = _first_in(problem, devices, here)
        except DistirError:
            break  # this cluster, or this model, has no use for so many
        found |= {space: (devices, label) for space, label in fitting.items()}
        tried = devices
        if own in found:
            break
    return Enough(problem.devices, tried, found, spaces, problem.cluster)


def _first_in(problem: Problem, devices: int, spaces: Sequence[str]) -> Mapping[str, str]:
    """The first of the spaces in which something fits on this number of devices, and what does. In
    each only plans are tried that those before it do not have."""
    known = set[Strategy]()
    for space in spaces:
        label = _first_that_fits(_like(problem, devices, space), known)
        if label is not None:
            return {space: label}
    return {}


def _next_richer(space: str) -> Sequence[str]:
    """The named space that has the next more choices, if there is one."""
    names = SPACES.names()
    return names[names.index(space) + 1 :][:1] if space in names else ()


def _like(problem: Problem, devices: int, space: str) -> Problem:
    """The problem on other devices and in a space; raises `DistirError` if there is none."""
    if problem.changed is None:
        raise DistirError("nothing can be stated anew of this problem")
    stated = {} if space == problem.space_name else {"space": space}
    return problem.changed(devices=devices, **stated)


def _first_that_fits(problem: Problem, known: set[Strategy]) -> str | None:
    """A strategy that fits, among those that need least: microbatches of one sample, as much
    recomputed and sharded as the space has. Those `known` are left out; what is tried becomes
    known.
    """
    space = problem.space
    most_sharded = max(space.values("zero"), default=0)
    tried = (
        each
        for each in space.restricted(**_frugal(space)).enumerate()
        if each not in known
        and each.dp * each.microbatches == problem.batch_size
        and (each.zero == most_sharded or each.dp == 1)
    )
    left = MOST_TRIED
    while left and (batch := list(islice(tried, min(TRIED_TOGETHER, left)))):
        known.update(batch)
        fits = problem.simulator.simulate_many(batch).feasible
        found = next(compress(batch, fits), None)
        if found is not None:
            return found.label
        left -= len(batch)
    return None


def _frugal(space: SearchSpace) -> dict[str, tuple[Any, ...]]:
    """The values of choices with which plans need little memory, of those that the space has."""
    there = {name: space.values(name) for name in FRUGAL if name in space.names}
    return {name: (FRUGAL[name],) for name, values in there.items() if FRUGAL[name] in values}
