"""Attention with a window: what it computes is less, in proportion to the pairs that are seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.ir.types import DType, TensorType
from distir.ops.attention import FusedAttention, FusedAttentionGradient, seen

HEADS, DEPTH = 2, 3


def operands(rows: int, columns: int) -> tuple[TensorType, ...]:
    sizes = rows, columns, columns
    return tuple(TensorType((1, HEADS, size, DEPTH), DType.FLOAT32) for size in sizes)


def flops(op: FusedAttention, rows: int, columns: int) -> float:
    types = operands(rows, columns)
    return float(op.work(types, op.infer(*types)).flops)


@given(st.booleans(), st.integers(1, 40))
def test_flops_are_those_of_the_pairs_that_are_seen(causal: bool, window: int) -> None:
    """Half of the diagonal, which long sequences do not notice, is not counted if causal."""
    length, wide = 400, 10 * window
    places = np.arange(length)
    pairs = int(seen(places, places, causal, wide).sum()) - causal * length / 2
    found = flops(FusedAttention(1.0, causal, window=wide), length, length)
    assert found == pytest.approx(4 * HEADS * DEPTH * pairs, rel=0.06)


@given(st.booleans(), st.integers(1, 30), st.integers(0, 30))
def test_a_wider_window_is_no_less_work_and_the_widest_is_none(
    causal: bool, window: int, more: int
) -> None:
    narrow, wide = (FusedAttention(1.0, causal, window=each) for each in (window, window + more))
    plain = FusedAttention(1.0, causal)
    assert flops(narrow, 24, 24) <= flops(wide, 24, 24) <= flops(plain, 24, 24)
    if window >= 24:
        assert flops(narrow, 24, 24) == flops(plain, 24, 24)


@given(st.booleans(), st.integers(0, 40))
def test_utilisation_counts_windows_and_no_causal_mask(causal: bool, window: int) -> None:
    types = operands(24, 24)
    op = FusedAttention(1.0, causal, window=window)
    whole = flops(FusedAttention(1.0, window=window), 24, 24)
    assert op.model_flops(types, op.infer(*types)) == whole


@given(st.booleans(), st.integers(0, 40), st.sampled_from((1, 2, 4)))
def test_blocks_of_columns_are_as_much_work_as_all_columns(
    causal: bool, window: int, blocks: int
) -> None:
    op = FusedAttentionGradient(1.0, causal, window=window)

    def work(columns: int, blocks: int) -> float:
        query, key, value = operands(32, columns)
        types = query, key, value, query, query
        return float(op.block_work(types, op.infer(*types), blocks).flops)

    assert blocks * work(32 // blocks, blocks) == pytest.approx(work(32, 1))


@pytest.mark.parametrize("pieces", [2, 4, 8])
@pytest.mark.parametrize("window", [0, 100, 1000, 2000, 3900, 5000])
def test_the_last_of_several_runs_of_rows_sees_most(pieces: int, window: int) -> None:
    length = 4000
    places = np.arange(length)
    counts = seen(places, places, True, window).sum(axis=1).reshape(pieces, -1).sum(axis=1)
    op = FusedAttention(1.0, causal=True, window=window)
    assert counts.max() == counts[-1]
    for blocks in (1, pieces):
        found = op.unevenness(pieces, operands(length // pieces, length // blocks), blocks)
        assert found == pytest.approx(counts.max() / counts.mean(), rel=0.002)
