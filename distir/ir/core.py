"""What programs are made of: values, ops, nodes, and what collects nodes.

Values and nodes are immutable; a transform makes new ones.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from distir.ir.signature import Signature
from distir.ir.types import DType, TensorType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distir.cost.work import Work

Array: TypeAlias = "NDArray[Any]"
"""A NumPy array of any type. Spelled as text so that importing the IR does not import NumPy."""


class Value:
    """One tensor of a program. Compared by identity; the name is a label for people."""

    __slots__ = ("name", "type")

    def __init__(self, type: TensorType, name: str = "") -> None:
        self.type = type
        self.name = name

    def __repr__(self) -> str:
        return f"%{self.name or '_'}: {self.type}"


Gradients: TypeAlias = Sequence[Value | None]
"""Gradients of some values in order; `None` where there is none."""


class Part(Enum):
    """What a node is there for: it decides under which heading its memory is counted."""

    MODEL = "model"
    WIDE = "wide"
    """Of the model, too: products that stay in the type of values where others run in a narrower
    one."""
    LOSS = "loss"
    STATE = "state"
    """Moving parameters and gradients between their places."""

    @property
    def of_model(self) -> bool:
        """Whether what a node makes counts as the model's own."""
        return self in (Part.MODEL, Part.WIDE)


