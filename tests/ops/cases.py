"""Ops with operands to try them on: what the contract tests run over.

Listed are those that need attributes, or operands of certain sizes and values; `derived.py` finds
operands for the others.
"""

from __future__ import annotations

import itertools

import numpy as np

from distir.ir import DType, Op
from distir.ops import (
    OPS,
    attention,
    channel_norm,
    conv,
    fourier,
    linalg,
    lookup,
    loss,
    norm,
    optimizer,
    padding,
    pooling,
    positions,
    recurrent,
    routing,
    sampling,
    tensor,
)
from distir.ops import reduce as reductions
from distir.ops.activations import (
    Clip,
    Dropout,
    DropoutGradient,
    Elu,
    Gelu,
    HardSigmoid,
    LeakyRelu,
    Silu,
    Tanh,
)
from distir.ops.arithmetic import Log, Mod, Sum
from distir.ops.collective import Distributed
from distir.ops.comparisons import Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Where
from distir.ops.elementwise import Cast, UnaryGradient
from distir.ops.fused import Fused
from tests.ops.derived import BROADCAST, S, derived_cases
from tests.ops.makers import Case, Maker, booleans, from_either_end, integers, positive, real


def _case(op: Op, *makers: Maker) -> Case:
    return Case(op, makers)


t, n, p, x = tensor, norm, positions, lookup


def _elementwise() -> list[Case]:
    one = [
        Gelu(), Gelu("tanh"), Cast(DType.FLOAT32), Cast(DType.BOOL), LeakyRelu(0.1), Elu(0.7),
        HardSigmoid(0.3, 0.4), Clip(-0.9, 1.1), Clip(0.2), Dropout(0.0), Dropout(0.3, seed=5),
        t.Scale(0.7),
    ]  # fmt: skip
    cases = [_case(op, real(*S)) for op in one]
    cases += [_case(Gelu(), real(2, 1, 4))]
    cases += [
        _case(UnaryGradient(op), positive(*S), real(*S)) for op in (Tanh(), Gelu(), Log(), Silu())
    ]
    cases += [_case(DropoutGradient(0.3), real(*S), booleans(*S))]
    cases += [
        _case(op, real(*a), positive(*b)) for op in (Mod(), Mod(fmod=True)) for a, b in BROADCAST
    ]
    compared = (Equal(), Greater(), GreaterOrEqual(), Less(), LessOrEqual())
    cases += [_case(op, integers(3, *S), integers(3, 6)) for op in compared]
    cases += [
        _case(Where(), booleans(*S), real(*S), real(6)),
        _case(Where(), booleans(4, 1), real(), real(*S)),
        _case(Sum(), real(*S), real(6), real(*S)),
        _case(Sum(), real(*S)),
    ]
    return cases


def _products() -> list[Case]:
    m = linalg.MatMul()
    shapes = (
        ((4, 6), (6, 2)), ((3, 4, 6), (6, 2)), ((3, 4, 6), (3, 6, 2)), ((2, 3, 4, 6), (3, 6, 2)),
        ((1, 4, 6), (3, 6, 2)), ((2, 1, 4, 6), (1, 3, 6, 2)), ((6,), (6, 2)), ((4, 6), (6,)),
        ((6,), (6,)), ((1, 6), (6, 4)), ((4, 1), (1, 4)), ((3, 1, 6), (6, 1)),
    )  # fmt: skip
    cases = [_case(m, real(*a), real(*b)) for a, b in shapes]
    cases += [
        _case(linalg.Gemm(), real(4, 6), real(6, 2)),
        _case(linalg.Gemm(0.5, 2.0, trans_b=True), real(4, 6), real(2, 6), real(2)),
        _case(linalg.Gemm(trans_a=True), real(6, 4), real(6, 2), real(4, 1)),
        _case(linalg.Gemm(1.0, 0.3, True, True), real(6, 4), real(2, 6), real(4, 2)),
        _case(linalg.Einsum("bsk,kn->bsn"), real(2, 3, 4), real(4, 6)),
        _case(linalg.Einsum("bhsd,bhtd->bhst"), real(2, 3, 4, 6), real(2, 3, 2, 6)),
        _case(linalg.Einsum("ab,b,cb->ac"), real(2, 4), real(4), real(3, 4)),
    ]
    return cases


