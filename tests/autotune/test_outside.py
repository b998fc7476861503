"""What is outside a space: proved where that is soon done, looked for no longer than it may be."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from autotune import load_problem
from autotune.exhaustive import outside
from autotune.exhaustive.chunks import Chunk, evaluated_chunk
from autotune.exhaustive.grid import evaluate_grid
from autotune.exhaustive.outside import look_outside
from autotune.objectives import Objective
from autotune.objectives.costs import regret
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
    monkeypatch.setattr(outside, "MOST_PROVED", 0)
    look_outside(problem, objective, starts, seconds)
    at_first = outside.FIRST * each_seconds  # nobody knows how long they take
    assert now <= max(seconds, at_first) * (1 + 1e-9)
    assert evaluated >= min(outside.FIRST, seconds / each_seconds / 2)


@pytest.mark.parametrize(("model", "devices", "batch_size"), [("mlp-4x64", 4, 8), ("gpt2", 2, 4)])
@pytest.mark.parametrize("space", ["small", "standard"])
@pytest.mark.slow(seconds=6)
def test_what_is_proved_is_the_best_of_the_wider_grid(
    model: str, devices: int, batch_size: int, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "PROOF_SECONDS", 600.0)
    problem, wider = (
        load_problem(
            model,
            "dgx-a100",
            devices=devices,
            batch_size=batch_size,
            sequence_length=None if model.startswith("mlp") else 64,
            space=each,
        )
        for each in (space, "full")
    )
    objective = problem.objective("throughput")
    own, best = (evaluate_grid(each.space, objective).best for each in (problem, wider))
    assert own is not None
    assert best is not None
    assert own.cost is not None
    assert best.cost is not None
    found = look_outside(problem, objective, [own], 0.0)
    assert found is not None
    assert found.proved
    assert found.space_size == wider.space.count()
    gain = regret(best.cost, own.cost)
    assert found.gain == pytest.approx(gain if gain > outside.WORTH else 0)
    assert (found.best is not None) == (gain > outside.WORTH)
