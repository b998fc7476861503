"""Certified search finds what exhaustive search finds, and says what it ruled out."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import load_problem
from autotune.cli import main
from autotune.exhaustive import certified, first_look
from autotune.exhaustive.certificate import Certificate
from autotune.exhaustive.certified import certify, order_last
from autotune.exhaustive.grid import evaluate_grid
from autotune.objectives import Objective
from autotune.problem import Problem
from autotune.study.trial import Trial, rank
from autotune.testing import toy_problem
from distir.cost import load_cluster, load_stack
from distir.errors import DistirError
from distir.importers.load import LoadedModel
from distir.simulation.bounds import Bounds, ManyBounds
from distir.simulation.simulator import Simulator
from distir.strategies import Strategies
from search_spaces import distribution_space
from tests.conftest import HEALTH_CHECKS
from tests.laws.scenarios import clusters, models
from tests.slow import shares

OBJECTIVES = ("throughput", "latency", "memory")


def certified_so(
    small: bool, problem: Problem, objective: Objective, **options: Any
) -> Certificate:
    """`certify` as it searches small spaces, or large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certified, "LEAST_BOUNDED", sys.maxsize if small else 0)
        return certify(problem, objective, **options)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Small models on small clusters, on some of which much does not fit."""
    devices = draw(st.sampled_from([2, 4, 6]))
    cluster = draw(clusters(devices))
    memory = draw(st.sampled_from([cluster.device.memory_bytes, 2e4, 5e4, 2e5]))
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=memory))
    reserve = draw(st.floats(0.0, 0.1)) * memory
    stack = replace(
        load_stack(),
        allocator=draw(st.sampled_from(["blocks", "segments"])),
        context_bytes=reserve,
        communicator_bytes=reserve,
    )
    return load_problem(
        LoadedModel("model", draw(models)),
        cluster,
        devices=devices,
        mode=draw(st.sampled_from(["training", "training", "inference"])),
        batch_size=devices * draw(st.sampled_from([1, 2, 4])),
        space=draw(st.sampled_from(["small", "standard", "standard"])),
        precision=draw(st.sampled_from(["bf16", "fp32"])),
        stack=stack,
    )


@pytest.mark.not_quick
@shares(16, seconds=3)
@settings(max_examples=3, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(problems(), st.sampled_from(OBJECTIVES), st.integers(1, 3), st.booleans())
def test_what_is_certified_is_what_the_grid_ranks_first(
    share: int, problem: Problem, name: str, top: int, small: bool
) -> None:
    objective = problem.objective(name)
    certificate = certified_so(small, problem, objective, top=top)
    grid = evaluate_grid(problem.space, objective, top=top)
    assert [t.number for t in certificate.ranked] == [t.number for t in grid.ranked]
    assert [t.cost for t in certificate.ranked] == pytest.approx([t.cost for t in grid.ranked])
    assert certificate.evaluated + sum(certificate.ruled_out.values()) == grid.space_size
    assert certificate.feasible <= grid.feasible


@pytest.mark.not_quick
@shares(8, seconds=3)
@settings(max_examples=3, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(
    problems(),
    st.sampled_from(OBJECTIVES),
    st.integers(1, 20),
    st.booleans(),
    st.integers(0, 40),
)
def test_what_is_proved_is_true_wherever_search_ends(
    share: int, problem: Problem, name: str, top: int, small: bool, steps: int
) -> None:
    left = iter(range(steps))

    def advance(done: int, best: Trial | None) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    objective = problem.objective(name)
    cut = certified_so(small, problem, objective, top=top, advance=advance)
    best = evaluate_grid(problem.space, objective, top=1).best
    known = cut.best.evaluation.metrics[cut.metric] if cut.best is not None else math.inf
    if cut.proved and best is not None:
        assert known == pytest.approx(best.evaluation.metrics[cut.metric], rel=1e-9)
    if cut.proved:
        assert (cut.best is None) == (best is None)
    if cut.bound is not None and best is not None:
        assert min(cut.bound, known) <= best.evaluation.metrics[cut.metric] * (1 + 1e-9)


@pytest.mark.parametrize(("devices", "fits"), [(8, True), (4, False)])
def test_any_that_fits_is_enough(devices: int, *, fits: bool) -> None:
    problem = load_problem("llama3-8b" if fits else "llama3-70b", "hgx-h100", devices=devices)
    objective = problem.objective("memory")
    found = certified_so(False, problem, objective, any_that_fits=True)
    assert found.complete != fits
    assert (found.best is not None) == fits
    if found.best is not None:
        assert found.best.feasible
        assert found.bounds == 0
        least = certified_so(False, problem, objective).best
        assert least is not None
        assert least.cost is not None
        assert found.best.cost is not None
        assert least.cost <= found.best.cost


@pytest.mark.slow(seconds=7)
def test_the_best_is_proved_before_all_that_was_asked_for_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certified, "LEAST_BOUNDED", 0)
    problem = load_problem("mlp-4x1024", "dgx2-v100", devices=4)
    objective = problem.objective("throughput")
    best = certify(problem, objective).best
    proved: list[bool] = []
    for steps in range(100):
        left = iter(range(steps))

        def advance(done: int, known: Trial | None, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        cut = certify(problem, objective, top=40, advance=advance)
        if cut.complete:
            break
        proved.append(cut.proved)
        if cut.proved:
            assert cut.best is not None
            assert best is not None
            assert cut.best.cost == best.cost
    assert proved == sorted(proved)
    assert proved[-1]


@pytest.mark.slow(seconds=2)
def test_a_small_part_is_evaluated() -> None:
    problem = load_problem("gpt2", devices=16, space="standard")
    objective = problem.objective("throughput")
    certificate = certify(problem, objective)
    assert certificate.best is not None
    assert certificate.evaluated < 0.05 * certificate.space_size
    assert set(certificate.ruled_out) <= {
        "takes longer: its products at full rate",
        "takes longer: its blocks, without waiting",
        "takes longer: its blocks, none of which is divided",
        "takes longer: filling and draining the pipeline",
    }
    assert certificate.bounds < 2 * certificate.space_size
    for strategy in problem.space.samples(random.Random(1), 40):
        cost = objective.cost(objective.measure(strategy))
        assert cost is not None
        assert certificate.best.cost is not None
        assert cost >= certificate.best.cost


@pytest.mark.slow(seconds=5)
def test_where_a_first_look_finds_nothing_strategies_are_bounded_together_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As soon as something is found, what is about as promising is bounded at once; part by part it
    took 18 steps."""
    problem = load_problem("gpt2", devices=16, space="full")
    objective = problem.objective("throughput")
    seen = certify(problem, objective).best

    def nothing(*_: object) -> first_look.FirstLook:
        return first_look.FirstLook(None, 0)

    steps: list[int] = []
    ordered = Bounds.ordered

    def counted(bounds: Bounds, table: Strategies, within: float = math.inf) -> ManyBounds:
        steps.append(len(table))
        return ordered(bounds, table, within)

    monkeypatch.setattr(certified, "first_look", nothing)
    monkeypatch.setattr(Bounds, "ordered", counted)
    unseen = certify(problem, objective).best
    assert seen is not None
    assert unseen is not None
    assert (unseen.number, unseen.cost) == (seen.number, seen.cost)
    assert 0 < len(steps) < 10


