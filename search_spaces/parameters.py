"""Dimensions of a search space, as data.

A dimension is a name and a function that gives its domain. The function's parameters are named
after the earlier choices that it reads, so a declaration states its own dependencies:

    def microbatches(dp: int) -> Sequence[int]: ...

    Dimension("microbatches", microbatches)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from distir.rules import Choices, Value, parameter_names


@dataclass(frozen=True, slots=True)
class Dimension:
    """One choice whose domain may depend on earlier ones."""

    name: str
    domain: Callable[..., Sequence[Value]]
    """Called with the earlier choices that `after` names."""
    after: tuple[str, ...] | None = None
    """Earlier choices that the domain reads; by default the parameters of `domain`."""
    reads: tuple[str, ...] = field(init=False)
    """Earlier choices that the domain depends on."""

    def __post_init__(self) -> None:
        reads = parameter_names(self.domain) if self.after is None else self.after
        object.__setattr__(self, "reads", reads)

    def values(self, chosen: Choices) -> Sequence[Value]:
        """The domain, given the choices made before."""
        return self.domain(*[chosen[name] for name in self.reads])

    def restricted(self, allowed: Sequence[Value]) -> Dimension:
        """The same dimension without the values outside `allowed`."""

        def domain(*choices: Value) -> list[Value]:
            return [value for value in self.domain(*choices) if value in allowed]

        return Dimension(self.name, domain, self.reads)


__all__ = ["Choices", "Dimension", "Value"]
