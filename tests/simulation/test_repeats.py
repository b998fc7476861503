"""A chain as runs of words is the chain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.simulation.pricing.repeats import Run, Uneven, is_left, mapped, runs_of

words = st.lists(st.sampled_from("ab"), min_size=1, max_size=4)
chains = st.lists(st.tuples(words, st.integers(1, 6)), min_size=1, max_size=3).map(
    lambda parts: [block for word, count in parts for block in word * count]
)


def unrolled(runs: Sequence[Run[str]]) -> list[str]:
    return [block for word, count in runs for _ in range(count) for block in word]


@given(chains)
def test_runs_are_the_chain(chain: list[str]) -> None:
    assert unrolled(runs_of(chain)) == chain


@pytest.mark.parametrize(
    ("chain", "runs"),
    [
        ("aaaa", [("a", 4)]),
        ("eaaah", [("e", 1), ("a", 3), ("h", 1)]),
        ("ababa", [("ab", 2), ("a", 1)]),
        ("aaabaaabaah", [("aaab", 2), ("a", 2), ("h", 1)]),
        ("abc", [("a", 1), ("b", 1), ("c", 1)]),
    ],
)
def test_what_comes_again_is_written_once(chain: str, runs: list[tuple[str, int]]) -> None:
    assert [("".join(word), count) for word, count in runs_of(chain)] == runs


def beside(blocks: Sequence[str]) -> list[str]:
    """Every block with its neighbours."""
    padded = ["", *blocks, ""]
    return [f"{a}<{b}>{c}" for a, b, c in zip(padded, padded[1:], padded[2:], strict=False)]


@given(chains)
def test_a_function_of_neighbours_is_asked_about_few_copies(chain: list[str]) -> None:
    asked: list[int] = []

    def counted(blocks: Sequence[str]) -> list[str]:
        asked.append(len(blocks))
        return beside(blocks)

    runs = runs_of(chain)
    assert unrolled(mapped(runs, counted)) == beside(chain)
    assert asked == [sum(len(word) * min(count, 3) for word, count in runs)]


def test_runs_of_many_lengths_are_mapped_together() -> None:
    (first, _), (inner, counts), (last, _) = mapped([(("a",), np.array([3.0, 5.0]))], beside)
    assert (first, inner, last) == (("<a>a",), ("a<a>a",), ("a<a>",))
    assert counts.tolist() == [1.0, 3.0]


def test_runs_that_end_in_some_plans_only_are_uneven() -> None:
    assert is_left(np.array([1.0, 2.0]))
    assert not is_left(np.array([0.0, 0.0]))
    assert not is_left(np.empty(0))
    with pytest.raises(Uneven) as found:
        is_left(np.array([0.0, 1.0]))
    assert found.value.where.tolist() == [False, True]
