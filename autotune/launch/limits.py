"""What a framework cannot state, and the nearest strategy that it can."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from distir.rules import Rule, WorkloadFacts, explain
from distir.strategy import Strategy

Changes: TypeAlias = Mapping[str, int | str | bool]
"""Fields of a strategy that are to be other ones."""

DEFAULT = Strategy()


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that a framework cannot state.

    `check` is that of a `Rule`: its parameters are the choices that it reads, after `workload` if
    it needs facts of it; it gives the reason, or None. `instead` gives the nearest strategies that
    can be stated, as changes, the nearest first.
    """

    name: str
    check: Callable[..., str | None]
    instead: Sequence[Changes] | Callable[[Strategy], Iterable[Changes]] = ()

    @property
    def rule(self) -> Rule:
        """The limit as a rule, by which spaces are pruned."""
        return Rule(self.name, self.check)

    def nearest(self, strategy: Strategy) -> Iterable[Changes]:
        """What to change, the nearest first."""
        return self.instead(strategy) if callable(self.instead) else self.instead


def only(field: str, known: Sequence[object], reason: str, *instead: Changes) -> Limit:
    """A limit of a field to some values."""

    def check(given: object) -> str | None:
        return None if given in known else f"{field} = {_shown(given)} cannot be stated: {reason}"

    given = inspect.Parameter(field, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    check.__signature__ = inspect.Signature([given])  # type: ignore[attr-defined]
    return Limit(
        f"{field} is one that is known",
        check,
        instead or [{field: value} for value in known],  # type: ignore[dict-item]
    )


def usual(fields: Iterable[str], framework: str) -> list[Limit]:
    """Limits of fields that a framework has no option for: they stay what they are if nobody
    says."""
    default = {field: getattr(DEFAULT, field) for field in fields}
    return [only(f, (v,), f"{framework} has no option for it") for f, v in default.items()]


def nearest(
    strategy: Strategy, rules: Sequence[Rule], limits: Sequence[Limit], workload: WorkloadFacts
) -> Strategy | None:
    """The first strategy that meets all limits and rules, found by what each broken limit says is
    near; None if there is none."""
    bound = [(limit, limit.rule.of(workload)) for limit in limits]
    return next(_stateable(strategy, rules, bound, len(bound)), None)


def _stateable(
    strategy: Strategy, rules: Sequence[Rule], limits: Sequence[tuple[Limit, Rule]], left: int
) -> Iterator[Strategy]:
    broken = next((each for each in limits if explain([each[1]], strategy)), None)
    if broken is None:
        if explain(rules, strategy) is None:
            yield strategy
        return
    if not left:
        return
    limit, rule = broken
    for changes in limit.nearest(strategy):
        changed = replace(strategy, **changes)  # type: ignore[arg-type]
        if changed != strategy and explain([rule], changed) is None:
            yield from _stateable(changed, rules, limits, left - 1)


def _shown(given: object) -> str:
    return "''" if given == "" else str(given)
