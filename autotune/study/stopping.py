"""Reasons to end a search before its trials are made: time, what is left to gain, and that nothing
comes of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune.samplers.sampler import Remaining
from autotune.study.study import Stopped, Study
from distir.units import percent


@dataclass(frozen=True, slots=True)
class Timeout:
    """Ends a study that has taken its time, whoever spent it. A trial that is begun is finished."""

    seconds: float
    spent_before: float
    """Seconds that the study took before this process came."""
    began: float
    """When that was, by `time.monotonic`."""

    def __call__(self, study: Study) -> Stopped | None:
        """A reason, once the time is over."""
        if self.spent_before + time.monotonic() - self.began < self.seconds:
            return None
        return Stopped("timeout", f"its {self.seconds:g} s have passed")


FAILING = 5
"""Trials, the first ones, that fail for one reason before a search ends: what the next ones cost is
saved, and as many layouts have been tried."""


def failing(study: Study) -> Stopped | None:
    """A reason to end a study whose first trials, of this run, have all failed alike: a metric is
    called otherwise, or a program is missing."""
    made = study.trials[study.resumed :]
    reasons = {trial.evaluation.reason for trial in made if trial.evaluation.failed}
    if len(made) != FAILING or len(reasons) != 1 or any(not t.evaluation.failed for t in made):
        return None
    return Stopped("failing", f"its first {FAILING} trials have all failed for the same reason")


@dataclass(frozen=True, slots=True)
class Within:
    """Ends a study when nothing left is expected to be better by more than a fraction of the
    best."""

    fraction: float
    expect: Callable[[Study], Remaining | None]
    """What is expected of the strategies that were not tried."""

    def __call__(self, study: Study) -> Stopped | None:
        """A reason, once what is known suffices for one."""
        best = study.best
        left = None if best is None else self.expect(study)
        if best is None or best.cost is None or left is None:
            return None
        gain = max(0.0, best.cost - left.cost)
        if gain:  # of nothing, whatever is better is better by any fraction
            gain = gain / abs(best.cost) if best.cost else math.inf
        if gain > self.fraction:
            return None
        return Stopped(
            "stop-within",
            f"no remaining strategy is expected to be better by more than {percent(gain)} "
            f"({percent(self.fraction)} was requested), according to {left.rests_on}",
        )
