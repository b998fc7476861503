"""Axis lists that are made of a program's own axes: one per plan, and every plan is right."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import certify, evaluate_grid, load_problem
from autotune.cli import main
from autotune.exhaustive import certified
from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.execute.verify import Verifier
from distir.importers.load import LoadedModel
from distir.models.experts import Experts
from distir.models.transformer import TransformerConfig
from distir.plan import Planner
from distir.plan import chains as placing
from distir.plan.axis_lists import AxisLists
from distir.strategy import format_lists
from search_spaces import SpaceError
from tests.slow import shares

pytestmark = pytest.mark.not_quick

SMALL = TransformerConfig(
    name="small", layers=2, hidden=16, heads=4, vocabulary=24, sequence_length=8
)
MIXTURE = replace(SMALL, name="mixture", experts=Experts(count=4, top_k=2, ffn=8))
BASE = Strategy(dp=2, tp=2)


def workload_of(config: TransformerConfig, batch: int = 8, mode: str = "training") -> Workload:
    model = LoadedModel(config.name, config.build(2, 8, "fused"), sequence_length=8)
    return Workload(model=model, batch_size=batch, mode=mode)  # pyright: ignore[reportArgumentType]


def lists_of(workload: Workload, *users: str) -> tuple[Planner, list[Strategy]]:
    planner = Planner(workload)
    texts = AxisLists(planner).generated(BASE, users, [BASE])
    return planner, [replace(BASE, axes=text) for text in texts]


@pytest.mark.slow(seconds=3)
def test_no_two_generated_lists_make_one_plan() -> None:
    planner, found = lists_of(workload_of(SMALL), "tp")
    assert len(found) > 50
    assert len({planner.fingerprint(each) for each in [BASE, *found]}) == len(found) + 1


def test_lists_with_equal_fingerprints_have_equal_metrics() -> None:
    workload = workload_of(SMALL)
    simulator = Simulator(workload, load_cluster("dgx-a100", BASE.devices))
    planner, chance = simulator.planner, random.Random(0)
    words = [each for word in AxisLists(planner).words for each in word.names]
    by_fingerprint: dict[int, dict[str, float]] = {}
    shared = 0
    for _ in range(60):
        names = chance.sample(words, chance.randint(1, 4))
        tried = replace(BASE, axes=f"tp={','.join(names)}", zero=chance.choice((0, 3)))
        if planner.explain(tried) is not None:
            continue
        metrics = dict(simulator.simulate(tried).metrics)
        key = planner.fingerprint(tried) * 4 + tried.zero
        shared += key in by_fingerprint
        assert by_fingerprint.setdefault(key, metrics) == metrics, tried.label
    assert shared > 5


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("config", [SMALL, MIXTURE])
def test_blocks_are_placed_alike_whatever_lists_were_placed_before(
    config: TransformerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, cluster = workload_of(config), load_cluster("dgx-a100", BASE.devices)
    warm, chance = Simulator(workload, cluster), random.Random(2)
    words = [each for word in AxisLists(warm.planner).words for each in word.names]
    for _ in range(60):
        lists = {user: chance.sample(words, chance.randint(1, 5)) for user in ("dp", "tp")}
        recompute, zero = chance.choice(("none", "selective", "full")), chance.choice((0, 1, 3))
        made = replace(BASE, axes=format_lists(lists), zero=zero, recompute=recompute)
        if warm.explain(made) is not None:
            continue
        monkeypatch.setattr(placing, "MANY_LISTS", 0)
        found = warm.simulate(made)
        monkeypatch.setattr(placing, "MANY_LISTS", 10**9)
        alone = Simulator(workload, cluster).simulate(made)
        assert dict(found.metrics) == dict(alone.metrics), made.label
        assert found.padding == alone.padding


@shares(10, seconds=1)
@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("config", [SMALL, MIXTURE], ids=lambda config: config.name)
def test_lists_that_share_blocks_with_others_cost_to_the_bit_what_they_cost_alone(
    config: TransformerConfig, mode: str, share: int
) -> None:
    workload, cluster = workload_of(config, mode=mode), load_cluster("dgx-a100", 8)
    warm, chance = Simulator(workload, cluster), random.Random(share)
    words = [each for word in AxisLists(warm.planner).words for each in word.names]
    tried = 0
    while tried < 12:
        dp, pp, microbatches = (
            chance.choice((1, 2, 4)),
            chance.choice((1, 2)),
            chance.choice((1, 2)),
        )
        base = Strategy(dp=dp, tp=8 // dp // pp, pp=pp, microbatches=microbatches)
        for _ in range(4):  # lists of one mesh after the other share most
            names = chance.sample(words, chance.randint(1, 4))
            made = replace(base, axes=f"tp={','.join(names)}", zero=chance.choice((0, 2, 3)))
            if warm.explain(made) is None:
                tried += 1
                alone = Simulator(workload, cluster).simulate(made)
                assert dict(warm.simulate(made).metrics) == dict(alone.metrics), made.label


CASES = [
    (SMALL, "training"),
    (SMALL, "inference"),
    pytest.param(MIXTURE, "training", marks=pytest.mark.slow(seconds=7)),
]


@shares(40, seconds=2)
@pytest.mark.parametrize(("config", "mode"), CASES)
def test_generated_lists_compute_what_one_device_does(
    config: TransformerConfig, mode: str, share: int
) -> None:
    workload = workload_of(config, mode=mode)
    _, found = lists_of(workload, "tp")
    verifier = Verifier(workload)
    for strategy in random.Random(share).sample(found, 3):
        result = verifier.verify(strategy)
        assert result.passed, (strategy.label, result.first_difference)


@pytest.mark.slow(seconds=2)
def test_lists_of_named_techniques_are_among_them() -> None:
    planner, found = lists_of(workload_of(SMALL), "tp")
    plans = {planner.fingerprint(each) for each in found}
    named = ("heads,ffn,vocabulary,sequence", "heads,ffn", "batch", "sequence", "heads*,sequence")
    for text in named:
        assert planner.fingerprint(replace(BASE, axes=f"tp={text}")) in plans, text


def test_lists_of_several_degrees_are_generated_together() -> None:
    workload = Workload(model=load_model("mlp-3x8"), batch_size=8)
    planner, found = lists_of(workload, "dp", "tp")
    stated = {tuple(each.axis_lists) for each in found}
    assert stated == {("dp",), ("tp",), ("dp", "tp")}
    assert len({planner.fingerprint(each) for each in found}) == len(found)


def test_a_space_with_generated_lists_has_the_named_strategies_and_says_where_they_are() -> None:
    stated = {"extends": "standard", "tp": [1, 2], "pp": [1], "zero": [0], "recompute": "none"}
    plain, found = (
        load_problem("mlp-4x64", devices=4, space=stated, axis_lists=lists).space
        for lists in (None, "auto")
    )
    assert all(each in found for each in plain.enumerate())
    assert len(set(found.enumerate())) == found.count() > plain.count()
    number = found.count() // 2
    assert found.index(found.at(number)) == number


@pytest.mark.slow(seconds=3)
def test_the_best_of_generated_lists_is_proved_to_be_that_of_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certified, "LEAST_BOUNDED", 0)
    problem = load_problem("mlp-3x64", devices=4, space="small", axis_lists="auto")
    objective = problem.objective("throughput")
    best = evaluate_grid(problem.space, objective).best
    proof = certify(problem, objective)
    assert best is not None
    assert proof.best is not None
    assert proof.best.cost == pytest.approx(best.cost, rel=1e-9)
    assert proof.evaluated < problem.space.count()


NARROW = """
from distir import Builder, ops

def model(batch_size=1):
    builder = Builder("narrow")
    x = builder.input("x", (batch_size, 1))
    return builder.build([builder.add(ops.linalg.MatMul(), x, builder.parameter("w", (1, 1)))])
"""


def test_a_model_without_axes_to_split_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "narrow.py"
    file.write_text(NARROW, encoding="utf-8")
    assert main(["grid", "--model", f"{file}:model", "--axes", "auto"]) == 2
    (told,) = capsys.readouterr().err.strip().splitlines()
    assert told == (
        "autotune: error: axes: auto finds nothing to split: the model has no axis other than that "
        "of its samples; leave it out"
    )


@pytest.mark.parametrize("lists", [["tp=ffn", "tp=feet"], [{"cp": ["feet"]}]])
def test_a_space_with_axes_that_the_model_does_not_have_is_refused(lists: list[Any]) -> None:
    with pytest.raises(SpaceError, match="axes: unknown axis 'feet'; the model's axes are"):
        load_problem("mlp-2x8", devices=4, space={"axes": lists})
