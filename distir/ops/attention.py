"""Fused attention: one kernel that never writes the scores to memory (Dao et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from distir.cost.amounts import larger, smaller
from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, NodeBuilder, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Dims, Kind, Signature, SignatureBuilder
from distir.ir.types import DType, TensorType
from distir.ops.activations import Dropout, kept_elements
from distir.ops.arithmetic import Add
from distir.ops.base import sum_to_shape
from distir.ops.linalg import MatMul
from distir.ops.norm import Softmax, softmax
from distir.ops.ring import COLUMNS, ROWS, Circulating
from distir.ops.tensor import Expand, Reshape, Scale, Transpose

_STRIDE = 0x9E3779B1
"""Distance between the numbers by which dropout tells the query heads of a group apart."""


def _attention_dims(
    operands: Sequence[TensorType], summed: Kind
) -> tuple[SignatureBuilder, Dims, Dims, Dims, Dims]:
    """A signature builder, and the dims of query, key, value and result.

    The first loops are batch, groups, queries per group, rows (`ROWS`) and columns (`COLUMNS`); the
    heads of queries are `groups × queries per group`. `summed` is the kind of the loops that keys
    and values do not carry.
    """
    query, key, value = operands[:3]
    batch, heads, rows, depth = query.shape
    groups, columns = key.shape[1:3]
    builder = SignatureBuilder()
    b = builder.positional(batch)
    group = builder.positional(groups)
    per_group = builder.positional(heads // groups, summed)
    row = builder.positional(rows, summed)
    column = builder.positional(columns, Kind.WHOLE)
    inner = builder.loop(depth, Kind.WHOLE)
    outer = builder.loop(value.shape[3], Kind.WHOLE)
    return (
        builder,
        (b, group + per_group, row, inner),
        (b, group, column, inner),
        (b, group, column, outer),
        (b, group + per_group, row, outer),
    )


_AttentionOp: TypeAlias = "_CirculatingAttention | FusedAttentionScoreGradient"


def _scores(op: _AttentionOp, indices: Mapping[int, Array], operands: Sequence[Array]) -> Array:
    """The scaled and masked scores, `[batch, groups, queries per group, rows, columns]`. The first
    operands are query and key; operand `op.mask`, if present, is a mask over all columns."""
    import numpy as np

    query, key = operands[:2]
    mask = operands[op.mask] if len(operands) > op.mask else None
    batch, heads, _, depth = query.shape
    rows, columns = (
        indices.get(loop, np.arange(x.shape[2], dtype=np.int64))
        for loop, x in ((ROWS, query), (COLUMNS, key))
    )
    groups = key.shape[1]
    grouped = query.reshape(batch, groups, heads // groups, query.shape[2], depth)
    scores = op.scale * np.einsum("bgrsd,bgnd->bgrsn", grouped, key, optimize=True)
    if mask is not None:
        mask = mask[..., columns] if mask.shape[-1] not in (1, len(columns)) else mask
        scores = scores + np.broadcast_to(mask, (batch, heads, *scores.shape[3:])).reshape(
            scores.shape
        )
    if op.causal or op.window:
        scores = np.where(seen(rows, columns, op.causal, op.window), scores, -np.inf)
    return scores


def seen(rows: Array, columns: Array, causal: bool, window: int) -> Array:
    """Whether rows see columns, of shape `[rows, columns]`, given the positions of both; see
    `FusedAttention`."""
    import numpy as np

    ahead = columns[None, :] - rows[:, None]
    before = ahead <= 0 if causal else np.ones(ahead.shape, np.bool_)
    return before & (np.abs(ahead) < window) if window else before


def _near(window: int, columns: float) -> float:
    """The window as a share of all columns; 1: no row is farther away from any."""
    return smaller(window, columns) / columns if window else 1.0


def _share_near(window: int, columns: float) -> float:
    """The mean share of all `columns` that lie within the window of a row, if there are as many
    rows; of long sequences, so that the diagonal does not count."""
    near = _near(window, columns)
    return near * (2 - near)


def _share_seen(op: _AttentionOp, columns: float) -> float:
    """The mean share of all `columns` that a row sees."""
    return _share_near(op.window, columns) * (0.5 if op.causal else 1.0)


def _flops(query: TensorType, key: TensorType, value: TensorType, share: float) -> float:
    """FLOPs of the two products over a share of all pairs of a row and a column."""
    batch, heads, rows, depth = query.shape
    pairs = batch * heads * rows * key.shape[2]
    return 2.0 * pairs * (depth + value.shape[3]) * share


def _attention_work(
    op: _AttentionOp,
    operands: Sequence[TensorType],
    results: Sequence[TensorType],
    times: float = 1.0,
    blocks: int = 1,
) -> Work:
    """The work of an op that does the products of the forward pass `times` times, on one of
    `blocks` equal blocks of columns. Operands are read once and results written once; scores are
    never written."""
    share = _share_seen(op, blocks * operands[1].shape[2])
    return Work(
        kind=OpClass.ATTENTION,
        flops=times * _flops(operands[0], operands[1], operands[2], share),
        bytes_read=sum(t.size_bytes for t in operands),
        bytes_written=sum(t.size_bytes for t in results),
        dtype=results[0].dtype.short_name,
    )


@dataclass(frozen=True, slots=True)
class OnlineSoftmax:
    """Running sums of an online softmax over blocks of columns (Milakov and Gimelshein 2018).

    `highest` is the largest score so far, `total` the sum of `exp(score − highest)`, and `weighted`
    the sum of values weighted by these and by dropout. Shapes are
    `[batch, groups, queries per group, rows, 1 or depth]`.
    """

    highest: Array
    total: Array
    weighted: Array


def _with_columns(
    scores: Array, kept: Array, value: Array, before: OnlineSoftmax | None
) -> OnlineSoftmax:
    """The running sums with one more block of columns."""
    import numpy as np

    highest = scores.max(-1, keepdims=True)
    highest = highest if before is None else np.maximum(highest, before.highest)
    # The scores of a row that may not attend to any column so far are all −∞.
    shift = np.where(np.isfinite(highest), highest, 0.0)
    weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True)
    weighted = np.einsum("bgrsn,bgne->bgrse", weights * kept, value, optimize=True)
    if before is not None:
        faded = np.exp(before.highest - shift)
        total, weighted = total + faded * before.total, weighted + faded * before.weighted
    return OnlineSoftmax(highest, total, weighted)


class _CirculatingAttention(Circulating):
    """Base of the ops of attention that can be computed block of columns by block of columns."""

    __slots__ = ()
    travelling: ClassVar[tuple[int, ...]] = (1, 2)
    scale: float
    causal: bool
    dropout: float
    seed: int
    window: int
    mask: ClassVar[int]
    products: ClassVar[float] = 1.0
    """How often it does the products of the forward pass."""

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.block_work(operands, results, 1)

    def block_work(
        self, operands: Sequence[TensorType], results: Sequence[TensorType], blocks: int
    ) -> Work:
        return _attention_work(self, operands, results, self.products, blocks)

    def unevenness(self, pieces: int, operands: Sequence[TensorType], blocks: int) -> float:
        columns = blocks * operands[1].shape[2]
        if not self.causal:
            return 1.0  # with a window the ends of the sequence have less, which is not counted
        # The last of `pieces` runs sees the whole window, but for the part of it that reaches
        # beyond the first column of the sequence from its first rows.
        near = _near(self.window, columns)
        beyond = larger(near - 1 + 1 / pieces, 0.0)
        return (near - pieces * beyond**2 / 2) / _share_seen(self, columns)

    def meet(
        self,
        known: OnlineSoftmax | None,
        indices: Mapping[int, Array],
        operands: Sequence[Array],
    ) -> OnlineSoftmax:
        scores = _scores(self, indices, operands)
        return _with_columns(scores, _kept(self, indices, scores.shape), operands[2], known)


@register_op("FusedAttention")
@dataclass(frozen=True, slots=True)
class FusedAttention(_CirculatingAttention):
    """`softmax(scale · query @ keyᵀ + mask) @ value` over `[batch, heads, sequence, depth]`.

    Keys and values may have fewer heads, each shared by a group of query heads. The optional fourth
    operand is an additive mask that broadcasts to `[batch, heads, rows, columns]`. A fraction
    `dropout` of the weights is dropped after the softmax, as by `Dropout`. The backward pass draws
    the same random numbers again, so that no mask is kept. Where it is `causal`, rows do not see
    later columns; where it has a `window`, they see those alone that are less than that many
    positions away, as layers with a sliding window do (Beltagy et al. 2020); 0: all.
    """

    mask: ClassVar[int] = 3

    scale: float
    causal: bool = False
    dropout: float = 0.0
    seed: int = 0
    window: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        query, key, value = operands[:3]
        fits = (
            query.rank == key.rank == value.rank == 4
            and query.shape[0] == key.shape[0] == value.shape[0]
            and key.shape[1] == value.shape[1]
            and query.shape[1] % key.shape[1] == 0
            and key.shape[2] == value.shape[2]
            and query.shape[3] == key.shape[3]
        )
        if not fits:
            raise ShapeError(
                f"FusedAttention: query {query}, key {key}, value {value}; expected "
                "[batch, heads, rows, depth], [batch, groups, columns, depth], "
                "[batch, groups, columns, depth]"
            )
        return (query.with_shape((*query.shape[:3], value.shape[3])),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, query, key, value, result = _attention_dims(operands, Kind.PARALLEL)
        dims = _with_mask((query, key, value), operands)
        return builder.build(dims, (result,))

    def model_flops(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        share = _share_near(self.window, operands[1].shape[2])
        return _flops(operands[0], operands[1], operands[2], share)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        query, value = operands[0], operands[2]
        weights = softmax(_scores(self, indices, operands), -1)
        weights = weights * _kept(self, indices, weights.shape)
        result = np.einsum("bgrsn,bgne->bgrse", weights, value, optimize=True)
        return (result.reshape(*query.shape[:3], value.shape[3]),)

    def conclude(
        self, known: OnlineSoftmax, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> tuple[Array, ...]:
        shape = (*operands[0].shape[:3], operands[2].shape[3])
        return ((known.weighted / known.total).reshape(shape),)

    def derivative(self, back: Backward) -> Gradients:
        how = (self.scale, self.causal, self.dropout, self.seed, self.window)
        op = FusedAttentionGradient(*how)
        operands = (*back.operands[:3], back.result, back.gradient, *back.operands[3:])
        results = back.builder.apply(op, *operands)
        if len(back.wanted) < 4 or not back.wanted[3]:
            return (*results, *(None for _ in back.operands[3:]))
        # A trained mask, such as a relative bias: sums of the gradients of all scores.
        mask = back.operands[3]
        scores = back.add(FusedAttentionScoreGradient(*how), *operands)
        return (*results, sum_to_shape(back.builder, scores, mask.type.shape))


def spell_out(
    builder: NodeBuilder,
    op: FusedAttention,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
) -> Value:
    """Adds the ops that compute attention with products and a softmax. Keys and values that query
    heads share are repeated; dropout then draws other elements than in the fused op."""
    times = query.type.shape[1] // key.type.shape[1]
    turned = builder.add(Transpose((0, 1, 3, 2)), _repeated(builder, key, times))
    scores = builder.add(MatMul(), query, turned)
    if op.scale != 1.0:
        scores = builder.add(Scale(op.scale), scores)
    if mask is not None:
        scores = builder.add(Add(), scores, mask)
    if op.causal or op.window:
        rows, columns = scores.type.shape[2:]
        hidden = hiding_mask(builder, rows, columns, causal=op.causal, window=op.window)
        scores = builder.add(Add(), scores, hidden)
    weights = builder.add(Softmax(), scores)
    if op.dropout:
        weights = builder.apply(Dropout(op.dropout, op.seed), weights)[0]
    return builder.add(MatMul(), weights, _repeated(builder, value, times))


def hiding_mask(
    builder: NodeBuilder, rows: int, columns: int, *, causal: bool, window: int = 0
) -> Value:
    """The additive mask `[rows, columns]` that hides from a row what it does not see."""
    import numpy as np

    hidden = ~seen(np.arange(rows), np.arange(columns), causal, window)
    name = "window_mask" if window else "causal_mask"
    return builder.constant(hidden * np.finfo(np.float32).min, DType.FLOAT32, name)


def _repeated(builder: NodeBuilder, x: Value, times: int) -> Value:
    """`[batch, heads, …] -> [batch, heads · times, …]`, with each head repeated `times` times."""
    if times == 1:
        return x
    batch, heads, *rest = x.type.shape
    x = builder.add(Reshape((batch, heads, 1, *rest)), x)
    x = builder.add(Expand((batch, heads, times, *rest)), x)
    return builder.add(Reshape((batch, heads * times, *rest)), x)


def _kept(op: _AttentionOp, indices: Mapping[int, Array], shape: Sequence[int]) -> Array:
    """The factors by which dropout multiplies attention weights of this shape,
    `[batch, groups, queries per group, rows, columns]`. With one query head per group, they equal
    those of `Dropout` on `[batch, heads, rows, columns]`."""
    import numpy as np

    if op.dropout == 0:
        return np.ones(1)
    batch, groups, queries, rows, columns = (
        indices.get(loop, np.arange(size)).astype(np.int64) for loop, size in enumerate(shape)
    )
    # The number of a head must not depend on how many query heads of its group a device holds.
    heads = (groups[:, None] + queries * _STRIDE).reshape(-1)
    flat = (len(batch), len(heads), len(rows), len(columns))
    places = dict(enumerate((batch, heads, rows, columns)))
    kept = kept_elements(op.dropout, op.seed, flat, places)
    return kept.reshape(shape) / (1 - op.dropout)


def _with_mask(dims: Sequence[Dims], operands: Sequence[TensorType]) -> Sequence[Dims]:
    """The dims of all operands, given those without the mask, which comes last if there is one."""
    if len(operands) == len(dims):
        return dims
    (query, key), mask = dims[:2], operands[-1]
    aligned = (query[0], query[1], query[2], key[2])[4 - mask.rank :]
    of_mask = tuple(() if n == 1 else loops for n, loops in zip(mask.shape, aligned, strict=True))
    return (*dims, of_mask)


@register_op("FusedAttentionGradient")
@dataclass(frozen=True, slots=True)
class FusedAttentionGradient(_CirculatingAttention):
    """Gradients of query, key and value. Operands are these, the result, its gradient, and the mask
    if there is one. Gradients of keys and values are summed over rows and queries per group.

    The scores and the sums of the softmax are computed again. (Kernels keep one number per row and
    head from the forward pass, which is not counted.)
    """

    mask: ClassVar[int] = 5
    returning: ClassVar[tuple[int, ...]] = (1, 2)
    products: ClassVar[float] = 2.5
    """Five products against the forward pass's two (Dao et al. 2022, algorithm 4)."""

    scale: float
    causal: bool
    dropout: float = 0.0
    seed: int = 0
    window: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands[:3]

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, query, key, value, result = _attention_dims(operands, Kind.SUM)
        dims = _with_mask((query, key, value, result, result), operands)
        return builder.build(dims, (query, key, value))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:

        return self._gradients(softmax(_scores(self, indices, operands), -1), indices, operands)

    def conclude(
        self, known: OnlineSoftmax, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> tuple[Array, ...]:
        import numpy as np

        shift = np.where(np.isfinite(known.highest), known.highest, 0.0)
        weights = np.exp(_scores(self, indices, operands) - shift) / known.total
        return self._gradients(weights, indices, operands)

    def _gradients(
        self, weights: Array, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> tuple[Array, ...]:
        """The gradients from the softmax's weights of all columns, or the share of some columns."""
        import numpy as np

        query, key, value, result, gradient = operands[:5]
        kept = _kept(self, indices, weights.shape)
        of_scores = self.scale * _score_gradient(weights, kept, value, result, gradient)
        grouped = gradient.reshape(*weights.shape[:3], query.shape[2], value.shape[3])
        of_value = np.einsum("bgrsn,bgrse->bgne", weights * kept, grouped, optimize=True)
        of_query = np.einsum("bgrsn,bgnd->bgrsd", of_scores, key, optimize=True)
        of_key = np.einsum(
            "bgrsn,bgrsd->bgnd",
            of_scores,
            query.reshape(*weights.shape[:3], *query.shape[2:]),
            optimize=True,
        )
        return (of_query.reshape(query.shape), of_key, of_value)


def _score_gradient(
    weights: Array, kept: Array, value: Array, result: Array, gradient: Array
) -> Array:
    """The gradient of the masked scores. The inner product of the result and its gradient is the
    weighted mean of the weights' gradients over all columns (Dao et al. 2022, appendix B)."""
    import numpy as np

    shape = (*weights.shape[:4], value.shape[3])
    grouped = gradient.reshape(shape)
    of_weights = kept * np.einsum("bgrse,bgne->bgrsn", grouped, value, optimize=True)
    inner = (grouped * result.reshape(shape)).sum(-1, keepdims=True)
    return weights * (of_weights - inner)


@register_op("FusedAttentionScoreGradient")
@dataclass(frozen=True, slots=True)
class FusedAttentionScoreGradient(Op):
    """The gradient of the scores, `[batch, heads, rows, columns]`, for masks that are trained. The
    operands are those of FusedAttentionGradient."""

    mask: ClassVar[int] = 5

    scale: float
    causal: bool
    dropout: float = 0.0
    seed: int = 0
    window: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        query, key = operands[:2]
        return (query.with_shape((*query.shape[:3], key.shape[2])),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, query, key, value, result = _attention_dims(operands, Kind.PARALLEL)
        dims = _with_mask((query, key, value, result, result), operands)
        return builder.build(dims, ((query[0], query[1], query[2], key[2]),))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return _attention_work(self, operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:

        query, key, value, result, gradient = operands[:5]
        weights = softmax(_scores(self, indices, operands), -1)
        kept = _kept(self, indices, weights.shape)
        scores = _score_gradient(weights, kept, value, result, gradient)
        return (scores.reshape(*query.shape[:3], key.shape[2]),)