@pytest.mark.not_quick
def test_a_first_look_finds_something_good_and_that_is_what_is_left_when_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certified, "LEAST_BOUNDED", 0)
    problem = load_problem("mlp-4x1024", "dgx2-v100", devices=4)
    assert isinstance(problem.simulator, Simulator)
    objective, bounds = problem.objective("throughput"), Bounds(problem.simulator.stages)
    looked = first_look.first_look(problem, objective, bounds).best
    best = certify(problem, objective).best
    assert looked is not None
    assert looked.strategy in problem.space
    assert best is not None
    seconds = [each.evaluation.metrics["iteration_seconds"] for each in (best, looked)]
    assert seconds[0] <= seconds[1] < 1.1 * seconds[0]

    usual = first_look.first_look(problem, objective, bounds, end=0).best  # no neighbours are tried
    assert usual is not None
    assert rank(looked) <= rank(usual)

    def look(
        problem: Problem, objective: Objective, bounds: Bounds, end: float
    ) -> first_look.FirstLook:
        return first_look.FirstLook(looked, 1)

    monkeypatch.setattr(certified, "first_look", look)
    for top in (1, 3):
        ended = certify(problem, objective, top=top, seconds=0)
        assert not ended.complete
        assert ended.ranked == (looked,)
        assert (ended.evaluated, ended.feasible) == (1, 1)
        assert ended.looked_at == 1
        assert ended.rest.endswith("the others left")


@pytest.mark.not_quick
def test_where_nothing_fits_nothing_is_evaluated_in_vain() -> None:
    problem = load_problem("gpt3-175B", devices=8)
    certificate = certify(problem, problem.objective("throughput"))
    assert certificate.best is None
    assert certificate.evaluated == 0
    (reason,) = certificate.ruled_out
    assert reason == "does not fit: the model's state, shared by all devices"


