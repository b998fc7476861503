"""Samplers are compared over problems whose best is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.exhaustive.grid import evaluate_grid
from autotune.objectives import Evaluation
from autotune.samplers.random import RandomSampler
from autotune.solving import measuring
from distir.errors import DistirError
from distir.strategy import Strategy
from experiments.samplers import truth
from experiments.samplers.__main__ import main
from experiments.samplers.problems import Question, drawn_questions, read_questions
from experiments.samplers.truth import SIMULATOR, can_be_kept, find_truth, key_of
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
        ({"space": {"extends": "small", "ppp": [1]}}, "unknown dimension 'ppp'"),
        ({"space": [{"pp": 1}]}, "space is .*; expected what --space of run takes"),
        ({"devises": 8}, "unknown option --devises; did you mean --devices"),
        ({"mode": False}, "unknown option --no-mode"),
        ({"jobs": 2}, "unknown option --jobs.*expected options of run that state the model"),
        ({"direction": "up"}, "'up' is not known; expected maximize, minimize"),
        ({"trial-timeout": "9s", "isolate": False}, "--no-isolate rules that out"),
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


def test_a_space_may_be_what_its_file_would_say(tmp_path: Path) -> None:
    file, schedule = tmp_path / "space.yaml", tmp_path / "order.txt"
    said = {"zero": [0, 3], "pp": 1, "extends": "standard"}
    file.write_text(json.dumps(said))
    schedule.write_text("0F0 0B0\n")
    plain = {"model": "mlp-4x64", "devices": 4}
    stated, named = (Question.of({**plain, "space": space}) for space in (said, str(file)))
    assert list(stated.problem().space.enumerate()) == list(named.problem().space.enumerate())
    turned = Question.of({**plain, "space": dict(reversed(said.items()))})
    assert turned.asked == stated.asked
    assert key_of(turned, SIMULATOR) == key_of(stated, SIMULATOR)
    assert can_be_kept(stated)
    assert not can_be_kept(Question.of({**plain, "space": {"schedule": [str(schedule)]}}))


def test_what_is_stated_of_an_objective_is_told_apart() -> None:
    plain = Question.of({"model": "gpt2", "objective": "mine:cost"})
    same = Question.of({"model": "gpt2", "objective": "mine:cost", "isolate": True})
    assert same.asked == plain.asked
    for stated in ({"metric": "loss"}, {"direction": "maximize"}, {"trial-timeout": "1m"}):
        other = Question.of({"model": "gpt2", "objective": "mine:cost", **stated})
        assert other.asked != plain.asked
        assert other.name != plain.name
        assert key_of(other, SIMULATOR) != key_of(plain, SIMULATOR)


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


def test_a_sampler_that_fails_leaves_the_others_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems, mine = tmp_path / "problems.yaml", tmp_path / "mine.py"
    problems.write_text("- {model: mlp-4x64, devices: 2, space: small}\n")
    mine.write_text(
        "class Fails:\n"
        "    def __init__(self, space, seed): pass\n"
        "    def ask(self): raise RuntimeError('no idea')\n"
        "    def tell(self, strategy, cost, violation): pass\n"
    )
    fails = f"{mine}:Fails"
    options = ["--problems", str(problems), "--samplers", f"{fails},random", "--trials", "2"]
    assert main([*options, "--cache", str(tmp_path / "kept"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["samplers"]) == ["random"]
    assert "no idea" in found["left_out"][fails]


def test_a_changed_file_is_another_problem(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    question = Question.of({"model": str(model), "devices": 4})
    names: set[str] = set()
    for content in (b"one", b"another"):
        model.write_bytes(content)
        names.add(key_of(question, SIMULATOR))
    assert can_be_kept(question)
    assert len(names) == 2


def test_what_is_kept_in_another_form_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question.of({"model": "mlp-4x64", "devices": 4})
    before = key_of(question, SIMULATOR)
    monkeypatch.setattr(truth, "FORM", truth.FORM + 1)
    assert key_of(question, SIMULATOR) != before


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


def test_what_is_not_simulated_or_takes_too_long_is_not_kept() -> None:
    plain = {"model": "mlp-4x64", "devices": 4, "space": "small"}
    assert can_be_kept(Question.of({**plain, "metric": "mfu"}))
    assert not can_be_kept(Question.of({**plain, "objective": "an-entry-point"}))
    assert not can_be_kept(Question.of({**plain, "trial-timeout": "1m"}))


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


TINY = {"model": "mlp-4x64", "devices": 2, "space": "small", "batch-size": 8}
"""A problem of 14 strategies."""
OBJECTIVES = """\
import os
import signal

from autotune.objectives import Evaluation


def cost(strategy):
    return -1.272 * strategy.tp


def both(strategy):
    return {"first": 1.272 * strategy.dp, "second": 3.1 * strategy.tp}


def does(deed):
    def measure(strategy):
        if strategy.tp == 2:
            deed()
        return strategy.microbatches

    return measure


ends = does(lambda: os._exit(0))
dies = does(lambda: os.kill(os.getpid(), signal.SIGKILL))
moves = does(lambda: os.chdir("/"))
prints = does(lambda: print("noise"))
writes = does(lambda: os.write(1, b"noise"))


@does
def interrupts():
    raise KeyboardInterrupt


def misses(strategy):
    if strategy.tp == 2:
        raise ValueError("no such layer")
    violation = strategy.microbatches / 8
    metrics = {"seconds": 1.5} if strategy.pp == 2 else {}
    return Evaluation(metrics, feasible=False, reason=f"lacks {violation}", violation=violation)


