"""What a plug-in says while a trial goes on, and the answer that it need not go on."""

from __future__ import annotations

import math
from collections.abc import Callable

Listener = Callable[[int, float], bool]
"""Told a step and the value there; whether the trial is to end."""


class Pruned(Exception):  # noqa: N818  no error: an end that somebody decided
    """Raised in a plug-in, by what it reports to: the trial does not promise enough."""


def nobody(_step: int, _value: float) -> bool:
    """Listens to trials that nobody prunes."""
    return False


class Reporting:
    """The `report(step, value)` of a plug-in that has a parameter of this name."""

    def __init__(self) -> None:
        self.listener: Listener = nobody

    def __call__(self, step: int, value: float) -> None:
        """Tells the value that the metric has at a step, a whole number from 0. Raises `Pruned` if
        the trial is to end, and `ValueError` if that is no step or no value."""
        try:
            at, told = int(step), float(value)
        except (TypeError, ValueError, OverflowError):
            at, told = -1, math.nan
        if at < 0 or not math.isfinite(told):
            raise ValueError(
                f"report({step!r:.40}, {value!r:.40}); expected a step of at least 0 and a finite "
                "number"
            )
        step, value = at, told
        if self.listener(step, value):
            raise Pruned(f"pruned at step {step}, where its value was {value:g}")
