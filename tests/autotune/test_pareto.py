"""Several objectives: what is on the front, how much that covers, and who may look for it."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any, cast

import pytest

from autotune.api import Search, TuneResult, solve
from autotune.cli import main
from autotune.durable.stated import Kept
from autotune.objectives import Evaluation
from autotune.objectives.aims import aims_in
from autotune.rendering import as_text
from autotune.reports.study import study_report
from autotune.study.pareto import covers, hypervolume
from autotune.testing import toy_problem
from distir.errors import DistirError
from distir.strategy import Strategy

BOTH = "throughput,memory"
ABLE = ("tpe", "nsga2", "random", "grid", pytest.param("qmc", marks=pytest.mark.slow(seconds=3)))


def searched(sampler: str = "random", trials: int = 20, **options: Any) -> TuneResult:
    return solve(toy_problem(), Search(objectives=BOTH, sampler=sampler, trials=trials, **options))


def points(result: TuneResult) -> list[tuple[float, ...]]:
    known = [result.objective.all_costs(each.evaluation) for each in result.trials if each.feasible]
    return [each for each in known if each is not None]


@pytest.mark.parametrize("aims", [1, 2, 3, 4])
def test_the_hypervolume_is_the_volume_of_the_cells_that_some_point_covers(aims: int) -> None:
    rng = random.Random(aims)
    for _ in range(20):
        size = 4
        reference = (float(size),) * aims
        drawn = [tuple(float(rng.randrange(size + 2)) for _ in range(aims)) for _ in range(6)]
        cells = itertools.product(range(size), repeat=aims)
        covered = sum(any(covers(point, cell) for point in drawn) for cell in cells)
        assert hypervolume(drawn, reference) == covered


@pytest.mark.parametrize("sampler", ABLE)
def test_every_trial_is_covered_by_the_front_and_no_plan_of_the_front_by_another(
    sampler: str,
) -> None:
    found = searched(sampler)
    front = found.pareto
    assert front is not None
    assert len(found.trials) == 20
    assert all(any(covers(best, point) for best in front.points) for point in points(found))
    pairs = itertools.permutations(front.points, 2)
    assert not any(covers(one, other) for one, other in pairs)
    assert found.best is front.plans[0]
    assert front.share is None or 0 < front.share <= 1


class Scored:
    """A plug-in that says what counts, and in which direction."""

    metric, direction = "score", "maximize"

    def __call__(self, strategy: Strategy) -> dict[str, float]:
        return {"score": float(strategy.tp), "size": 1.0}


@pytest.mark.parametrize(
    ("stated", "maximized"),
    [
        ("score,size", ["score"]),
        ("size,score", ["score"]),
        ("score=minimize,size=maximize", ["size"]),
    ],
)
def test_a_plug_in_says_the_direction_of_its_own_metric(stated: str, maximized: list[str]) -> None:
    asked = Search(objective=Scored(), objectives=stated, sampler="random", isolate=False)
    aims = asked.over(toy_problem()).aims
    assert [aim.metric for aim in aims if aim.maximize] == maximized


def test_optuna_has_the_same_front() -> None:
    found = searched("tpe", 30)
    assert found.pareto is not None
    directions = [each.name for each in found.study.directions]
    assert directions == ["MAXIMIZE", "MINIMIZE"]
    theirs = {tuple(trial.values) for trial in found.study.best_trials}
    ours = {
        tuple(trial.evaluation.metrics[aim.metric] for aim in found.objective.aims)
        for trial in found.pareto.plans
    }
    assert ours == theirs


def test_the_front_is_in_json_and_in_the_report() -> None:
    found = searched()
    plain = found.to_dict()["pareto"]
    assert [each["direction"] for each in plain["objectives"]] == ["maximize", "minimize"]
    assert len(plain["plans"]) == len(found.pareto.plans if found.pareto else ())
    report = as_text(study_report(found))
    assert "searched for the largest samples/s and the smallest memory" in " ".join(report.split())
    assert "Pareto front" in report
    assert (
        solve(toy_problem(), Search(trials=5, sampler="random", compare_grid=False)).to_dict()[
            "pareto"
        ]
        is None
    )


def test_a_study_of_several_objectives_is_resumed_with_the_same_ones(tmp_path: Path) -> None:
    url = f"journal:{tmp_path / 'study'}"

    def on_storage(trials: int, objectives: str = BOTH, *, resume: bool = True) -> TuneResult:
        search = Search(objectives=objectives, sampler="tpe", trials=trials)
        return solve(toy_problem(), search, kept=Kept(storage=url, study="mine", resume=resume))

    on_storage(6, resume=False)
    resumed = on_storage(14)
    at_once = searched("tpe", 14)
    assert [each.strategy for each in resumed.trials] == [each.strategy for each in at_once.trials]
    assert len(resumed.study.directions) == 2
    with pytest.raises(DistirError, match="with objectives = throughput,memory, here with"):
        on_storage(14, "throughput,latency")


def test_a_plug_in_gives_the_metrics_that_are_named() -> None:
    def two(strategy: Strategy) -> Evaluation | dict[str, float]:
        return {"loss": 1.0 / strategy.dp, **({"accuracy": strategy.tp} if strategy.pp < 4 else {})}

    search = Search(
        objective=two, objectives="loss,accuracy=maximize", sampler="grid", isolate=False
    )
    found = solve(toy_problem(), search)
    assert found.pareto is not None
    assert [aim.maximize for aim in found.pareto.aims] == [False, True]
    for trial in found.trials:
        assert trial.failed == (trial.strategy.pp >= 4)
        assert not trial.failed or "gave no metric 'accuracy'" in (trial.evaluation.reason or "")


@pytest.mark.parametrize(("stated", "maximized"), [("maximize", True), ("minimize", False)])
def test_the_direction_of_a_plug_in_is_that_of_its_first_metric(
    stated: str, maximized: bool
) -> None:
    def two(strategy: Strategy) -> dict[str, float]:
        return {"speed": float(strategy.dp), "bytes": float(strategy.tp)}

    cast("Any", two).direction = stated
    search = Search(objective=two, objectives="speed,bytes", sampler="grid", isolate=False)
    found = solve(toy_problem(), search)
    assert [aim.maximize for aim in found.objective.aims] == [maximized, False]


def test_metrics_of_a_plug_in_may_be_called_as_the_simulator_calls_its_own() -> None:
    def both(strategy: Strategy) -> dict[str, float]:
        return {"throughput": float(strategy.dp), "memory": float(strategy.tp), "mfu": 1.0}

    search = Search(objective=both, objectives="memory,throughput", sampler="grid", isolate=False)
    found = solve(toy_problem(), search)
    assert [(aim.metric, aim.maximize) for aim in found.objective.aims] == [
        ("memory", False),
        ("throughput", True),
    ]
    assert not any(trial.failed for trial in found.trials)


def test_the_best_of_several_is_on_the_front_also_where_all_are_equal_in_the_first() -> None:
    def equal(strategy: Strategy) -> dict[str, float]:
        return {"first": 1.0, "second": float(strategy.tp)}

    search = Search(objective=equal, objectives="first,second=maximize", sampler="grid")
    found = solve(toy_problem(), search)
    assert found.pareto is not None
    assert found.best is found.found is found.pareto.plans[0]


def test_a_plug_in_that_gives_the_simulators_metrics_may_be_asked_for_their_short_names() -> None:
    def all_of_them(strategy: Strategy, simulate: Any) -> dict[str, float]:
        return {**simulate(strategy).metrics, "degree": float(strategy.tp)}

    objective = cast("Any", all_of_them)
    search = Search(objective=objective, objectives="degree,latency", sampler="grid", isolate=False)
    found = solve(toy_problem(), search)
    assert [aim.metric for aim in found.objective.aims] == ["degree", "iteration_seconds"]
    assert found.pareto is not None


@pytest.mark.parametrize("sampler", ["bounds", "guided", "reinforce"])
def test_a_sampler_that_looks_for_one_objective_is_refused(sampler: str) -> None:
    with pytest.raises(DistirError, match=f"{sampler} handles a single objective; .*tpe, nsga2"):
        searched(sampler)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--objectives", ","], "expected metrics such as"),
        (["--objectives", "throughput,throughput"], "twice"),
        (["--objectives", "mfu"], "for a single one, use --objective mfu"),
        (
            ["--objectives", "x=minimize"],
            "for a single one, use --objective x --direction minimize",
        ),
        (["--objectives", "throughput,samples"], "unknown"),
        (["--objectives", "throughput=largest"], "METRIC=maximize"),
        (["--objectives", BOTH, "--objective", "latency"], "expected one of them"),
        (
            ["--objectives", BOTH, "--metric", "mfu"],
            "a single objective, but --objectives names several",
        ),
        (
            ["--objectives", BOTH, "--stop-within", "5%"],
            "a single objective, but --objectives names several",
        ),
        (
            ["--objectives", BOTH, "--compare-grid"],
            "a single objective, but --objectives names several",
        ),
        (["--objectives", BOTH, "--sampler", "bounds"], "handles a single objective"),
    ],
)
def test_bad_objectives_are_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--model", "mlp-2x8", "--no-tracking", "--quiet", *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_aims_are_the_same_typed_or_listed() -> None:
    assert aims_in(BOTH) == aims_in(["throughput", "memory"])
