"""What a sampler is: it is asked for strategies and told what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that came of a strategy."""

    strategy: Strategy
    cost: float | None
    """Smaller for better strategies; None where the trial failed."""
    violation: float
    """0 for feasible strategies, else how far from feasible they are."""
    metrics: Mapping[str, float]
    """What was measured, by name."""
    reason: str | None
    """Why the strategy is not feasible, or why the trial failed."""
    costs: tuple[float, ...] | None = None
    """`cost` and that of every further objective; None where one is not known."""


@runtime_checkable
class LearnsFromOutcomes(Protocol):
    """What a sampler may have besides, to learn from more than a cost."""

    def tell_outcome(self, outcome: Outcome) -> None:
        """What came of a strategy; called in place of `tell`."""
        ...


def tell(sampler: Sampler, outcome: Outcome) -> None:
    """Has a sampler learn what came of a strategy."""
    if isinstance(sampler, LearnsFromOutcomes):
        sampler.tell_outcome(outcome)
    else:
        sampler.tell(outcome.strategy, outcome.cost, outcome.violation)


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is expected of the strategies that have not been tried."""

    cost: float
    """None of them is expected to cost less, at the optimistic end of the band."""
    rests_on: str
    """What the expectation rests on, in words: `trees fitted to 40 trials, mean - 1 sigma`."""


@runtime_checkable
class Predicts(Protocol):
    """A sampler may also say what is left to gain; `--stop-within` asks it."""

    def best_remaining(self) -> Remaining | None:
        """What is expected of the strategies that were not told; None as long as too little is
        known.
        """
        ...


@runtime_checkable
class SaysWhyItEnds(Protocol):
    """A sampler may also say why it proposes nothing more before the space is tried."""

    @property
    def ended_because(self) -> str:
        """The reason, in words that follow `because`."""
        ...


class SamplerFactory(Protocol):
    """Makes a sampler; the same seed makes the same proposals."""

    def __call__(self, space: SearchSpace, seed: int, /) -> Sampler:
        """A sampler over `space`. A further parameter named `prospects` is given what is known of
        its strategies (`Prospects`), one named `objectives` how many there are: `tell_outcome` is
        told the cost of each. A sampler without that looks for one.
        """
        ...
