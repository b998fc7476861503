"""Whoever has a metric of their own writes one file; everything else finds it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.newcomers.packages import Package, autotune, python

pytestmark = pytest.mark.slow(seconds=2)  # each starts processes

COSTS = '''
"""What training costs."""

from distir import metrics


@metrics.metric("$/M samples", unit="{:,.2f} $".format)
def dollars_per_million_samples(iteration: metrics.Iteration):
    """Dollars per million samples, at 2 dollars per device and hour."""
    return 1e6 * iteration.devices * 2.0 / 3600 / iteration.samples_per_second


@metrics.metric("samples/$", larger_is_better=True, timed=True, objective="thrift")
def samples_per_dollar(iteration: metrics.Iteration):
    """Samples per dollar."""
    return iteration.samples_per_second * 3600 / 2.0 / iteration.devices
'''
NAMES = ("dollars_per_million_samples", "samples_per_dollar")
PROBLEM = ("--model", "mlp-2x8", "--devices", "4", "--batch-size", "8")


def dollars(metrics: dict[str, float]) -> float:
    return 1e6 * 4 * 2.0 / 3600 / metrics["throughput_samples_per_second"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    points = {"distir.metrics": {name: f"costs:{name}" for name in NAMES}}
    return Package("costs", COSTS, points).write(tmp_path_factory.mktemp("metric"))


def test_a_metric_of_ones_own_is_listed_as_an_objective(folder: Path) -> None:
    listed = {
        e["name"]: e["summary"] for e in json.loads(autotune(folder, "objectives", "--json", "-"))
    }
    assert listed["dollars_per_million_samples"].endswith("hour (minimized)")
    assert listed["thrift"] == "Samples per dollar (maximized)"
    assert list(listed).index("padding_fraction") < list(listed).index("thrift")


def test_a_metric_of_ones_own_is_simulated_and_reported_in_its_unit(folder: Path) -> None:
    plan = ["--model", "mlp-2x8", "--batch-size", "8", "--dp", "4"]
    report = autotune(folder, "simulate", *plan, "--json", "plan.json")
    metrics = json.loads((folder / "plan.json").read_text())["metrics"]
    assert metrics[NAMES[0]] == pytest.approx(dollars(metrics))
    assert f"$/M samples {metrics[NAMES[0]]:,.2f} $" in " ".join(report.split())


def test_a_metric_of_ones_own_ranks_a_grid_and_is_a_column_of_its_table(folder: Path) -> None:
    options = [*PROBLEM, "--objective", NAMES[0], "--table", "all.csv", "--json", "-"]
    found = json.loads(autotune(folder, "grid", *options))
    assert found["objective"] == NAMES[0]
    costs = [each["metrics"][NAMES[0]] for each in found["ranked"]]
    assert costs == sorted(costs)
    assert len(set(costs)) > 1
    assert costs == pytest.approx([dollars(each["metrics"]) for each in found["ranked"]])
    with (folder / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert min(float(row[NAMES[0]]) for row in rows) == costs[0]
    assert all(float(row[NAMES[1]]) > 0 for row in rows)


def test_a_metric_of_ones_own_is_certified_where_time_alone_decides_it(folder: Path) -> None:
    options = [*PROBLEM, "--objective", "thrift", "--json", "-"]
    best = json.loads(autotune(folder, "grid", *options))["ranked"][0]
    proved = json.loads(autotune(folder, "grid", *options, "--certified"))
    assert proved["certified"]
    assert proved["ranked"][0] == best


def test_a_metric_of_ones_own_is_searched_and_tracked(folder: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder / 'runs.db'}"
    options = ["--objective", "thrift", "--trials", "5", "--tracking-uri", uri]
    report = autotune(folder, "run", *PROBLEM, *options, "--json", "study.json")
    study = json.loads((folder / "study.json").read_text())
    assert (study["objective"], study["metric"]) == ("thrift", "samples_per_dollar")
    assert study["direction"] == "maximize"
    assert "for the largest samples/$" in " ".join(report.split())
    client = MlflowClient(tracking_uri=uri)
    logged = client.get_run(study["mlflow"]["run_id"]).data.metrics
    best = study["best"]["metrics"]
    assert logged["search/best_samples_per_dollar"] == best["samples_per_dollar"]
    assert logged["best_dollars_per_million_samples"] == best[NAMES[0]]


def test_a_metric_whose_formula_fails_is_named_with_the_place(tmp_path: Path) -> None:
    code = """
from distir import metrics

@metrics.metric("nothing")
def per_nothing(iteration: metrics.Iteration):
    return 1 / (iteration.workload.batch_size - iteration.workload.batch_size)
"""
    points = {"distir.metrics": {"per_nothing": "failing_metric"}}
    folder = Package("failing_metric", code, points).write(tmp_path)
    done = python(folder, "-m", "autotune", "simulate", "--model", "mlp-2x8", "--batch-size", "8")
    assert done.returncode == 2
    assert "metric per_nothing: ZeroDivisionError" in done.stderr
    assert "failing_metric.py:6" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_metrics_are_not_called_the_same_as_objectives(tmp_path: Path) -> None:
    code = """
from distir import metrics

@metrics.metric("s", objective="Latency")
def my_seconds(iteration: metrics.Iteration):
    return iteration.seconds
"""
    points = {"distir.metrics": {"my_seconds": "rival_metric"}}
    folder = Package("rival_metric", code, points).write(tmp_path)
    done = python(folder, "-m", "autotune", "objectives")
    assert done.returncode == 2
    assert "metric 'my_seconds' (rival_metric): ValueError: objective 'Latency' is registered" in (
        " ".join(done.stderr.split())
    )
