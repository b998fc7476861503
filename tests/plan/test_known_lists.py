"""Which known technique an axis list comes to."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autotune.cli import main
from distir import Strategy, Workload, load_model
from distir.plan import Planner
from distir.plan.known_lists import KNOWN_LISTS, known_lists
from distir.strategy import MARKS

BASE = Strategy(dp=2, tp=2)


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(Workload(model=load_model("gpt2-xs"), batch_size=8))


def test_a_known_list_has_its_own_name(planner: Planner) -> None:
    for known in KNOWN_LISTS:
        if all(planner.program.named(word.rstrip(MARKS)) for word in known.words):
            stated = replace(BASE, axes=f"tp={','.join(known.words)}")
            assert known_lists(planner, stated) == {"tp": known.name}


def test_another_spelling_of_the_same_plan_has_the_same_name(planner: Planner) -> None:
    told = known_lists(planner, replace(BASE, axes="tp=vocabulary,ffn,heads,sequence"))
    assert told == {"tp": "Megatron's tensor parallelism with sequence parallelism"}


def test_lists_are_named_degree_by_degree_and_others_are_not(planner: Planner) -> None:
    stated = replace(BASE, axes="dp=batch;tp=vocabulary,batch")
    assert known_lists(planner, stated) == {"dp": "data parallelism"}
    assert known_lists(planner, BASE) == {}


def test_a_simulation_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", "--model", "gpt2-xs", "--tp", "2", "--axes", "tp=ffn,heads,vocabulary"]
    assert main(command) == 0
    assert "This is Megatron's tensor parallelism (the list of tp)" in capsys.readouterr().out
    assert main([*command, "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["known_lists"] == {"tp": "Megatron's tensor parallelism"}