def test_what_has_no_bounds_is_refused() -> None:
    problem = load_problem("mlp-2x8", devices=2, batch_size=4)
    with pytest.raises(DistirError, match="cannot be certified, as there are no bounds for it"):
        certify(problem, problem.objective(lambda strategy: strategy.tp))
    with pytest.raises(DistirError, match="metric bubble_fraction cannot be certified"):
        certify(problem, problem.objective("latency", metric="bubble_fraction"))
    with pytest.raises(DistirError, match="iteration_seconds cannot be certified"):
        certify(problem, problem.objective("latency", direction="maximize"))
    toy = toy_problem()
    with pytest.raises(DistirError, match="cannot be certified"):
        certify(toy, toy.objective("throughput"))
    chosen = load_problem("mlp-2x8", devices=2, batch_size=4, recomputation="auto")
    with pytest.raises(DistirError, match="with recompute auto nothing can be certified"):
        certify(chosen, chosen.objective("throughput"))


def test_what_orders_work_is_chosen_last_and_nothing_is_lost() -> None:
    problem = load_problem("mlp-4x8", devices=4, batch_size=8, space="full")
    space = distribution_space(problem.workload, 4, {"extends": "full", "placement": "all"})
    tree, shaped = order_last(space)
    assert set(tree.names[shaped:]) == {"schedule", "chunks"}
    assert set(tree.enumerate()) == set(space.enumerate())
    assert tree.count() == space.count()


@pytest.mark.not_quick
def test_the_command_line_certifies(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["grid", "--model", "mlp-2x8", "--devices", "4", "--batch-size", "8"]
    assert main([*arguments, "--json", "-"]) == 0
    everything = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--certified", "--json", "-"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["certified"] is True
    assert len(plain["ranked"]) == 1
    assert plain["ranked"][0]["strategy"] == everything["ranked"][0]["strategy"]
    assert plain["evaluated"] + sum(plain["ruled_out"].values()) == plain["space_size"]
    assert main([*arguments, "--certified"]) == 0
    assert "the best of all" in capsys.readouterr().out
    for wrong in (("--table", "x.csv"), ("--jobs", "2"), ("--trial-timeout", "3")):
        assert main([*arguments, "--certified", *wrong]) == 2
        assert "--certified" in capsys.readouterr().err


def test_the_closest_plan_is_told_with_what_it_misses() -> None:
    problem = load_problem("llama3-8b", cluster="hgx-h100", devices=2, batch_size=2, space="small")
    proof = certify(problem, problem.objective("throughput"))
    assert proof.best is None
    assert proof.closest is not None
    assert "out of memory" in str(proof.closest.evaluation.reason)


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("command", ["grid", "run"])
def test_where_bounds_rule_everything_out_what_misses_by_least_is_told_all_the_same(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As exhaustive search and `run` tell it, with what would help."""
    problem = load_problem("llama3-70b", cluster="hgx-h100", devices=4, space="small")
    objective = problem.objective("throughput")
    proof, grid = certify(problem, objective), evaluate_grid(problem.space, objective)
    assert proof.evaluated == 0
    assert sum(proof.ruled_out.values()) == proof.space_size
    assert proof.closest is not None
    assert grid.closest is not None
    assert proof.closest.strategy == grid.closest.strategy
    stated = ("--model", "llama3-70b", "--cluster", "hgx-h100", "--devices", "4")
    how = {"grid": ("--certified",), "run": ("--no-tracking", "--trials", "1")}[command]
    assert main([command, *stated, "--space", "small", *how]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"Nothing fits. Closest: {proof.closest.label}, out of memory" in said
    assert "What would help: the model's state" in said


@pytest.mark.parametrize("memory", [1.5e7, 2e7, 3e7])
def test_what_misses_by_least_is_in_the_space_whatever_bound_rules_it_out(memory: float) -> None:
    """Beginnings of strategies are ruled out, too: what orders their work is not chosen yet, and
    what comes first elsewhere in the space need not be allowed behind them."""
    cluster = load_cluster("dgx2-v100", 4)
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=memory))
    space = {"extends": "small", "tp": 1, "pp": [1, 2], "schedule": "gpipe"}
    problem = load_problem("mlp-4x1024", cluster, batch_size=8, space=space, stack="ideal")
    objective = problem.objective("throughput")
    proof = certified_so(False, problem, objective)
    assert proof.best is None
    assert proof.closest is not None
    closest = evaluate_grid(problem.space, objective).closest
    assert closest is not None
    assert proof.closest.strategy == closest.strategy


def test_an_interrupt_while_the_closest_is_looked_for_keeps_the_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = load_problem("llama3-70b", cluster="hgx-h100", devices=4, space="small")
    objective = problem.objective("throughput")

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(certified, "evaluated_chunk", interrupted)
    proof = certify(problem, objective)
    assert proof.interrupted
    assert proof.complete
    assert proof.closest is None
    assert sum(proof.ruled_out.values()) == proof.space_size
