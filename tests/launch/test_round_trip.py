"""Strategy → files → strategy, for every framework and every strategy that it can state."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autotune.launch import TARGETS
from autotune.launch.facts import STRATEGY_FACTS
from tests.launch.strategies import launch_with, read_back, stated_strategies, whole_layers

NAMES = [entry.name for entry in TARGETS]


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read_back(name: str, data: st.DataObject) -> None:
    target = TARGETS.get(name)
    problem, strategy = data.draw(stated_strategies(target))
    launch = launch_with(problem, strategy)
    assume(whole_layers(launch))
    with tempfile.TemporaryDirectory() as folder:
        stated = {} if target.states_model else {"model": problem.model}
        reading = read_back(target, launch, Path(folder), **stated)
    assert reading.strategy == strategy
    assert reading.facts["batch_size"] == problem.batch_size
    assert reading.statement["devices"] == problem.devices
    if target.states_model:
        assert reading.model == problem.model
    known = {"activation_checkpointing", "--overlap-grad-reduce"}
    assert {note.what for note in reading.not_modelled} <= known


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_a_strategy_is_stated_or_refused(name: str) -> None:
    target = TARGETS.get(name)
    read = {field for limit in target.all_limits for field in limit.rule.reads}
    assert set(STRATEGY_FACTS) <= target.table.facts | read
