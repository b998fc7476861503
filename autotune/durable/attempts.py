"""What the attempts that a storage holds say about a study.

An attempt is one worker's claim to one strategy, and what became of that. Attempts are only added;
each is `running` until it is `done`, `lost` (its worker died) or `withdrawn` (its worker gave it
back). All that workers agree on (which strategies are tried, who tries, how much of the budget is
used) follows from the list of attempts in the order of their numbers, which the storage hands out
one by one. So there is nothing that could be half written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.objectives.evaluation import Evaluation
from autotune.study.ledger import LedgerEntry
from distir.strategy import Strategy

State = Literal["running", "done", "lost", "withdrawn"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One worker's try at one strategy."""

    number: int
    key: int
    """What the storage calls it."""
    strategy: Strategy
    state: State
    token: str = ""
    """Chosen at random by the worker that claimed it."""
    asked: bool = True
    evaluation: Evaluation | None = None
    value: float | None = None
    """What the study makes large or small, the first of several; None where that is not known."""
    started: float = 0.0
    seconds: float = 0.0
    worker: dict[str, Any] = field(default_factory=dict[str, Any])
    """Who is at it; see `workers.this_worker`."""
    alive: float = 0.0
    """When its worker gave the last sign of life, by its own clock."""


def entries_of(attempts: Iterable[Attempt], retries: int) -> list[LedgerEntry]:
    """One entry per strategy, in the order of the first attempts. Strategies whose workers died
    more than `retries` times have failed."""
    tries: dict[Strategy, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.state != "withdrawn":
            tries.setdefault(attempt.strategy, []).append(attempt)
    return [_entry(each, retries) for each in tries.values()]


def _entry(tries: Sequence[Attempt], retries: int) -> LedgerEntry:
    done = next((each for each in tries if each.state == "done"), None)
    running = next((each for each in tries if each.state == "running"), None)
    shown = done or running or tries[-1]
    evaluation = shown.evaluation if done else None
    if done is None and running is None and len(tries) > retries:
        times = "once" if len(tries) == 1 else f"{len(tries)} times"
        evaluation = Evaluation.failure(f"the worker died while trying this, {times}")
    return LedgerEntry(
        shown.number,
        shown.strategy,
        evaluation,
        shown.started,
        shown.seconds,
        open=evaluation is None and running is None,
        asked=tries[0].asked,
    )


def is_taken(strategy: Strategy, attempts: Iterable[Attempt], budget: int, retries: int) -> bool:
    """Whether a further attempt at a strategy is in vain: a worker is or was at it, or it is beyond
    the budget."""
    entries = entries_of(attempts, retries)
    same = next((each for each in entries if each.strategy == strategy), None)
    return len(entries) >= budget if same is None else not same.open


def is_void(mine: Attempt, attempts: Iterable[Attempt], budget: int, retries: int) -> bool:
    """Whether an attempt, just claimed, is in vain. Attempts with smaller numbers are all known by
    then, so of two workers that claim the same at once, one goes on."""
    before = [each for each in attempts if each.number < mine.number]
    return is_taken(mine.strategy, before, budget, retries)


def busy_seconds(attempts: Iterable[Attempt]) -> float:
    """For how long at least one of the attempts that are done went on."""
    spans = sorted(_spans(attempts))
    total, until = 0.0, float("-inf")
    for first, last in spans:
        total += max(0.0, last - max(first, until))
        until = max(until, last)
    return total


def _spans(attempts: Iterable[Attempt]) -> Iterator[tuple[float, float]]:
    for each in attempts:
        if each.state == "done":
            yield each.started, each.started + each.seconds
