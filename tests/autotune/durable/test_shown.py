"""What Optuna's own tools read of a study: choices by name, with the values that people know."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from autotune.api import Search, solve
from autotune.durable.stated import Kept
from autotune.testing import toy_problem


@pytest.mark.not_quick
@pytest.mark.parametrize(
    "storage", [None, pytest.param("sqlite:///study.db", marks=pytest.mark.slow(seconds=3))]
)
def test_trials_of_optuna_have_the_choices_of_strategies_and_the_metric(
    storage: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = toy_problem()
    search = Search(trials=12, sampler="random", compare_grid=False)
    kept = Kept(storage=storage, study=None if storage is None else "mine")
    result = solve(problem, search, kept=kept)
    study = result.study
    if storage is not None:
        study = optuna.load_study(study_name="mine", storage=storage)
    open_choices = {name for name in problem.space.names if len(problem.space.values(name)) > 1}
    assert "tp" in open_choices
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    for ours, theirs in zip(result.trials, study.trials, strict=True):
        told = {name: getattr(ours.strategy, name) for name in open_choices}
        assert theirs.params == told
        assert theirs.user_attrs["plan"] == ours.label
        assert theirs.value == ours.metric(result.objective.metric)
    assert result.found is not None
    assert study.best_trial.params["tp"] == result.found.strategy.tp
    assert set(optuna.importance.get_param_importances(study)) <= open_choices
