"""What is advised where a plan does not fit: fewest changes, and of those the fastest."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from autotune.objectives.simulator import needed_bytes
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


def advised(problem: Problem) -> list[str]:
    """What is advised where one node runs everything, in microbatches of a sample."""
    strategy = Strategy(tp=problem.devices, microbatches=problem.batch_size)
    if problem.mode == "training":
        strategy = replace(strategy, recompute="full")
    closest = Trial(0, strategy, problem.simulate(strategy), None)
    return [*advice(problem, problem.objective("throughput"), closest)]


def help_line(said: list[str]) -> str:
    return next(each for each in said if each.startswith("What would help"))


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize(
    ("options", "named", "absent"),
    [
        ({}, "--optimizer sgd", ("--precision", "ZeRO")),
        ({"precision": "fp16"}, "--optimizer sgd", ("--precision",)),
        ({"precision": "fp8"}, "--optimizer sgd", ("--precision",)),
        ({"precision": "fp32"}, "--precision fp16", ("bf16", "fp8")),
        ({"optimizer": "sgd"}, "optimizer", ("--optimizer",)),
        ({"mode": "inference"}, "parameters hold", ("optimizer", "gradients", "ZeRO", "precision")),
        (
            {"mode": "inference", "precision": "fp32"},
            "parameters hold most of it: --precision fp16",
            ("optimizer",),
        ),
    ],
    ids=["training", "fp16", "fp8", "fp32", "sgd", "inference", "inference in fp32"],
)
def test_what_would_help_is_there_to_be_changed(
    options: dict[str, Any], named: str, absent: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.reports.advice.MOST_TIMES_DEVICES", 1)
    problem = load_problem("llama3-70b", "p3-v100-16gb", devices=8, space="small", **options)
    said = help_line(advised(problem))
    assert named in said
    assert not [word for word in absent if word in said]


@pytest.mark.parametrize("cluster", ["p3-v100-16gb", "dgx-a100"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_options_that_would_help_make_the_plan_need_less(
    cluster: str, precision: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.reports.advice.MOST_TIMES_DEVICES", 1)
    stated: Any = {"devices": 4, "batch_size": 2048, "precision": precision, "space": "small"}
    problem = load_problem("gpt2-xl", cluster, **stated)
    strategy = Strategy(dp=4, recompute=recompute)
    evaluation = problem.simulate(strategy)
    now = needed_bytes(evaluation.metrics)
    said = help_line(
        [*advice(problem, problem.objective("mfu"), Trial(0, strategy, evaluation, 0))]
    )
    for name, value in re.findall(r"--(precision|optimizer) (\w+)", said):
        other = load_problem("gpt2-xl", cluster, **{**stated, name: value})
        assert needed_bytes(other.simulate(strategy).metrics) < now
    assert ("--precision" in said) == (precision == "fp32")
    assert ("recomputation" in said) <= (recompute == "none")


def few_times(
    times: int, devices: int, monkeypatch: pytest.MonkeyPatch, space: str = "small"
) -> list[str]:
    """What is advised for Llama 3 70B where up to so many times the devices are tried."""
    monkeypatch.setattr("autotune.reports.advice.MOST_TIMES_DEVICES", times)
    stated: Any = {"devices": devices, "batch_size": 16, "space": space}
    problem = load_problem("llama3-70b", "p3-v100-16gb", **stated)
    strategy = Strategy(tp=8, pp=devices // 8, microbatches=16)
    closest = Trial(0, strategy, problem.simulate(strategy), None)
    return [*advice(problem, problem.objective("throughput"), closest)]


@pytest.mark.slow(seconds=5)
def test_more_devices_are_tried_in_a_richer_space_too(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, helps, fits, none = few_times(2, 64, monkeypatch)
    assert "more --devices" in helps
    assert re.fullmatch(
        r"With --space standard, \S+-z3-full fits on 128 devices of p3-v100-16gb\.", fits
    )
    assert none == (
        "Nothing was found in the space small that fits on up to 128 devices of p3-v100-16gb."
    )


@pytest.mark.slow(seconds=5)
def test_more_devices_do_not_help_where_none_are_found_that_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    *_, helps, none = few_times(2, 8, monkeypatch)
    assert "more --devices" not in helps
    assert none == (
        "Nothing was found in the space small or standard that fits on up to 16 devices of "
        "p3-v100-16gb."
    )


@pytest.mark.slow(seconds=5)
def test_a_richer_space_is_named_only_where_it_takes_fewer_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    *_, helps, fits = few_times(2, 64, monkeypatch, "standard")
    assert "more --devices" in helps
    assert re.fullmatch(r"On 128 devices of p3-v100-16gb, \S+ fits\.", fits)
