"""Fused attention: the kernel that never writes the scores to memory (Dao et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

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
"""Between the numbers of the queries of a group."""


def _attention_dims(
    operands: Sequence[TensorType], summed: Kind
) -> tuple[SignatureBuilder, Dims, Dims, Dims, Dims]:
    """Dims of query, key, value and result. With grouped queries the heads are `groups × queries
    per group`. `summed` is the kind of the loops that keys and values do not carry. The first loops
    are batch, groups, queries per group, rows (`ROWS`) and columns (`COLUMNS`)."""
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


Attention: TypeAlias = "FusedAttention | FusedAttentionGradient | FusedAttentionScoreGradient"


def _scores(op: Attention, indices: Mapping[int, Array], operands: Sequence[Array]) -> Array:
    """Masked scaled scores `[batch, groups, queries per group, rows, columns]`. Operands are query,
    key, …, and a mask over all columns, if there is one."""
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
    if op.causal:
        allowed = rows[:, None] >= columns[None, :]
        scores = np.where(allowed, scores, -np.inf)
    return scores


def _flops(query: TensorType, key: TensorType, value: TensorType, causal: bool) -> float:
    """Two products over all pairs of row and column, half of them under a causal mask."""
    batch, heads, rows, depth = query.shape
    pairs = batch * heads * rows * key.shape[2]
    return 2.0 * pairs * (depth + value.shape[3]) * (0.5 if causal else 1.0)


def _attention_work(
    op: Attention,
    operands: Sequence[TensorType],
    results: Sequence[TensorType],
    times: float = 1.0,
) -> Work:
    """So many times the products of the forward pass; operands are read and results written once,
    scores never are."""
    return Work(
        kind=OpClass.ATTENTION,
        flops=times * _flops(operands[0], operands[1], operands[2], op.causal),
        bytes_read=sum(t.size_bytes for t in operands),
        bytes_written=sum(t.size_bytes for t in results),
        dtype=results[0].dtype.short_name,
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What rows know of the columns that they have met: the largest score, the sum of all
    exponentials, less that one, and the values weighted by those that are kept (Milakov and
    Gimelshein 2018). Shapes `[batch, groups, queries per group, rows, 1 or depth]`."""

    highest: Array
    total: Array
    weighted: Array


def _seen(scores: Array, kept: Array, value: Array, before: Seen | None) -> Seen:
    """With one more block of columns."""
    import numpy as np

    highest = scores.max(-1, keepdims=True)
    highest = highest if before is None else np.maximum(highest, before.highest)
    # A row that may attend to nothing so far has met only −∞.
    shift = np.where(np.isfinite(highest), highest, 0.0)
    weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True)
    weighted = np.einsum("bgrsn,bgne->bgrse", weights * kept, value, optimize=True)
    if before is not None:
        faded = np.exp(before.highest - shift)
        total, weighted = total + faded * before.total, weighted + faded * before.weighted
    return Seen(highest, total, weighted)


