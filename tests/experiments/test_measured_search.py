"""How many measurements samplers need is counted over groups of measured runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from autotune.samplers.expectation import Expectation
from distir.strategies import Strategies
from distir.strategy import Strategy
from experiments.measured_search.__main__ import main, until_close
from experiments.measured_search.groups import Group, read_groups

PRECISIONS = ("bf16", "fp16")
HEADER = (
    "source,hardware,num_gpus,model,num_layers,hidden,heads,vocab,seq_len,global_batch,micro_batch,"
    "tp,pp,dp,iteration_time_s,flags"
)


def row(tp: int, dp: int, micro_batch: int, seconds: str, flags: str = "", devices: int = 8) -> str:
    sizes = f"A100-SXM4-80GB,{devices},m,4,512,8,1000,512,64,{micro_batch},{tp},1,{dp}"
    return f"example,{sizes},{seconds},{flags}"


@pytest.mark.slow(seconds=6)
def test_groups_of_four_measured_strategies_are_searched_and_smaller_ones_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = [
        row(1, 8, 8, "0.10"),
        row(2, 4, 8, "0.12"),
        row(4, 2, 8, "0.15"),
        row(8, 1, 8, "0.20"),
        row(1, 8, 4, "", "OOM"),
    ]
    smaller = [row(1, 4, 8, "0.2", devices=4), row(2, 2, 8, "0.3", devices=4)]
    file = tmp_path / "measured.csv"
    file.write_text("\n".join([HEADER, *group, *smaller]) + "\n", encoding="utf-8")
    assert main([str(file), "--seeds", "2", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"guided", "random", "tpe", "simulator_order", "wrong_stack"} == set(found)
    for each in (found["guided"], found["random"], found["wrong_stack"]["guided"]):
        assert each["groups"] == 1
        assert 1 <= each["mean_to_1_percent"] <= each["p90_to_1_percent"] <= 5


def test_a_file_without_groups_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "measured.csv"
    unknown = row(1, 8, 8, "0.1").replace("A100-SXM4-80GB", "no such device")
    file.write_text(f"{HEADER}\n{row(1, 8, 8, '0.1')}\n{unknown}\n", encoding="utf-8")
    assert main([str(file), "--json", "-"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["guided"] == {"mean_to_1_percent": None, "p90_to_1_percent": None, "groups": 0}
    assert "1 of 2 rows cannot be used" in captured.err
    assert "no group has 4 measured strategies; the largest has 1" in captured.err


def test_runs_of_which_memory_alone_was_measured_are_no_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(1, 8, 8, "0.10"), row(2, 4, 8, "0.12"), row(4, 2, 8, "0.15"), row(8, 1, 8, "")]
    file = tmp_path / "measured.csv"
    memory = [f"{each},,20,GB" for each in rows]
    header = HEADER.replace("flags", "flags,zero_stage,peak_memory_gb,mem_unit")
    file.write_text("\n".join([header, *memory]) + "\n", encoding="utf-8")
    assert main([str(file), "--json", "-"]) == 1
    said = capsys.readouterr().err
    assert "1 of 4 rows cannot be used: their memory was measured, and no time" in said
    assert "the largest has 3" in said


def test_runs_in_other_precisions_do_not_compete(tmp_path: Path) -> None:
    rows = [f"{row(tp, 8 // tp, 8, '0.1')},{each}" for tp in (1, 2, 4, 8) for each in PRECISIONS]
    file = tmp_path / "measured.csv"
    file.write_text("\n".join([f"{HEADER},precision", *rows]) + "\n", encoding="utf-8")
    groups = read_groups(file, None)
    assert [len(group.seconds) for group in groups] == [4, 4]


@pytest.mark.parametrize(
    ("column", "values"), [("interconnect", ("100 Gbps", "1600 Gbps")), ("kv_heads", ("2", "8"))]
)
def test_runs_on_another_cluster_or_of_another_model_are_no_repeats(
    column: str, values: tuple[str, str], tmp_path: Path
) -> None:
    seconds = {values[0]: 0.1, values[1]: 0.3}
    rows = [
        f"{row(tp, 8 // tp, 8, str(taken))},{value}"
        for tp in (1, 2, 4, 8)
        for value, taken in seconds.items()
    ]
    file = tmp_path / "measured.csv"
    file.write_text("\n".join([f"{HEADER},{column}", *rows]) + "\n", encoding="utf-8")
    measured = [{*group.seconds.values()} for group in read_groups(file, None)]
    assert measured == [{0.1}, {0.3}]


def test_strategies_that_cannot_be_simulated_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(3, 4, 8, "0.1", devices=12), row(6, 2, 8, "0.1", devices=12)]  # of 8 heads
    rows += [row(12, 1, 8, "0.1", devices=12), row(1, 12, 8, "0.1", devices=12)]
    file = tmp_path / "measured.csv"
    text = "\n".join([HEADER, *rows]).replace(",64,", ",96,") + "\n"
    file.write_text(text, encoding="utf-8")
    assert main([str(file), "--json", "-"]) == 1
    said = capsys.readouterr().err
    assert "3 of 4 rows cannot be used: not simulated: heads (8) is not divisible by tp" in said
    assert "no group has 4 measured strategies that can be simulated; the largest has 1" in said


def test_a_search_ends_with_the_first_that_is_close() -> None:
    """What comes after it counts for nothing, and takes most of the time."""
    strategies = [Strategy(dp=8, microbatches=each) for each in (1, 2, 4, 8)]
    count = len(strategies)
    seconds = dict(zip(strategies, (None, 3.0, 2.01, 2.0), strict=True))
    expected = Expectation(Strategies.of(strategies), np.zeros(count), np.full(count, -1.0))
    asked = list[Strategy]()

    @dataclass
    class Listed:
        left: list[Strategy]

        def ask(self) -> Strategy:
            asked.append(self.left.pop(0))
            return asked[-1]

        def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
            pass

    group = Group("four", 64, seconds, expected)
    assert until_close(group, lambda _group, _seed: Listed([*strategies]), 0) == 3
    assert asked == strategies[:3]
