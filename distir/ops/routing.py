"""Mixtures of experts: choosing experts, and moving tokens to the slots of experts and back.

Every expert has a number of slots per sequence. A sequence is cut into as many runs of consecutive
tokens as there are slots, and each run has one slot of every expert. The first token of the run
that chose the expert takes the slot; other tokens that chose it are dropped. With as many slots as
tokens, no token is dropped.

So the slots follow the sequence: the tokens of a part of the sequence use the same part of the
slots, however sequences are split over devices, and no split changes which tokens are dropped. Real
software lets all tokens of a device share its slots and drops fewer; it moves and multiplies as
much.

Mathematically, dispatch and combine are products with a one-hot tensor (Lepikhin et al. 2021). They
run, and are counted, as a permutation that reads and writes every slot's row once.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from distir.cost.collectives import Copies
from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op
from distir.ir.registered import register_op
from distir.ir.signature import Dims, Kind, Signature, SignatureBuilder
from distir.ir.types import DType, TensorType

LEAST_CAPACITY = 4
"""The fewest slots of an expert (the default of DeepSpeed's `min_capacity`)."""

ALIGNMENT = 8
"""The number of slots is a multiple of this, the rows of a tile of the matrix units, or of the
largest common divisor with the sequence length."""

ROUNDING = 32
"""Slots are rounded up by less than this part of them, one in so many, to divide by as many devices
as the sequence does: then as many may split it."""


@register_op("TopKMask")
@dataclass(frozen=True, slots=True)
class TopKMask(Op):
    """True where an element is among the `k` largest of the last dim; of equal elements, the first.

    With `groups`, the last dim is cut into that many equal groups, and the elements are chosen
    among the `chosen` groups whose `best` largest elements have the largest sums (DeepSeek-AI 2024:
    experts of few nodes). If the model is made smaller, it has as many groups as its size allows.
    """

    k: int
    groups: int = 1
    chosen: int = 1
    best: int = 1

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (scores,) = operands
        if not scores.rank or not 0 < self.k <= scores.shape[-1]:
            raise ShapeError(
                f"TopKMask: {self.k} elements of the last dim of {scores}; expected at least 1 "
                "and no more than it has"
            )
        return (TensorType(scores.shape, DType.BOOL),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        shape = operands[0].shape
        dims = (*builder.dims(shape[:-1]), builder.loop(shape[-1], Kind.WHOLE))
        return builder.build((dims,), (dims,))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        (scores,) = operands
        scores = self._in_chosen_groups(scores)
        order = np.argsort(-scores, axis=-1, kind="stable")
        mask = np.zeros(scores.shape, bool)
        np.put_along_axis(mask, order[..., : self.k], True, axis=-1)
        return (mask,)

    def _in_chosen_groups(self, scores: Array) -> Array:
        """The scores, with −∞ outside the chosen groups."""
        import numpy as np

        groups = math.gcd(self.groups, scores.shape[-1])
        size = scores.shape[-1] // groups
        count = max(-(-self.chosen * groups // self.groups), -(-self.k // size))
        if count >= groups:
            return scores
        apart = scores.reshape(*scores.shape[:-1], groups, size)
        totals = np.sort(apart, axis=-1)[..., -self.best :].sum(axis=-1)
        counts = np.argsort(np.argsort(-totals, axis=-1, kind="stable"), axis=-1) < count
        return np.where(counts[..., None], apart, -np.inf).reshape(scores.shape)

    def derivative(self, back: Backward) -> Gradients:
        return (None,)


def num_slots(sequence: int, experts: int, top_k: int, imbalance: float = 1.0) -> int:
    """The number of slots per expert and sequence: the mean number of tokens per expert, times the
    imbalance (tokens of the fullest expert over the mean), rounded up; at most one per token."""
    share = Fraction(sequence * top_k, experts) * Fraction(imbalance)
    step = math.gcd(sequence, ALIGNMENT)
    while sequence % (2 * step) == 0 and 2 * step * ROUNDING <= share:
        step *= 2
    return min(sequence, step * math.ceil(max(share, LEAST_CAPACITY) / step))


def _seats(mask: Array, capacity: int) -> tuple[Array, Array, Array, Array]:
    """The `(sample, token, expert, slot)` of every token that gets a slot."""
    import numpy as np

    tokens = mask.shape[1]
    slot: Array = np.arange(tokens, dtype=np.int64) * capacity // tokens
    first = np.searchsorted(slot, slot)
    earlier = np.cumsum(mask, axis=1) - mask
    won = mask & (earlier == earlier[:, first])
    sample, token, expert = np.nonzero(won)
    return sample, token, expert, slot[token]


def _dims(
    mask: TensorType, slots: TensorType, of_expert: Kind
) -> tuple[SignatureBuilder, Dims, Dims, Dims]:
    """A signature builder, and the dims of tokens, mask and slots.

    Loop 0 goes over the experts of the slots. The experts that tokens choose from are another loop,
    which is needed whole.
    """
    builder = SignatureBuilder()
    expert = builder.positional(slots.shape[1], of_expert)
    sample = builder.loop(slots.shape[0])
    fixed = slots.shape[2] == 1
    token = builder.loop(mask.shape[1], Kind.WHOLE if fixed else Kind.PARALLEL)
    slot = () if fixed else builder.follower(slots.shape[2], token)
    hidden = builder.loop(slots.shape[3])
    choice = builder.loop(mask.shape[2], Kind.WHOLE)
    builder.equate(choice, expert)
    return (
        builder,
        (sample, token, hidden),
        (sample, token, choice),
        (sample, expert, slot, hidden),
    )


def _moved(slots: TensorType, routes: Sequence[TensorType], result: TensorType) -> Work:
    """The work of a permutation: reads one row per slot, and `routes` once."""
    return Work(
        kind=OpClass.MEMORY,
        flops=slots.num_elements,
        bytes_read=slots.size_bytes + sum(t.size_bytes for t in routes),
        bytes_written=result.size_bytes,
    )


class Routed(Op):
    """Base of ops that move rows from tokens to slots, or back. The first operand are the rows, in
    which these ops are linear. The second, `mask[batch, sequence, experts]`, says which token goes
    to which experts."""

    __slots__ = ()

    @abstractmethod
    def moved(self, rows: Array, mask: Array, held: Array) -> Array:
        """The result in NumPy, for the slots of the experts in `held`."""

    def inverse(self) -> Op | None:
        """The op that moves gradients back; None if there is no derivative."""
        return None

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        rows, mask = operands
        held = np.asarray(indices.get(0, np.arange(mask.shape[2], dtype=np.int64)))
        return (self.moved(rows, mask, held),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        inverse = self.inverse()
        if inverse is None:
            return super().derivative(back)
        if not back.wanted[0]:
            return (None, None)
        return (back.add(inverse, back.gradient, back.operands[1]), None)


@dataclass(frozen=True, slots=True)
class IntoSlots(Routed):
    """Base of ops whose result is in slots. `experts` and `slots` are set in one device's shard; 0
    means that they follow from the operands."""

    top_k: int
    imbalance: float = 1.0
    """Tokens of the fullest expert over the mean."""
    experts: int = 0
    slots: int = 0

    def sizes(self, mask: TensorType) -> tuple[int, int]:
        """The number of experts, and of slots of each."""
        _, sequence, choices = mask.shape
        experts = self.experts or choices
        return experts, self.capacity(sequence, experts)

    def capacity(self, sequence: int, experts: int) -> int:
        """The number of slots of each expert."""
        return self.slots or num_slots(sequence, experts, self.top_k, self.imbalance)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, experts=results[0].shape[1], slots=results[0].shape[2])

    def rescaled(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, experts=0, slots=0)


@register_op("Dispatch")
@dataclass(frozen=True, slots=True)
class Dispatch(IntoSlots):
    """Moves tokens `[batch, sequence, hidden]` to slots `[batch, experts, slots, hidden]` of the
    experts that `mask[batch, sequence, experts]` chose.

    `groups` and `chosen` are those of the mask; they limit how many devices get copies of a token.
    """

    groups: int = 1
    chosen: int = 1

    @property
    def copies(self) -> Copies:
        """How many rows in slots are copies of one token, and among which groups of experts."""
        return Copies(self.top_k, self.groups, self.chosen)

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x, mask = operands
        if x.rank != 3 or mask.rank != 3 or x.shape[:2] != mask.shape[:2]:
            raise ShapeError(
                f"Dispatch: tokens {x} and choices {mask}; expected [batch, sequence, hidden] and "
                "[batch, sequence, experts]"
            )
        experts, slots = self.sizes(mask)
        return (x.with_shape((x.shape[0], experts, slots, x.shape[2])),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, tokens, mask, slots = _dims(operands[1], results[0], Kind.PARALLEL)
        return builder.build((tokens, mask), (slots,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return _moved(results[0], operands[1:], results[0])

    def filled(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        # With balanced routing.
        _, sequence, choices = operands[1].shape
        return sequence * self.top_k / (choices * results[0].shape[2])

    def moved(self, rows: Array, mask: Array, held: Array) -> Array:
        import numpy as np

        slots = self.capacity(mask.shape[1], mask.shape[2])
        sample, token, expert, slot = _seats(mask[:, :, held], slots)
        result = np.zeros((rows.shape[0], len(held), slots, rows.shape[2]), rows.dtype)
        result[sample, expert, slot] = rows[sample, token]
        return result

    def inverse(self) -> Op:
        return Combine(self.top_k, self.imbalance, self.groups, self.chosen)


@register_op("Combine")
@dataclass(frozen=True, slots=True)
class Combine(Routed):
    """The inverse of `Dispatch`: per token, the sum over its slots in
    `y[batch, experts, slots, hidden]`. The fields are those of `Dispatch`."""

    top_k: int
    imbalance: float = 1.0
    groups: int = 1
    chosen: int = 1

    @property
    def copies(self) -> Copies:
        """How many rows in slots are added up to one token, and in which groups of experts."""
        return Copies(self.top_k, self.groups, self.chosen)

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        y, mask = operands
        if y.rank != 4 or mask.rank != 3 or y.shape[0] != mask.shape[0]:
            raise ShapeError(
                f"Combine: slots {y} and choices {mask}; expected [batch, experts, slots, hidden] "
                "and [batch, sequence, experts]"
            )
        return (y.with_shape((*mask.shape[:2], y.shape[3])),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, tokens, mask, slots = _dims(operands[1], operands[0], Kind.PICK)
        return builder.build((slots, mask), (tokens,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return _moved(operands[0], operands[1:], results[0])

    def moved(self, rows: Array, mask: Array, held: Array) -> Array:
        import numpy as np

        sample, token, expert, slot = _seats(mask[:, :, held], rows.shape[2])
        result = np.zeros((*mask.shape[:2], rows.shape[3]), rows.dtype)
        np.add.at(result, (sample, token), rows[sample, expert, slot])
        return result

    def inverse(self) -> Op:
        return Dispatch(self.top_k, self.imbalance, groups=self.groups, chosen=self.chosen)


@register_op("DispatchWeights")
@dataclass(frozen=True, slots=True)
class DispatchWeights(IntoSlots):
    """Moves weights `[batch, sequence, experts]` to slots `[batch, experts, slots, 1]`, as
    `Dispatch` moves their tokens."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        weights, mask = operands
        if weights.rank != 3 or weights.shape != mask.shape:
            raise ShapeError(
                f"DispatchWeights: weights {weights} and choices {mask}; expected "
                "[batch, sequence, experts] both"
            )
        experts, slots = self.sizes(mask)
        return (weights.with_shape((weights.shape[0], experts, slots, 1)),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, _, mask, slots = _dims(operands[1], results[0], Kind.PARALLEL)
        return builder.build((mask, mask), (slots,))

    def moved(self, rows: Array, mask: Array, held: Array) -> Array:
        import numpy as np

        slots = self.capacity(mask.shape[1], mask.shape[2])
        sample, token, expert, slot = _seats(mask[:, :, held], slots)
        result = np.zeros((mask.shape[0], len(held), slots, 1), rows.dtype)
        result[sample, expert, slot, 0] = rows[:, :, held][sample, token, expert]
        return result

    def inverse(self) -> Op:
        return CombineWeights()


@register_op("CombineWeights")
@dataclass(frozen=True, slots=True)
class CombineWeights(Routed):
    """The inverse of `DispatchWeights`: moves numbers in slots, `[batch, experts, slots, 1]`, to
    `[batch, sequence, experts]`, where all others are zero."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        y, mask = operands
        return (y.with_shape(mask.shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, _, mask, slots = _dims(operands[1], operands[0], Kind.PICK)
        return builder.build((slots, mask), (mask,))

    def moved(self, rows: Array, mask: Array, held: Array) -> Array:
        import numpy as np

        sample, token, expert, slot = _seats(mask[:, :, held], rows.shape[2])
        result = np.zeros(mask.shape, rows.dtype)
        result[sample, token, held[expert]] = rows[sample, expert, slot, 0]
        return result
