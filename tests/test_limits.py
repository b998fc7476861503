"""Sizes that nobody has are errors about the input, and messages stay short whatever data say."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import ClusterLevel
from distir.errors import (
    ClusterError,
    DistirError,
    ImportModelError,
    StrategyError,
    UnknownNameError,
    brief,
    shown,
)
from distir.limits import LONGEST_SECONDS, MOST_DEVICES, MOST_MESSAGE_CHARACTERS
from distir.models.zoo import find_model
from distir.strategies import Strategies
from distir.user_code import described


def test_an_iteration_of_more_than_a_century_is_an_error_one_by_one_and_at_once() -> None:
    cluster = load_cluster("dgx-a100", 8)
    slow = replace(cluster.levels[0], latency_seconds=LONGEST_SECONDS)
    simulator = Simulator(
        Workload(model=load_model("mlp-4x64"), batch_size=8),
        replace(cluster, levels=(slow, *cluster.levels[1:])),
    )
    alone, together = Strategy(pp=2, microbatches=2), Strategy(tp=8)
    table = simulator.simulate_many(Strategies.of([Strategy(), together, alone]))
    assert list(table.feasible) == [True, False, False]
    assert sorted(table.invalid) == [1, 2]
    for at, strategy in ((1, together), (2, alone)):
        with pytest.raises(StrategyError, match="at most a century and an exabyte") as caught:
            simulator.simulate(strategy)
        assert str(caught.value) == table.invalid[at] == table.reason(at)
        assert all(np.isnan(column[at]) for column in table.metrics.values())
    assert simulator.simulate(Strategy()).feasible


def test_more_than_an_exabyte_on_a_device_is_an_error() -> None:
    workload = Workload(model=load_model("mlp-16x65536"), batch_size=1 << 40)
    simulator = Simulator(workload, load_cluster("dgx-a100", 1))
    with pytest.raises(StrategyError, match="at most a century and an exabyte"):
        simulator.simulate(Strategy())


def test_a_cluster_may_be_as_large_as_the_limit_in_little_memory() -> None:
    simulator = Simulator(
        Workload(model=load_model("mlp-4x64"), batch_size=MOST_DEVICES),
        load_cluster("dgx-a100", MOST_DEVICES),
    )
    tracemalloc.start()
    for strategy in (Strategy(dp=MOST_DEVICES), Strategy(dp=MOST_DEVICES // 4, tp=4)):
        assert simulator.simulate(strategy).feasible
    assert tracemalloc.get_traced_memory()[1] < 200e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "make",
    [
        lambda: load_cluster("dgx-a100", MOST_DEVICES + 1),
        lambda: Strategy(dp=1 << 40),
        lambda: Strategy(dp=10**400),
        lambda: find_model("mlp-1000000x8"),
        lambda: find_model("mlp-4x1000000000000"),
        lambda: replace(find_model("gpt2"), name="x", dropout=float("nan")),  # type: ignore[type-var]
        lambda: replace(find_model("gpt2"), rotary_fraction=1e30),  # type: ignore[type-var]
        lambda: replace(load_cluster("dgx-a100").device, memory_bytes=1e30),
        lambda: replace(load_cluster("dgx-a100").device, memory_bandwidth_bytes_per_second=1e-30),
        lambda: ClusterLevel(
            name="far", size=None, bandwidth_bytes_per_second=1e9, latency_seconds=1e308
        ),
    ],
)
def test_sizes_that_nobody_has_are_refused_at_once(make: Any) -> None:
    with pytest.raises((ClusterError, StrategyError, ImportModelError), match="expected"):
        make()


def test_units_of_a_cluster_multiply_within_the_limit() -> None:
    cluster = load_cluster("dgx-a100")
    board = replace(cluster.levels[0], size=MOST_DEVICES)
    with pytest.raises(ClusterError, match=r"join 1099511627776 devices"):
        replace(cluster, levels=(board, board, cluster.levels[-1]))


def test_a_message_keeps_the_ends_of_what_is_long() -> None:
    for error in (
        DistirError("the value is " + "x" * 10_000_000 + "; expected less"),
        UnknownNameError("model", "y" * 1_000_000, ["gpt2"]),
        DistirError("lines " + "of words " * 1_000_000 + "end"),
    ):
        assert len(str(error)) <= MOST_MESSAGE_CHARACTERS
    assert brief("a" * 5000 + " expected b").endswith("expected b")
    assert brief("short\n  lines stay") == "short\n  lines stay"
    assert len(described(ValueError("z" * 10_000_000))) <= MOST_MESSAGE_CHARACTERS


def test_what_messages_repeat_takes_no_longer_for_values_that_grow_out_of_themselves() -> None:
    nested: list[Any] = []
    for _ in range(60):
        nested = [nested, nested]
    endless: list[Any] = []
    endless.append(endless)
    for value in (nested, endless, 10**100_000, "x" * 10_000_000, {"a": nested}):
        assert len(shown(value)) < 1000
    assert shown("gpt2") == "'gpt2'"
    assert shown(12) == "12"
