"""Verification: a small version of the model is executed as planned and on one device, and both
must compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distir.arguments import checked
from distir.cost import load_cluster
from distir.errors import StrategyError, TransformError
from distir.execute.executor import Execution, execute, execute_steps
from distir.execute.sequential import mixes_samples, sequential_step
from distir.execute.shrink import shrink
from distir.execute.values import (
    OptimizerStep,
    RandomValues,
    StepResult,
    StepValues,
    joined_samples,
    microbatch,
    optimizer_step,
    random_values,
)
from distir.ir.core import Array, Value
from distir.plan import Plan, Planner
from distir.schedules import CompiledSchedule
from distir.simulation import Simulator
from distir.strategy import Strategy
from distir.workload import OUTER_OPTIMIZERS, Workload

RELATIVE_TOLERANCE = 1e-10
"""Relative error that float64 stays far below if a plan is right."""

GRADIENT_FLOOR = 1e-3
"""Fraction of the largest gradient of the model: a smaller gradient, which may be zero but for
rounding, is compared with that fraction instead of its own size."""

ANY_CLUSTER = "dgx-a100"
"""A cluster to balance stages for; the numbers computed do not depend on it."""

ROUNDING_MARGIN = 8
"""How many times larger the rounding within a step may be than the effect of rounding its inputs:
many devices add up in another order than one."""

MOST_ROUNDING = 1e-7
"""Largest relative change of a value by rounding the step's inputs at which its comparison still
says something."""

LAST_BIT = 2.0**-52
"""Relative distance of neighbouring numbers in float64."""

STEP_NUMBER = 2
"""Number of the optimizer step that is run: Adam's update in step 1 is nearly the gradient's sign,
which would hide errors."""

MOST_STEPS_RUN = 3
"""Steps that are run, at most, between two synchronisations of replicas that do so rarely."""

ROUNDS_WITH_STATE = 2
"""How often replicas synchronise if they keep something from one time to the next."""

Run = Callable[[Plan, StepValues, OptimizerStep], Execution]
"""How one step of a plan is executed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Relative error of one value that a plan computed."""

    name: str
    error: float
    rounding: float = 0.0
    """Relative change of the value on one device if all inputs of the step change by their last
    bit: no plan can be expected to come closer. Computed only if an error is above the tolerance.
    """

    def within(self, tolerance: float) -> bool:
        """Whether the error is below the tolerance, or explained by rounding."""
        if self.error < tolerance:
            return True
        return self.rounding < MOST_ROUNDING and self.error < ROUNDING_MARGIN * self.rounding


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying one strategy. `differences` has every value that was compared, in
    order of computation; `invented` names tables whose values were made up."""

    strategy: Strategy
    devices: int
    differences: tuple[Difference, ...]
    simulated_peak_bytes: float
    executed_peak_bytes: float
    invented: tuple[str, ...]
    tolerance: float = RELATIVE_TOLERANCE

    @property
    def compared(self) -> int:
        """Number of values compared."""
        return len(self.differences)

    @property
    def max_relative_error(self) -> float:
        """The largest relative error; infinite if any value is not a number."""
        return max((each.error for each in self.differences), default=0.0)

    @property
    def first_difference(self) -> Difference | None:
        """The first value whose error rounding does not explain, or None."""
        return next((each for each in self.differences if not each.within(self.tolerance)), None)

    @property
    def rounded(self) -> tuple[Difference, ...]:
        """The values whose error is above the tolerance and explained by rounding."""
        beyond = (each for each in self.differences if not each.error < self.tolerance)
        return tuple(each for each in beyond if each.within(self.tolerance))

    @property
    def passed(self) -> bool:
        """Whether all values agree."""
        return self.first_difference is None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values, which `autotune verify --json` writes."""
        first = self.first_difference
        return {
            "strategy": self.strategy.to_dict(),
            "passed": self.passed,
            "max_relative_error": self.max_relative_error,
            "compared": self.compared,
            "devices": self.devices,
            "simulated_peak_bytes": self.simulated_peak_bytes,
            "executed_peak_bytes": self.executed_peak_bytes,
            "first_difference": None if first is None else first.name,
            "rounded": [each.name for each in self.rounded],
            "invented_tables": list(self.invented),
        }


@dataclass(slots=True)
class Verifier:
    """Verifies strategies of one workload.

    Small versions of the workload are kept for other strategies with the same degrees, together
    with what one device computes on them.
    """

    workload: Workload
    seed: int = 0
    tolerance: float = RELATIVE_TOLERANCE
    _planner: Planner | None = None
    _small: dict[object, Workload] = field(default_factory=dict[object, Workload])
    _truth: dict[object, tuple[RandomValues, StepResult]] = field(
        default_factory=dict[object, tuple[RandomValues, StepResult]]
    )
    _rounding: dict[object, Mapping[str, float]] = field(
        default_factory=dict[object, Mapping[str, float]]
    )

    def _verify_replicas(self, strategy: Strategy, run: Run) -> Verification:
        """Runs as many steps as replicas take between two synchronisations, but no more than
        `MOST_STEPS_RUN`, and compares with what follows from those that each replica computes on
        one device; with an outer optimizer, twice, so that what it keeps is used."""
        if run is not execute:
            raise StrategyError(
                f"sync_every = {strategy.sync_every}: several steps, between which replicas "
                "differ, run on virtual devices alone; autotune verify does that"
            )
        fewer = replace(strategy, sync_every=min(strategy.sync_every, MOST_STEPS_RUN))
        # A sample's place in the batch decides what dropout draws, and it has another one alone.
        small = replace(self.small(fewer), dropout=False)
        simulator = Simulator(small, load_cluster(ANY_CLUSTER, strategy.devices))
        plan = simulator.plan(fewer)
        peak = simulator.simulate_plan(plan).metrics["peak_memory_bytes"]
        rounds = ROUNDS_WITH_STATE if fewer.outer_optimizer in OUTER_OPTIMIZERS else 1
        numbers = range(fewer.sync_every * rounds)
        every = [random_values(small, self.seed + at, 0.5, strategy.microbatches) for at in numbers]
        given = [each.values for each in every]
        optimizers = [optimizer_step(small, STEP_NUMBER + at) for at in numbers]
        execution = execute_steps(plan, given, optimizers)
        expected = steps_of_replicas(small, given, optimizers, fewer)
        return Verification(
            strategy=strategy,
            devices=strategy.devices,
            differences=tuple(compare(small, execution.result, expected)),
            simulated_peak_bytes=peak,
            executed_peak_bytes=max(execution.measured.peaks),
            invented=every[0].invented,
            tolerance=self.tolerance,
        )

    def explain(self, strategy: Strategy) -> str | None:
        """Why the strategy cannot be applied to the whole model, or None."""
        if self._planner is None:
            self._planner = Planner(self.workload)
        return self._planner.explain(strategy)

    @checked
    def verify(
        self, strategy: Strategy, run: Run = execute, schedule: CompiledSchedule | None = None
    ) -> Verification:
        """Executes a strategy and compares the results with those of one device. `run` executes a
        plan: on virtual devices, unless another one is given; `schedule` takes the place of the
        strategy's.

        Raises `StrategyError` if the strategy cannot be applied to the whole model.
        """
        reason = self.explain(strategy)
        if reason is not None:
            raise StrategyError(reason)
        if strategy.sync_every > 1:
            return self._verify_replicas(strategy, run)
        small = self.small(strategy)
        simulator = Simulator(small, load_cluster(ANY_CLUSTER, strategy.devices))
        plan = simulator.plan(strategy)
        if schedule is not None:
            plan = replace(plan, schedule=schedule)
        peak = simulator.simulate_plan(plan).metrics["peak_memory_bytes"]
        given, truth = self.truth(small, strategy.microbatches)
        execution = run(plan, given.values, optimizer_step(small, STEP_NUMBER))
        differences = tuple(compare(small, execution.result, truth))
        worth_explaining = ROUNDING_MARGIN * MOST_ROUNDING
        if any(self.tolerance <= each.error < worth_explaining for each in differences):
            moved = self.rounding(small, strategy.microbatches)
            differences = tuple(replace(each, rounding=moved[each.name]) for each in differences)
        return Verification(
            strategy=strategy,
            devices=strategy.devices,
            differences=differences,
            simulated_peak_bytes=peak,
            executed_peak_bytes=max(execution.measured.peaks),
            invented=given.invented,
            tolerance=self.tolerance,
        )

    def small(self, strategy: Strategy) -> Workload:
        """The small version of the workload for a strategy."""
        s = strategy
        degrees = (s.dp, s.tp, s.cp, s.stages, s.microbatches, bool(s.axes))
        if degrees not in self._small:
            self._small[degrees] = shrink(self.workload, [strategy])
        return self._small[degrees]

    def truth(self, small: Workload, microbatches: int) -> tuple[RandomValues, StepResult]:
        """Random values for a small workload, and the result of a step on one device from them."""
        key = (id(small), microbatches)
        if key not in self._truth:
            self._truth[key] = sequential_truth(small, microbatches, self.seed)
        return self._truth[key]

    def rounding(self, small: Workload, microbatches: int) -> Mapping[str, float]:
        """Relative change of every value, by name, on one device, if all inputs of the step change
        by their last bit."""
        key = (id(small), microbatches)
        if key not in self._rounding:
            given, truth = self.truth(small, microbatches)
            values = last_bit_changed(given.values, self.seed)
            pieces = microbatches if mixes_samples(small) else 1
            moved = sequential_step(small, values, optimizer_step(small, STEP_NUMBER), pieces)
            self._rounding[key] = {each.name: each.error for each in compare(small, moved, truth)}
        return self._rounding[key]


@checked
def verify(workload: Workload, strategy: Strategy) -> Verification:
    """Verifies one strategy; see `Verifier.verify`."""
    return Verifier(workload).verify(strategy)


def sequential_truth(
    workload: Workload, microbatches: int = 1, seed: int = 0
) -> tuple[RandomValues, StepResult]:
    """Random values, and the result of a step on one device from them: of the whole batch at once
    if its samples do not depend on each other, otherwise in `microbatches` pieces.

    Tables without values get made-up ones. If these give infinities or NaNs (a mask may hide all
    positions), others are tried. Raises `TransformError` if none give numbers.
    """
    pieces = microbatches if mixes_samples(workload) else 1
    first = ""
    for truth in (0.5, 1.0, 0.0):
        given = random_values(workload, seed, truth, microbatches)
        result = sequential_step(
            workload, given.values, optimizer_step(workload, STEP_NUMBER), pieces
        )
        wrong = [name for name, array in _named(workload, result) if not np.isfinite(array).all()]
        if not wrong:
            return given, result
        first = first or wrong[0]
    raise TransformError(
        f"{workload.model.name} cannot be executed with random values: {first} comes out infinite "
        "or not a number; expected numbers"
    )


def steps_of_replicas(
    workload: Workload,
    given: Sequence[StepValues],
    optimizers: Sequence[OptimizerStep],
    strategy: Strategy,
) -> StepResult:
    """What one device computes that does the steps of every replica with the samples of that
    replica, one replica after the other, and every `sync_every` steps what they do together; with
    the mean of their losses in the last step, and no gradients."""
    alone = replace(workload, batch_size=workload.batch_size // strategy.dp)
    theirs = alone.program.function.parameters
    translated = dict(zip(workload.program.function.parameters, theirs, strict=True))
    parameters = {own: given[0].parameters[value] for value, own in translated.items()}
    start = {own: given[0].moments[value] for value, own in translated.items()}
    moments = [start] * strategy.dp
    differences: list[dict[Value, Array]] = []
    results: list[StepResult] = []
    for begin in range(0, len(given), strategy.sync_every):
        steps = range(begin, begin + strategy.sync_every)
        results = []
        for replica, own in enumerate(moments):
            before, result = StepValues({}, parameters, own), StepResult(())
            for step in steps:
                sources = _of_replica(workload, alone, given[step], strategy, replica)
                values = replace(before, sources=sources)
                result = sequential_step(alone, values, optimizers[step])
                before = StepValues(
                    {},
                    {**before.parameters, **result.parameters},
                    {**before.moments, **result.moments},
                )
            moments[replica] = dict(before.moments)
            results.append(result)
        changed = {
            value: np.mean([result.parameters[value] for result in results], axis=0)
            for value in results[0].parameters
        }
        differences.append({value: parameters[value] - changed[value] for value in changed})
        parameters = parameters | outer_steps(parameters, differences, strategy.outer_optimizer)
    loss = sum(result.loss for result in results)
    return StepResult(
        (np.asarray(loss if workload.loss == "sum" else loss / strategy.dp),),
        parameters={
            value: parameters[own] for value, own in translated.items() if own in differences[-1]
        },
    )


def outer_steps(
    parameters: Mapping[Value, Array], differences: Sequence[Mapping[Value, Array]], optimizer: str
) -> dict[Value, Array]:
    """The parameters after the last of several synchronisations, given those after the one before
    and how far the mean over replicas was from the start, each time. Without an outer optimizer it
    is the mean. Nesterov's momentum is written as a sum over all times, so that this is an
    independent check of the op."""
    last = differences[-1]
    if optimizer not in OUTER_OPTIMIZERS:
        return {value: parameters[value] - last[value] for value in last}
    step, found = OUTER_OPTIMIZERS[optimizer], dict[Value, Array]()
    for value, difference in last.items():
        decaying = sum(
            step.momentum ** (age + 1) * each[value]
            for age, each in enumerate(reversed(differences))
        )
        found[value] = parameters[value] - step.learning_rate * (difference + decaying)
    return found


def _of_replica(
    workload: Workload, alone: Workload, values: StepValues, strategy: Strategy, replica: int
) -> dict[Value, Array]:
    """The sources of the samples of one replica, by the values of its own workload."""
    function, theirs = workload.program.function, alone.program.function
    sources = (*function.inputs, *function.constants), (*theirs.inputs, *theirs.constants)
    pieces = strategy.dp * strategy.microbatches
    found: dict[Value, Array] = {}
    for value, own in zip(*sources, strict=True):
        if value in values.sources:
            parts = [
                microbatch(workload, value, values.sources[value], index, pieces)
                for index in range(replica, pieces, strategy.dp)
            ]
            found[own] = joined_samples(alone, own, parts)
    return found


def last_bit_changed(values: StepValues, seed: int = 0) -> StepValues:
    """The same values with every real number of inputs, constants and parameters moved up or down
    by its last bit, at random."""
    rng = np.random.default_rng(seed)

    def changed(array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        return array * (1 + rng.choice((-LAST_BIT, LAST_BIT), array.shape))

    return replace(
        values,
        sources={value: changed(array) for value, array in values.sources.items()},
        parameters={value: changed(array) for value, array in values.parameters.items()},
    )


def compare(workload: Workload, found: StepResult, expected: StepResult) -> Iterator[Difference]:
    """Relative errors of the loss or the outputs, of gradients and of updated parameters.

    An error is relative to the scale of the expected value; for gradients and updated parameters
    the scale is at least `GRADIENT_FLOOR` times the largest gradient.
    """
    scales = [scale_of(array) for array in expected.gradients.values()]
    floor = GRADIENT_FLOOR * max(scales, default=0.0)
    theirs = dict(_named(workload, found))
    for name, array in _named(workload, expected):
        least = floor if name.startswith(("gradient", "updated")) else 0.0
        if name not in theirs:
            yield Difference(name, float("inf"))
            continue
        yield Difference(name, relative_error(theirs[name], array, least))


def _named(workload: Workload, result: StepResult) -> Iterator[tuple[str, Array]]:
    function = workload.program.function
    outputs = _distinct_names(function.outputs)
    for value, array in zip(function.outputs, result.outputs, strict=True):
        yield ("loss" if workload.training else f"output {outputs[value]}"), array
    parameters = _distinct_names(function.parameters)
    yield from _by_parameter("gradient of", parameters, result.gradients)
    yield from _by_parameter("updated", parameters, result.parameters)


def _distinct_names(values: Sequence[Value]) -> Mapping[Value, str]:
    """Distinct names of values: numbered where several have the same."""
    names: dict[Value, str] = {}
    taken: dict[str, int] = {}
    for value in dict.fromkeys(values):
        number = taken[value.name] = taken.get(value.name, 0) + 1
        names[value] = value.name if number == 1 else f"{value.name} ({number})"
    return names


def _by_parameter(
    what: str, names: Mapping[Value, str], arrays: Mapping[Value, Array]
) -> Iterator[tuple[str, Array]]:
    for value, name in names.items():
        if value in arrays:
            yield f"{what} {name}", arrays[value]


def scale_of(array: Array) -> float:
    """The largest magnitude in the array; 0 if it is empty."""
    return float(np.max(np.abs(array), initial=0.0))


def relative_error(found: Array, expected: Array, least: float = 0.0) -> float:
    """The largest difference, divided by the largest expected magnitude or by `least`, whichever is
    more. Infinite if the shapes differ or an element is not a number."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    difference = scale_of(found - expected)
    if difference == 0:
        return 0.0
    scale = max(scale_of(expected), least)
    return difference / scale if scale else float("inf")


__all__ = [
    "RELATIVE_TOLERANCE",
    "Difference",
    "Verification",
    "Verifier",
    "compare",
    "relative_error",
    "sequential_truth",
    "verify",
]
