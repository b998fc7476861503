"""What is looked for outside a space takes no longer than it may."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from autotune import load_problem
from autotune.exhaustive import outside
from autotune.exhaustive.chunks import Chunk, evaluated_chunk
from autotune.exhaustive.outside import look_outside
from autotune.objectives import Objective
from autotune.study.trial import Trial
from distir.strategy import Strategy


@pytest.mark.not_quick
@pytest.mark.parametrize(("seconds", "each_seconds"), [(0.2, 0.004), (0.1, 0.05)])
def test_the_last_plan_is_evaluated_in_time(
    seconds: float, each_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by `each_seconds` for every plan."""
    now = 0.0
    evaluated = 0

    def slow(objective: Objective, numbers: Iterable[int], plans: Sequence[Strategy]) -> Chunk:
        nonlocal now, evaluated
        now += each_seconds * len(plans)
        evaluated += len(plans)
        return replace(
            evaluated_chunk(objective, numbers, plans), seconds=each_seconds * len(plans)
        )

    problem = load_problem("mlp-4x64", "dgx-a100", devices=4, batch_size=8, space="small")
    objective = problem.objective("throughput")
    starts = [
        Trial(0, plan, objective.measure(plan), 1e9)  # whatever is found is better
        for plan in (Strategy(dp=4), Strategy(dp=2, pp=2, microbatches=2))
    ]
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(outside, "evaluated_chunk", slow)
    look_outside(problem, objective, starts, seconds)
    at_first = outside.FIRST * each_seconds  # nobody knows how long they take
    assert now <= max(seconds, at_first) * (1 + 1e-9)
    assert evaluated >= min(outside.FIRST, seconds / each_seconds / 2)
