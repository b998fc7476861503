"""Arithmetic on a number or on an array with one number per plan.

The cost model uses these functions for every quantity, so that the same code prices one plan, or
many plans at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Indices

__all__ = [
    "Amount",
    "Divergence",
    "Many",
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
    "total",
]

Amount: TypeAlias = "float | NDArray[np.float64]"
"""A quantity of one plan, or an array with that quantity of every plan."""


class Divergence(Exception):  # noqa: N818  no error: a way to go on
    """Raised where code branches on a condition that holds for some plans and not for others.

    `where` marks the plans for which it holds. The caller computes both groups of plans apart.
    """

    def __init__(self, where: NDArray[np.bool_]) -> None:
        super().__init__("a condition holds for some plans and not for others")
        self.where = where


class Many(np.ndarray):  # type: ignore[type-arg]
    """An array with one number per plan that stands in for a plain number.

    Arithmetic works elementwise. Where code needs a single truth value or a single number, all
    plans must agree: otherwise `Divergence` is raised.
    """

    def __bool__(self) -> bool:
        holding = int(np.count_nonzero(self))
        if 0 < holding < self.size:
            raise Divergence(self.view(np.ndarray).astype(np.bool_))
        return holding == self.size

    def __float__(self) -> float:
        """The number that all plans share; raises `Divergence` where they differ."""
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
        if "hash" not in known:  # an array of amounts is never changed in place
            known["hash"] = hash(self.tobytes())
        return known["hash"]

    def __round__(self, digits: int = 0) -> Any:
        return np.round(self, digits)

    # Amounts are immutable: `a += b` makes a new array.

    def __iadd__(self, other: Any) -> Any:
        return self + other

    def __isub__(self, other: Any) -> Any:
        return self - other

    def __imul__(self, other: Any) -> Any:
        return self * other

    def __ifloordiv__(self, other: Any) -> Any:
        return self // other


FEW = 3
"""Arrays that are no more are added up one by one, more of them at once."""

_TINY = 1e-300
"""Keeps the ratio of two zeros defined; far below any time that occurs, in seconds."""


@overload
def larger(first: float, *others: float) -> float: ...
@overload
def larger(first: Amount, *others: Amount) -> Amount: ...
def larger(first: Amount, *others: Amount) -> Amount:
    """The largest of the arguments, elementwise."""
    return reduce(_larger, others, first)


@overload
def smaller(first: float, *others: float) -> float: ...
@overload
def smaller(first: Amount, *others: Amount) -> Amount: ...
def smaller(first: Amount, *others: Amount) -> Amount:
    """The smallest of the arguments, elementwise."""
    return reduce(_smaller, others, first)


def many(values: Any) -> Many:
    """An amount that has these numbers, one per plan."""
    return np.asarray(values, np.float64).view(Many)


def is_many(amount: object) -> bool:
    """Whether an amount has one number per plan."""
    return isinstance(amount, Many)


@overload
def taken(amount: float, places: Indices | None) -> float: ...
@overload
def taken(amount: Amount, places: Indices | None) -> Amount: ...
def taken(amount: Amount, places: Indices | None) -> Amount:
    """The numbers of the plans at these positions; a number that all plans share stays as it is."""
    if places is None or not isinstance(amount, np.ndarray) or amount.size == 1:
        return amount
    return amount[places]


@overload
def total(amounts: Iterable[float]) -> float: ...
@overload
def total(amounts: Iterable[Amount]) -> Amount: ...
def total(amounts: Iterable[Amount]) -> Amount:
    """The sum of amounts. What is added to nothing stays as it is: it is not copied."""
    some: list[Any] = [each for each in amounts if isinstance(each, np.ndarray) or each]
    if len(some) <= FEW:
        return reduce(add, some) if some else 0.0
    arrays: list[NDArray[np.float64]] = [each for each in some if isinstance(each, np.ndarray)]
    if len(arrays) <= FEW or len({each.shape for each in arrays}) > 1:
        return reduce(add, some)
    numbers = [each for each in some if not isinstance(each, np.ndarray)]
    summed: Amount = many(np.add.reduce(np.array(arrays)))
    return summed + sum(numbers)


def select(condition: Any, first: Any, second: Any) -> Any:
    """`first` where the condition holds, else `second`, elementwise."""
    if isinstance(condition, np.ndarray):
        return many(np.where(cast("NDArray[np.bool_]", condition), first, second))
    return first if condition else second


def is_all(condition: Any) -> bool:
    """Whether a condition holds in every plan."""
    return condition if isinstance(condition, bool) else bool(np.all(condition))


def is_positive(amount: Amount) -> bool:
    """Whether an amount is more than 0 in at least one plan."""
    return bool((np.asarray(amount) > 0).any()) if isinstance(amount, np.ndarray) else amount > 0


def doublings(amount: Amount) -> Amount:
    """The number of doublings that take 1 to at least `amount`: `⌈log2(amount)⌉`."""
    if isinstance(amount, np.ndarray):
        return np.ceil(np.log2(amount))
    return math.ceil(math.log2(amount))


def soft_maximum(order: float, first: Amount, second: Amount) -> Amount:
    """The `order`-norm of two times: smooth, monotone, between their maximum and their sum.

    It is the time of two activities that overlap imperfectly. If one is much longer, the result is
    close to it; if they are equal, the result is `2^(1/order)` times either. Infinity gives the
    plain maximum (perfect overlap), 1 the sum (none).
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
