"""Decides which float tensors of a file are parameters, and which are tables: masks, rotary tables.

The file does not say. The decision depends on the ops in which the tensor is combined with data.
Since these do not decide it for certain, each decision has a reason and can be overridden by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from distir.importers.onnx_bodies import Functions, spelled_out
from distir.importers.onnx_file import (
    FunctionRecord,
    GraphRecord,
    NodeRecord,
    TensorRecord,
    read_dtype,
)
from distir.ir.core import Array
from distir.ir.types import DType, TensorType


class Role(Enum):
    """What a tensor of the file is: trained, or not."""

    PARAMETER = "parameter"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Decision:
    """The role of a tensor, and the reason for it."""

    role: Role
    reason: str


_MOVING_OPS = frozenset(
    "Identity Cast CastLike Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Expand Tile "
    "Concat Pad Resize Upsample Dropout QuantizeLinear DequantizeLinear".split()
)
"""Ops that only move elements of their first operand, as positions of an image are stretched, or
write them in other types, so that a tensor is followed through them."""
_SMALL_SLOTS = {
    "Gemm": (2,),
    "FusedGemm": (2,),
    "Conv": (2,),
    "FusedConv": (2,),
    "QLinearConv": (8,),
    "QGemm": (6,),
    "DynamicQuantizeMatMul": (4,),
    "MatMulIntegerToFloat": (6,),
    "ConvTranspose": (2,),
    "LayerNormalization": (1, 2),
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
    "PRelu": (1,),
}
"""Per op, the positions of operands that are trained even if they have a single element."""
_PRODUCTS = frozenset("MatMul Gemm Conv".split())
"""Products whose operands are weights or data."""
_SCALED_SLOTS = {"Mul": (0, 1), "Div": (0,), "Sub": (0,)}
"""Per op that makes weights of stored bytes, by a scale or a zero point, the positions in which it
reads the bytes."""
_RESHAPING = frozenset("Identity Cast Reshape Squeeze Unsqueeze".split())
"""Ops that change nothing of a tensor but its shape or its type."""
_NEUTRAL = {
    "LayerNormalization": {1: 1, 2: 0},
    "InstanceNormalization": {1: 1, 2: 0},
    "GroupNormalization": {1: 1, 2: 0},
}
"""Per op, the values of operands that change nothing, by position: ONNX has no such norms without
these operands, so exporters write them for norms that have no weights."""
_QUANTIZED_SLOTS = {
    "DequantizeLinear": (0,),
    "MatMulInteger": (0, 1),
    "ConvInteger": (1,),
    "DynamicQuantizeMatMul": (1,),
    "MatMulIntegerToFloat": (0, 1),
    "QLinearMatMul": (0, 3),
    "QLinearConv": (3, 8),
    "QGemm": (0, 3, 6),
    "QLinearAdd": (0, 3),
    "QLinearMul": (0, 3),
}
"""Per op, the positions of operands that are floats written as integers."""
_NEVER_TRAINED = frozenset(
    "Sin Cos Equal Greater GreaterOrEqual Less LessOrEqual Range Resize Upsample Mod Floor Ceil "
    "Round IsNaN IsInf Not And Or OneHot ScatterND ScatterElements Scatter".split()
)
"""Ops whose operands are not trained."""


@dataclass
class TensorRoles:
    """Decides the role of each float tensor of a graph, and remembers it in `decisions`."""

    graph: GraphRecord
    parameters: Collection[str] = ()
    """Names of tensors that the user says are trained."""
    tables: Collection[str] = ()
    """Names of tensors that the user says are not trained."""
    functions: Functions = field(default_factory=dict[tuple[str, str], FunctionRecord])
    """What the graph calls: tensors are followed into the bodies."""
    decisions: dict[str, Decision] = field(default_factory=dict[str, Decision])
    _readers: dict[str, list[tuple[NodeRecord, int]]] = field(
        default_factory=dict[str, list[tuple[NodeRecord, int]]]
    )
    _makers: dict[str, NodeRecord] = field(default_factory=dict[str, NodeRecord])
    _dynamic: set[str] = field(default_factory=set[str])
    _num_dynamic: dict[NodeRecord, int] = field(default_factory=dict[NodeRecord, int])
    """Per node the number of operands that depend on the model's inputs, if there are any."""
    _ends: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    _entered: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        for node in self._nodes:
            if not node.results:
                continue  # only in a damaged file; no op depends on it
            for position, name in enumerate(node.operands):
                self._readers.setdefault(name, []).append((node, position))
            for name in node.results:
                self._makers[name] = node
        weights = self.weight_inputs()
        pending = [record.name for record in self.graph.inputs if record.name not in weights]
        while pending:
            name = pending.pop()
            if name in self._dynamic:
                continue
            self._dynamic.add(name)
            for node, _ in self._readers.get(name, ()):
                self._num_dynamic[node] = self._num_dynamic.get(node, 0) + 1
                if node.op_type not in ("Shape", "Size"):
                    pending.extend(result for result in node.results if result)

    @cached_property
    def _nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes of the graph and of its branches, with the bodies of functions in place of
        calls."""
        return spelled_out(self.graph, self.functions)

    @cached_property
    def _literals(self) -> frozenset[str]:
        """The names of tensors that Constant nodes have."""
        nodes = (node for node in self._nodes if node.op_type == "Constant")
        return frozenset(name for node in nodes for name in node.results)

    @cached_property
    def _stores_most_matrices(self) -> bool:
        """Whether the file stores its matrices of floats as initializers: at least as many of their
        elements as it writes among the ops for products to read."""
        stored = sum(map(_matrix_elements, self.graph.initializers.values()))
        written = (
            _matrix_elements(node.attributes.get("value"))
            for node in self._nodes
            if node.op_type == "Constant"
            for name in node.results[:1]
            if any(reader.op_type in _PRODUCTS for reader, _ in self.readers(name))
        )
        return stored > 0 and stored >= sum(written)

    @cached_property
    def stores_values(self) -> bool:
        """Whether the file stores the values of its matrices, and not zeros in their place."""
        stored = self.graph.initializers.values()
        return any(
            each.dtype.is_float
            and is_wide(each.shape)
            and each.has_values()
            and not is_uniform(each)
            for each in stored
        )

    def weight_inputs(self) -> set[str]:
        """The names of inputs that are weights: those that the user names; and all inputs of fixed
        size, if other inputs have symbolic sizes and at least two of the fixed ones are matrices.
        """
        inputs = self.graph.inputs
        named = {r.name for r in inputs if r.name in self.parameters or r.name in self.tables}
        fixed = [r for r in inputs if all(isinstance(size, int) for size in r.dims)]
        matrices = [r for r in fixed if r.dtype.is_float and len(r.dims) > 1]
        is_split = len(fixed) < len(inputs) and len(matrices) > 1
        return named | ({r.name for r in fixed} if is_split else set())

    def role(self, name: str, type: TensorType) -> Role:
        """The role of a tensor."""
        if name not in self.decisions:
            self.decisions[name] = self._decide(name, type)
        return self.decisions[name].role

    def _decide(self, name: str, type: TensorType) -> Decision:
        if name in self.tables:
            return Decision(Role.TABLE, "chosen by the user")
        if name in self.parameters:
            return Decision(Role.PARAMETER, "chosen by the user")
        is_quantized = name in self.graph.initializers and self._is_quantized(name)
        if not type.dtype.is_float and not is_quantized:
            return Decision(Role.TABLE, "integers and booleans are not trained")
        # What an exporter calls a buffer may be a weight that was quantized.
        stated = None if is_quantized else self.graph.stated_kinds.get(name)
        if stated == "PARAMETER":
            return Decision(Role.PARAMETER, "the file states that it is a parameter")
        if stated is not None:
            return Decision(Role.TABLE, f"the file states that it is a {stated.lower()}")
        if self.graph.stated_kinds and self._is_neutral(name):
            return Decision(Role.TABLE, "what a norm without weights is written with")
        if name in self._literals and self._stores_most_matrices:
            return Decision(Role.TABLE, "written among the ops, while the weights are stored apart")
        uses = _Uses(self, type)
        uses.follow(name, is_value_kept=True)
        if type.num_elements == 1:
            if "trained slot" in uses.trained:
                return Decision(Role.PARAMETER, "bias or scale with one element")
            return Decision(Role.TABLE, "a single number")
        if uses.trained and not uses.is_compared:
            return Decision(Role.PARAMETER, min(uses.trained))
        if uses.fixed:
            return Decision(Role.TABLE, min(uses.fixed))
        return Decision(Role.PARAMETER, "nothing indicates that it is not trained")

    def _is_quantized(self, name: str) -> bool:
        """Whether all that reads a tensor of integers, or rows of it, takes them for quantized
        floats."""
        pending, read = [name], False
        while pending:
            for node, position in self.readers(pending.pop()):
                in_slot = position in _QUANTIZED_SLOTS.get(node.op_type, ())
                if in_slot or self._makes_floats(node):
                    read = True
                elif position == 0 and (node.op_type in _MOVING_OPS or node.op_type == "Gather"):
                    pending += [result for result in node.results if result]
                else:
                    return False
        return read

    def _makes_floats(self, node: NodeRecord | None) -> bool:
        """Whether a node casts a stored matrix of bytes to floats that are weights: products read
        them, directly or after a stored scale and zero point."""
        if node is None or node.op_type != "Cast" or not node.operands:
            return False
        stored = self.graph.initializers.get(node.operands[0])
        if stored is None or not is_wide(stored.shape):
            return False
        if not read_dtype(node.attributes.get("to", 1), "the result").is_float:
            return False
        return stored.dtype in (DType.INT8, DType.UINT8) and all(
            reader.op_type in _PRODUCTS
            or (
                position in _SCALED_SLOTS.get(reader.op_type, ())
                and all(self._is_stored(name) for name in _others(reader, position))
            )
            for reader, position in self.readers(node.results[0])
        )

    def _is_stored(self, name: str) -> bool:
        """Whether a tensor is stored in the file, in whatever shape or type it is read."""
        seen: set[str] = set()  # a damaged file may have cycles
        while name not in seen:
            seen.add(name)
            maker = self._makers.get(name)
            if maker is not None and maker.op_type in _RESHAPING and maker.operands:
                name = maker.operands[0]
        return name in self.graph.initializers or name in self._literals

    def scales_stored(self, node: NodeRecord, position: int) -> bool:
        """Whether the operand of a node at `position` is a scale or a zero point of a stored matrix
        of bytes."""
        slots = _SCALED_SLOTS.get(node.op_type, ())
        makers = [
            self._makers.get(name)
            for place, name in enumerate(node.operands)
            if place != position and place in slots
        ]
        less = [
            self._makers.get(name)
            for maker in makers
            if maker is not None and maker.op_type == "Sub"
            for name in maker.operands[:1]
        ]
        return any(map(self._makes_floats, (*makers, *less)))

    def _is_neutral(self, name: str) -> bool:
        """Whether norms alone read a tensor, as a scale of ones or a bias of zeros."""
        reads = {(node.op_type, position) for node, position in self.readers(name)}
        neutral = {_NEUTRAL.get(op, {}).get(position) for op, position in reads}
        record = self.graph.initializers.get(name)
        if record is None or len(neutral) != 1 or None in neutral or not record.has_values():
            return False
        return bool((record.load() == neutral.pop()).all())

    def meets_data(self, node: NodeRecord, position: int) -> bool:
        """Whether any operand of a node but the one at `position` depends on the model's inputs."""
        own = node.operands[position] in self._dynamic
        return self._num_dynamic.get(node, 0) > own

    @cached_property
    def _weighed(self) -> frozenset[str]:
        """The names of inputs of floats, of stored vectors and matrices of floats, and of all that
        is computed from them. Other values are counted: positions and masks."""
        found = {each.name for each in self.graph.inputs if each.dtype.is_float}
        stored = [*self.graph.initializers.items()]
        for node in self._nodes:
            stored += [(name, node.attributes.get("value")) for name in node.results]
        for name, tensor in stored:
            if isinstance(tensor, TensorRecord) and tensor.dtype.is_float:
                found |= {name} if tensor.num_elements > 1 else set()
        pending = [*found]
        while pending:
            for node, _ in self.readers(pending.pop()):
                if node.op_type not in ("Shape", "Size"):
                    new = [result for result in node.results if result and result not in found]
                    found.update(new)
                    pending += new
        return frozenset(found)

    def meets_counted(self, node: NodeRecord, position: int) -> bool:
        """Whether the operands of a node but the one at `position` depend on inputs of integers or
        booleans, and on no vector or matrix of floats."""
        others = _others(node, position)
        moving = [name for name in others if name in self._dynamic]
        return bool(moving) and self._weighed.isdisjoint(others)

    def ends(self, name: str) -> frozenset[str]:
        """The ops that read `name` after moves, choices and multiplications by constants."""
        stack = [name]
        while stack:
            current = stack[-1]
            if current in self._ends:
                stack.pop()
                continue
            ops, onward = self._readers_of_moved(current)
            unknown = [result for result in onward if result not in self._ends]
            if unknown and current not in self._entered:
                self._entered.add(current)
                stack += unknown
                continue
            # A name that is entered and unknown is on the stack: a damaged file may have cycles.
            self._ends[current] = ops.union(*(self._ends.get(each, ()) for each in onward))
            stack.pop()
        return self._ends[name]

    def _readers_of_moved(self, name: str) -> tuple[frozenset[str], list[str]]:
        """The ops that read `name`, apart from those that only move it, put something in places of
        it or multiply it by a constant, and the results of the latter."""
        ops: set[str] = set()
        onward: list[str] = []
        for node, position in self.readers(name):
            is_moved = node.op_type in _MOVING_OPS and position == 0 and node.op_type != "Concat"
            is_chosen = node.op_type == "Where" and position > 0
            if (
                is_moved
                or is_chosen
                or (node.op_type in ("Mul", "Div") and not self.meets_data(node, position))
            ):
                onward += [result for result in node.results if result]
            else:
                ops.add(node.op_type)
        return frozenset(ops if self.readers(name) else ("output",)), onward

    def readers(self, name: str) -> list[tuple[NodeRecord, int]]:
        """The nodes that read `name`, each with the position of that operand."""
        return self._readers.get(name, [])

    def makers(self) -> Mapping[str, NodeRecord]:
        """The node that makes each computed name."""
        return self._makers


