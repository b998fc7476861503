"""Whether there are better plans outside a space, in the space `full`.

Where certified search of `full` takes no more than about two seconds, its best is proved. Elsewhere
the neighbours of the best plans known are tried: of those of the space, and, where `full` is too
large to be proved so soon, of the best that a first look at it finds. A neighbour differs in
choices that belong together, such as the schedule and its chunks, and agrees in all others. From
the best neighbour the search goes on, as long as it finds better ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.exhaustive.certificate import Certificate
from autotune.exhaustive.certified import can_be_certified, certify, look
from autotune.exhaustive.chunks import evaluated_chunk
from autotune.exhaustive.neighbours import neighbours
from autotune.objectives.costs import regret
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.study.trial import Trial, best_of
from distir.strategy import Strategy

WIDER = "full"
"""The space whose strategies are looked at."""
STARTS = 3
"""Layouts whose best plans are started from."""
PROOF_SECONDS = 2.0
"""Longest that it is tried to prove what is best in the wider space, or that this is looked at."""
MOST_PROVED = 1 << 18
"""Strategies of the largest space of which that is tried: others take longer."""
LONGEST_SECONDS = 3.0
"""Longest that is looked for neighbours."""
FIRST = 4
"""Neighbours that are evaluated at once before it is known how long they take."""
WORTH = 0.005
"""What a plan must gain to be worth a word."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What is known of plans outside the space."""

    space: str
    """The space that was looked at."""
    space_size: int
    best: Trial | None
    """A plan of it that is better than the best of the space by enough to be named."""
    gain: float
    """The fraction by which its objective is better."""
    proved: bool
    """Whether no other plan of the space that was looked at is better."""
    evaluated: int
    seconds: float

    def to_dict(self, problem: Problem) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "space": self.space,
            "space_size": self.space_size,
            "best": problem.outcome(self.best) if self.best else None,
            "gain": self.gain,
            "proved": self.proved,
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
    """What is known of plans outside the space, given its best plans `starts`, best first: what is
    proved to be best, or a plan that is better by enough to be named and that is found within
    `seconds`. None where there is neither, and for plug-in objectives, which may take long.
    """
    if objective.many is None or problem.changed is None or not starts:
        return None
    if problem.space_name == WIDER:
        return None
    clock = time.perf_counter()
    wider = _Wider(problem, objective)
    looked = wider.looked_at()
    promising = [looked] if looked is not None and _gain(looked, starts[0]) > WORTH else []
    known = [*promising, *starts]
    proof = wider.proof(known[0])
    if proof is not None and proof.complete:
        better = best_of([*promising, *proof.ranked])
        evaluated = proof.evaluated
    else:
        tried = _Tried(objective, time.perf_counter() + min(seconds, LONGEST_SECONDS))
        _try_neighbours(wider, tried, known[:STARTS])
        better = best_of([*promising, *tried.trials.values()])
        evaluated = len(tried.trials)
    gain = 0.0 if better is None else _gain(better, starts[0])
    if better is not None and (gain <= WORTH or better.strategy in problem.space):
        better, gain = None, 0.0
    proved = proof is not None and proof.complete
    if better is None and not proved:
        return None
    size = wider.problem("").space.count()
    took = time.perf_counter() - clock
    return Outside(WIDER, size, better, max(0.0, gain), proved, evaluated, took)


class _Wider:
    """The problem in the wider space."""

    def __init__(self, problem: Problem, objective: Objective) -> None:
        self._problem, self._objective = problem, objective
        self._known: dict[str, Problem] = {}
        self._states_lists = "axes" in problem.space.names and problem.space.values("axes") != ("",)

    def problem(self, lists: str) -> Problem:
        """The problem in the wider space, with these axis lists for all strategies if the space
        states some."""
        if lists not in self._known:
            changed = self._problem.changed
            if changed is None:
                raise ValueError("the problem cannot be stated again")
            own = {"axis_lists": lists or None, "mesh": None} if self._states_lists else {}
            space = changed(space=WIDER, **own).space
            self._known[lists] = replace(self._problem, space=space, space_name=WIDER)
        return self._known[lists]

    @property
    def _has_bounds(self) -> bool:
        if self._states_lists or self._problem.finds_layers:
            return False  # the wider space has other lists, or other layers
        return can_be_certified(self._problem, self._objective)

    def looked_at(self) -> Trial | None:
        """The best of some usual strategies, where the space is too large to be proved soon."""
        problem = self.problem("")
        if not self._has_bounds or problem.space.count() <= MOST_PROVED:
            return None
        return look(problem, self._objective, PROOF_SECONDS)

    def proof(self, known: Trial) -> Certificate | None:
        """What is proved of the wider space in short time; None where that is not tried."""
        problem = self.problem("")
        if not self._has_bounds or problem.space.count() > MOST_PROVED:
            return None
        found = certify(problem, self._objective, known=known, seconds=PROOF_SECONDS)
        if found.interrupted:
            raise KeyboardInterrupt
        return found


def _try_neighbours(wider: _Wider, tried: _Tried, starts: Sequence[Trial]) -> None:
    """Tries the neighbours of plans, and of the best of these, as long as there is time."""
    for start in starts:
        here, better = start, True
        while better:
            better = False
            # Neighbours have the same lists.
            for part in neighbours(wider.problem(start.strategy.axes).space, here.strategy):
                found = tried.best(part)
                if found is not None and _gain(found, here) > WORTH:
                    here, better = found, True
                if tried.is_late:
                    return


def _gain(trial: Trial, other: Trial) -> float:
    """The fraction by which a trial is better; negative if it is not."""
    if trial.cost is None or other.cost is None:
        return 0.0
    gained = regret(trial.cost, other.cost)
    return gained if trial.cost < other.cost else -gained
