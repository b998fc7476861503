"""Constraints: named objects that answer `None` or a reason.

A constraint says what makes a strategy impossible. Its parameters are named after the choices that
it reads; a space applies it as soon as the last of them is made, so nothing below an impossible
choice is ever visited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from search_spaces.parameters import Choices, parameter_names


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition that every strategy of a space meets."""

    name: str
    check: Callable[..., str | None]
    """Called with the choices that its parameters name; returns `None` or why they do not go
    together.
    """
    reads: tuple[str, ...] = field(init=False)
    """Choices that the constraint is about."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", parameter_names(self.check))

    def reason(self, chosen: Choices) -> str | None:
        """`None` if `chosen` meets the constraint, else what is wrong and what would do."""
        return self.check(*[chosen[name] for name in self.reads])
