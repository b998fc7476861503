"""What a sampler is: it is asked for strategies and told what came of them."""

from __future__ import annotations

from typing import Protocol

from distir.strategy import Strategy
from search_spaces import SearchSpace


class Sampler(Protocol):
    """Proposes strategies of one space.

    It may propose a strategy again (the study answers from memory and does not charge it), and it
    may be told of strategies that it did not propose.
    """

    def ask(self) -> Strategy | None:
        """The next strategy to try, always one of the space; `None` when there is nothing left
        to propose.
        """
        ...

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """What came of `strategy`.

        `cost` is smaller for better strategies and `None` for failed trials; `violation` is 0 for
        feasible strategies, else how far from feasible they are.
        """
        ...


class SamplerFactory(Protocol):
    """Makes a sampler; the same seed makes the same proposals."""

    def __call__(self, space: SearchSpace, seed: int, /) -> Sampler:
        """A sampler over `space`."""
        ...
