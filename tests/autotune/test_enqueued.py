"""Plans that a user wants tried first are tried first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune import Search, solve
from autotune.cli import main
from autotune.enqueued import plans_in
from autotune.testing import toy_problem
from distir.errors import DistirError
from distir.strategy import Strategy

FIRST = (Strategy(dp=2, tp=4, pp=2, microbatches=8), Strategy(dp=16))
RUN = ("run", "--model", "mlp-2x8", "--devices", "4", "--batch-size", "16", "--no-tracking")


def test_plans_are_tried_in_their_order_each_once_and_then_the_sampler_goes_on() -> None:
    search = Search(enqueue=[*FIRST, {"dp": 16}], trials=6, compare_grid=False)
    found = solve(toy_problem(), search)
    assert tuple(trial.strategy for trial in found.trials[:2]) == FIRST
    assert len({trial.strategy for trial in found.trials}) == 6


def test_a_plan_that_is_not_in_the_space_is_refused_before_anything_is_tried() -> None:
    with pytest.raises(DistirError, match=r"to be tried first, cannot be: .*tp"):
        solve(toy_problem(), Search(enqueue=[{"dp": 2, "tp": 5}]))


@pytest.mark.not_quick
def test_lists_tables_and_launch_files_state_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = [{"dp": 2, "tp": 2, "microbatches": 4}, {"dp": 4, "zero": 3}]
    listed = tmp_path / "plans.yaml"
    listed.write_text("- {dp: 2, tp: 2, microbatches: 4}\n- dp: 4\n  zero: 3\n", encoding="utf-8")
    assert plans_in(str(listed)) == plans
    table = tmp_path / "grid.csv"
    grid = ("grid", *RUN[1:-1], "--space", "small", "--table", str(table), "--quiet")
    assert main(grid) == 0
    rows = plans_in(str(table))
    assert rows is not None
    assert len(rows) == 12
    capsys.readouterr()
    assert main((*RUN, "--enqueue", str(listed), "--trials", "3", "--json", "-")) == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert [trials[0]["strategy"][name] for name in plans[0]] == [2, 2, 4]
    assert trials[1]["strategy"]["zero"] == 3


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("plans.yaml", "dp 2", "expected a list of choices by name"),
        ("plans.yaml", "[{dp: 2, width: 3}]", "unknown strategy key 'width'"),
        (
            "plans.yaml",
            "- dp: 2\n  tp: 2\n  dp: 4\n",
            "plans.yaml: not valid YAML: line 3 states dp, which line 1 states already; leave one",
        ),
        ("plans.yaml", "{", "plans.yaml: not valid YAML"),
        ("plans.csv", "a,b\n1,2\n", "has none of the columns"),
        ("plans.csv", "dp,tp\n2,two\n", "expected int"),
        ("launch.sh", "echo hello\n", "launch.sh"),
    ],
)
def test_what_states_no_plan_is_refused_in_a_line(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert main((*RUN, "--enqueue", str(file), "--quiet")) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
