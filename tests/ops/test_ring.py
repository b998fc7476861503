"""What travels round the devices comes to the same as if it had been gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from distir.ops.attention import FusedAttention
from distir.ops.collective import Window
from distir.ops.ring import COLUMNS, ROWS, Circulating, Ring
from tests.ops.cases import CASES
from tests.ops.makers import Case, real

Array = Any

CIRCULATING = [case for case in CASES if isinstance(case.op, Circulating)]


def split(op: Circulating, arrays: Sequence[Array], rows: int, columns: int, n: int) -> list[Any]:
    """Operands of `n` devices: what has rows, or travels, in parts along its sequence."""
    found: list[list[Array]] = [[] for _ in range(n)]
    for position, array in enumerate(arrays):
        has_rows = position not in op.travelling and array.shape[-2] == rows
        if has_rows or position in op.travelling:
            parts = np.split(array, n, axis=-2)
        else:
            parts = [array] * n
        for own, part in zip(found, parts, strict=True):
            own.append(part)
    return found


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("case", CIRCULATING, ids=lambda case: case.label)
def test_devices_in_a_ring_compute_what_one_device_computes(case: Case, n: int) -> None:
    op, arrays = case.op, case.arrays()
    assert isinstance(op, Circulating)
    rows, columns = arrays[0].shape[2], arrays[1].shape[2]
    whole = op.evaluate(*arrays)
    windows = tuple(
        Window(loop, ((size, (("cp", n),)),)) for loop, size in ((ROWS, rows), (COLUMNS, columns))
    )
    ring = Ring(op, ("cp",), n, windows)
    made = ring.exchange([{"cp": i} for i in range(n)], split(op, arrays, rows, columns, n))
    for place, result in enumerate(whole):
        joined = np.concatenate([each[place] for each in made], axis=-2)
        np.testing.assert_allclose(joined, result, rtol=1e-12, atol=1e-13)
    shards = [type.with_shape(np.shape(a)) for type, a in zip(
        case.types(), split(op, arrays, rows, columns, n)[0], strict=True)]  # fmt: skip
    assert [type.shape for type in ring.infer(*shards)] == [np.shape(each) for each in made[0]]


def test_columns_may_come_in_any_order() -> None:
    """What rows know does not depend on what they met first."""
    rng = np.random.default_rng(1)
    operands = [real(2, 4, 6, 3)(rng), real(2, 2, 6, 3)(rng), real(2, 2, 6, 2)(rng)]
    op = FusedAttention(0.5, causal=True)
    (truth,) = op.evaluate(*operands)
    # Row 0 may attend to column 0 alone: in the first block it meets nothing.
    for order in ([3, 4, 5, 0, 1, 2], [5, 1, 3, 0, 2, 4]):
        known: Any = None
        for block in np.split(np.array(order), 3):
            at = [operands[0], operands[1][:, :, block], operands[2][:, :, block]]
            known = op.meet(known, {COLUMNS: block}, at)
        (found,) = op.conclude(known, {}, operands)
        np.testing.assert_allclose(found, truth, rtol=1e-12)
