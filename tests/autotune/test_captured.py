"""What a trial prints is shown while it goes on, and its end is kept where it fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.api import Search, solve
from autotune.durable.stated import Kept
from autotune.objectives import as_objective
from autotune.objectives.evaluation import KEPT_BYTES, Evaluation
from autotune.objectives.isolation import IsolatedObjective
from autotune.rendering import as_text
from autotune.reports.study import search_report
from autotune.testing import toy_problem
from distir.strategy import Strategy

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")


def _raises(strategy: Strategy) -> float:
    sys.stdout.write("from python\n")
    raise ValueError("boom")


def _writes_and_dies(strategy: Strategy) -> float:
    os.write(1, b"from a descriptor\n")
    os._exit(3)


def _starts_a_job(strategy: Strategy) -> float:
    subprocess.run([sys.executable, "-c", "import sys; sys.exit('from a job')"], check=True)
    return 1.0


def _hangs(strategy: Strategy) -> float:
    sys.stdout.write("before it hangs\n")
    time.sleep(1000)
    return 1.0


def measured(function: Callable[[Strategy], float], *, limit: float | None = None) -> Evaluation:
    problem = toy_problem()
    objective = as_objective(function, "plug-in", simulate=problem.simulate)
    with IsolatedObjective(objective, limit) as isolated:
        return isolated.measure(next(iter(problem.space.enumerate())))


@pytest.mark.parametrize(
    ("function", "stream", "said"),
    [
        (_raises, "stdout", "from python\n"),
        (_raises, "traceback", "ValueError: boom\n"),
        (_writes_and_dies, "stdout", "from a descriptor\n"),
        (_starts_a_job, "stderr", "from a job\n"),
        (_hangs, "stdout", "before it hangs\n"),
    ],
)
def test_what_a_trial_printed_is_kept_however_it_failed(
    function: Callable[[Strategy], float], stream: str, said: str
) -> None:
    evaluation = measured(function, limit=0.5 if function is _hangs else None)
    assert evaluation.failed
    assert evaluation.output[stream].endswith(said)


def test_a_trial_has_what_it_printed_itself_and_of_much_the_end() -> None:
    def talks(strategy: Strategy) -> float:
        sys.stdout.write(f"{strategy.label} begins\n")
        sys.stdout.write("é" * KEPT_BYTES + "\n")
        sys.stdout.write(f"{strategy.label} ends\n")
        raise ValueError("boom")

    problem = toy_problem()
    objective = as_objective(talks, "plug-in", simulate=problem.simulate)
    first, second, *_ = problem.space.enumerate()
    with IsolatedObjective(objective) as isolated:
        told = [isolated.measure(each).output["stdout"] for each in (first, second)]
    assert [text.splitlines()[-1] for text in told] == [
        f"{first.label} ends",
        f"{second.label} ends",
    ]
    assert all(len(text.encode()) <= KEPT_BYTES + 2 for text in told)
    assert first.label not in told[1]


def test_what_trials_print_is_shown_by_the_study(capsys: pytest.CaptureFixture[str]) -> None:
    measured(_raises)
    assert capsys.readouterr().out == "from python\n"


def _fails_at_times(strategy: Strategy) -> float:
    sys.stdout.write(f"{strategy.label} \x1b[2J tried\n")
    if strategy.tp > 1:
        raise ValueError("boom")
    return 1.0 / strategy.dp


def test_a_study_keeps_the_output_of_trials_that_failed_alone(tmp_path: Path) -> None:
    def searched(*, resume: bool) -> list[dict[str, str]]:
        kept = Kept(storage=f"journal:{tmp_path / 'study'}", study="mine", resume=resume)
        search = Search(objective=_fails_at_times, trials=6, sampler="random", compare_grid=False)
        found = solve(toy_problem(), search, kept=kept)
        told = [trial.to_dict(1).get("output", {}) for trial in found.trials]
        for trial, output in zip(found.trials, told, strict=True):
            assert bool(output) == trial.failed
            assert not trial.failed or output["stdout"].startswith(trial.label)
        assert any(told)
        assert not all(told)
        report = as_text(search_report(found))
        assert "What it printed to stdout ends:" in report
        assert "\x1b" not in report
        return told

    assert searched(resume=False) == searched(resume=True)
