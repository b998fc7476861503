"""Rows as functions of the constants: plans are made once, and priced again for new constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.calibration.constants import Constant, applied
from autotune.validation.cases import Case, Exclusion
from autotune.validation.doubts import Timed, doubts_of
from autotune.validation.predict import Prepared, prepare
from distir.cost import SoftwareStack
from distir.errors import DistirError
from distir.plan import Plan
from distir.simulation import SimulationResult, Simulator

__all__ = ["Mask", "Priced", "Vector", "doubts", "jacobian", "log_ratios", "price"]

Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]

STEP = 0.04
"""By how much the logarithm of a constant is varied for a derivative."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A case whose plan is made. `simulator` keeps what does not depend on constants."""

    case: Case
    stack: SoftwareStack
    plan: Plan
    simulator: Simulator

    def simulate(self, values: Mapping[str, float]) -> SimulationResult:
        """The simulated plan with these constants."""
        simulator = self.simulator.repriced(*applied(values, self.case, self.stack))
        return simulator.simulate_plan(self.plan)

    def seconds(self, values: Mapping[str, float]) -> float:
        """Seconds of an iteration with these constants."""
        return self.simulate(values).metrics["iteration_seconds"]


def price(
    cases: Sequence[Case], progress: Callable[[str], None] = lambda _: None
) -> tuple[list[Priced], list[Exclusion]]:
    """The cases with their plans, and the cases that have none, with reasons."""
    found: list[Priced] = []
    refused: list[Exclusion] = []
    for prepared in prepare(cases, progress=progress):
        try:
            found.append(_priced(prepared))
        except DistirError as error:
            refused.append(Exclusion(prepared.case.row, "not simulated", str(error)))
    return found, refused


def _priced(prepared: Prepared) -> Priced:
    simulator = prepared.simulator(prepared.stack)
    return Priced(prepared.case, prepared.stack, prepared.plan(simulator), simulator)


def doubts(rows: Sequence[Priced]) -> list[str]:
    """Of measured times that can hardly be seconds of a step, by the constants that the stacks
    have: those that are fitted to such times would predict them."""
    return doubts_of(
        Timed(row.case.row.id, row.case.measured.seconds or math.nan, row.seconds({}))
        for row in rows
    )


def log_ratios(rows: Sequence[Priced], values: Mapping[str, float]) -> Vector:
    """Logarithm of predicted over measured seconds, row by row."""
    return np.array(
        [math.log(row.seconds(values) / (row.case.measured.seconds or math.nan)) for row in rows]
    )


def jacobian(
    rows: Sequence[Priced], constants: Sequence[Constant], values: Mapping[str, float], at: Vector
) -> Vector:
    """Derivatives of `log_ratios` (which are `at`) with respect to the constants' logarithms,
    `[rows, constants]`. Rows that cannot depend on a constant are not priced again."""
    found = np.zeros((len(rows), len(constants)))
    for column, constant in enumerate(constants):
        value, (least, _) = values[constant.name], constant.limits
        # Below the least value predictions do not change.
        step = -STEP if value * math.exp(-STEP) >= least else STEP
        moved = {**values, constant.name: value * math.exp(step)}
        for index, row in enumerate(rows):
            if constant.concerns(row.case, row.stack):
                measured = row.case.measured.seconds or math.nan
                found[index, column] = (math.log(row.seconds(moved) / measured) - at[index]) / step
    return found
