"""A chain as repeated patterns is the chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.arrays import Indices
from distir.simulation.pricing.repeats import (
    RepeatedBlocks,
    Uneven,
    any_left,
    copies_in,
    is_in_all,
    joined,
    mapped,
    repeated_blocks,
    require_even,
)

patterns = st.lists(st.sampled_from("ab"), min_size=1, max_size=4)
chains = st.lists(st.tuples(patterns, st.integers(1, 6)), min_size=1, max_size=3).map(
    lambda parts: [block for pattern, count in parts for block in pattern * count]
)


def unrolled(repeated: Sequence[RepeatedBlocks[str]]) -> list[str]:
    return [block for pattern, count in repeated for _ in range(count) for block in pattern]


@given(chains)
def test_repeated_patterns_are_the_chain(chain: list[str]) -> None:
    assert unrolled(repeated_blocks(chain)) == chain


@pytest.mark.parametrize(
    ("chain", "repeated"),
    [
        ("aaaa", [("a", 4)]),
        ("eaaah", [("e", 1), ("a", 3), ("h", 1)]),
        ("ababa", [("ab", 2), ("a", 1)]),
        ("aaabaaabaah", [("aaab", 2), ("a", 2), ("h", 1)]),
        ("abc", [("a", 1), ("b", 1), ("c", 1)]),
    ],
)
def test_repeated_blocks_are_written_once(chain: str, repeated: list[tuple[str, int]]) -> None:
    assert [("".join(pattern), count) for pattern, count in repeated_blocks(chain)] == repeated


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

    repeated = repeated_blocks(chain)
    assert unrolled(mapped(repeated, counted)) == beside(chain)
    assert asked == [sum(len(pattern) * min(count, 3) for pattern, count in repeated)]


def test_patterns_with_many_numbers_of_copies_are_mapped_together() -> None:
    (first, _), (inner, counts), (last, _) = mapped([(("a",), np.array([3.0, 5.0]))], beside)
    assert (first, inner, last) == (("<a>a",), ("a<a>a",), ("a<a>",))
    assert counts.tolist() == [1.0, 3.0]


def ends(blocks: Sequence[str]) -> list[str]:
    """Every block, and whether it has neighbours."""
    last = len(blocks) - 1
    return [f"{place > 0}<{each}>{place < last}" for place, each in enumerate(blocks)]


several = st.lists(
    st.tuples(patterns, st.lists(st.integers(0, 5), min_size=3, max_size=3)), min_size=1, max_size=4
)


@given(several, st.sampled_from([beside, ends]))
def test_stages_are_mapped_together_as_each_alone(
    parts: list[tuple[list[str], list[int]]],
    function: Callable[[Sequence[str]], list[str]],
) -> None:
    def check(stages: Indices) -> None:
        together = [(tuple(own), np.array(counts, np.float64)[stages]) for own, counts in parts]
        try:
            found = mapped(together, function)
        except Uneven as uneven:
            check(stages[uneven.where])
            check(stages[~uneven.where])
            return
        for place in range(len(stages)):
            alone, mapped_alone = (
                unrolled([(own, int(np.broadcast_to(n, len(stages))[place])) for own, n in chain])
                for chain in (together, found)
            )
            assert mapped_alone == function(alone)

    check(np.arange(3))


def test_stages_with_one_copy_and_with_several_are_together_where_all_copies_are_alike() -> None:
    counts = np.array([1.0, 4.0])
    assert [(own, n.tolist()) for own, n in mapped([(("a",), counts)], list)] == [(("a",), [1, 4])]
    with pytest.raises(Uneven) as found:
        mapped([(("a",), counts)], beside)
    assert found.value.where.tolist() == [False, True]


def test_stages_without_a_pattern_are_together_with_others_where_that_changes_no_other_block() -> (
    None
):
    counts = np.array([0.0, 2.0, 5.0])
    chain = [(("a",), 1), (("b",), counts), (("c",), 1)]
    _, (pattern, found), _ = mapped(chain, list)
    assert (pattern, found.tolist()) == (("b",), [0.0, 2.0, 5.0])
    with pytest.raises(Uneven) as without:
        mapped(chain, followed)
    assert without.value.where.tolist() in ([True, False, False], [False, True, True])


def followed(blocks: Sequence[str]) -> list[str]:
    """Every block, and the one behind it."""
    return [f"{a}>{b}" for a, b in zip(blocks, [*blocks[1:], ""], strict=True)]


def test_equal_patterns_in_a_row_are_one() -> None:
    (first, count), last = joined([(("a",), 1), (("a",), np.array([0.0, 2.0])), (("b",), 1)])
    assert (first, last) == (("a",), (("b",), 1))
    assert count.tolist() == [1.0, 3.0]


def test_copies_are_those_of_the_stages_that_are_asked_for() -> None:
    copies, last = np.array([1.0, 0.0, 2.0]), np.array([2])
    assert copies_in(copies, last).tolist() == [2.0]
    assert copies_in(copies, None) is copies
    assert copies_in(4, last) == 4
    assert [is_in_all(each) for each in (copies, copies[::2], 1, 0)] == [False, True, True, False]


def test_patterns_that_end_in_some_stages_only_are_uneven() -> None:
    assert any_left(np.array([0.0, 2.0]))
    assert not any_left(np.array([0.0, 0.0]))
    assert not any_left(np.empty(0))
    for even in (2, np.array([1.0, 2.0]), np.array([0.0, 0.0]), np.empty(0)):
        require_even(even)
    with pytest.raises(Uneven) as found:
        require_even(np.array([0.0, 1.0]))
    assert found.value.where.tolist() == [False, True]
