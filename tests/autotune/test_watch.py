"""What is known is told as soon as it is known, and how far the work is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import Search, TuneResult, solve, solving
from autotune.cli import main, progress
from autotune.cli.output import quiet
from autotune.cli.progress import progress as shown
from autotune.problem import load_problem
from autotune.reports.study import search_lines
from autotune.study.trial import Trial
from autotune.testing import ToySimulator, toy_problem
from autotune.watch import Advance, Watch
from distir.strategy import Strategy


class Heard:
    """All that a search tells, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.answer: TuneResult | None = None
        self.watch = Watch(self.phase, self.answered, self.searched)

    @contextmanager
    def phase(
        self, what: str, total: int | None = None, processes: int = 1, /
    ) -> Generator[Advance, None, None]:
        done = 0

        def advance(more: int, best: Trial | None, seconds: float = 0.0, /) -> None:
            nonlocal done
            done += more

        self.told.append(f"{what} begins")
        yield advance
        self.told.append(f"{what} ends")
        assert total is None or done == total

    def answered(self, result: TuneResult) -> None:
        self.told.append("answered")
        self.answer = result

    def searched(self, result: TuneResult) -> None:
        self.told.append("searched")


def test_the_answer_is_told_before_the_sampler_tries_anything_and_stays() -> None:
    heard = Heard()
    result = solve(toy_problem(), Search(trials=5), watch=heard.watch)
    assert heard.told.index("evaluating ends") < heard.told.index("answered")
    assert heard.told.index("answered") < heard.told.index("searching begins")
    assert heard.told.index("searched") < heard.told.index("looking outside the space begins")
    assert heard.told.index("searched") < heard.told.index("recording begins")
    assert heard.answer is not None
    assert heard.answer.trials == [] or heard.answer.best == heard.answer.grid.best  # type: ignore[union-attr]
    assert heard.answer.best is not None
    assert result.best is not None
    assert result.best.strategy == heard.answer.best.strategy


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("most_quick", [0, 2500], ids=["proof", "grid"])
def test_plans_that_are_too_close_to_call_are_one_number_everywhere(
    most_quick: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(solving, "MOST_QUICK", most_quick)
    report, page = tmp_path / "result.json", tmp_path / "page.html"
    problem = ("--model", "gpt2-xs", "--devices", "4", "--no-tracking")
    search = ("--sampler", "random", "--trials", "60")
    assert main(["run", *problem, *search, "--json", str(report), "--report", str(page)]) == 0
    numbers = re.findall(r"(\d+) other plans are too close to call", capsys.readouterr().out)
    plain = json.loads(report.read_text())
    assert numbers == [str(plain["as_good"])]
    assert f"{plain['as_good']} other plans are too close to call" in page.read_text("utf-8")


def test_a_proof_that_found_nothing_in_its_time_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solving, "MOST_QUICK", 0)
    monkeypatch.setattr(solving, "LONGEST_SECONDS", 0.0)
    told: list[TuneResult] = []
    watch = Watch(answered=told.append)
    result = solve(load_problem("mlp-4x64", devices=4), Search(trials=3), watch=watch)
    assert result.proof is not None
    assert not result.proof.complete
    assert result.best is not None
    assert told == []


def test_trials_that_the_grid_answers_are_those_that_are_simulated_one_by_one() -> None:
    problem = toy_problem(ToySimulator(memory_bytes=6e9))
    looked_up = solve(problem, Search(trials=40, compare_grid=True)).trials
    simulated = solve(problem, Search(trials=40, compare_grid=False)).trials
    assert [each.strategy for each in looked_up] == [each.strategy for each in simulated]
    assert [each.cost for each in looked_up] == pytest.approx([each.cost for each in simulated])
    reasons = [each.evaluation.reason for each in simulated]
    assert [each.evaluation.reason for each in looked_up] == reasons
    assert any(reasons)
    assert not all(reasons)


def test_a_plug_in_that_may_take_long_is_searched_first() -> None:
    def cost(strategy: Strategy) -> float:
        return 1.0 / strategy.dp

    heard = Heard()
    solve(toy_problem(), Search(trials=5, objective=cost), watch=heard.watch)
    assert "answered" not in heard.told
    assert heard.told[0] == "searching begins"


@pytest.mark.slow(seconds=2)
def test_without_tracking_nothing_of_mlflow_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, autotune.cli\n"
        "words = 'run --model mlp-2x8 --devices 4 --trials 3 --no-tracking --quiet'\n"
        "assert autotune.cli.main(words.split()) == 0\n"
        "print(*[name for name in sys.modules if name.split('.')[0] == 'mlflow'], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == ""
    assert list(tmp_path.iterdir()) == []


def test_elsewhere_than_on_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "MOST_SECONDS_BETWEEN_LINES", 1000.0)
    with shown("evaluating", 300) as advance:
        advance(100, None, 2.0)
        advance(100, None, 2.0)
        advance(100, None, 2.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("autotune: evaluating: 100 of 300, ")
    assert lines[0].endswith(" left")
    assert len(lines) == 2  # the end is told by the report


def test_what_is_quick_or_quiet_has_no_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with shown("evaluating", 2) as advance, shown("reading"):
        advance(1, None)
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.0)
    with quiet(True), shown("evaluating", 2) as advance, shown("reading"):
        advance(1, None)
    assert capsys.readouterr().err == ""


def test_items_are_counted_as_they_are_done_also_where_work_forks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "MOST_SECONDS_BETWEEN_LINES", 0.0)
    for forks in (False, True):
        threads = [threading.active_count() for _ in progress.each("verifying", "abc", forks=forks)]
        assert len(threads) == 3
        assert "autotune: verifying: 2 of 3, " in capsys.readouterr().err
    assert set(threads) == {threading.active_count()}
    with quiet(True):
        assert list(progress.each("verifying", "abc", forks=True)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


def test_a_search_that_was_interrupted_before_its_first_trial_is_not_told_to_have_failed() -> None:
    whole = solve(toy_problem(), Search(trials=3))
    broken_off = replace(whole, trials=[], interrupted=True)
    assert broken_off.best is not None
    assert "nothing that fits" not in " ".join(search_lines(broken_off))
