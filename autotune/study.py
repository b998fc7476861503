"""The search loop: ask, evaluate, tell."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective
from autotune.samplers.sampler import Sampler
from autotune.trial import Trial, best_of
from distir.strategy import Strategy
from search_spaces import SearchSpace

PATIENCE = 100
"""Repeated suggestions in a row after which a strategy that was not tried yet is drawn instead."""

Measure = Callable[[Strategy], Evaluation]


@dataclass(slots=True)
class Study:
    """What a search has found so far. `run` may be interrupted; nothing found is lost."""

    space: SearchSpace
    objective: Objective
    sampler: Sampler
    measure: Measure
    """Evaluates a strategy and never raises: `objective.measure`, perhaps in a process of its
    own.
    """
    seed: int = 0
    trials: list[Trial] = field(default_factory=list[Trial])
    repeats: int = 0
    """Suggestions that were answered from memory."""
    interrupted: bool = False
    _known: dict[Strategy, Trial] = field(default_factory=dict[Strategy, Trial])

    def run(self, budget: int, on_trial: Callable[[Trial], None] = lambda trial: None) -> None:
        """Evaluates up to `budget` different strategies."""
        budget = min(budget, self.space.count())
        try:
            while len(self.trials) < budget:
                strategy = self._next_untried()
                if strategy is None:
                    return
                on_trial(self._try(strategy))
        except KeyboardInterrupt:
            self.interrupted = True

    def _next_untried(self) -> Strategy | None:
        """The sampler's next new suggestion; repeated ones are answered from memory and not
        charged.
        """
        for _ in range(PATIENCE):
            strategy = self.sampler.ask()
            if strategy is None:
                return None
            known = self._known.get(strategy)
            if known is None:
                return strategy
            self.repeats += 1
            self._tell(known)
        return self._random_untried()

    def _random_untried(self) -> Strategy:
        rng = random.Random(f"{self.seed} {len(self.trials)}")
        for _ in range(PATIENCE):
            strategy = self.space.sample(rng)
            if strategy not in self._known:
                return strategy
        return next(each for each in self.space.enumerate() if each not in self._known)

    def _try(self, strategy: Strategy) -> Trial:
        trial = evaluate(self.objective, self.measure, strategy, len(self.trials))
        self.trials.append(trial)
        self._known[strategy] = trial
        self._tell(trial)
        return trial

    def _tell(self, trial: Trial) -> None:
        self.sampler.tell(trial.strategy, trial.cost, trial.evaluation.violation)

    @property
    def best(self) -> Trial | None:
        """The best feasible trial so far."""
        return best_of(self.trials)


def evaluate(objective: Objective, measure: Measure, strategy: Strategy, number: int) -> Trial:
    """One trial, timed."""
    started = time.time()
    clock = time.perf_counter()
    evaluation = objective.checked(measure(strategy))
    seconds = time.perf_counter() - clock
    return Trial(number, strategy, evaluation, objective.cost(evaluation), started, seconds)
