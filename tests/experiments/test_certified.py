"""Certified search stands beside the grid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.certified.__main__ import Beside, main
from experiments.certified.problems import compared_questions, timed_questions
from experiments.samplers.problems import Question

PROBLEMS = """\
- {model: mlp-4x64, cluster: dgx-a100, devices: 4, space: full, batch-size: 16}
- {model: mlp-4x64, devices: 2, space: small, batch-size: 8, objective: memory}
- {model: gpt3-175B, devices: 1, space: small, objective: latency}
"""


def test_the_same_seed_draws_the_same_problems_of_the_sizes_that_are_asked_for() -> None:
    def size_of(question: Question) -> int:
        return 0 if question.stated["devices"] == 64 else 100

    for draw in (timed_questions, compared_questions):
        found = draw(20, 1, size_of)
        assert found == draw(20, 1, size_of) != draw(20, 2, size_of)
        assert len({each.name for each in found}) == 20
        assert all(each.stated["devices"] != 64 for each in found)


def test_a_best_that_the_grid_does_not_find_is_told() -> None:
    def found(mine: float | None, grid: float | None, evaluated: int = 10) -> bool:
        return Beside("", 10, 1.0, mine, 5, 2.0, grid, evaluated).agrees

    assert found(1.0, 1.0)
    assert found(None, None)
    assert not found(1.1, 1.0)
    assert not found(1.0, 1.1)
    assert not found(None, 1.0)
    assert not found(1.0, None)
    assert found(1.0, 1.1, evaluated=5)
    assert not found(1.1, 1.0, evaluated=5)


@pytest.mark.slow(seconds=5)
def test_problems_are_searched_in_both_ways_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "problems.yaml"
    file.write_text(PROBLEMS, encoding="utf-8")
    options = ["--problems", str(file), "--cache", str(tmp_path / "kept"), "--json", "-"]
    assert main(options) == 0
    first = capsys.readouterr().out
    kept = set((tmp_path / "kept").iterdir())
    assert main(options) == 0
    assert capsys.readouterr().out == first
    assert set((tmp_path / "kept").iterdir()) == kept
    said = json.loads(first)
    assert said["summary"]["compared"]["agree"] == 3
    assert said["compared"][2]["certified_cost"] is None


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("share", range(3))
def test_certified_search_finds_the_best_of_drawn_problems(share: int, tmp_path: Path) -> None:
    options = ["--timed", "0", "--compared", "12", "--most", "3000", "--seed", "1"]
    assert main([*options, "--share", f"{share + 1}/3", "--cache", str(tmp_path)]) == 0
