"""The experiment judges plans that no profile has seen, and counts as it says."""

# pyright: basic
from __future__ import annotations

import csv
import math
import xml.dom.minidom
from pathlib import Path

import pytest

import distir
import experiments.real_runs.__main__ as command
from autotune.distributed.profiling import TINY_MODELS
from experiments.real_runs.plans import RealRun, all_runs, model_of
from experiments.real_runs.report import COLUMNS, report_of, spearman, statistics_of


def _row(run: str, processes: int, predicted: float, least: float) -> dict[str, str]:
    values = (run, "a model", processes, predicted, least, least, least, 1.0)
    return dict(zip(COLUMNS, map(str, values), strict=True))


@pytest.mark.not_quick
def test_plans_are_many_distinct_valid_and_unknown_to_profiles(tmp_path: Path) -> None:
    runs = list(all_runs())
    assert len({run.name for run in runs}) == len(runs)
    assert sum(run.strategy.devices <= 2 for run in runs) >= 40
    assert not {run.model for run in runs} & {name for name in TINY_MODELS if isinstance(name, str)}
    for run in runs:
        model = distir.load_model(model_of(run.model, tmp_path))
        workload = distir.Workload(model=model, batch_size=run.batch_size, dropout=False)
        cluster = distir.load_cluster("dgx-a100", run.strategy.devices)
        assert distir.Simulator(workload, cluster).explain(run.strategy) is None, run.name


def test_ranks_and_errors_are_those_of_the_definitions() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)
    rows = [_row("a", 1, 1.1, 1.0), _row("b", 1, 1.8, 2.0), _row("c", 2, 3.0, 3.0)]
    rank, error, signed = statistics_of(rows, "least_seconds")
    assert rank == pytest.approx(1)
    assert error == pytest.approx(0.2 / 3)
    assert signed == pytest.approx(0, abs=1e-12)


def test_plans_on_more_processes_than_cores_are_counted_apart() -> None:
    rows = [_row(f"{n} {i}", n, i + n, i + 1) for n in (1, 2, 4) for i in range(3)]
    text, picture = report_of(rows, 2, "A note.")
    assert "| no more processes than cores | 6 |" in text
    assert "| more processes than cores | 3 |" in text
    assert "A note." in text
    xml.dom.minidom.parseString(picture)


def test_pieces_add_up_to_all_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(run: RealRun, profile: Path, folder: Path) -> dict[str, str]:
        return _row(run.name, run.strategy.devices, 2.0, 1.0 + len(run.name))

    monkeypatch.setattr(command, "_measured", measured)
    results = tmp_path / "results.csv"
    for seconds in ("0", "60", "60"):
        assert command.main(["measure", "--seconds", seconds, "--results", str(results)]) == 0
    assert command.main(["report", "--results", str(results)]) == 0
    rows = list(csv.DictReader(results.read_text().splitlines()))
    assert [row["run"] for row in rows] == [run.name for run in all_runs()]
    assert (tmp_path / "report.md").exists()
    assert (tmp_path / "scatter.svg").exists()