def _moves() -> list[Case]:
    shapes = (((4, 6), (2, 2, 6)), ((2, 2, 6), (4, 6)), ((4, 6), (6, 4)), ((4, 1, 6), (24,)))
    cases = [_case(t.Reshape(b), real(*a)) for a, b in shapes]
    full, head = ((0, 0), (None, None), (1, 1)), ((0, 0), (None, 2), (1, 1))
    cases += [
        _case(t.Reshape((8, 3, 64)), real(2, 4, 192)),
        _case(t.Transpose((2, 0, 1)), real(2, 3, 4)),
        _case(t.Expand((3, 4, 6)), real(4, 1)),
        _case(t.Expand((4, 6)), real(4, 6)),
        _case(t.Concat(1), real(4, 2), real(4, 2), real(4, 2)),
        _case(t.Concat(-1), real(4, 2), real(4, 4)),
        _case(t.Split(1, (2, 2, 2)), real(4, 6)),
        _case(t.Split(-1, (2, 4)), real(4, 6)),
        _case(t.Slice(*full), real(4, 6)),
        _case(t.Slice(*head), real(4, 6)),
        _case(t.Slice((0, 5), (None, None), (1, -2)), real(4, 6)),
        _case(t.Slice((0, -4), (None, None), (1, 1)), real(4, 6)),
        _case(t.SliceGradient((4, 6), *head), real(4, 2)),
        _case(x.Gather(0), real(6, 4), integers(6, 3, 2)),
        _case(x.Gather(1), real(2, 6, 4), integers(6, 3)),
        _case(x.Gather(1), real(2, 6, 4), integers(6)),
        _case(x.Gather(0), real(6, 4), from_either_end(6, 3, 2)),
        _case(x.GatherGradient(0, (6, 4)), from_either_end(6, 3, 2), real(3, 2, 4)),
        _case(x.GatherGradient(0, (6, 4)), integers(6, 3, 2), real(3, 2, 4)),
        _case(x.GatherGradient(1, (2, 6, 4)), integers(6, 3), real(2, 3, 4)),
        _case(t.Boundary((((4, True),), ((2, False), (3, True)))), real(4, 6)),
    ]
    return cases


def _indexing() -> list[Case]:
    pairs: Maker = lambda rng: np.stack([rng.integers(0, 4, (5,)), rng.integers(0, 6, (5,))], -1)  # noqa: E731
    apart: Maker = lambda rng: np.array([[0, 1], [3, 5], [2, 2]])  # noqa: E731
    columns: Maker = lambda rng: np.array([[0, 2], [3, 1], [5, 0], [4, 3]])  # noqa: E731
    return [
        _case(p.Pad((0, 1), (0, 2)), real(4, 6)),
        _case(p.Pad((1, 0), (0, 0), 0.5), real(4, 6)),
        _case(p.Trilu(), real(2, 4, 6)),
        _case(p.Trilu(False, -1), real(4, 6)),
        _case(p.CumSum(1), real(4, 6)),
        _case(p.CumSum(0, exclusive=True, reverse=True), real(4, 6)),
        _case(p.CumProd(1), positive(4, 6)),
        _case(p.CumProd(0, exclusive=True), positive(4, 6)),
        _case(p.CumProd(-1, exclusive=True, reverse=True), positive(4, 6)),
        _case(fourier.Fourier(1), real(4, 6, 2)),
        _case(fourier.Fourier(0, inverse=True), real(5, 4, 2)),
        _case(p.ArgMax(1), real(4, 6)),
        _case(p.ArgMax(-1, keepdims=False, last=True), integers(3, 4, 6)),
        _case(p.TopK(2), real(4, 6)),
        _case(p.TopK(3, 0, largest=False), real(4, 6)),
        _case(x.GatherElements(1), real(4, 6), integers(6, 4, 3)),
        _case(x.GatherElements(0), real(4, 6), integers(4, 2, 2)),
        _case(x.GatherElements(1), real(4, 6), from_either_end(6, 4, 3)),
        _case(x.GatherElementsGradient(1, (4, 6)), from_either_end(6, 4, 3), real(4, 3)),
        _case(x.GatherElementsGradient(1, (4, 6)), integers(6, 4, 3), real(4, 3)),
        _case(x.ScatterElements(1), real(4, 6), columns, real(4, 2)),
        _case(x.ScatterElements(1, adds=True), real(4, 6), integers(6, 4, 3), real(4, 3)),
        _case(x.GatherND(), real(4, 6, 2), pairs),
        _case(x.GatherND(1), real(4, 6, 2), integers(6, 4, 3, 1)),
        _case(x.GatherNDGradient(0, (4, 6, 2)), pairs, real(5, 2)),
        _case(x.GatherNDGradient(1, (4, 6, 2)), integers(6, 4, 3, 1), real(4, 3, 2)),
        _case(x.ScatterND(), real(4, 6, 2), apart, real(3, 2)),
        _case(x.ScatterND(adds=True), real(4, 6, 2), pairs, real(5, 2)),
    ]


