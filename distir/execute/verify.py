"""Verification: a small version of the model, executed as planned and on one device; both must
compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distir.cost import load_cluster
from distir.errors import StrategyError, TransformError
from distir.execute.executor import execute
from distir.execute.sequential import mixes_samples, sequential_step
from distir.execute.shrink import shrink
from distir.execute.values import (
    RandomValues,
    StepResult,
    StepValues,
    optimizer_step,
    random_values,
)
from distir.ir.core import Value
from distir.plan import Planner
from distir.simulation import Simulator
from distir.strategy import Strategy
from distir.workload import Workload

Array = Any

TOLERANCE = 1e-10
"""Relative error that float64 stays far below if a plan is right."""

SMALL = 1e-3
"""Part of the largest gradient below which gradients are compared with it: some truly are zero."""

ANY_CLUSTER = "dgx-a100"
"""Results do not depend on the cluster; the stages are balanced for some."""

MARGIN = 8
"""How many times the rounding of what a step begins with the rounding inside of it may be: sums are
in another order on many devices."""

MOST_ROUNDING = 1e-7
"""What a value may move by when what the step begins with is rounded, for its agreement to say
anything."""

LAST_BIT = 2.0**-52
"""Relative distance of neighbouring numbers in float64."""

STEP = 2
"""Number of the optimizer step that is tried: beyond the first, whose update is nearly a sign."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one value is from what it should be."""

    name: str
    error: float
    rounding: float = 0.0
    """How far it moves, on one device, if all numbers that the step begins with change by their
    last bit: no plan can be expected to be closer. Looked at only for errors above the
    tolerance."""

    def within(self, tolerance: float) -> bool:
        """Whether the error is below the tolerance, or no more than rounding."""
        if self.error < tolerance:
            return True
        return self.rounding < MOST_ROUNDING and self.error < MARGIN * self.rounding


@dataclass(frozen=True, slots=True)
class Verification:
    """What came out of one strategy. `differences` has every value that was compared, in order of
    computation."""

    strategy: Strategy
    devices: int
    differences: tuple[Difference, ...]
    simulated_peak_bytes: float
    executed_peak_bytes: float
    invented: tuple[str, ...]
    tolerance: float = TOLERANCE

    @property
    def compared(self) -> int:
        """Number of values compared."""
        return len(self.differences)

    @property
    def max_relative_error(self) -> float:
        """The largest error; infinite if anything is not a number."""
        return max((each.error for each in self.differences), default=0.0)

    @property
    def first_difference(self) -> Difference | None:
        """The first value that differs by more than rounding, or None."""
        return next((each for each in self.differences if not each.within(self.tolerance)), None)

    @property
    def rounded(self) -> tuple[Difference, ...]:
        """The values that differ by more than the tolerance, and by no more than rounding."""
        beyond = (each for each in self.differences if not each.error < self.tolerance)
        return tuple(each for each in beyond if each.within(self.tolerance))

    @property
    def passed(self) -> bool:
        """Whether all values agree."""
        return self.first_difference is None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
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
    """Verifies strategies of one workload. Small versions of it are kept, per degrees."""

    workload: Workload
    seed: int = 0
    tolerance: float = TOLERANCE
    _planner: Planner | None = None
    _small: dict[object, Workload] = field(default_factory=dict[object, Workload])
    _truth: dict[object, tuple[RandomValues, StepResult]] = field(
        default_factory=dict[object, tuple[RandomValues, StepResult]]
    )
    _rounding: dict[object, Mapping[str, float]] = field(
        default_factory=dict[object, Mapping[str, float]]
    )

    def explain(self, strategy: Strategy) -> str | None:
        """Why the strategy cannot be applied to the whole model, or None."""
        if self._planner is None:
            self._planner = Planner(self.workload)
        return self._planner.explain(strategy)

    def verify(self, strategy: Strategy) -> Verification:
        """Executes a strategy and compares; raises `StrategyError` if it cannot be applied."""
        reason = self.explain(strategy)
        if reason is not None:
            raise StrategyError(reason)
        small = self.small(strategy)
        simulator = Simulator(small, load_cluster(ANY_CLUSTER, strategy.devices))
        plan = simulator.plan(strategy)
        peak = simulator.simulate_plan(plan).metrics["peak_memory_bytes"]
        given, truth = self.truth(small, strategy.microbatches)
        execution = execute(plan, given.values, optimizer_step(small, STEP))
        differences = tuple(compare(small, execution.result, truth))
        if any(self.tolerance <= each.error < MARGIN * MOST_ROUNDING for each in differences):
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
        """Random values for a small workload, and what a step makes of them on one device."""
        key = (id(small), microbatches)
        if key not in self._truth:
            self._truth[key] = sequential_truth(small, microbatches, self.seed)
        return self._truth[key]

    def rounding(self, small: Workload, microbatches: int) -> Mapping[str, float]:
        """How far every value moves, on one device, if all that a step begins with changes by its
        last bit."""
        key = (id(small), microbatches)
        if key not in self._rounding:
            given, truth = self.truth(small, microbatches)
            values = last_bit_changed(given.values, self.seed)
            pieces = microbatches if mixes_samples(small) else 1
            moved = sequential_step(small, values, optimizer_step(small, STEP), pieces)
            self._rounding[key] = {each.name: each.error for each in compare(small, moved, truth)}
        return self._rounding[key]