def _others(node: NodeRecord, position: int) -> list[str]:
    """The operands of a node but the one at `position`."""
    return [name for place, name in enumerate(node.operands) if place != position]


def is_wide(shape: Sequence[int]) -> bool:
    """Whether several dims are longer than 1."""
    return sum(size != 1 for size in shape) >= 2


def _matrix_elements(record: object) -> int:
    """The number of elements of a tensor of the file that is a matrix of floats; 0 of others."""
    if not isinstance(record, TensorRecord) or not is_wide(record.shape):
        return 0
    return record.num_elements if record.dtype.is_float else 0


def is_uniform(record: TensorRecord) -> bool:
    """Whether all elements of a stored tensor are equal."""
    values = record.load().reshape(-1)
    return bool((values == values[:1]).all())


class _Uses:
    """Follows one tensor through moves and arithmetic with constants, to the ops in which it is
    combined with data. Collects reasons to take it for trained, and reasons against."""

    def __init__(self, roles: TensorRoles, type: TensorType) -> None:
        self._roles = roles
        self._type = type
        self._name = ""
        self._wide = is_wide(type.shape)
        self._seen: set[str] = set()
        self.trained: set[str] = set()
        self.fixed: set[str] = set()
        self.is_compared = False
        """Whether it is asked which of its elements, as they are stored, equal something: they are
        numbers of regions or the like, whatever else reads them."""

    def follow(self, name: str, is_value_kept: bool) -> None:
        """Collects the reasons from every use of `name`. `is_value_kept` says whether the tensor
        was only moved so far, not computed with."""
        self._name = name
        pending = [(name, is_value_kept)]
        while pending:
            current, kept = pending.pop()
            if current in self._seen:
                continue
            self._seen.add(current)
            for node, position in self._roles.readers(current):
                pending.extend(self._use(node, position, kept))

    def _use(self, node: NodeRecord, position: int, kept: bool) -> list[tuple[str, bool]]:
        """Collects a reason from one use, or returns the names to follow from here."""
        op = node.op_type
        onward = [(name, kept) for name in node.results if name]
        meets_data = self._roles.meets_data(node, position)
        if op == "Cast" and not read_dtype(node.attributes.get("to", 1), "the result").is_float:
            self.fixed.add("integers are made of it")
            return []
        is_moved = op in _MOVING_OPS and position == 0
        if op in _NEVER_TRAINED and not is_moved:
            self.is_compared |= kept and op == "Equal"
            self.fixed.add(f"operand of {op}")
            return []
        if position in _SMALL_SLOTS.get(op, ()):
            self.trained.add("trained slot")
            return []
        if op == "BatchNormalization" and position in (3, 4):
            self.fixed.add("running statistics of a BatchNormalization")
            return []
        if is_moved and not meets_data:
            return onward
        if op == "Gather" and position == 0:
            return self._gathered(node, kept)
        if not meets_data:
            if self._roles.scales_stored(node, position):
                self.fixed.add("scales of quantized numbers")
                return []
            return [(name, False) for name in node.results if name]
        if op in _MEETINGS:
            _MEETINGS[op](self, node, position, kept)
        else:
            self.trained.add(f"operand of {op}")
        return []

    def _gathered(self, node: NodeRecord, kept: bool) -> list[tuple[str, bool]]:
        """Collects a reason from a Gather: rows of a rotary table are only factors of Mul, rows of
        an embedding are added and multiplied with matrices."""
        ends = self._roles.ends(node.results[0])
        if ends and all(end in ("Mul", "Sin", "Cos") for end in ends):
            self.fixed.add("its rows are only factors of Mul")
        else:
            self.trained.add("operand of Gather")
        return []

    # --- ops in which a tensor is combined with data ---------------------------------------------

    def _meets_product(self, node: NodeRecord, position: int, kept: bool) -> None:
        if self._roles.ends(node.results[0]) <= {"Sin", "Cos", "Concat"} and not self._wide:
            self.fixed.add("frequencies of a rotary table")
        else:
            self.trained.add(f"operand of {node.op_type}")

    def _meets_factor(self, node: NodeRecord, position: int, kept: bool) -> None:
        if self._wide:
            self.fixed.add(f"factor of {node.op_type} along several dims")
        elif node.op_type == "Div" or self._roles.ends(node.results[0]) <= {"Sin", "Cos", "Concat"}:
            self.fixed.add(f"operand of {node.op_type}")
        elif self._roles.meets_counted(node, position):
            self.fixed.add("factor of what integers make, such as positions")
        elif self._meets_scale(node, position):
            self.fixed.add("scales of quantized numbers")
        else:
            self.trained.add("factor along one dim, such as the scale of a norm")

    def _meets_scale(self, node: NodeRecord, position: int) -> bool:
        """Whether another operand is a scale at which the model itself quantizes."""
        others = _others(node, position)
        found = [(name, self._roles.makers().get(name)) for name in others]
        return any(
            maker is not None
            and maker.op_type == "DynamicQuantizeLinear"
            and name in maker.results[1:]
            for name, maker in found
        )

    def _meets_term(self, node: NodeRecord, position: int, kept: bool) -> None:
        if "Softmax" in self._roles.ends(node.results[0]) and self._is_mask(node, position, kept):
            self.fixed.add("mask or distances added before a Softmax")
        elif self._type.num_elements == 1 and self._follows_product(node, position):
            self.trained.add("trained slot")
        else:
            self.trained.add(f"term of {node.op_type}")

    def _meets_choice(self, node: NodeRecord, position: int, kept: bool) -> None:
        if self._wide or not kept:
            self.fixed.add("operand of Where along several dims")
        else:
            self.trained.add("operand of Where")

    def _meets_difference(self, node: NodeRecord, position: int, kept: bool) -> None:
        self.fixed.add(f"operand of {node.op_type}")

    def _follows_product(self, node: NodeRecord, position: int) -> bool:
        others = _others(node, position)
        makers = self._roles.makers()
        return any(
            name in makers and makers[name].op_type in ("MatMul", "Einsum") for name in others
        )

    def _is_mask(self, node: NodeRecord, position: int, kept: bool) -> bool:
        """Whether a term of scores is a mask or a table of distances: by its values (zero or very
        negative, or evenly spaced along the keys) if they are known, otherwise by its shape, which
        has size 1 for heads. If it is moved first, its values can show that it is a mask, but not
        that it is none, nor can zeros."""
        direct = node.operands[position]
        for name in dict.fromkeys((direct, self._name) if kept else (direct,)):
            record = self._roles.graph.initializers.get(name)
            if record is not None and record.has_values() and record.num_elements < 1 << 24:
                array = record.load()
                found = _has_mask_values(array) or _is_evenly_spaced(array)
                if name == direct or (found and bool(array.any())):
                    return found
        shape = self._type.shape
        return not kept or all(size == 1 for size in shape[:-2])


