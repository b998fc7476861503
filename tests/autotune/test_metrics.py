"""What the registry of metrics says of one is what every reader makes of it."""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.api import (
    MlflowTracker,
    Problem,
    Search,
    TuneResult,
    evaluate_grid,
    load_problem,
    solve,
)
from autotune.rendering import as_text
from autotune.reports.ranking import ranking_table
from autotune.reports.simulation import simulation_report
from autotune.tables.files import table_file
from distir import Strategy
from distir.errors import DistirError
from distir.metrics import METRICS, Metric, find_metric
from distir.registry import LAST, Entry

ALL = pytest.mark.parametrize("metric", [each.value for each in METRICS], ids=METRICS.names())


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem("mlp-2x8", devices=4, batch_size=8, price=2.0, tokens=1e9)


def test_every_metric_is_in_results_and_tables(problem: Problem) -> None:
    strategies = problem.space.samples(random.Random(0), 5)
    assert list(problem.simulator.simulate(strategies[0]).metrics) == METRICS.names()
    assert list(problem.simulator.simulate_many(strategies).metrics) == METRICS.names()


def test_every_metric_is_a_column_of_a_file(problem: Problem, tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    with table_file(str(file), problem.batch_size) as append:
        evaluate_grid(
            problem.space, problem.objective("throughput"), watch=lambda chunk, best: append(chunk)
        )
    with file.open(newline="") as opened:
        head = next(csv.reader(opened))
    assert head[-len(METRICS) :] == METRICS.names()


@pytest.fixture(scope="module")
def tracked(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> tuple[TuneResult, Any]:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'runs.db'}"
    search = Search(trials=3, compare_grid=False)
    return solve(problem, search, tracker=MlflowTracker(uri)), MlflowClient(tracking_uri=uri)


@pytest.mark.slow(seconds=4)
@ALL
def test_every_metric_is_logged(metric: Metric, tracked: tuple[TuneResult, Any]) -> None:
    result, client = tracked
    assert result.tracking is not None
    logged = client.get_run(result.tracking.run_id).data.metrics
    judged = metric.name == result.objective.metric
    best = result.found if judged else result.best  # the curve of the search is the sampler's own
    assert best is not None
    prefix = "search/best_" if judged else "best_"
    # Costs drop the last bits of what was measured.
    assert logged[f"{prefix}{metric.name}"] == pytest.approx(best.metric(metric.name), rel=1e-9)


@ALL
def test_every_metric_is_an_objective_by_both_its_names(metric: Metric, problem: Problem) -> None:
    for name in (metric.name, metric.objective, metric.objective.upper()):
        objective = problem.objective(name)
        assert (objective.name, objective.metric) == (metric.objective, metric.name)
        assert objective.maximize == metric.larger_is_better
        assert objective.cheap


@ALL
def test_an_objective_is_shown_with_heading_and_unit(metric: Metric, problem: Problem) -> None:
    result = solve(problem, Search(objective=metric.name, sampler="random", trials=3))
    assert result.best is not None
    value = metric.unit(result.best.evaluation.metrics[metric.name])
    shown = str(result)
    goal = "largest" if metric.larger_is_better else "smallest"
    assert f"for the {goal} {metric.heading}" in " ".join(shown.split())
    assert f"\n{metric.heading} {value}" in shown
    table = as_text(ranking_table(result.ranked, result.objective, "best"))
    assert metric.heading in table
    assert value in table


def test_a_simulated_plan_is_reported_in_all_metrics_but_those_said_elsewhere(
    problem: Problem,
) -> None:
    result = problem.simulator.simulate(Strategy(dp=4))
    shown = " ".join(as_text(simulation_report(problem, result)).split())
    for each in METRICS:
        said = f"{each.value.heading} {each.value.unit(result.metrics[each.name])}"
        assert (said in shown) == (each.name not in ("padding_fraction", "reserved_memory_bytes"))


def test_what_is_no_metric_is_not_found() -> None:
    assert find_metric("") is None
    assert find_metric("value") is None
    assert "value" not in METRICS


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "gives None; expected a number"),
        ("fast", "gives 'fast'; expected a number"),
        (np.ones(7), r"gives numbers of shape \(7,\); expected a number"),
    ],
)
def test_a_metric_that_gives_no_numbers_is_named(
    given: object, said: str, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def formula(_: object) -> Any:
        return given

    of_ours = METRICS.get(METRICS.names()[0])
    entry = Entry("theirs", replace(of_ours, formula=formula), "", LAST)
    monkeypatch.setitem(vars(METRICS)["_entries"], "theirs", entry)
    strategies = [problem.space.at(place) for place in range(5)]
    simulator = problem.simulator
    with pytest.raises(DistirError, match=f"metric theirs {said}"):
        simulator.simulate_many(strategies)
    with pytest.raises(DistirError, match=f"metric theirs {said}"):
        simulator.simulate(strategies[0])