def verify(workload: Workload, strategy: Strategy) -> Verification:
    """Verifies one strategy."""
    return Verifier(workload).verify(strategy)


def sequential_truth(
    workload: Workload, microbatches: int = 1, seed: int = 0
) -> tuple[RandomValues, StepResult]:
    """Random values and what a step on one device makes of them, at once if the samples do not
    depend on each other.

    Tables without values get made-up ones. Where these lead out of the numbers (all positions
    masked), others are tried.
    """
    pieces = microbatches if mixes_samples(workload) else 1
    first = ""
    for truth in (0.5, 1.0, 0.0):
        given = random_values(workload, seed, truth, microbatches)
        result = sequential_step(workload, given.values, optimizer_step(workload, STEP), pieces)
        wrong = [name for name, array in _named(workload, result) if not np.isfinite(array).all()]
        if not wrong:
            return given, result
        first = first or wrong[0]
    raise TransformError(
        f"{workload.model.name} cannot be executed with random values: {first} is not a number"
    )


def last_bit_changed(values: StepValues, seed: int = 0) -> StepValues:
    """The same inputs, constants and parameters, every real number up or down by its last bit."""
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
    """Relative errors of loss, outputs, gradients and what the optimizer made of the parameters.

    A value is compared with its own scale; gradients, with `SMALL` of the largest one if theirs is
    less.
    """
    scales = [scale_of(array) for array in expected.gradients.values()]
    floor = SMALL * max(scales, default=0.0)
    theirs = dict(_named(workload, found))
    for name, array in _named(workload, expected):
        least = floor if name.startswith(("gradient", "updated")) else 0.0
        if name not in theirs:
            yield Difference(name, float("inf"))
            continue
        yield Difference(name, relative_error(theirs[name], array, least))


def _named(workload: Workload, result: StepResult) -> Iterator[tuple[str, Array]]:
    function = workload.program.function
    ends = _apart(function.outputs)
    for value, array in zip(function.outputs, result.outputs, strict=True):
        yield ("loss" if workload.training else f"output {ends[value]}"), array
    numbers = _apart(function.parameters)
    yield from _by_parameter("gradient of", numbers, result.gradients)
    yield from _by_parameter("updated", numbers, result.parameters)


def _apart(values: Sequence[Value]) -> Mapping[Value, str]:
    """Names for values, numbered where several have the same."""
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
    """The largest magnitude."""
    return float(np.max(np.abs(array), initial=0.0))


def relative_error(found: Array, expected: Array, least: float = 0.0) -> float:
    """The largest difference over the scale of what is expected, or over `least` if that is
    more. Infinite where shapes differ or something is not a number."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    difference = scale_of(found - expected)
    if difference == 0:
        return 0.0
    scale = max(scale_of(expected), least)
    return difference / scale if scale else float("inf")


__all__ = [
    "TOLERANCE",
    "Difference",
    "Verification",
    "Verifier",
    "compare",
    "relative_error",
    "sequential_truth",
    "verify",
]
