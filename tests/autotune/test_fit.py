"""How much fits: the size that is found fits, and the next does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from autotune import load_problem
from autotune.cli import main
from autotune.exhaustive import certified
from autotune.exhaustive.certificate import Certificate
from autotune.problem import Problem
from autotune.questions.fit import SIZES, Size, fit
from distir import Strategy
from distir.errors import DistirError
from distir.limits import MOST_MICROBATCHES

pytestmark = pytest.mark.not_quick

SHARDED = Strategy(dp=8, zero=3, recompute="full")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem("llama3-8b", cluster="hgx-h100", devices=8, batch_size=8)


def at(problem: Problem, what: Size, size: int) -> Problem:
    """The problem with another size."""
    assert problem.changed is not None
    if what == "batch":
        return problem.changed(batch_size=size)
    if what == "devices":
        return problem.changed(devices=size, batch_size=8)
    return problem.changed(sequence_length=size, batch_size=8)


@pytest.mark.parametrize(
    ("what", "strategy", "step"),
    [
        ("batch", SHARDED, 8),
        ("batch", Strategy(tp=8, microbatches=2, sequence_parallel=True), 2),
        ("sequence", SHARDED, 128),
    ],
)
def test_the_size_found_fits_and_the_next_does_not(
    problem: Problem, what: Size, strategy: Strategy, step: int
) -> None:
    found = fit(problem, what, strategy)
    assert found.size is not None
    for size, fits in ((found.size, True), (found.size + step, False)):
        result = at(problem, what, size).simulator.simulate(strategy)
        assert result.feasible == fits
    assert "out of memory" in found.limited_by
    assert {each.size for each in found.tried} >= {found.size, found.size + step}


def test_memory_that_grows_evenly_is_filled_in_few_tries(problem: Problem) -> None:
    found = fit(problem, "batch", SHARDED)
    assert found.size is not None
    assert len(found.tried) <= (found.size // SHARDED.dp).bit_length() + 4


def test_a_batch_that_may_be_cut_is_not_limited_by_memory() -> None:
    free = load_problem("gpt2", cluster="dgx-a100", devices=4, batch_size=8, space="small")
    found = fit(free, "batch")
    assert found.larger_fit
    assert found.strategy is not None
    assert 2 * found.strategy.microbatches > MOST_MICROBATCHES
    assert found.sentence.startswith("Any batch fits if it is cut into microbatches")
    assert len(found.tried) < 20  # nothing is looked for between


def test_microbatches_that_stay_in_memory_limit_the_batch() -> None:
    """All forward passes of GPipe come before the first backward pass."""
    space = {"schedule": ["gpipe"], "pp": [2], "tp": [1], "recompute": ["full"]}
    stated = {"sequence_length": 8, "batch_size": 8, "space": space}
    held = load_problem("gpt2", cluster="hgx-b200", devices=2, **cast("Any", stated))
    found = fit(held, "batch")
    assert not found.larger_fit


def test_a_batch_in_one_piece_is_limited_by_memory(problem: Problem) -> None:
    assert problem.changed is not None
    whole = problem.changed(space={"microbatches": [1]}, batch_size=8)
    found = fit(whole, "batch")
    assert not found.larger_fit
    assert "out of memory" in found.limited_by


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize("strategy", [Strategy(recompute="auto"), Strategy(pp=2, recompute="auto")])
def test_where_a_plan_chooses_fits_at_least_what_fits_with_all_layers_recomputed(
    strategy: Strategy,
) -> None:
    asked = load_problem(
        "gpt2", cluster="p3-v100-16gb", devices=strategy.devices, batch_size=8, sequence_length=512
    )
    chosen = fit(asked, "layers", strategy)
    full = fit(asked, "layers", replace(strategy, recompute="full"))
    assert chosen.size is not None
    assert full.size is not None
    assert chosen.size >= full.size
    assert chosen.strategy == strategy


def test_a_space_in_which_plans_choose_is_said_not_to_be_searched_for_what_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["run", "--model", "gpt2", "--devices", "8", "--fit", "layers", "--recompute", "auto"]
    assert main(asked) == 2
    told = capsys.readouterr()
    assert "state none, selective or full" in told.err
    assert "Nothing fits" not in told.out


@pytest.mark.slow(seconds=4)
def test_more_memory_fits_at_least_as_much(problem: Problem) -> None:
    assert problem.changed is not None
    larger = problem.changed(cluster="hgx-h200")
    for what in ("batch", "sequence"):
        small, large = (fit(each, what, SHARDED).size for each in (problem, larger))
        assert small is not None
        assert large is not None
        assert small < large


@pytest.mark.slow(seconds=3)
def test_layers_and_devices_are_the_last_and_the_first_that_fit(problem: Problem) -> None:
    depth = fit(problem, "layers", Strategy(dp=4, tp=2, zero=1))
    assert depth.size is not None
    assert depth.tried[-1].reason
    devices = fit(problem, "devices", Strategy(dp=8, zero=3))
    assert devices.size is not None
    half = replace_dp(devices.size // 2)
    assert not at(problem, "devices", half.devices).simulator.simulate(half).feasible


def replace_dp(replicas: int) -> Strategy:
    """ZeRO 3 over so many replicas."""
    return Strategy(dp=replicas, zero=3)


@pytest.mark.slow(seconds=5)
def test_any_strategy_needs_no_more_devices_than_one(problem: Problem) -> None:
    one, free = fit(problem, "devices", Strategy(dp=8, zero=3)), fit(problem, "devices")
    assert one.size is not None
    assert free.size is not None
    assert free.size <= one.size
    assert free.strategy is not None
    assert free.strategy.devices == free.size


@pytest.mark.parametrize(
    ("what", "strategy"),
    [
        ("layers", Strategy(dp=2, pp=4, microbatches=4)),
        ("batch", Strategy(tp=8, microbatches=2, axes="data:4=batch;model:2=")),
    ],
)
def test_sizes_begin_where_there_is_a_plan(
    what: Size, strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.questions.fit.MOST_LAYERS", 12)
    monkeypatch.setattr("autotune.questions.fit.MOST_SAMPLES", 256)
    found = fit(load_problem("mlp-8x512", devices=8), what, strategy)
    assert found.size is not None
    assert found.size >= (4 if what == "layers" else 8)
    if what == "batch":
        assert all(each.size % 8 == 0 for each in found.tried if each.strategy is not None)


def test_what_does_not_fit_at_all_is_said_with_its_reason() -> None:
    large = load_problem("gpt3-175B", devices=8, batch_size=8)
    found = fit(large, "batch", Strategy(dp=8))
    assert found.size is None
    assert "out of memory" in found.sentence


def test_replicas_that_share_the_batch_evenly_are_tried() -> None:
    """What 4 devices hold and 2 do not may need 3."""
    asked = load_problem("llama3-8b", cluster="hgx-h100", devices=4, batch_size=12)
    found = fit(asked, "devices", Strategy(dp=4, zero=3, recompute="full"))
    assert [each.size for each in found.tried] == [1, 2, 3]
    assert found.size == 3
    assert "with 2, out of memory" in found.limited_by


def test_numbers_of_devices_between_powers_of_two_are_tried(problem: Problem) -> None:
    found = fit(problem, "devices")
    assert found.size is not None
    assert found.size == min(each.size for each in found.tried if each.strategy is not None)
    below = 1 << (found.size - 1).bit_length() - 1
    assert {each.size for each in found.tried} >= set(range(below + 1, found.size))


def test_a_space_in_which_nothing_fits_is_not_said_to_be_empty() -> None:
    large = load_problem("gpt3-175B", devices=2, batch_size=8, space="small")
    assert large.space.count()
    found = fit(large, "batch")
    assert found.size is None
    assert "strategies fits: too much memory for the model's state" in found.sentence


def interrupt_after(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has somebody want an end at the next size that is tried after some."""
    made: list[Certificate] = []

    def certify(*stated: Any, **options: Any) -> Certificate:
        if len(made) == tries:
            raise KeyboardInterrupt
        made.append(certified.certify(*stated, **options))
        return made[-1]

    monkeypatch.setattr("autotune.questions.fit.certify", certify)


