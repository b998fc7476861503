"""The search loop: ask, evaluate, tell."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective
from autotune.objectives.reporting import nobody
from autotune.samplers.sampler import Outcome, Sampler, SaysWhyItEnds, tell
from autotune.study.ledger import Ledger, LedgerEntry, LedgerError, MemoryLedger
from autotune.study.trial import Trial, best_of
from distir.errors import DistirError
from distir.strategy import Strategy
from distir.units import counted
from distir.user_code import described
from search_spaces import SearchSpace

PATIENCE = 30
"""Repeated suggestions in a row after which a strategy that was not tried yet is drawn instead."""


class SamplerError(DistirError):
    """A sampler raised, or proposed what it may not."""


@contextmanager
def blaming_the_sampler(where: str) -> Generator[None, None, None]:
    """Turns whatever a sampler raises into a `SamplerError` of one line; samplers may be
    plug-ins."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SamplerError(f"the sampler failed in `{where}`: {described(error)}") from error


Measure = Callable[[Strategy], Evaluation]


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a search has ended."""

    reason: str
    """One of a few words; see `Study.stopped`."""
    words: str
    """For people."""


Stop = Callable[["Study"], "Stopped | None"]
"""A reason to end a study before its trials are all made; None while there is none."""


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
    ledger: Ledger = field(default_factory=MemoryLedger)
    """What is kept, and shared with other workers."""
    stops: Sequence[Stop] = ()
    """Reasons to end, asked before each trial."""
    first: Sequence[Strategy] = ()
    """Strategies that the user wants tried before the sampler is asked."""
    trials: list[Trial] = field(default_factory=list[Trial])
    resumed: int = 0
    """How many of them were kept from before."""
    repeats: int = 0
    """Suggestions that were answered from memory."""
    interrupted: bool = False
    error: str | None = None
    """What ended the study, if that was the sampler or the ledger."""
    stopped: Stopped | None = None
    """The reason is `trials` or `space` (all are tried), `sampler` (it proposes nothing more, or
    failed), `interrupted`, `storage` (it failed), or what a reason in `stops` says."""
    _known: dict[Strategy, Trial] = field(default_factory=dict[Strategy, Trial])
    _taken: set[Strategy] = field(default_factory=set[Strategy])
    """Strategies that another worker is at."""
    _queue: deque[Strategy] = field(default_factory=deque[Strategy])
    """Strategies to try next: the sampler has proposed them."""
    _claimed: int | None = None
    """The number of the trial that is being made."""

    def run(
        self,
        budget: int,
        on_trial: Callable[[Trial], None] = lambda trial: None,
        *,
        replay: bool = True,
    ) -> None:
        """Evaluates strategies until the study has `budget` different ones. Of a study that is
        resumed, the sampler is asked again for what it proposed (`replay`), so that it goes on as
        if nothing had happened, or only told."""
        budget = min(budget, self.space.count())
        try:
            self._resume(on_trial, replay=replay)
            self.resumed = len(self.trials)
            self._queue.extendleft(reversed(self.first))
            while not self._is_over(budget):
                strategy = self._next(budget)
                if strategy is not None:
                    self._try(strategy, budget, on_trial)
                elif self._taken:
                    self.ledger.wait()
                else:
                    self.stopped = Stopped("sampler", _ended_because(self.sampler))
                    return
                self.catch_up(on_trial)
        except KeyboardInterrupt:
            self.interrupted, self.stopped = True, Stopped("interrupted", "it was interrupted")
            self._release()
        except SamplerError as error:
            self.error, self.stopped = str(error), Stopped("sampler", str(error))
            self._release()
        except LedgerError as error:
            self.error, self.stopped = str(error), Stopped("storage", str(error))

    def wait_for(self, others: Callable[[], None], on_trial: Callable[[Trial], None]) -> None:
        """Waits until other workers have ended, and learns what they found last."""
        if self.interrupted or self.error is not None or not self.ledger.shared:
            return
        try:
            others()
            self.catch_up(on_trial)
        except KeyboardInterrupt:
            self.interrupted, self.stopped = True, Stopped("interrupted", "it was interrupted")
        except (SamplerError, LedgerError) as error:
            self.error = str(error)

    def _is_over(self, budget: int) -> bool:
        """Whether there is a reason to end. While others are at the last trials, there is none:
        they may die."""
        if len(self.trials) >= self.space.count():
            self.stopped = Stopped("space", "the whole space has been tried")
        elif len(self.trials) >= budget:
            made = len(self.trials)
            are = "is" if made == 1 else "are"
            self.stopped = Stopped("trials", f"its {counted(made, 'trial')} {are} made")
        else:
            told = (stop(self) for stop in self.stops)
            self.stopped = next((each for each in told if each is not None), None)
        return self.stopped is not None

    def _resume(self, on_trial: Callable[[Trial], None], *, replay: bool) -> None:
        """Takes up what is kept already."""
        entries = list(self.ledger.entries())
        for place, entry in enumerate(entries):
            if not replay:
                break
            if entry.asked:
                proposed = self._next_untried()
                if proposed != entry.strategy:
                    self._queue.extend([] if proposed is None else [proposed])
                    entries = entries[place:]
                    break
            if entry.pending:
                self._taken.add(entry.strategy)
            elif entry.open:
                self._queue.append(entry.strategy)
            else:
                self._learn(entry, on_trial)
        self.catch_up(on_trial)

    def catch_up(self, on_trial: Callable[[Trial], None]) -> None:
        """Learns what others have found, and which strategies they are at."""
        if not self.ledger.shared:
            return
        self._taken.clear()
        for entry in self.ledger.entries():
            if entry.strategy in self._known:
                continue
            if entry.pending:
                self._taken.add(entry.strategy)
            elif entry.open:
                if entry.strategy not in self._queue:
                    self._queue.append(entry.strategy)
            else:
                self._learn(entry, on_trial)

    def _learn(self, entry: LedgerEntry, on_trial: Callable[[Trial], None]) -> None:
        """Enters what is kept of a strategy."""
        assert entry.evaluation is not None
        evaluation = self.objective.checked(entry.evaluation)
        cost = self.objective.cost(evaluation)
        numbers = entry.number, entry.strategy, evaluation, cost, entry.started, entry.seconds
        self._enter(Trial(*numbers), on_trial)

    def _enter(self, trial: Trial, on_trial: Callable[[Trial], None]) -> None:
        self.trials.append(trial)
        self._known[trial.strategy] = trial
        on_trial(trial)
        self._tell(trial)

    def _next(self, budget: int) -> Strategy | None:
        """What was proposed already, or the sampler's next; None if all that is left is taken."""
        while self._queue:
            strategy = self._queue.popleft()
            if strategy not in self._known and strategy not in self._taken:
                return strategy
        used = len(self.trials) + len(self._taken)
        return self._next_untried() if used < budget else None

    def _next_untried(self) -> Strategy | None:
        """The sampler's next new suggestion; repeated ones are answered from memory and not
        charged.
        """
        for _ in range(PATIENCE):
            strategy = self._ask()
            if strategy is None:
                return None
            known = self._known.get(strategy)
            if known is None and strategy not in self._taken:
                return strategy
            self.repeats += 1
            if known is not None:
                self._tell(known)
        return self._random_untried()

    def _ask(self) -> Strategy | None:
        """What the sampler proposes, which is a strategy of the space or nothing."""
        with blaming_the_sampler("ask"):
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

    def _random_untried(self) -> Strategy | None:
        rng = random.Random(f"{self.seed} {len(self.trials)}")
        for _ in range(PATIENCE):
            strategy = self.space.sample(rng)
            if strategy not in self._known and strategy not in self._taken:
                return strategy
        tried = self._known.keys() | self._taken
        return next((each for each in self.space.enumerate() if each not in tried), None)

    def _try(self, strategy: Strategy, budget: int, on_trial: Callable[[Trial], None]) -> None:
        """Evaluates a strategy, if no other worker is first."""
        asked = strategy not in self.first
        self._claimed = number = self.ledger.claim(strategy, budget, asked=asked)
        if number is None:
            self._taken.add(strategy)
            return
        with self._heard(number):
            trial = evaluate(self.objective, self.measure, strategy, number)
        self._claimed = None
        try:
            kept = self.ledger.enter(number, trial.evaluation, trial.started, trial.seconds)
        except LedgerError:
            self._enter(trial, on_trial)  # for the report
            raise
        if kept:
            self._enter(trial, on_trial)

    @contextmanager
    def _heard(self, number: int) -> Generator[None, None, None]:
        """Passes on to the ledger what the objective reports while it measures."""
        reporting = self.objective.reporting
        if reporting is None:
            yield
            return
        reporting.listener = partial(self.ledger.report, number)
        try:
            yield
        finally:
            reporting.listener = nobody

    def _release(self) -> None:
        """Gives back what was claimed and not finished, if that still works."""
        if self._claimed is not None:
            with suppress(LedgerError):
                self.ledger.release(self._claimed)

    def _tell(self, trial: Trial) -> None:
        said = trial.evaluation
        costs = self.objective.all_costs(said)
        told = trial.strategy, trial.cost, said.violation, said.metrics, said.reason
        outcome = Outcome(*told, costs)
        with blaming_the_sampler("tell"):
            tell(self.sampler, outcome)

    def knows(self, strategy: Strategy) -> bool:
        """Whether the strategy has been tried."""
        return strategy in self._known

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
    if not evaluation.failed:
        evaluation = replace(evaluation, output={})  # what is of use where something went wrong
    return Trial(number, strategy, evaluation, objective.cost(evaluation), started, seconds)


def _ended_because(sampler: Sampler) -> str:
    """Why a sampler proposes nothing more."""
    with blaming_the_sampler("ended_because"):
        if isinstance(sampler, SaysWhyItEnds):
            return str(sampler.ended_because)
    return "the sampler has nothing more to propose"