def _norms() -> list[Case]:
    cases = [_case(op, real(2, 4, 6)) for op in (n.Softmax(), n.Softmax(1), n.LogSoftmax())]
    cases += [
        _case(n.SoftmaxGradient(), positive(4, 6), real(4, 6)),
        _case(n.LayerNormalization(), real(2, 4, 6), positive(6), real(6)),
        _case(n.LayerNormalization(1, 1e-2), real(2, 4, 6), positive(4, 6)),
        _case(n.RMSNormalization(), real(2, 4, 6), positive(6)),
        _case(n.NormalizationGradient(2, 1e-3, True), real(2, 4, 6), positive(6), real(2, 4, 6)),
        _case(n.NormalizationGradient(1, 1e-3, False), real(4, 6), positive(6), real(4, 6)),
        _case(n.NormalizationScaleGradient(2, 1e-3, True), real(2, 4, 6), real(2, 4, 6)),
        _case(channel_norm.BatchNormalization(), real(2, 4, 3), *[positive(4)] * 4),
        _case(channel_norm.LRN(3, 0.5, 0.6, 1.2), real(2, 5, 3)),
        _case(channel_norm.LRN(4, 0.5), real(2, 6, 2, 2)),
        _case(channel_norm.LRNGradient(channel_norm.LRN(4, 0.5)), real(2, 6, 3), real(2, 6, 3)),
    ]
    return cases


def _reductions() -> list[Case]:
    cases: list[Case] = []
    for cls in (reductions.ReduceSum, reductions.ReduceMean, reductions.ReduceMax):
        cases += [
            _case(cls((1,)), real(4, 6)),
            _case(cls((0, 2), keepdims=False), real(2, 3, 4)),
            _case(cls((-1,), keepdims=False), real(4, 6)),
        ]
    cases += [_case(reductions.ReduceMeanGradient((1,), (4, 6)), real(4, 1))]
    cases += [_case(reductions.ReduceProd((1,), keepdims=False), positive(4, 3))]
    return cases


def _attention() -> list[Case]:
    fused = attention.FusedAttention
    grouped = (real(2, 4, 4, 3), real(2, 2, 4, 3), real(2, 2, 4, 2))
    mask = real(2, 1, 4, 4)
    gradient = attention.FusedAttentionGradient
    result = real(2, 4, 4, 2)
    return [
        _case(fused(0.5), *grouped),
        _case(fused(0.5, causal=True), *grouped),
        _case(fused(0.5), *grouped, mask),
        _case(fused(0.5, causal=True), *grouped, real(4, 4)),
        _case(fused(0.5, dropout=0.3, seed=2), *grouped, mask),
        _case(fused(0.5, causal=True, window=2), *grouped),
        _case(fused(0.5, window=2), *grouped, mask),
        _case(gradient(0.5, False), *grouped, result, result),
        _case(gradient(0.5, True), *grouped, result, result, mask),
        _case(gradient(0.5, True, 0.3, 2), *grouped, result, result, mask),
        _case(gradient(0.5, True, window=2), *grouped, result, result, mask),
        _case(gradient(0.5, False, window=3), *grouped, result, result),
        _case(attention.FusedAttentionScoreGradient(0.5, True), *grouped, result, result, mask),
        _case(attention.FusedAttentionScoreGradient(0.5, False), *grouped, result, result),
        _case(attention.FusedAttentionScoreGradient(0.5, True, window=2), *grouped, result, result),
        _case(attention.FusedAttentionScoreGradient(0.5, False, 0.3, 2), *grouped, result, result),
    ]


