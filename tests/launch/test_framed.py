"""Problems for a framework in Python, and the studies of `run --launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune import tune
from autotune.launch import LaunchError, load_problem_for
from autotune.statement import ProblemStatement
from distir.errors import DistirError
from tests.launch.test_commands import json_of

STUDY = ("--storage", "sqlite:///a.db", "--study", "a")
QUICK = ("--sampler", "random", "--no-compare-grid", "--no-tracking")
KEPT: dict[str, Any] = {"storage": "sqlite:///a.db", "study": "a", "resume": True}
STATED: dict[str, Any] = {"cluster": "hgx-h100", "devices": 2, "batch_size": 8}


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("search_all", [False, True])
def test_a_study_of_the_command_line_is_resumed_in_python(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    search_all: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["run", "--model", "llama3.2-1b", "--cluster", "hgx-h100", "--devices", "2"]
    asked += ["--batch-size", "8", "--trials", "2", *QUICK, "--launch", "torchtitan:out"]
    begun = json_of(capsys, *asked, *STUDY, *(["--search-all"] if search_all else []))
    problem = load_problem_for(
        "llama3.2-1b", framework="torchtitan", search_all=search_all, **STATED
    )
    assert problem.space.count() == begun["space_size"]
    found = tune(problem, trials=3, sampler="random", compare_grid=False, **KEPT)
    assert len(found.trials) == 3
    assert found.to_dict()["settings"] == begun["settings"]
    again = json_of(capsys, "run", *STUDY, "--resume", "--trials", "4", *QUICK)
    assert len(again["trials"]) == 4
    other = load_problem_for("llama3.2-1b", framework="megatron", **STATED)
    with pytest.raises(DistirError, match="framework = torchtitan, here with framework = megatron"):
        tune(other, **KEPT)
    with pytest.raises(
        DistirError, match=r"; autotune\.launch\.load_problem_for makes a problem for a framework"
    ):
        tune("llama3.2-1b", **STATED, **KEPT)


def test_what_a_framework_usually_has_is_stated_where_nobody_says() -> None:
    problem = load_problem_for("gpt2", framework="torchtitan", **STATED)
    assert isinstance(problem.statement, ProblemStatement)
    assert problem.statement.gradient_precision == "fp32"
    assert all(each.zero in (0, 3) for each in problem.space.enumerate())
    with pytest.raises(LaunchError):
        load_problem_for("gpt2", framework="torchtitan", precision="fp8", **STATED)
