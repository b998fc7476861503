"""A copy of the process evaluates half of a small space, with the same results."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence

import numpy as np
import pytest

from autotune.exhaustive import side_by_side
from autotune.exhaustive.chunks import Chunk, chunks_here
from autotune.exhaustive.side_by_side import chunks_side_by_side
from autotune.objectives.objective import Objective
from autotune.problem import Problem, load_problem
from autotune.processes import LINUX
from distir.strategies import Strategies
from distir.strategy import Strategy

pytestmark = [
    pytest.mark.not_quick,
    pytest.mark.skipif(not LINUX, reason="processes are copied on Linux alone"),
]


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies this process although it may have threads of the test runner."""
    monkeypatch.setattr(side_by_side, "_can_copy", lambda: True)


def problem() -> Problem:
    return load_problem("mlp-8x512", devices=8, space="standard", batch_size=64)


def same(one: Sequence[Chunk], other: Sequence[Chunk]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(
        np.array_equal(a.numbers, b.numbers)
        and np.array_equal(a.costs, b.costs, equal_nan=True)
        and list(a.strategies) == list(b.strategies)
        and all(a.evaluations[n] == b.evaluations[n] for n in range(len(a)))
        for a, b in pairs
    )


def test_two_processes_find_what_one_finds() -> None:
    asked = problem()
    objective = asked.objective("throughput")
    alone = list(chunks_here(asked.space, objective))
    assert len(alone) == 2
    assert same(alone, list(chunks_side_by_side(asked.space, objective)))


@pytest.mark.parametrize("ends", ["killed", "failing"])
def test_what_a_copy_does_not_find_is_evaluated_here(ends: str) -> None:
    asked = problem()
    objective = asked.objective("throughput")
    alone, here = list(chunks_here(asked.space, objective)), os.getpid()
    many = objective.many
    assert many is not None

    def ending(strategies: Strategies | Sequence[Strategy]) -> object:
        if os.getpid() != here and ends == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.getpid() != here:
            raise RuntimeError("in the copy alone")
        return many(strategies)

    objective.many = ending  # type: ignore[assignment]
    assert same(alone, list(chunks_side_by_side(asked.space, objective)))


def test_a_copy_ends_with_what_it_was_made_for() -> None:
    asked = problem()
    chunks = chunks_side_by_side(asked.space, asked.objective("throughput"))
    before = set(multiprocessing.active_children())
    next(chunks)
    chunks.close()
    assert set(multiprocessing.active_children()) <= before


def test_large_spaces_and_those_evaluated_one_by_one_stay_here() -> None:
    asked = load_problem("mlp-4x64", devices=4, space={"dp": [4]})
    objective: Objective = asked.objective("throughput")
    assert len(list(chunks_side_by_side(asked.space, objective))) == 1
