"""What is advised where a plan does not fit: fewest changes, and of those the fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.problem import Problem, load_problem
from autotune.reports.advice import advice, what_would_fit
from autotune.study.trial import Trial
from distir.factoring import divisors
from distir.strategy import Strategy


def fitting_seconds(problem: Problem, changes: dict[str, Strategy]) -> dict[str, float]:
    """The iteration of the plans that fit, by what is said of their change."""
    found = {said: problem.simulate(strategy) for said, strategy in changes.items()}
    return {
        said: evaluation.metrics["iteration_seconds"]
        for said, evaluation in found.items()
        if evaluation.feasible
    }


@pytest.mark.parametrize("cluster", ["p3-v100-16gb", "dgx-a100"])
@pytest.mark.parametrize("model", ["gpt2-medium", "gpt2-xl", "t5-large"])
def test_one_change_is_advised_where_one_will_do(model: str, cluster: str) -> None:
    problem = load_problem(model, cluster, devices=8, batch_size=1024)
    plain = Strategy(dp=8)
    pieces = [each for each in divisors(128) if each > 1]
    fitting = fitting_seconds(
        problem,
        {f"microbatches {n}": Strategy(dp=8, microbatches=n) for n in pieces}
        | {f"ZeRO {zero}": Strategy(dp=8, zero=zero) for zero in (1, 3)}
        | {f"recompute {how}": Strategy(dp=8, recompute=how) for how in ("selective", "full")},
    )
    said = what_would_fit(problem, plain) or ""
    assert not problem.simulate(plain).feasible
    if fitting:
        assert said.startswith(f"With {min(fitting, key=lambda each: fitting[each])} it would fit")
    else:
        assert " and " in said.partition(" it would fit")[0]


@pytest.mark.parametrize(
    ("options", "named", "absent"),
    [
        ({}, "--optimizer sgd", ()),
        ({"optimizer": "sgd"}, "optimizer", ("--optimizer",)),
        ({"mode": "inference"}, "parameters hold", ("optimizer", "gradients", "ZeRO")),
    ],
    ids=["training", "sgd", "inference"],
)
def test_what_would_help_is_there_to_be_changed(
    options: dict[str, Any], named: str, absent: tuple[str, ...]
) -> None:
    problem = load_problem("llama3-70b", "p3-v100-16gb", devices=8, **options)
    objective = problem.objective("throughput")
    strategy = Strategy(tp=8, microbatches=problem.batch_size)
    if problem.mode == "training":
        strategy = replace(strategy, recompute="full")
    closest = Trial(0, strategy, problem.simulate(strategy), None)
    said = advice(problem, objective, closest)
    help_line = next(each for each in said if each.startswith("What would help"))
    assert named in help_line
    assert not [word for word in absent if word in help_line]