def _convolutions() -> list[Case]:
    one, two = ((1, 1), (1, 1, 1, 1), (1, 1)), ((2, 1), (0, 1, 1, 1), (1, 2))
    pool = ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1))
    wide = ((3, 2), (2, 1), (1, 0, 1, 1), (1, 1))
    average = pooling.AveragePool(*wide, (0, 1))
    return [
        _case(conv.Conv(*one), real(2, 4, 4, 3), real(6, 4, 3, 3)),
        _case(conv.Conv(*two, group=2), real(2, 4, 6, 6), real(6, 2, 2, 3)),
        _case(conv.Conv(*one, group=4), real(2, 4, 4, 4), real(4, 1, 3, 3)),
        _case(conv.Conv((2,), (1, 0), (1,)), real(2, 4, 8), real(2, 4, 3)),
        _case(conv.ConvTranspose((4, 3), *one), real(2, 6, 4, 3), real(6, 4, 3, 3)),
        _case(conv.ConvTranspose((7, 5), *two, group=2), real(2, 6, 4, 3), real(6, 2, 2, 3)),
        _case(conv.ConvWeightGradient((3, 3), *one), real(2, 4, 4, 3), real(2, 6, 4, 3)),
        _case(conv.ConvWeightGradient((2, 3), *two, group=2), real(2, 4, 7, 5), real(2, 6, 4, 3)),
        _case(pooling.MaxPool(*pool), real(2, 4, 4, 6)),
        _case(pooling.MaxPool(*wide), real(2, 2, 5, 4)),
        _case(pooling.MaxPoolGradient(*pool), real(2, 4, 4, 6), real(2, 4, 2, 3), real(2, 4, 2, 3)),
        _case(average, real(2, 2, 5, 4)),
        _case(pooling.AveragePool(*pool, (0, 0), count_include_pad=True), real(2, 4, 4, 6)),
        _case(pooling.AveragePoolGradient(average, (5, 4)), real(2, 2, 3, 4)),
    ]


def _samplings() -> list[Case]:
    """Places within space and beyond its ends, reflected once and twice."""
    ways = [
        ("linear", "zeros", False), ("linear", "border", True), ("linear", "reflection", False),
        ("cubic", "zeros", True), ("cubic", "border", False), ("cubic", "reflection", True),
        ("nearest", "reflection", False),
    ]  # fmt: skip
    x, grid, samples = real(2, 4, 4, 6), real(2, 3, 5, 2), real(2, 4, 3, 5)
    cases = [_case(sampling.GridSample(*way), x, grid) for way in ways]
    cases += [_case(sampling.GridSampleGradient((4, 6), *way), grid, samples) for way in ways]
    cases += [_case(sampling.GridSamplePlaceGradient(*way), x, grid, samples) for way in ways[:6]]
    line, at = real(1, 1, 1, 3), real(1, 2, 1, 2)  # of one row
    cases += [_case(sampling.GridSample(*way), line, at) for way in ways]
    volume, places = real(2, 2, 2, 3, 4), real(2, 1, 3, 2, 3)
    return [*cases, _case(sampling.GridSample(), volume, places)]