@pytest.mark.parametrize("what", ["batch", "devices"])
@pytest.mark.parametrize("tries", [1, 3])
def test_an_interrupt_leaves_what_was_tried(
    what: Size, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"batch": "gpt2-xs", "devices": "llama3-8b"}[what]
    stated = load_problem(model, "hgx-h100", devices=2, batch_size=64, space="small")
    interrupt_after(tries, monkeypatch)
    found = fit(stated, what)
    assert found.interrupted
    assert found.to_dict()["interrupted"] is True
    assert len(found.tried) >= tries  # sizes of which there is no plan are no proofs
    fitting = [each.size for each in found.tried if each.strategy is not None]
    best = min if what == "devices" else max
    assert found.size == (best(fitting) if fitting else None)
    assert found.sentence.startswith("Interrupted")
    missing = [each for each in found.tried if each.strategy is None]
    assert not missing or any(each.reason in found.sentence for each in missing)


def test_an_interrupt_before_anything_was_tried_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ("run", "--model", "gpt2-xs", "--devices", "2", "--fit", "batch", "--space", "small")
    interrupt_after(2, monkeypatch)
    assert main(wanted) == 130
    assert "samples fit, with dp" in capsys.readouterr().out
    interrupt_after(0, monkeypatch)
    assert main(wanted) == 130
    assert "interrupted" in capsys.readouterr().err


def test_what_cannot_be_varied_is_refused() -> None:
    layers = load_problem("mlp-2x8", devices=4)
    with pytest.raises(DistirError, match="no sequence"):
        fit(layers, "sequence", Strategy(dp=4))


@pytest.mark.slow(seconds=3)
def test_the_command_line_says_how_much_fits(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--model", "llama3-8b", "--cluster", "hgx-h100", "--dp", "8", "--zero", "3"]
    assert main(["simulate", *own, "--fit", "batch", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["fit"]
    assert found["what"] == "batch"
    assert found["size"] > 0
    assert found["strategy"]["dp"] == 8
    assert main(["run", *own[:4], "--devices", "8", "--space", "small", "--fit", "devices"]) == 0
    said = capsys.readouterr().out
    assert "Of the numbers tried, the fewest devices that are enough are" in said
    assert "Fewer: with" in said
    assert set(SIZES) == {"batch", "sequence", "layers", "devices"}


@pytest.mark.parametrize(
    "option", ["--report=a.html", "--plan=a.plan", "--storage=sqlite:///a.db", "--experiment=a"]
)
def test_options_that_sizes_have_nothing_to_say_to_are_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--model", "mlp-4x64", "--devices", "4", "--fit", "devices", option]
    assert main(arguments) == 2
    assert f"has no use for {option.partition('=')[0]};" in capsys.readouterr().err
