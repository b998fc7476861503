"""Samplers are compared over problems whose best is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.samplers.random import RandomSampler
from distir.errors import DistirError
from distir.strategy import Strategy
from experiments.samplers.__main__ import main
from experiments.samplers.problems import Question, drawn_questions, read_questions
from experiments.samplers.truth import SIMULATOR, can_be_kept, key_of
from search_spaces import SearchSpace

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


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"devices": "eight"}, "'eight' is not a whole number of at least 1"),
        ({"devices": [8]}, r"devices is \[8\]; expected what --devices of run takes"),
        ({"batch-size": 32.5}, "'32.5' is not a whole number"),
        ({"batch-size": 8, "batch_size": 16}, "batch-size is stated twice"),
        ({"cluster": None}, "cluster is None"),
        ({"devises": 8}, "unknown option --devises; did you mean --devices"),
        ({"mode": False}, "unknown option --no-mode"),
    ],
)
def test_what_run_does_not_take_is_refused_in_one_line(stated: dict[str, Any], said: str) -> None:
    with pytest.raises(DistirError, match=said) as raised:
        Question.of({"model": "gpt2", **stated})
    assert "\n" not in str(raised.value)


def test_problems_are_stated_as_run_takes_them() -> None:
    stated = {"size": {"past": 3}, "axes": "auto", "recompute": "full", "dropout": False}
    found = Question.of({"tokens": "300B", "model": "gpt2", "devices": "8", **stated})
    assert found.stated == {
        "model": "gpt2",
        "devices": 8,
        "sizes": {"past": 3},
        "dropout": False,
        "tokens": 3e11,
        "axis_lists": "auto",
        "recomputation": "full",
    }


def test_equal_problems_are_one_however_they_are_spelled(tmp_path: Path) -> None:
    file = tmp_path / "problems.yaml"
    same = (
        "{model: gpt2, batch-size: 8, devices: 4}",
        "{devices: 4, batch_size: 8, model: gpt2}",
        "{model: gpt2, batch-size: 8, devices: 4, cluster: dgx-a100, mode: training}",
    )
    file.write_text("".join(f"- {each}\n" for each in same), encoding="utf-8")
    assert len(read_questions(file)) == 1


def test_what_is_left_out_is_said_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "problems.yaml"
    file.write_text(
        "- {model: nosuch}\n- {model: gpt3-175B, devices: 1, space: small}\n", encoding="utf-8"
    )
    options = ["--problems", str(file), "--samplers", "random", "--cache", str(tmp_path / "kept")]
    assert main([*options, "--json", "-"]) == 1
    found = json.loads(capsys.readouterr().out)
    unknown, large = found["left_out"].values()
    assert "unknown model 'nosuch'" in unknown
    assert "out of memory" in large
    assert found["problems"] == {}


def test_a_changed_file_is_another_problem(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    question = Question.of({"model": str(model), "devices": 4})
    names: set[str] = set()
    for content in (b"one", b"another"):
        model.write_bytes(content)
        names.add(key_of(question, SIMULATOR))
    assert can_be_kept(question)
    assert len(names) == 2


def test_what_code_and_files_of_ones_own_decide_is_not_kept(tmp_path: Path) -> None:
    space, cluster = tmp_path / "space.yaml", tmp_path / "lab.toml"
    space.touch()
    cluster.touch()
    plain = {"model": "mlp-4x64", "devices": 4, "space": "small"}
    assert can_be_kept(Question.of(plain), "tpe")
    assert not can_be_kept(Question.of(plain), "mine:First")
    own = {"space": space, "cluster": cluster, "objective": "mine:cost", "model": "mine.py:make"}
    for name, value in own.items():
        assert not can_be_kept(Question.of({**plain, name: str(value)}))


def test_a_damaged_file_is_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, kept = tmp_path / "problems.yaml", tmp_path / "kept"
    file.write_text(PROBLEMS.splitlines()[0], encoding="utf-8")
    options = ["--problems", str(file), "--samplers", "random", "--trials", "3", "--seeds", "1"]
    told: list[dict[str, Any]] = []
    for damage in (b"", b"junk", b"left as it is"):
        assert main([*options, "--cache", str(kept), "--json", "-"]) == 0
        told.append(json.loads(capsys.readouterr().out)["problems"])
        for each in kept.iterdir():
            each.write_bytes(damage)
    assert told[0] == told[1] == told[2]


def test_the_best_value_has_its_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("def cost(strategy):\n    return -strategy.tp\n")
    file = tmp_path / "problems.yaml"
    objective = f"{tmp_path}/mine.py:cost"
    file.write_text(f"- {{model: mlp-4x64, devices: 4, space: small, objective: '{objective}'}}\n")
    options = ["--problems", str(file), "--samplers", "random", "--trials", "2", "--seeds", "1"]
    assert main([*options, "--cache", str(tmp_path / "kept"), "--json", "-"]) == 0
    (problem,) = json.loads(capsys.readouterr().out)["problems"].values()
    assert problem["best_value"] == -4


def interrupted(space: SearchSpace, seed: int) -> RandomSampler:
    """A sampler that somebody interrupts."""

    class Interrupted(RandomSampler):
        def ask(self) -> Strategy | None:
            raise KeyboardInterrupt

    return Interrupted(space, seed)


def test_what_is_interrupted_is_no_case(tmp_path: Path) -> None:
    file = tmp_path / "problems.yaml"
    file.write_text(PROBLEMS.splitlines()[0], encoding="utf-8")
    options = ["--problems", str(file), "--samplers", f"{__file__}:interrupted"]
    with pytest.raises(KeyboardInterrupt):
        main([*options, "--cache", str(tmp_path / "kept")])
    assert [each.suffix for each in (tmp_path / "kept").iterdir()] == [".npz"]


def test_guided_search_takes_metrics_that_may_be_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "problems.yaml"
    file.write_text(
        "- {model: mlp-4x64, devices: 4, space: small, batch-size: 16, objective: bubble_fraction}",
        encoding="utf-8",
    )
    options = ["--problems", str(file), "--samplers", "guided", "--trials", "8"]
    assert main([*options, "--cache", str(tmp_path / "kept"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["samplers"]["guided"]["within_1_percent"] == 1.0


def test_the_same_seed_draws_the_same_problems() -> None:
    assert drawn_questions(20, 1) == drawn_questions(20, 1)
    assert drawn_questions(20, 1) != drawn_questions(20, 2)


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "problems.yaml"
    file.write_text("model: gpt2\n", encoding="utf-8")
    with pytest.raises(DistirError, match="expected a list of mappings"):
        read_questions(file)
