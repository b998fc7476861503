"""When two costs are equal.

Plans that are simulated one by one and many at once add numbers up in another order, and differ in
their last bits, by some 1e-13. Nothing may hang on these bits: costs drop them (`settled`), and
what differs by less than `EQUAL` is equal wherever costs are compared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.objectives.columns import MetricColumn

EQUAL = 1e-9
"""Relative difference below which costs are equal."""
_BITS = 2.0**36
"""Steps between a power of two and the next that a settled cost can take: 1.5e-11 each."""


def settled(cost: float) -> float:
    """A cost without its last bits."""
    mantissa, exponent = math.frexp(cost)
    return math.ldexp(round(mantissa * _BITS) / _BITS, exponent)


def settled_all(costs: MetricColumn) -> MetricColumn:
    """`settled` of each cost; NaN stays."""
    import numpy as np

    mantissa, exponent = np.frexp(costs)
    return np.ldexp(np.round(mantissa * _BITS) / _BITS, exponent)


def equal(first: float, second: float) -> bool:
    """Whether two costs count as equal."""
    return math.isclose(first, second, rel_tol=EQUAL)


def regret(cost: float, best_cost: float) -> float:
    """The fraction lost against the best; 0 where the costs are equal."""
    if equal(cost, best_cost):
        return 0.0
    return abs(cost - best_cost) / abs(best_cost) if best_cost else abs(cost - best_cost)