@register_op("FusedAttention")
@dataclass(frozen=True, slots=True)
class FusedAttention(Circulating):
    """`softmax(scale · query @ keyᵀ + mask) @ value` over `[batch, heads, sequence, depth]`.

    Keys and values may have fewer heads, each shared by a group of queries. The optional fourth
    operand is an additive mask that broadcasts to `[batch, heads, rows, columns]`. A fraction
    `dropout` of the weights is dropped after the softmax, as `Dropout` does; which ones is drawn
    again in the backward pass, so that no mask is kept.
    """

    mask: ClassVar[int] = 3
    travelling: ClassVar[tuple[int, ...]] = (1, 2)

    scale: float
    causal: bool = False
    dropout: float = 0.0
    seed: int = 0

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

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return _attention_work(self, operands, results)

    def model_flops(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        return _flops(operands[0], operands[1], operands[2], causal=False)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        query, value = operands[0], operands[2]
        weights = softmax(_scores(self, indices, operands), -1)
        weights = weights * _kept(self, indices, weights.shape)
        result = np.einsum("bgrsn,bgne->bgrse", weights, value, optimize=True)
        return (result.reshape(*query.shape[:3], value.shape[3]),)

    def unevenness(self, pieces: int) -> float:
        return 2 - 1 / pieces if self.causal else 1.0

    def meet(
        self, known: Seen | None, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> Seen:
        scores = _scores(self, indices, operands)
        return _seen(scores, _kept(self, indices, scores.shape), operands[2], known)

    def conclude(
        self, known: Seen, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> tuple[Array, ...]:
        shape = (*operands[0].shape[:3], operands[2].shape[3])
        return ((known.weighted / known.total).reshape(shape),)

    def derivative(self, back: Backward) -> Gradients:
        how = (self.scale, self.causal, self.dropout, self.seed)
        op = FusedAttentionGradient(*how)
        operands = (*back.operands[:3], back.result, back.gradient, *back.operands[3:])
        results = back.builder.apply(op, *operands)
        if len(back.wanted) < 4 or not back.wanted[3]:
            return (*results, *(None for _ in back.operands[3:]))
        # A trained mask, such as a relative bias: the gradient of every score, then its sums.
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
    """The same as products and a softmax. Keys and values are repeated where queries share them;
    then dropout draws other elements."""
    times = query.type.shape[1] // key.type.shape[1]
    turned = builder.add(Transpose((0, 1, 3, 2)), _repeated(builder, key, times))
    scores = builder.add(MatMul(), query, turned)
    if op.scale != 1.0:
        scores = builder.add(Scale(op.scale), scores)
    if mask is not None:
        scores = builder.add(Add(), scores, mask)
    if op.causal:
        scores = builder.add(Add(), scores, causal_mask(builder, *scores.type.shape[2:]))
    weights = builder.add(Softmax(), scores)
    if op.dropout:
        weights = builder.apply(Dropout(op.dropout, op.seed), weights)[0]
    return builder.add(MatMul(), weights, _repeated(builder, value, times))


def causal_mask(builder: NodeBuilder, rows: int, columns: int) -> Value:
    """The additive mask `[rows, columns]` that lets a row see no later column."""
    import numpy as np

    hidden = np.triu(np.ones((rows, columns)), 1)
    return builder.constant(hidden * np.finfo(np.float32).min, DType.FLOAT32, "causal_mask")


def _repeated(builder: NodeBuilder, x: Value, times: int) -> Value:
    """`[batch, heads, …] -> [batch, heads · times, …]`, each head `times` over."""
    if times == 1:
        return x
    batch, heads, *rest = x.type.shape
    x = builder.add(Reshape((batch, heads, 1, *rest)), x)
    x = builder.add(Expand((batch, heads, times, *rest)), x)
    return builder.add(Reshape((batch, heads * times, *rest)), x)


def _kept(op: Attention, indices: Mapping[int, Array], shape: Sequence[int]) -> Array:
    """What dropout multiplies weights `[batch, groups, queries per group, rows, columns]` by. Where
    no head of keys is shared, it is what `Dropout` of `[batch, heads, rows, columns]` would."""
    import numpy as np

    if op.dropout == 0:
        return np.ones(1)
    batch, groups, queries, rows, columns = (
        indices.get(loop, np.arange(size)).astype(np.int64) for loop, size in enumerate(shape)
    )
    # A number for a head that does not depend on how many queries a device holds of its group.
    heads = (groups[:, None] + queries * _STRIDE).reshape(-1)
    flat = (len(batch), len(heads), len(rows), len(columns))
    places = dict(enumerate((batch, heads, rows, columns)))
    kept = kept_elements(op.dropout, op.seed, flat, places)
    return kept.reshape(shape) / (1 - op.dropout)


def _with_mask(dims: Sequence[Dims], operands: Sequence[TensorType]) -> Sequence[Dims]:
    """Dims of all operands: those of query, key, … and, if there is one, of the mask behind."""
    if len(operands) == len(dims):
        return dims
    (query, key), mask = dims[:2], operands[-1]
    aligned = (query[0], query[1], query[2], key[2])[4 - mask.rank :]
    of_mask = tuple(() if n == 1 else loops for n, loops in zip(mask.shape, aligned, strict=True))
    return (*dims, of_mask)


@register_op("FusedAttentionGradient")
@dataclass(frozen=True, slots=True)
class FusedAttentionGradient(Circulating):
    """Gradients of query, key and value from them, the result and its gradient; the scores are
    computed again. Gradients of keys and values are summed over rows and queries per group.

    What rows know of all columns is computed again too: kernels keep a number per row and head of
    it from the forward pass, which nobody counts.
    """

    mask: ClassVar[int] = 5
    travelling: ClassVar[tuple[int, ...]] = (1, 2)
    returning: ClassVar[tuple[int, ...]] = (1, 2)

    scale: float
    causal: bool
    dropout: float = 0.0
    seed: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands[:3]

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, query, key, value, result = _attention_dims(operands, Kind.SUM)
        dims = _with_mask((query, key, value, result, result), operands)
        return builder.build(dims, (query, key, value))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        # Five products against the forward pass's two (Dao et al. 2022, algorithm 4).
        return _attention_work(self, operands, results, 2.5)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:

        return self._gradients(softmax(_scores(self, indices, operands), -1), indices, operands)

    def unevenness(self, pieces: int) -> float:
        return 2 - 1 / pieces if self.causal else 1.0

    def meet(
        self, known: Seen | None, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> Seen:
        scores = _scores(self, indices, operands)
        return _seen(scores, _kept(self, indices, scores.shape), operands[2], known)

    def conclude(
        self, known: Seen, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> tuple[Array, ...]:
        import numpy as np

        shift = np.where(np.isfinite(known.highest), known.highest, 0.0)
        weights = np.exp(_scores(self, indices, operands) - shift) / known.total
        return self._gradients(weights, indices, operands)

    def _gradients(
        self, weights: Array, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> tuple[Array, ...]:
        """From the weights of all columns, or of a part of them."""
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
    """Gradient of the masked scores from the result and its gradient, whose inner product is the
    mean of the weights' gradients over all columns (Dao et al. 2022, appendix B)."""
    import numpy as np

    shape = (*weights.shape[:4], value.shape[3])
    grouped = gradient.reshape(shape)
    of_weights = kept * np.einsum("bgrse,bgne->bgrsn", grouped, value, optimize=True)
    inner = (grouped * result.reshape(shape)).sum(-1, keepdims=True)
    return weights * (of_weights - inner)


@register_op("FusedAttentionScoreGradient")
@dataclass(frozen=True, slots=True)
class FusedAttentionScoreGradient(Op):
    """Gradient of the scores `[batch, heads, rows, columns]`, for masks that are trained. Operands
    as for FusedAttentionGradient."""

    mask: ClassVar[int] = 5

    scale: float
    causal: bool
    dropout: float = 0.0
    seed: int = 0

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
