"""The entries of a study on a storage, as one of its workers sees and makes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from autotune.durable.attempts import Attempt, busy_seconds, entries_of, is_taken, is_void
from autotune.durable.optuna_storage import StoredStudy
from autotune.durable.workers import BEATS, Heart, Watch, is_gone, this_worker
from autotune.objectives.evaluation import Evaluation
from autotune.study.ledger import LedgerEntry
from distir.strategy import Strategy

LOOKS_SECONDS = 1.0
"""How often a worker with nothing to do looks what the others did."""

Prune = Callable[[int, int, float], bool]
Values = Callable[[Evaluation], "list[float] | None"]


class DurableLedger:
    """A ledger that any number of workers share. `values` says what of an evaluation the study
    makes large or small, in the study's directions; None of a failed one."""

    shared = True

    def __init__(
        self,
        study: StoredStudy,
        values: Values,
        *,
        retries: int,
        silence: float,
        prune: Prune | None = None,
    ):
        """`prune` is told of a trial's key, a step and the value there, and says whether the trial
        is to end."""
        self.study = study
        self._values, self._retries, self._prune = values, retries, prune
        self._watch = Watch(silence)
        self._worker = this_worker()
        self._keys: dict[int, int] = {}
        self._hearts: dict[int, Heart] = {}

    def entries(self) -> Sequence[LedgerEntry]:
        """One entry for every strategy that was claimed, after those are noticed who died."""
        attempts = self._attempts()
        if self._bury(attempts):
            attempts = self._attempts()
        return entries_of(attempts, self._retries)

    def busy_seconds(self) -> float:
        """For how long at least one worker was at a trial, of those that are done."""
        return busy_seconds(self._attempts())

    def claim(self, strategy: Strategy, budget: int, *, asked: bool = True) -> int | None:
        """The number of a new trial, if no other worker was first."""
        if is_taken(strategy, self._attempts(), budget, self._retries):
            return None  # most that is in vain ends here, and leaves nothing
        token = uuid4().hex
        key = self.study.begin(strategy, token, self._worker, asked=asked)
        attempts = self._attempts()
        mine = next(each for each in attempts if each.key == key)
        if is_void(mine, attempts, budget, self._retries):
            self.study.withdraw(key)
            return None
        self._keys[mine.number] = key
        self._hearts[key] = Heart(lambda: self.study.beat(key), self._watch.silence_seconds / BEATS)
        return mine.number

    def report(self, number: int, step: int, value: float) -> bool:
        """Keeps a value on the way, and asks the pruner."""
        return self._prune is not None and self._prune(self._keys[number], step, value)

    def enter(self, number: int, evaluation: Evaluation, started: float, seconds: float) -> bool:
        """Keeps what came of a claim."""
        key = self._stopped(number)
        return self.study.finish(key, evaluation, started, seconds, self._values(evaluation))

    def release(self, number: int) -> None:
        """Gives a claim back; the study is at its end here."""
        self.study.hurry()
        self.study.withdraw(self._stopped(number))

    def wait(self) -> None:
        """Sleeps for a moment."""
        time.sleep(LOOKS_SECONDS)

    def _stopped(self, number: int) -> int:
        key = self._keys.pop(number)
        self._hearts.pop(key).stop()
        return key

    def _attempts(self) -> list[Attempt]:
        return self.study.attempts()

    def _bury(self, attempts: Sequence[Attempt]) -> bool:
        """Ends the attempts of workers that have died: with what they had written already, if that
        was all, else as lost. Says whether there were any."""
        mine = self._keys.values()
        others = [each for each in attempts if each.state == "running" and each.key not in mine]
        dead = [
            each
            for each in others
            if is_gone(each.worker) or self._watch.is_silent(each.key, each.alive)
        ]
        for each in dead:
            known = each.evaluation
            values = None if known is None else self._values(known)
            self.study.end(each.key, values, pruned=known is not None and known.pruned)
        return bool(dead)