def mixed(strategy):
    return strategy.microbatches / 3 if strategy.pp == 2 else misses(strategy)


def fails(strategy):
    raise ValueError("no such layer")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a file of objectives, from which the experiment runs."""
    (tmp_path / "mine.py").write_text(OBJECTIVES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _measured(**stated: object) -> Question:
    return Question.of({**TINY, **stated})


@pytest.mark.parametrize(
    ("stated", "value"),
    [
        ({"objective": "mine.py:cost"}, -2.544),
        ({"objective": "mine.py:both"}, 1.272),
        ({"objective": "mine.py:both", "direction": "maximize"}, 2.544),
        ({"objective": "mine.py:both", "metric": "second"}, 3.1),
        ({"objective": "mine.py:both", "metric": "second", "direction": "maximize"}, 6.2),
    ],
)
def test_the_best_value_is_the_metric_as_it_was_measured(
    mine: Path, stated: dict[str, Any], value: float
) -> None:
    assert find_truth(_measured(**stated), None).to_dict()["best_value"] == value


def test_the_best_of_equals_is_that_of_the_grid() -> None:
    stated = {"model": "gpt2", "devices": 7, "space": "small", "batch-size": 32}
    found = find_truth(Question.of(stated), None)
    grid = evaluate_grid(found.problem.space, found.objective)
    equal = [each for each in grid.ranked if each.cost == found.best_cost]
    assert len(equal) > 1
    assert found.best.label == grid.ranked[0].label == "dp1-tp1-pp7-m32-1f1b"


def test_objectives_spoil_neither_stdout_nor_what_comes_after(
    mine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    deeds = ("ends", "dies", "interrupts", "moves", "prints", "writes")
    problems = [{**TINY, "objective": f"mine.py:{deed}"} for deed in deeds]
    (mine / "problems.yaml").write_text(json.dumps(problems), encoding="utf-8")
    options = ["--problems", "problems.yaml", "--samplers", "random", "--trials", "14"]
    assert main([*options, "--seeds", "1", "--cache", "kept", "--json", "-"]) == 0
    told = capfd.readouterr()
    found = json.loads(told.out)
    assert told.err.count("noise") == 2 * 4
    assert found["left_out"] == {}
    fitting = [each["fitting"] for each in found["problems"].values()]
    assert fitting == [10, 10, 10, 14, 14, 14]
    assert all(each["best_value"] == 1 for each in found["problems"].values())
    assert Path.cwd() == mine


def _told(evaluation: Evaluation) -> Evaluation:
    """What a sampler may be told; floats but for the last bits."""
    metrics = {name: pytest.approx(value) for name, value in evaluation.metrics.items()}
    return replace(evaluation, metrics=metrics, output={})


@pytest.mark.parametrize(
    "stated",
    [
        {**TINY, "objective": "mine.py:mixed"},
        {**TINY, "objective": "mine.py:mixed", "isolate": False},
        {"model": "gpt2-xl", "cluster": "p3-v100-16gb", "devices": 4, "batch-size": 32},
        {"model": "gpt2-xl", "cluster": "p3-v100-16gb", "devices": 4, "metric": "mfu"},
    ],
)
def test_samplers_are_told_what_run_tells(mine: Path, stated: dict[str, Any]) -> None:
    question = Question.of({"space": "small", **stated})
    for _ in ("evaluated", "read where it is kept"):
        found = find_truth(question, mine)
        every = [*found.problem.space.enumerate()]
        objective = question.goal.over(found.problem)
        with measuring(objective, question.goal) as measure:
            expected = [measure(each) for each in every]
        assert [found.measure(each) for each in every] == [_told(each) for each in expected]
        assert 0 < sum(each.feasible for each in expected) < len(expected)
        assert found.fitting == sum(each.feasible for each in expected)
    assert len([*mine.glob("*.npz")]) == (question.objective == "throughput")


def test_reasons_that_are_told_plan_by_plan_are_kept(tmp_path: Path) -> None:
    stated = {"model": "gpt2-xl", "cluster": "p3-v100-16gb", "devices": 4, "batch-size": 32}
    question = Question.of({**stated, "space": "small", "recompute": "auto"})
    evaluated = find_truth(question, tmp_path)
    every = [*evaluated.problem.space.enumerate()]
    expected = [evaluated.measure(each) for each in every]
    assert any("out of memory" in (each.reason or "") for each in expected)
    found = find_truth(question, tmp_path)
    found.objective.function = _unasked
    assert [found.measure(each) for each in every] == expected


def _unasked(strategy: Strategy) -> Evaluation:
    return Evaluation.failure(f"{strategy.label} is simulated again")


def test_what_failed_is_not_the_closest(mine: Path) -> None:
    with pytest.raises(DistirError) as raised:
        find_truth(_measured(objective="mine.py:misses"), None)
    assert "Closest: dp2-tp1-pp1-m1-1f1b, lacks 0.125. 4 trials failed" in str(raised.value)


def test_where_all_fails_the_reason_is_told(mine: Path) -> None:
    with pytest.raises(DistirError, match=r"14 trials failed; .*: ValueError: no such layer"):
        find_truth(_measured(objective="mine.py:fails"), None)


def test_what_is_certified_has_no_trials_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "MOST_EVALUATED", 10)
    assert find_truth(_measured(), None).how == "certified"
    with pytest.raises(DistirError, match="no trials for a trial-timeout"):
        find_truth(_measured(**{"trial-timeout": "1m"}), None)


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