def _routing() -> list[Case]:
    """Two sequences of 16 tokens, 6 experts with 8 slots each (their share is 16 · 2 / 6)."""
    mask, weights = booleans(2, 16, 6), real(2, 16, 6)
    tokens, slots = real(2, 16, 2), real(2, 6, 8, 2)
    return [
        _case(routing.TopKMask(2), real(3, 5)),
        _case(routing.TopKMask(2, groups=4, chosen=2, best=2), real(3, 8)),
        _case(routing.Dispatch(2), tokens, mask),
        _case(routing.Dispatch(2, imbalance=3.0), tokens, mask),
        _case(routing.Dispatch(1), real(1, 6, 2), booleans(1, 6, 3)),
        _case(routing.Combine(2), slots, mask),
        _case(routing.DispatchWeights(2), weights, mask),
        _case(routing.DispatchWeights(2, imbalance=3.0), weights, mask),
        _case(routing.CombineWeights(), real(2, 6, 8, 1), mask),
    ]


def _recurrent() -> list[Case]:
    """Three steps of two samples with four hidden numbers, alone and with what was before."""
    cases: list[Case] = []
    layers = (recurrent.RNNSteps, recurrent.LSTMSteps, recurrent.GRUSteps)
    for cls, reverse in itertools.product(layers, (False, True)):
        op = cls(reverse)
        width, state, kept = op.gates * 4, real(3, 2, 4), real(3, 2, op.kept * 4)
        first = [real(2, 4)] * op.states
        layer = (real(3, 2, width), real(width, 4), real(width))
        made = (real(width, 4), *[state] * op.states, *[kept] * (op.kept > 0))
        cases += [_case(op, *layer), _case(op, *layer, *first)]
        cases += [_case(recurrent.RecurrenceGradient(op, (0,)), *made, state)]
        every = tuple(range(len(made) - 1))
        gradient = recurrent.RecurrenceGradient(op, every)
        cases += [_case(gradient, *made, *first, *made[1:])]
    rectified = recurrent.RNNSteps(rectified=True)
    products, states, first = real(3, 2, 8), real(3, 2, 4), real(2, 4)
    return [
        *cases,
        _case(rectified, real(3, 2, 4), real(4, 4), real(4)),
        _case(recurrent.RecurrenceWeightGradient(), products, states),
        _case(recurrent.RecurrenceWeightGradient(True), products, states, first),
    ]


def _training() -> list[Case]:
    return [
        _case(padding.MaskPadding(1, 4, lowest=False), real(3, 6)),
        _case(padding.MaskPadding(0, 3, lowest=False), real(6, 2)),
        _case(loss.CrossEntropy(), real(4, 6), integers(6, 4)),
        _case(loss.CrossEntropy(), real(2, 3, 4), integers(4, 2, 3)),
        _case(loss.CrossEntropyGradient(), real(4, 6), integers(6, 4), real(4)),
        _case(loss.PickLast(), real(4, 6), integers(6, 4)),
        _case(loss.PickLastGradient(6), integers(6, 4), real(4)),
        _case(loss.PickLast(), real(4, 6), from_either_end(6, 4)),
        _case(loss.PickLastGradient(6), from_either_end(6, 4), real(4)),
        _case(loss.SquaredError(), real(4, 6), real(4, 6)),
        _case(optimizer.SGDStep(0.1), real(4, 6), real(4, 6)),
        _case(optimizer.MomentumStep(0.1), *[real(4, 6)] * 3),
        _case(optimizer.NesterovStep(0.1), *[real(4, 6)] * 3),
        _case(optimizer.AdamStep(0.1, step=3), *[real(4, 6)] * 3, positive(4, 6)),
    ]


_LISTED: tuple[Case, ...] = (
    *_elementwise(),
    *_products(),
    *_moves(),
    *_indexing(),
    *_norms(),
    *_reductions(),
    *_attention(),
    *_convolutions(),
    *_samplings(),
    *_routing(),
    *_recurrent(),
    *_training(),
)

PLACED = (Distributed, Fused)
"""Ops of placed programs; the tests of plans cover them."""

_NAMES = {case.op.name for case in _LISTED}
CASES: tuple[Case, ...] = (
    *_LISTED,
    *(
        case
        for entry in OPS
        if entry.name not in _NAMES and not issubclass(entry.value, PLACED)
        for case in derived_cases(entry.value)
    ),
)
"""The listed cases, and those of ops that need no listing."""
