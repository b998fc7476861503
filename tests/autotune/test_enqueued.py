"""Plans that a user wants tried first are tried first."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    with pytest.raises(DistirError, match=r"to be tried first, is impossible: .*tp"):
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
        ("plans.yaml", "[{dp: 2, width: 3}]", "plans.yaml, plan 1: unknown strategy key 'width'"),
        ("plans.yaml", "[{dp: 2}, {tp: two}]", "plans.yaml, plan 2: "),
        (
            "plans.yaml",
            "- dp: 2\n  tp: 2\n  dp: 4\n",
            "plans.yaml: not valid YAML: line 3 states dp, which line 1 states already; leave one",
        ),
        ("plans.yaml", "{", "plans.yaml: not valid YAML"),
        ("plans.csv", "a,b\n1,2\n", "has none of the columns"),
        ("plans.csv", "dp,tp\n2,1\n2,two\n", "plans.csv, plan 2 has 'two'; expected int"),
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


@pytest.mark.parametrize(("name", "text"), [("plans.json", "[]"), ("plans.csv", "dp,tp\n")])
def test_a_file_without_plans_is_told(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert main((*RUN, "--enqueue", str(file), "--trials", "1")) == 0
    assert f"{file} does not state a plan: nothing is tried first" in capsys.readouterr().err


GPT2 = ("--model", "gpt2", "--cluster", "dgx-a100", "--batch-size", "32")
TRIED = ("--trials", "1", "--no-tracking", "--no-compare-grid")
PLAN = ("--dp", "2", "--tp", "2", "--microbatches", "4", "--target", "megatron")


@pytest.fixture
def launch_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A launch of GPT-2 on 4 devices."""
    assert main(("launch", *GPT2, *PLAN, "--to", str(tmp_path / "out"))) == 0
    capsys.readouterr()
    return str(tmp_path / "out" / "launch.sh")


def tried(
    capsys: pytest.CaptureFixture[str], file: str, *problem: str
) -> tuple[Mapping[str, Any], str]:
    """The plan that is tried first, and what is told before."""
    run = ("run", *problem, "--devices", "4", *TRIED, "--enqueue", file, "--json", "-")
    assert main(run) == 0
    captured = capsys.readouterr()
    told = next((line for line in captured.err.splitlines() if file in line), "")
    return json.loads(captured.out)["trials"][0]["strategy"], told


def test_a_launch_file_of_the_problem_states_its_plan(
    launch_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, told = tried(capsys, launch_file, *GPT2)
    assert (plan["dp"], plan["tp"], plan["microbatches"]) == (2, 2, 4)
    assert not told


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ((*GPT2[:-1], "64"), ["batch size 32 (here 64)"]),
        ((*GPT2, "--sequence-length", "512"), ["sequence length 1024 (here 512)"]),
        (("--model", "gpt3-350m", *GPT2[2:]), ["layers 12 (here 24)", "hidden 768 (here 1024)"]),
    ],
)
def test_what_a_launch_file_says_of_another_problem_is_told_and_its_plan_stays(
    problem: tuple[str, ...], said: list[str], launch_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, told = tried(capsys, launch_file, *problem)
    assert (plan["dp"], plan["tp"], plan["microbatches"]) == (2, 2, 4)
    assert all(each in told for each in said)


def test_what_a_launch_file_leaves_open_is_as_in_the_problem(
    launch_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(launch_file)
    text = file.read_text(encoding="utf-8")
    open_devices = re.sub("--nproc-per-node 4", "--nproc-per-node $GPUS", text)
    file.write_text(re.sub(r"--seq-length \d+", "", open_devices), encoding="utf-8")
    plan, told = tried(capsys, launch_file, *GPT2, "--sequence-length", "512")
    assert (plan["dp"], plan["tp"]) == (2, 2)
    assert not told


def test_a_launch_file_for_other_devices_is_refused(
    launch_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("run", *GPT2, "--devices", "8", *TRIED, "--enqueue", launch_file)) == 2
    captured = capsys.readouterr()
    assert "is for 4 devices, but here there are 8; state --devices 4" in captured.err
    assert captured.out == ""
