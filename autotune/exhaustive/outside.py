"""Better plans just outside a space: neighbours of its best plans in the space `full`.

A neighbour differs in choices that belong together, such as the schedule and its chunks, and agrees
in all others. From the best neighbour the search goes on, as long as it finds better ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.exhaustive.chunks import evaluated_chunk
from autotune.objectives.costs import regret
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.study.trial import Trial, best_of
from distir.strategies import FIELDS
from distir.strategy import Strategy
from search_spaces import SearchSpace

WIDER = "full"
"""The space whose strategies are looked at."""
STARTS = 3
"""Layouts whose best plans are started from."""
MOST = 512
"""Neighbours that differ in one group of choices."""
LONGEST_SECONDS = 3.0
"""Longest that is looked for neighbours."""
FIRST = 4
"""Neighbours that are evaluated at once before it is known how long they take."""
WORTH = 0.005
"""What a plan must gain to be worth a word."""

TOGETHER = (
    ("schedule", "chunks"),
    ("zero", "zero_degree", "keep_gathered"),
    ("recompute", "recompute_every", "recompute_layers"),
    ("sequence_parallel", "keep_gathered"),
    ("dp", "tp", "cp", "cp_exchange"),
    ("microbatches",),
)
"""Choices in which neighbours differ."""


@dataclass(frozen=True, slots=True)
class Outside:
    """A plan outside the space that is better than the best of it."""

    space: str
    """The space that has it."""
    best: Trial
    gain: float
    """The fraction by which its objective is better."""
    evaluated: int
    seconds: float

    def to_dict(self, problem: Problem) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "space": self.space,
            "best": problem.outcome(self.best),
            "gain": self.gain,
            "evaluated": self.evaluated,
            "seconds": self.seconds,
        }


@dataclass(slots=True)
class _Tried:
    """Plans that were evaluated, and the time until which there may be more of them."""

    objective: Objective
    end: float
    """By `time.perf_counter`."""
    trials: dict[Strategy, Trial] = field(default_factory=dict[Strategy, Trial])
    _longest: float = 0.0
    """The most seconds per plan of those evaluated together."""

    @property
    def is_late(self) -> bool:
        """Whether there is no time for another plan."""
        return time.perf_counter() + self._longest >= self.end

    def best(self, strategies: Sequence[Strategy]) -> Trial | None:
        """The best of those strategies for which there is time."""
        new = [each for each in strategies if each not in self.trials]
        while new and not self.is_late:
            room = self._room
            part, new = new[:room], new[room:]
            chunk = evaluated_chunk(self.objective, range(len(part)), part)
            self.trials |= {each: chunk.trial(place) for place, each in enumerate(part)}
            self._longest = max(self._longest, chunk.seconds / len(part))
        return best_of(self.trials[each] for each in strategies if each in self.trials)

    @property
    def _room(self) -> int:
        """How many plans can be evaluated before the end, each as slowly as any so far."""
        if not self._longest:
            return FIRST
        return max(1, int((self.end - time.perf_counter()) / self._longest))


def look_outside(
    problem: Problem, objective: Objective, starts: Sequence[Trial], seconds: float
) -> Outside | None:
    """The best neighbour of the plans `starts`, best first, that is found within `seconds`, if it
    is better by enough to be named. None for plug-in objectives, which may take long.
    """
    if objective.many is None or problem.changed is None or not starts:
        return None
    if problem.space_name == WIDER:
        return None
    clock = time.perf_counter()
    spaces: dict[str, SearchSpace] = {}
    tried = _Tried(objective, clock + min(seconds, LONGEST_SECONDS))
    for start in starts[:STARTS]:
        here, better = start, True
        lists = start.strategy.axes  # neighbours have the same ones
        if lists not in spaces:
            own = {"axis_lists": lists or None, "mesh": None} if _states_lists(problem) else {}
            spaces[lists] = problem.changed(space=WIDER, **own).space
        while better:
            better = False
            for part in _neighbours(spaces[lists], here.strategy):
                found = tried.best(part)
                if found is not None and _gain(found, here) > WORTH:
                    here, better = found, True
                if tried.is_late:
                    return _told(problem, starts[0], tried.trials, clock)
    return _told(problem, starts[0], tried.trials, clock)


def _states_lists(problem: Problem) -> bool:
    """Whether strategies of the problem's space state axis lists."""
    space = problem.space
    return "axes" in space.names and space.values("axes") != ("",)


def _neighbours(wider: SearchSpace, strategy: Strategy) -> Iterator[list[Strategy]]:
    for names in TOGETHER:
        fixed = {name: (getattr(strategy, name),) for name in FIELDS if name not in names}
        known = {name: values for name, values in fixed.items() if name in wider.names}
        part = wider.restricted(**known)
        yield [part.at(number) for number in range(min(MOST, part.count()))]


def _gain(trial: Trial, other: Trial) -> float:
    """The fraction by which a trial is better; negative if it is not."""
    if trial.cost is None or other.cost is None:
        return 0.0
    gained = regret(trial.cost, other.cost)
    return gained if trial.cost < other.cost else -gained


def _told(
    problem: Problem, best: Trial, tried: dict[Strategy, Trial], clock: float
) -> Outside | None:
    found = best_of(tried.values())
    if found is None or _gain(found, best) <= WORTH or found.strategy in problem.space:
        return None
    seconds = time.perf_counter() - clock
    return Outside(WIDER, found, _gain(found, best), len(tried), seconds)
