"""What an objective says about a strategy."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any, cast

from distir.errors import brief

VALUE = "value"
"""Name of the metric of an objective that returns a bare number."""
KEPT_BYTES = 1 << 16
"""Of each text that a trial leaves behind that failed, the end is kept."""
OUTPUTS = ("stdout", "stderr", "traceback")
"""The texts that such a trial may leave behind, by name."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of one strategy. Infeasible is an answer, with a reason and whatever metrics
    there are.
    """

    metrics: Mapping[str, float]
    feasible: bool = True
    reason: str | None = None
    """Why the strategy is not feasible."""
    violation: float = 0.0
    """How far from feasible, as a fraction of the limit: 0.25 is a quarter more memory than
    there is. Where a plug-in does not say it of what is not feasible, it is taken to be 1.
    """
    failed: bool = field(default=False, kw_only=True)
    """Whether evaluating went wrong, so that nothing is known about the strategy."""
    pruned: bool = field(default=False, kw_only=True)
    """Whether the trial was ended early, because what it reported did not promise enough. Like a
    failed trial it says nothing of the final metrics."""
    output: Mapping[str, str] = field(default_factory=dict[str, str], kw_only=True)
    """Of a trial that failed, what it printed last (`stdout`, `stderr`) and its `traceback`."""

    @classmethod
    def failure(cls, reason: str, output: Mapping[str, str] | None = None) -> Evaluation:
        """Of a trial that raised, timed out or gave something that is no number."""
        return cls({}, feasible=False, reason=reason, failed=True, output=output or {})


def as_evaluation(raw: object) -> Evaluation:
    """What an objective returned (a number, numbers by name, or an `Evaluation`) as one."""
    if isinstance(raw, Evaluation):
        return _from_evaluation(raw)
    if isinstance(raw, Mapping):
        return _from_mapping(cast("Mapping[Any, Any]", raw))
    number = _number(raw)
    if number is not None:
        return Evaluation({VALUE: number}) if math.isfinite(number) else _no_number(number)
    return Evaluation.failure(
        f"the objective returned {type(raw).__name__} {_shown(raw)}; expected a number, a dict of "
        "numbers or an Evaluation"
    )


def _number(raw: object) -> float | None:
    """A number, or the only one of an array or a tensor without axes, as losses often are; None of
    anything else."""
    if not isinstance(raw, Real) and getattr(raw, "shape", None) == ():
        raw = cast("Any", raw).item()
    if not isinstance(raw, Real | Decimal):
        return None
    try:
        return float(raw)
    except OverflowError:  # a whole number beyond all floats
        return math.inf


def _no_number(value: float) -> Evaluation:
    return Evaluation.failure(f"the objective returned {value}")


def _from_evaluation(raw: Evaluation) -> Evaluation:
    """The same in plain values, whatever the fields were."""
    measured = _from_mapping(raw.metrics)
    if measured.failed:
        return measured
    reason = None if raw.reason is None else brief(str(raw.reason))
    feasible, failed = bool(raw.feasible), bool(raw.failed)
    violation = 0.0 if feasible or failed else _violation(float(raw.violation))
    return Evaluation(measured.metrics, feasible, reason, violation, failed=failed)


def _violation(stated: float) -> float:
    """How far from feasible a strategy is that is not: 1 where that is not said, or cannot be."""
    return stated if math.isfinite(stated) and stated > 0 else 1.0


def _from_mapping(raw: Mapping[Any, Any]) -> Evaluation:
    numbers: dict[str, float] = {}
    for name, value in raw.items():
        number = _number(value)
        if number is None:
            return Evaluation.failure(
                f"the objective's {_shown(name)} is {_shown(value)}; expected a number"
            )
        numbers[str(name)] = number
    return Evaluation(numbers)


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


def _shown(value: object) -> str:
    """A value of a plug-in in a few characters, without where it lies in memory: trials that fail
    for one reason say one thing."""
    try:
        return f"{_ADDRESS.sub('', repr(value)):.60}"
    except BaseException as error:  # noqa: BLE001  its methods are someone else's
        return f"(which cannot be shown: {type(error).__name__})"


def finite(value: float | None) -> bool:
    """Whether `value` is a number that can be compared."""
    return value is not None and math.isfinite(value)


def traceback_of(error: BaseException) -> str:
    """Where an error came from, as Python shows it; empty if its own code prevents that."""
    import traceback

    with contextlib.suppress(BaseException):
        return "".join(traceback.format_exception(error))[-KEPT_BYTES:]
    return ""