class _OpClass(ABCMeta):
    """Ops are what inherits from them: no class is registered as one. So whether a node's op is of
    a class is asked as of any class, without the long search that ABCs make the first time."""

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class Op(metaclass=_OpClass):
    """What a node does. Subclasses are frozen dataclasses whose fields are the op's attributes.

    An op answers for itself: result types, loops (which decide how it can be split), work,
    NumPy evaluation and derivative. Seconds are not its business.
    """

    __slots__ = ()
    name: ClassVar[str]
    is_view: ClassVar[bool] = False
    """Whether the results share the first operand's memory: no kernel runs."""
    picks_by: ClassVar[int | None] = None
    """The operand whose elements are places along loop 0, which is positional. Those below zero
    count from the loop's end, as the model has it: padding lies behind that."""
    steps_along: ClassVar[int | None] = None
    """The dim of the first operand along which every position needs what the one before it has
    left, as the steps of a recurrent layer do."""
    always_lowered: ClassVar[bool] = False
    """Whether programs are analysed with the op's `lower`ed form in its place."""

    def handed_on(self, operands: Sequence[Value]) -> Sequence[Value]:
        """Of the operands, those whose elements the results hold: the op changes nothing but their
        places, their type, or which of them are there."""
        return operands[:1] if self.is_view else ()

    @abstractmethod
    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        """Result types; raises `ShapeError` if the operands do not fit."""

    @abstractmethod
    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        """The op's loops and how every dim of operands and results is a product of them."""

    @abstractmethod
    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        """The results, in NumPy. Floats are computed in the precision of the operands."""

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        """FLOPs and memory traffic. By default memory-bound, one FLOP per result element."""
        from distir.cost.work import OpClass, Work

        return Work(
            kind=OpClass.MEMORY,
            flops=sum(t.num_elements for t in results),
            bytes_read=sum(t.size_bytes for t in operands),
            bytes_written=sum(t.size_bytes for t in results),
        )

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        """`evaluate` on one shard. `indices[loop]` are the positions along a split loop of the
        signature that this device holds, ascending; only ops that care where they are need it
        (a lookup in a split table, a causal mask)."""
        return self.evaluate(*operands)

    def derivative(self, back: Backward) -> Gradients:
        """Gradients of the operands from gradients of the results. Operands that are not
        `wanted` may get `None`."""
        from distir.errors import TransformError

        raise TransformError(
            f"op {self.name} has no derivative; found on the way from the loss to a parameter"
        )

    def lower(self, builder: NodeBuilder, node: Node) -> tuple[Value, ...] | None:
        """The results computed by simpler ops whose reduced loops can be split, or `None` if the
        op is not a composite."""
        return None

    def model_flops(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """FLOPs of products as utilisation counts them: attention in full, even if it is causal,
        but for what lies beyond a window."""
        from distir.cost.work import OpClass

        work = self.work(operands, results)
        return 0.0 if work.kind is OpClass.MEMORY else float(work.flops)

    def filled(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """The part of the results that is data: less than all where there is room for more."""
        return 1.0

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        """Operands in which the op is jointly linear: if all of them are pending sums, the
        result may stay pending. Empty if the op is not linear."""
        return ()

    def masked_dims(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        """Dims of the first operand that the op reduces as if elements that are −∞ were not there:
        they may be padded with such."""
        return ()

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        """The op that computes one shard, for ops whose attributes hold sizes."""
        return self

    def rescaled(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        """The op in a program whose axes have other sizes. Differs from `localized` where an
        attribute speaks of the whole tensor, such as the count of a mean."""
        return self.localized(operands, results)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One application of an op. Compared by identity."""

    op: Op
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    origin: str = ""
    """Where the node comes from in the user's model, for messages."""
    part: Part = Part.MODEL
    """What the node is there for."""

    @property
    def operand_types(self) -> tuple[TensorType, ...]:
        """Types of the operands, in order."""
        return tuple([value.type for value in self.operands])

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        """Types of the results, in order."""
        return tuple([value.type for value in self.results])

    @property
    def result(self) -> Value:
        """The only result of a node that has one."""
        (value,) = self.results
        return value


class NodeBuilder:
    """Collects nodes in order, and the constants that they read: what derivatives and spelled-out
    forms of ops are added to. `add` applies an op."""

    def __init__(self) -> None:
        self.origin = ""
        """Label given to the nodes added from now on."""
        self.part = Part.MODEL
        """What the nodes added from now on are there for."""
        self.constants: dict[Value, Array | None] = {}
        self.nodes: list[Node] = []
        self._scalars: dict[tuple[float, DType], Value] = {}

    def constant(self, array: Array, dtype: DType, name: str = "") -> Value:
        """Declares a constant with values."""
        value = Value(TensorType(tuple(array.shape), dtype), name)
        self.constants[value] = array
        return value

    def table(self, name: str, shape: Sequence[int], dtype: DType) -> Value:
        """Declares a constant whose values are not known."""
        value = Value(TensorType(tuple(shape), dtype), name)
        self.constants[value] = None
        return value

    def scalar(self, number: float, dtype: DType = DType.FLOAT32) -> Value:
        """A constant of shape `()`; equal ones are shared."""
        import numpy as np

        key = (number, dtype)
        if key not in self._scalars:
            self._scalars[key] = self.constant(np.asarray(number), dtype, f"{number:g}")
        return self._scalars[key]

    def apply(self, op: Op, *operands: Value, name: str = "") -> tuple[Value, ...]:
        """Applies an op and returns all of its results. Raises `ArgumentError` for what is no op or
        no value, and if the op takes another number of values."""
        try:
            types = op.infer(*(operand.type for operand in operands))
        except (AttributeError, TypeError, ValueError) as error:
            _explain_misuse(op, operands, error)
            raise
        label = name or op.name
        results = tuple(Value(type, label) for type in types)
        self.nodes.append(Node(op, operands, results, self.origin, self.part))
        return results

    def add(self, op: Op, *operands: Value, name: str = "") -> Value:
        """Applies an op with one result and returns it."""
        (result,) = self.apply(op, *operands, name=name)
        return result


def _explain_misuse(op: object, operands: Sequence[object], error: Exception) -> None:
    """Raises `ArgumentError` if an op could not be applied because of what it was given."""
    from distir.errors import ArgumentError, shown
    from distir.units import counted

    if not isinstance(op, Op):
        raise ArgumentError(
            f"an op is {shown(op)}; expected an object of a class of ops, such as MatMul()"
        ) from error
    for position, operand in enumerate(operands, start=1):
        if not isinstance(operand, Value):
            raise ArgumentError(
                f"operand {position} of {op.name} is of {type(operand)}; expected a value of the "
                "builder, such as builder.parameter(name, shape) or builder.constant(array, dtype)"
            ) from error
    if isinstance(error, ValueError) and "values to unpack" in str(error):
        found = ", ".join(str(each.type) for each in operands if isinstance(each, Value))
        raise ArgumentError(
            f"{op.name} was given {counted(len(operands), 'operand')} ({found}); expected another "
            f"number of them ({error})"
        ) from error


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward pass of one node, as its op's `derivative` sees it."""

    builder: NodeBuilder
    """Where the ops that compute gradients are added."""
    node: Node
    gradients: Gradients
    """Of the results; at least one of them has one."""
    wanted: Sequence[bool]
    """Of which operands the gradient is asked for."""

    @property
    def gradient(self) -> Value:
        """That of the only result that has one."""
        (gradient,) = [each for each in self.gradients if each is not None]
        return gradient

    @property
    def operands(self) -> tuple[Value, ...]:
        """Of the node."""
        return self.node.operands

    @property
    def results(self) -> tuple[Value, ...]:
        """Of the node."""
        return self.node.results

    @property
    def result(self) -> Value:
        """The only result of a node that has one."""
        return self.node.result

    def add(self, op: Op, *operands: Value) -> Value:
        """Adds an op with one result."""
        return self.builder.add(op, *operands)