def _has_mask_values(array: Array) -> bool:
    """Whether all values are zero or very negative, or each is zero or the same negative number, as
    some models mask with -100."""
    import numpy as np

    zero = array == 0
    least = array.min(initial=0) if zero.any() else -np.inf
    return bool((zero | (array <= -1e4) | (array == least)).all())


def _is_evenly_spaced(array: Array) -> bool:
    """Whether values grow or fall evenly along the last dim, at least in one row: distances from a
    query, times a slope per head."""
    import numpy as np

    if array.ndim < 2 or array.shape[-1] < 4:
        return False
    steps = np.diff(array.astype(np.float64), axis=-1)
    unit = np.finfo(array.dtype).eps if array.dtype.kind == "f" else 2**-7
    rounding = 4 * unit * np.abs(array).max()
    return bool(np.ptp(steps, axis=-1).max() <= rounding < np.abs(steps).max())


_Meeting = Callable[[_Uses, NodeRecord, int, bool], None]
_MEETINGS: dict[str, _Meeting] = {
    "MatMul": _Uses._meets_product,  # pyright: ignore[reportPrivateUsage]
    "Einsum": _Uses._meets_product,  # pyright: ignore[reportPrivateUsage]
    "Mul": _Uses._meets_factor,  # pyright: ignore[reportPrivateUsage]
    "Div": _Uses._meets_factor,  # pyright: ignore[reportPrivateUsage]
    "Add": _Uses._meets_term,  # pyright: ignore[reportPrivateUsage]
    "Sum": _Uses._meets_term,  # pyright: ignore[reportPrivateUsage]
    "QLinearAdd": _Uses._meets_term,  # pyright: ignore[reportPrivateUsage]
    "QLinearMul": _Uses._meets_factor,  # pyright: ignore[reportPrivateUsage]
    "Where": _Uses._meets_choice,  # pyright: ignore[reportPrivateUsage]
    "Sub": _Uses._meets_difference,  # pyright: ignore[reportPrivateUsage]
    "Pow": _Uses._meets_difference,  # pyright: ignore[reportPrivateUsage]
    "Min": _Uses._meets_difference,  # pyright: ignore[reportPrivateUsage]
    "Max": _Uses._meets_difference,  # pyright: ignore[reportPrivateUsage]
}
