"""Arithmetic on a number or on an array of numbers, so that many plans are costed at once."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Amount",
    "Divergence",
    "Many",
    "Places",
    "doublings",
    "is_all",
    "is_many",
    "is_positive",
    "larger",
    "many",
    "select",
    "smaller",
    "soft_maximum",
    "taken",
]

Amount: TypeAlias = "float | NDArray[np.float64]"
"""One quantity, or one per plan."""

Places: TypeAlias = NDArray[np.int64]
"""Numbers of plans."""


class Divergence(Exception):  # noqa: N818  no error: a way to go on
    """A decision falls out differently for different plans; `where` it is yes. Who computes many
    plans at once goes on with each part of them alone."""

    def __init__(self, where: NDArray[np.bool_]) -> None:
        super().__init__("plans differ")
        self.where = where


class Many(np.ndarray):  # type: ignore[type-arg]
    """One number per plan, in place of a number: code that works with it decides for all plans at
    once, and where a decision differs between them, raises `Divergence`."""

    def __bool__(self) -> bool:
        where = self.view(np.ndarray).astype(np.bool_)
        if where.all():
            return True
        if not where.any():
            return False
        raise Divergence(where)

    def __float__(self) -> float:
        """Code that wants one number gets it where all plans have the same."""
        values = self.view(np.ndarray).ravel()
        same = values == values[0]
        if same.all():
            return values[0].item()
        raise Divergence(same)

    def __int__(self) -> int:
        return int(float(self))

    def __index__(self) -> int:
        return int(self)

    def __hash__(self) -> int:  # type: ignore[override]
        known = self.__dict__
        if "hash" not in known:  # numbers do not change
            known["hash"] = hash(self.tobytes())
        return known["hash"]

    def __round__(self, digits: int = 0) -> Any:
        return np.round(self, digits)

    # Numbers do not change: `a += b` makes another one.

    def __iadd__(self, other: Any) -> Any:
        return self + other

    def __isub__(self, other: Any) -> Any:
        return self - other

    def __imul__(self, other: Any) -> Any:
        return self * other

    def __ifloordiv__(self, other: Any) -> Any:
        return self // other


_TINY = 1e-300
"""Keeps the ratio of two zeros defined; far below any time that occurs."""


@overload
def larger(first: float, *others: float) -> float: ...
@overload
def larger(first: Amount, *others: Amount) -> Amount: ...
def larger(first: Amount, *others: Amount) -> Amount:
    """The largest of its arguments, elementwise."""
    return reduce(_larger, others, first)


def smaller(first: Amount, *others: Amount) -> Amount:
    """The smallest of its arguments, elementwise."""
    return reduce(_smaller, others, first)


def many(values: Any) -> Many:
    """Numbers, one per plan, as one."""
    return np.asarray(values, np.float64).view(Many)


def is_many(amount: object) -> bool:
    """Whether it is one quantity per plan."""
    return isinstance(amount, Many)


def taken(amount: Any, places: Places | None) -> Any:
    """A quantity in plans that have these places among those of which it is known."""
    if places is None or not isinstance(amount, np.ndarray) or amount.size == 1:
        return amount
    return amount[places]


def select(condition: Any, first: Any, second: Any) -> Any:
    """`first` where the condition holds, else `second`, elementwise."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, first, second).view(Many)
    return first if condition else second


def is_all(condition: Any) -> bool:
    """Whether a condition holds in every plan."""
    return bool(np.all(condition)) if isinstance(condition, np.ndarray) else bool(condition)


def is_positive(amount: Amount) -> bool:
    """Whether a quantity is more than nothing, in any plan."""
    return bool((np.asarray(amount) > 0).any()) if isinstance(amount, np.ndarray) else amount > 0


def doublings(amount: Amount) -> Amount:
    """How often 1 is doubled until it is no less: `⌈log2⌉`."""
    if isinstance(amount, np.ndarray):
        return np.ceil(np.log2(amount))
    return math.ceil(math.log2(amount))


def soft_maximum(order: float, first: Amount, second: Amount) -> Amount:
    """The `order`-norm of two times: smooth, monotone, between their maximum and their sum.

    Two activities that overlap, but not perfectly: where one dominates it alone counts, where they
    are equal the result is `2^(1/order)` times either. Infinity gives the plain maximum, 1 the sum.
    """
    if math.isinf(order):
        return _larger(first, second)
    high = _larger(first, second)
    ratio = _smaller(first, second) / (high + _TINY)
    return high * (1.0 + ratio**order) ** (1.0 / order)


def _larger(a: Amount, b: Amount) -> Amount:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return cast("Any", np.maximum(a, b))
    return max(a, b)


def _smaller(a: Amount, b: Amount) -> Amount:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return cast("Any", np.minimum(a, b))
    return min(a, b)
