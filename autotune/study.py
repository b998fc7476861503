"""The search loop: ask, evaluate, tell."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective
from autotune.samplers.sampler import Sampler
from autotune.trial import Trial, best_of
from distir.errors import DistirError
from distir.strategy import Strategy
from distir.user_code import described
from search_spaces import SearchSpace

PATIENCE = 30
"""Repeated suggestions in a row after which a strategy that was not tried yet is drawn instead."""


class SamplerError(DistirError):
    """A sampler raised, or proposed what it may not."""


@contextmanager
def _blaming_the_sampler(where: str) -> Generator[None, None, None]:
    """Turns whatever a sampler raises into a `SamplerError` of one line; samplers may be
    plug-ins."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SamplerError(f"the sampler failed in `{where}`: {described(error)}") from error


Measure = Callable[[Strategy], Evaluation]


@dataclass(slots=True)
class Study:
    """What a search has found so far. `run` may be interrupted, the sampler may fail; nothing found
    is lost.
    """

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
    error: str | None = None
    """The sampler's error, if that ended the study."""
    _known: dict[Strategy, Trial] = field(default_factory=dict[Strategy, Trial])

    def run(self, budget: int, on_trial: Callable[[Trial], None] = lambda trial: None) -> None:
        """Evaluates up to `budget` different strategies."""
        budget = min(budget, self.space.count())
        try:
            while len(self.trials) < budget:
                strategy = self._next_untried()
                if strategy is None:
                    return
                trial = self._try(strategy)
                on_trial(trial)
                self._tell(trial)
        except KeyboardInterrupt:
            self.interrupted = True
        except SamplerError as error:
            self.error = str(error)

    def _next_untried(self) -> Strategy | None:
        """The sampler's next new suggestion; repeated ones are answered from memory and not
        charged.
        """
        for _ in range(PATIENCE):
            strategy = self._ask()
            if strategy is None:
                return None
            known = self._known.get(strategy)
            if known is None:
                return strategy
            self.repeats += 1
            self._tell(known)
        return self._random_untried()

    def _ask(self) -> Strategy | None:
        """What the sampler proposes, which is a strategy of the space or nothing."""
        with _blaming_the_sampler("ask"):
            proposed = self.sampler.ask()
        if proposed is None:
            return None
        if (kind := type(proposed)) is not Strategy:
            raise SamplerError(
                f"the sampler proposed a {kind.__name__}; expected a Strategy or None"
            )
        if proposed not in self._known and (reason := self.space.explain(proposed)):
            raise SamplerError(
                f"the sampler proposed {proposed.label}, which is not in the space: {reason}"
            )
        return proposed

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
        return trial

    def _tell(self, trial: Trial) -> None:
        with _blaming_the_sampler("tell"):
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
