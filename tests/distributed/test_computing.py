"""PyTorch computes what NumPy computes: every op, by a kernel or by the op's own functions."""

# pyright: basic
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.distributed.backend import torch_installed
from distir.execute.computing import NUMPY
from distir.ir import DType
from distir.ops.activations import Dropout
from distir.ops.attention import FusedAttention, FusedAttentionGradient
from distir.ops.collective import Sharded, Window
from distir.ops.lookup import Gather
from distir.ops.ring import ROWS
from tests.ops.cases import CASES
from tests.ops.makers import Case

pytestmark = pytest.mark.skipif(not torch_installed(), reason="needs PyTorch: .[torch]")


def _drops(op: object) -> bool:
    return bool(getattr(op, "dropout", 0.0))


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)


def _operands(case: Case) -> list[Any]:
    """The operands of an op; the gradient of attention gets what attention made of the others."""
    arrays = case.arrays()
    if isinstance(case.op, FusedAttentionGradient):
        own = case.op
        op = FusedAttention(own.scale, own.causal, own.dropout, own.seed, own.window)
        (arrays[3],) = op.evaluate(*arrays[:3], *arrays[5:])
    return arrays


SECOND = {"tp": 1}
"""A place of a mesh of two devices."""


def _shard(case: Case, loop: int) -> Sharded:
    """The op on the second of two devices that split a loop, of which the case has a part."""
    size = 2 * case.arrays()[0].shape[{0: 0, ROWS: 2}[loop]]
    return Sharded(case.op, (Window(loop, ((size, (("tp", 2),)),)),))


@pytest.mark.parametrize("loop", [0, ROWS])
@pytest.mark.parametrize(
    "case",
    [c for c in CASES if isinstance(c.op, (FusedAttention, Gather)) and not _drops(c.op)],
    ids=lambda case: case.label,
)
def test_shards_are_numpys_wherever_they_are(case: Case, loop: int) -> None:
    if loop == ROWS and isinstance(case.op, Gather):
        pytest.skip("a lookup has no rows of scores")
    if getattr(case.op, "window", 0):  # wide enough that the last rows see some of the columns
        own: Any = case.op
        case = replace(case, op=replace(own, window=6))
    sharded = replace(case, op=_shard(case, loop))
    for found, expected in _both(sharded, exact=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def _both(case: Case, exact: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Results of an op in PyTorch and in NumPy."""
    from autotune.distributed.computing import TensorComputing
    from autotune.distributed.tensors import numpy_of

    torch = TensorComputing("cpu", exact=exact)
    types = case.types()
    results = [type.dtype for type in case.op.infer(*types)]
    held = [torch.held(a, t.dtype) for a, t in zip(_operands(case), types, strict=True)]
    found = torch.evaluate(case.op, SECOND, held, results)
    expected = NUMPY.evaluate(case.op, SECOND, _operands(case), results)
    return [(numpy_of(f), np.asarray(e)) for f, e in zip(found, expected, strict=True)]


@every_case
def test_ops_in_float64_are_numpys(case: Case) -> None:
    for found, expected in _both(case, exact=True):
        assert found.shape == expected.shape
        assert found.dtype.kind == expected.dtype.kind
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@every_case
def test_ops_in_their_own_types_are_numpys_but_for_rounding(case: Case) -> None:
    if getattr(case.op, "dropout", 0.0) or getattr(case.op, "ratio", 0.0):
        pytest.skip("PyTorch draws random numbers of its own")
    for found, expected in _both(case, exact=False):
        assert found.shape == expected.shape
        scale = max(1.0, float(np.max(np.abs(np.nan_to_num(expected)), initial=0.0)))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale)


def test_dropout_keeps_the_fraction_that_it_says_and_the_same_one_again() -> None:
    from autotune.distributed.computing import TensorComputing
    from autotune.distributed.tensors import numpy_of

    torch, types = TensorComputing("cpu"), [DType.FLOAT32, DType.BOOL]
    x = torch.held(np.ones((200, 200)), DType.FLOAT32)
    result, mask = map(numpy_of, torch.evaluate(Dropout(0.3, seed=4), {}, [x], types))
    again = numpy_of(torch.evaluate(Dropout(0.3, seed=4), {}, [x], types)[1])
    assert mask.mean() == pytest.approx(0.7, abs=0.02)
    np.testing.assert_allclose(result, mask / 0.7, rtol=1e-6)
    assert (mask == again).all()


@pytest.mark.parametrize("tf32", [True, False])
def test_gpus_multiply_fp32_in_tf32_if_asked_to_and_not_otherwise(tf32: bool) -> None:
    from autotune.distributed.backend import load_torch
    from autotune.distributed.computing import TensorComputing

    torch = load_torch()
    # Attributes that the modules make up on the way, which monkeypatch would delete.
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [each.allow_tf32 for each in backends]
    try:
        for each in backends:
            each.allow_tf32 = not tf32
        TensorComputing("cuda:0", tf32=tf32)
        assert [each.allow_tf32 for each in backends] == [tf32, tf32]
    finally:
        for each, own in zip(backends, before, strict=True):
            each.allow_tf32 = own
