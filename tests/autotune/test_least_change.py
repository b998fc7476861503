"""What is advised where a plan does not fit: fewest changes, and of those the fastest."""

from __future__ import annotations

import pytest

from autotune.problem import Problem, load_problem
from autotune.reports.advice import what_would_fit
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
