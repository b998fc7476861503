"""Samplers are compared over problems whose best is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distir.errors import DistirError
from experiments.samplers.__main__ import main
from experiments.samplers.problems import Question, drawn_questions, read_questions

PROBLEMS = """\
- {model: mlp-4x64, cluster: dgx-a100, devices: 4, space: small, batch-size: 16}
- {model: mlp-4x64, devices: 2, space: small, batch-size: 8, objective: latency}
"""


@pytest.mark.slow(seconds=4)
def test_a_run_that_is_repeated_reads_what_it_has_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "problems.yaml"
    file.write_text(PROBLEMS, encoding="utf-8")
    options = ["--problems", str(file), "--samplers", "bounds,random", "--trials", "12"]
    options += ["--seeds", "2", "--cache", str(tmp_path / "kept"), "--json", "-"]
    assert main(options) == 0
    first = json.loads(capsys.readouterr().out)
    kept = set((tmp_path / "kept").iterdir())
    assert main(options) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert set((tmp_path / "kept").iterdir()) == kept
    assert len(first["problems"]) == 2
    bounds = first["samplers"]["bounds"]
    assert bounds["within_1_percent"] == 1.0
    assert bounds["regret_median"] == 0.0
    assert bounds["cases"] == 4
    assert first["samplers"]["random"]["milliseconds_per_suggestion"] >= 0


@pytest.mark.slow(seconds=3)
def test_what_is_taken_from_the_sampler_leaves_one_that_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "problems.yaml"
    file.write_text(PROBLEMS, encoding="utf-8")
    parts = ("bounds", "expectation", "learning", "failures")
    names = [f"without_{each}" for each in parts] + ["cold"]
    samplers = ",".join(f"experiments.samplers.ablations:{name}" for name in names)
    options = ["--problems", str(file), "--samplers", samplers, "--trials", "400", "--seeds", "1"]
    assert main([*options, "--cache", str(tmp_path / "kept"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["samplers"]
    assert len(found) == len(names)
    assert all(each["within_1_percent"] == 1.0 for each in found.values())


def test_an_unknown_option_of_a_problem_is_met_with_the_near_ones() -> None:
    with pytest.raises(DistirError, match="did you mean: device"):
        Question.of({"model": "gpt2", "device-s": 8})


def test_the_same_seed_draws_the_same_problems() -> None:
    assert drawn_questions(20, 1) == drawn_questions(20, 1)
    assert drawn_questions(20, 1) != drawn_questions(20, 2)


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "problems.yaml"
    file.write_text("model: gpt2\n", encoding="utf-8")
    with pytest.raises(DistirError, match="expected a list of mappings"):
        read_questions(file)
