"""A study in MLflow: parent run, runs of trials, table, the grid beside it; and what happens
when it fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import Search, TuneResult, solve
from autotune.objectives import load_objective
from autotune.study.trial import pareto_front
from autotune.testing import ToySimulator, toy_problem
from autotune.trackers.mlflow import MlflowTracker
from autotune.trackers.mlflow import tracker as writing
from autotune.trackers.mlflow.database import unsynced
from autotune.trackers.mlflow.entries import noteworthy, shown_metrics
from autotune.trackers.mlflow.store import Store
from autotune.trackers.study_files import Written, files_of

writes_a_database = pytest.mark.slow(seconds=2)


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TuneResult, Any]]:
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("tracking")
    uri = f"sqlite:///{folder}/mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where MLflow puts tables
        result = solve(toy_problem(), Search(trials=30), tracker=MlflowTracker(uri))
        yield result, MlflowClient(uri)


def runs(result: TuneResult, client: Any, **tags: str) -> list[Any]:
    assert result.tracking is not None
    assert result.tracking.error is None
    wanted = " and ".join(f"tags.{name} = '{value}'" for name, value in tags.items())
    return client.search_runs([result.tracking.experiment_id], wanted, max_results=1000)


@writes_a_database
def test_only_a_database_that_is_being_made_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    part, other = tmp_path / ".mlflow.db.part", tmp_path / "other.db"

    def waits(file: Path) -> bool:
        with create_engine(f"sqlite:///{file}").connect() as connection:
            return connection.execute(text("PRAGMA synchronous")).scalar() != 0

    with unsynced(part):
        assert not waits(part)
        assert waits(other)
    assert waits(part)


@writes_a_database
def test_the_study_is_a_run_with_step_metrics(tracked: tuple[TuneResult, Any]) -> None:
    result, client = tracked
    assert result.tracking is not None
    run = client.get_run(result.tracking.run_id)
    assert run.info.run_name == f"bounds throughput, {len(result.trials)} trials"
    assert run.data.tags["kind"] == "study"
    assert run.data.params["searcher"] == "bounds"
    name = "search/best_throughput_samples_per_second"
    history = client.get_metric_history(run.info.run_id, name)
    best = [point.value for point in history]
    assert best == sorted(best)
    assert result.found is not None
    assert best[-1] == result.found.metric("throughput_samples_per_second")
    regrets = client.get_metric_history(run.info.run_id, "search/regret_pct")
    assert regrets[-1].value == pytest.approx(100 * (result.regret or 0.0))
    assert run.data.metrics["best_iteration_seconds"] == result.found.metric("iteration_seconds")


@writes_a_database
def test_every_one_of_few_trials_has_a_run(tracked: tuple[TuneResult, Any]) -> None:
    result, client = tracked
    children = runs(result, client, kind="trial", searcher="bounds")
    assert {run.info.run_name for run in children} == {trial.label for trial in result.trials}
    assert result.tracking is not None
    parents = {run.data.tags["mlflow.parentRunId"] for run in children}
    assert parents == {result.tracking.run_id}
    for run in children:
        measured = "throughput_samples_per_second" in run.data.metrics
        assert measured == (run.data.tags["state"] == "feasible")


@writes_a_database
def test_a_table_holds_every_trial(tracked: tuple[TuneResult, Any]) -> None:
    result, client = tracked
    assert result.tracking is not None
    path = Path(client.download_artifacts(result.tracking.run_id, "trials.json"))
    assert len(json.loads(path.read_text())["data"]) == len(result.trials)


@writes_a_database
def test_the_grid_is_a_study_beside_it(tracked: tuple[TuneResult, Any]) -> None:
    result, client = tracked
    studies = runs(result, client, kind="study")
    assert [run.data.params["searcher"] for run in studies] == ["bounds", "grid"]  # newest first
    grid = studies[1]
    assert grid.info.run_name == "grid, all 134"
    assert grid.data.metrics["search/regret_pct"] == 0


@writes_a_database
def test_a_study_is_described_and_has_its_files_and_its_problem(
    tracked: tuple[TuneResult, Any],
) -> None:
    result, client = tracked
    assert result.tracking is not None
    assert result.best is not None
    run = client.get_run(result.tracking.run_id)
    said = run.data.tags["mlflow.note.content"]
    assert f"Best plan: **dp {result.best.strategy.dp}, " in said
    made = {name for name, _ in files_of(Written(result))}
    there = [*client.list_artifacts(run.info.run_id)]
    plots = client.list_artifacts(run.info.run_id, "plots")
    assert {each.path for each in (*there, *plots) if not each.is_dir} == made | {"trials.json"}
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.name == result.problem.title
    assert run.data.metrics["final_regret_pct"] == pytest.approx(100 * (result.regret or 0.0))
    assert run.data.metrics["rank_in_grid"] >= 1
    assert "memory_gib" in runs(result, client, kind="trial")[0].data.metrics
    behind = [
        (run.data.metrics["throughput_samples_per_second"], run.data.metrics["regret_pct"])
        for run in runs(result, client, kind="trial")
        if "regret_pct" in run.data.metrics
    ]
    regrets = [regret for _, regret in sorted(behind)]
    assert regrets == sorted(regrets, reverse=True)
    assert regrets[-1] == 0


@writes_a_database
def test_the_grid_of_a_problem_is_written_once(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for name, trials in {"tpe": 4, "random": 9, "qmc": 5}.items():
        solve(toy_problem(), Search(trials=trials, sampler=name), tracker=MlflowTracker(uri))
    other = solve(toy_problem(), Search(trials=4, objective="latency"), tracker=MlflowTracker(uri))
    grids = runs(other, MlflowClient(uri), kind="study", searcher="grid")
    assert len(grids) == 2  # one per objective
    assert len({run.data.tags["problem"] for run in grids}) == 2
    height = "search/best_throughput_samples_per_second"
    (line,) = [run for run in grids if height in run.data.metrics]
    points = MlflowClient(uri).get_metric_history(line.info.run_id, height)
    assert max(point.step for point in points) == 8, "the line is as long as the longest search"
    assert len({point.value for point in points}) == 1


@writes_a_database
def test_searches_that_write_the_grid_at_once_leave_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    solve(toy_problem(), Search(trials=9, sampler="random"), tracker=MlflowTracker(uri))
    looked: list[bool] = []
    look = Store.finished

    def too_early(store: Store, condition: str) -> list[str]:
        looked.append(True)
        return [] if len(looked) == 1 else look(store, condition)

    monkeypatch.setattr(Store, "finished", too_early)
    result = solve(toy_problem(), Search(trials=4), tracker=MlflowTracker(uri))
    client = MlflowClient(uri)
    (grid,) = runs(result, client, kind="study", searcher="grid")
    parents = {
        run.data.tags["mlflow.parentRunId"]
        for run in runs(result, client, kind="trial", searcher="grid")
    }
    assert parents == {grid.info.run_id}
    height = "search/best_throughput_samples_per_second"
    assert max(point.step for point in client.get_metric_history(grid.info.run_id, height)) == 8


@writes_a_database
def test_a_grid_that_was_interrupted_later_does_not_hide_the_finished_one(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    result = solve(toy_problem(), Search(trials=4), tracker=MlflowTracker(uri))
    client = MlflowClient(uri)
    (grid,) = runs(result, client, kind="study", searcher="grid")
    names = ("kind", "searcher", "problem")
    tags = {name: grid.data.tags[name] for name in names}
    later = client.create_run(grid.info.experiment_id, tags=tags)
    client.set_terminated(later.info.run_id, "KILLED")
    solve(toy_problem(), Search(trials=4, sampler="random"), tracker=MlflowTracker(uri))
    grids = runs(result, client, kind="study", searcher="grid")
    assert {run.info.run_id for run in grids} == {grid.info.run_id, later.info.run_id}


@writes_a_database
def test_links_and_a_note_lead_to_the_pages(tracked: tuple[TuneResult, Any]) -> None:
    result, client = tracked
    record = result.tracking
    assert record is not None
    assert record.experiment == "toy on 16 toy-cluster"
    assert record.to_dict() == {
        "tracking_uri": client.tracking_uri,
        "experiment": record.experiment,
        "run_id": record.run_id,
    }
    assert record.command == f"mlflow ui --backend-store-uri {client.tracking_uri}"
    tags = client.get_experiment(record.experiment_id).tags
    assert all(url in tags["mlflow.note.content"] for url in record.links.values())
    assert str(record.command) in str(result)


def test_many_trials_are_represented_by_the_noteworthy() -> None:
    trials = solve(toy_problem(), Search(sampler="grid")).trials
    chosen = noteworthy(trials)
    layouts = {(t.strategy.dp, t.strategy.tp, t.strategy.pp) for t in trials if t.feasible}
    assert {(t.strategy.dp, t.strategy.tp, t.strategy.pp) for t in chosen} == layouts
    assert {t.number for t in pareto_front(trials)} <= {t.number for t in chosen}
    assert len(chosen) < len(trials) / 2


def test_infeasible_trials_do_not_show_what_they_would_be_sorted_by() -> None:
    problem = toy_problem(ToySimulator(memory_bytes=1.0))
    objective = load_objective("throughput", problem.simulate)
    trial = solve(problem, Search(trials=1)).trials[0]
    names = [name for name, _ in shown_metrics(trial, objective)]
    assert "peak_memory_bytes" in names
    assert "throughput_samples_per_second" not in names
    assert "iteration_seconds" not in names


@writes_a_database
def test_a_failure_midway_is_told_and_nothing_found_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    def fails(*arguments: object, **options: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(MlflowClient, "log_table", fails)
    tracker = MlflowTracker(f"sqlite:///{tmp_path}/mlflow.db", "failing")
    result = solve(toy_problem(), Search(trials=10), tracker=tracker)
    assert len(result.trials) == 10
    assert result.best is not None
    assert result.tracking is not None
    assert result.tracking.error == "OSError: disk full"
    assert result.to_dict()["mlflow"]["error"] == "OSError: disk full"
    assert "Tracking failed: OSError: disk full." in str(result)


@writes_a_database
def test_a_store_that_cannot_be_opened_is_told() -> None:
    tracker = MlflowTracker("no-such-scheme://somewhere", "x")
    result = solve(toy_problem(), Search(trials=5), tracker=tracker)
    assert len(result.trials) == 5
    assert result.tracking is not None
    assert result.tracking.run_id is None
    assert result.tracking.error


@writes_a_database
def test_a_study_that_lasts_is_written_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setattr(writing, "LIVE_AFTER_SECONDS", -1.0)
    tracker = MlflowTracker(f"sqlite:///{tmp_path}/mlflow.db", "live")
    result = solve(toy_problem(), Search(trials=12, compare_grid=False), tracker=tracker)
    assert result.tracking is not None
    assert result.tracking.run_id is not None
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    history = client.get_metric_history(
        result.tracking.run_id, "search/best_throughput_samples_per_second"
    )
    steps = [point.step for point in history]
    assert steps == sorted(set(steps))
    assert steps[-1] == 11
