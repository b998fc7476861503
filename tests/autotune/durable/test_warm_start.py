"""What one study has learned of the simulator's errors is where another one starts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from autotune import TuneResult, load_problem, tune
from autotune.cli import main
from autotune.objectives.evaluation import VALUE
from autotune.prospects.carried import carried_from
from distir.strategy import Strategy

FIRST: dict[str, Any] = {"model": "gpt2", "cluster": "dgx-a100", "devices": 8, "space": "small"}
SECOND: dict[str, Any] = {
    "model": "gpt2-medium",
    "cluster": "hgx-h100",
    "devices": 8,
    "space": "small",
}


class SlowReplicas:
    """A machine on which data parallelism takes longer than the simulator expects."""

    def __init__(self, stated: dict[str, Any]) -> None:
        self.simulator: Any = load_problem(**stated).simulator

    def __call__(self, strategy: Strategy) -> float:
        simulated = self.simulator.simulate(strategy).metrics["iteration_seconds"]
        return 100 * simulated * (1 + 0.5 * (strategy.dp - 1))


def searched(stated: dict[str, Any], **more: Any) -> TuneResult:
    objective = SlowReplicas(stated)
    return tune(**stated, objective=objective, direction="minimize", compare_grid=False, **more)


@pytest.mark.slow(seconds=20)
def test_a_study_starts_from_what_another_has_learned(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    first = searched(FIRST, trials=10, storage=storage, study="first")
    cold = searched(SECOND, trials=4)
    kept = {"storage": storage, "study": "second", "warm_start": ["first"]}
    warm = searched(SECOND, trials=4, **kept)
    assert warm.trials[0].strategy != cold.trials[0].strategy
    assert warm.trials[0].cost < cold.trials[0].cost  # type: ignore[operator]

    searched(FIRST, trials=11, storage=storage, study="first", resume=True)
    again = searched(SECOND, trials=4, resume=True, **kept)
    assert [each.strategy for each in again.trials] == [each.strategy for each in warm.trials]

    learned = carried_from("first", storage)[: len(first.trials)]
    assert [each.strategy for each in learned] == [each.strategy for each in first.trials]
    simulator: Any = load_problem(**FIRST).simulator
    for each, trial in zip(learned, first.trials, strict=True):
        expected = simulator.simulate(each.strategy).metrics["iteration_seconds"]
        found = trial.evaluation.metrics[VALUE]
        assert each.log_ratio == pytest.approx(math.log(found / expected))


def test_what_a_warm_start_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cost.py").write_text("def cost(strategy):\n    return 1.0\n")
    run = ["run", "--model", "gpt2", "--devices", "4", "--space", "small", "--no-tracking"]
    slow = [*run, "--objective", "cost.py:cost", "--trials", "1"]
    Path("fails.py").write_text("def cost(strategy):\n    raise ValueError\n")
    failing = [*run, "--objective", "fails.py:cost", "--trials", "1", "--sampler", "random"]
    main([*failing, "--storage", "sqlite:///failed.db", "--study", "failed"])
    capsys.readouterr()
    for said, arguments in {
        "no storage is named": [*slow, "--warm-start", "mine"],
        "no study is named": [*slow, "--warm-start", "sqlite:///none.db"],
        "nothing to learn from it": [*slow, "--warm-start", "sqlite:///failed.db#failed"],
        "there is no study 'mine'": [*slow, "--warm-start", "sqlite:///none.db#mine"],
        "works with the sampler guided": [*run, "--warm-start", "sqlite:///none.db#mine"],
    }.items():
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
