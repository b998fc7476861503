"""Rules: what every strategy of a workload meets, why one does not, and what would do instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from distir.arrays import Indices
from distir.rules.facts import WorkloadFacts
from distir.rules.wording import would_do
from distir.strategies import FIELDS, Strategies
from distir.strategy import Strategy

Value: TypeAlias = int | str | bool
"""What a choice may be."""

Choices: TypeAlias = Mapping[str, Value]
"""Values by choice, which is a field of `Strategy`."""

Advice: TypeAlias = Mapping[str, Iterable[Value]]
"""Values to try instead, by choice."""

WORKLOAD = "workload"
"""The parameter by which a check or an advice gets the facts of the workload."""


def parameter_names(function: Callable[..., object]) -> tuple[str, ...]:
    """Names of the parameters of `function`: what it reads."""
    return tuple(inspect.signature(function).parameters)


_known_names = lru_cache(maxsize=256)(parameter_names)


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that every strategy meets.

    The parameters of `check` and `advice` are named after what they read: choices, and first of
    all `workload`, if they need its facts. A rule answers for any values of these, whatever other
    rules say of them.
    """

    name: str
    """The condition in a few words."""
    check: Callable[..., str | None]
    """What was found and what was expected, where the choices do not go together; else `None`."""
    advice: Callable[..., Advice] | Advice = field(default_factory=dict[str, tuple[Value, ...]])
    """Which values to try, always or depending on what `check` reads. Those that `check` accepts,
    each in place of its choice alone, are part of the reason."""
    otherwise: str = ""
    """What to try where none of these would do."""
    workload: WorkloadFacts | None = field(default=None, repr=False)
    """Whose strategies the rule is about, if it reads facts; see `of`."""
    reads: tuple[str, ...] = field(init=False)
    """Choices that the rule is about."""
    _check: Callable[..., str | None] = field(init=False, repr=False)
    """`check` of the workload at hand."""

    def __post_init__(self) -> None:
        check, reads = self._bound(self.check)
        object.__setattr__(self, "_check", check)
        object.__setattr__(self, "reads", reads)

    def _bound(self, function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[str, ...]]:
        """A function of choices alone, and which choices it takes."""
        names = _known_names(function)
        if names[:1] != (WORKLOAD,):
            return function, names
        return partial(function, self.workload), names[1:]

    def of(self, workload: WorkloadFacts) -> Rule:
        """The rule as it is for a workload."""
        return replace(self, workload=workload)

    def fault(self, chosen: Choices) -> str | None:
        """`None` if `chosen` meets the rule, else what is wrong."""
        return self._check(*[chosen[name] for name in self.reads])

    def suited(self, chosen: Choices) -> dict[str, list[Value]]:
        """By choice the advised values with which `chosen` would meet the rule."""
        known = {name: chosen[name] for name in self.reads}
        found = {
            name: [value for value in values if self.fault({**known, name: value}) is None]
            for name, values in self._advised(known).items()
        }
        return {name: values for name, values in found.items() if values}

    def reason(self, chosen: Choices) -> str | None:
        """`None` if `chosen` meets the rule, else what is wrong and what would do."""
        fault = self.fault(chosen)
        if fault is None:
            return None
        suited = self.suited(chosen)
        advice = would_do(suited) if suited else self.otherwise
        return f"{fault}; {advice}" if advice else fault

    def _advised(self, chosen: Choices) -> Advice:
        if not callable(self.advice):
            return self.advice
        advice, reads = self._bound(self.advice)
        return advice(*[chosen[name] for name in reads])


def explain(rules: Iterable[Rule], strategy: Strategy) -> str | None:
    """The reason of the first rule that the strategy breaks, or `None`."""
    chosen = {name: getattr(strategy, name) for name in FIELDS}
    for rule in rules:
        if rule.fault(chosen) is not None:
            return rule.reason(chosen)
    return None


def explain_many(rules: Iterable[Rule], strategies: Strategies) -> dict[int, str]:
    """`explain` of the strategies that break a rule, by their positions.

    What a rule says of one strategy it says of all with the same choices, so it is asked once per
    combination of those that it reads.
    """
    reasons: dict[int, str] = {}
    left = np.ones(len(strategies), np.bool_)
    kinds: dict[frozenset[str], tuple[Indices, Indices]] = {}
    for rule in rules:
        varying = frozenset(rule.reads).intersection(strategies.codes)
        if varying not in kinds:
            kinds[varying] = strategies.distinct(sorted(varying))
        first, which = kinds[varying]
        rows = strategies.choices(rule.reads, first)
        refused = np.array([rule.fault(row) is not None for row in rows], np.bool_)
        if not refused.any():
            continue
        broken = np.flatnonzero(refused[which] & left)
        reasons |= _reasons(rule, rows, broken, which[broken])
        left[broken] = False
    return reasons


def _reasons(
    rule: Rule, rows: Sequence[Choices], broken: Indices, which: Indices
) -> dict[int, str]:
    """The reasons of strategies that break a rule; `which` are their rows of choices."""
    said = {row: rule.reason(rows[int(row)]) or "" for row in np.unique(which).tolist()}
    return {index: said[row] for index, row in zip(broken.tolist(), which.tolist(), strict=True)}


__all__ = [
    "Advice",
    "Choices",
    "Rule",
    "Value",
    "explain",
    "explain_many",
    "parameter_names",
]
