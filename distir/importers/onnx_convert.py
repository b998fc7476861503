"""Converts the records of an ONNX file to a function: names, constants, weights, one call per op.

Converters of single ops are in `onnx_ops`; this module finds and calls them. An op whose operands
are all constants is computed at once, so that shape arithmetic disappears. Where their values are
not known, its result is a table without values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from distir.errors import DistirError, ImportModelError, UnsupportedOpError
from distir.importers.onnx_by_name import find_converter
from distir.importers.onnx_call import (
    MOST_FOLDED_ELEMENTS,
    Call,
    Converter,
    OnnxConstant,
    OnnxEntry,
    OnnxWeight,
    TensorList,
)
from distir.importers.onnx_defined import defined_function
from distir.importers.onnx_file import (
    FunctionRecord,
    GraphRecord,
    ModelRecord,
    NodeRecord,
    TensorRecord,
    as_dtype,
    check_shape,
    sorted_nodes,
)
from distir.importers.onnx_roles import Role, TensorRoles, is_uniform, is_wide
from distir.importers.onnx_twice import Copy
from distir.importers.onnx_unknown import unknown_op
from distir.ir.builder import Builder
from distir.ir.core import Array, Value
from distir.ir.types import DType, TensorType
from distir.ops.tensor import Expand, Transpose

MOST_FOLDED_BYTES = 256 << 20
"""Memory that all computed constants of one model may take together."""
MOST_INDICES = 1 << 22
"""The largest tensor of integers whose values are read."""

DEEPEST_NESTING = 32
"""Functions and branches within each other, beyond which a file is refused."""
LONGEST_MESSAGE = 1500
"""Characters after which an error message is cut off."""


@dataclass(slots=True)
class Conversion:
    """One import in progress: the function being built, the roles of tensors, and what became of
    the file's tensors."""

    model: ModelRecord
    roles: TensorRoles
    builder: Builder
    twice: Mapping[str, Copy] = field(default_factory=dict[str, Copy])
    """Stored matrices that are copies of others."""
    stored: dict[TensorRecord, OnnxWeight] = field(default_factory=dict[TensorRecord, OnnxWeight])
    """Stored parameters. Functions and branches have names of their own, so that several may have
    the same."""
    joined: dict[str, Copy] = field(default_factory=dict[str, Copy])
    """Stored parameters that have become one with what they are copies of."""
    axis_maps: dict[Value, tuple[int | None, ...]] = field(
        default_factory=dict[Value, tuple[int | None, ...]]
    )
    weights: dict[Value, TensorRecord] = field(default_factory=dict[Value, TensorRecord])
    weight_values: dict[OnnxWeight, Value] = field(default_factory=dict[OnnxWeight, Value])
    constant_values: dict[OnnxConstant, Value] = field(default_factory=dict[OnnxConstant, Value])
    copies: dict[str, int] = field(default_factory=dict[str, int])
    """Per tensor of the file, the number of parameters made from it."""
    decided: set[Value] = field(default_factory=set[Value])
    """Inputs that only decide which branches are taken."""
    unmade: dict[str, str] = field(default_factory=dict[str, str])
    """Results that converters do not make, and which op of the file has them: nothing may read
    them."""
    folded_bytes: int = 0

    def run(self, input_shapes: Mapping[str, tuple[int, ...]]) -> list[Value]:
        """Converts the whole graph, given the shapes of its inputs, and returns the outputs."""
        graph = self.model.graph
        env: dict[str, OnnxEntry] = {}
        weights = self.roles.weight_inputs()
        for record in graph.inputs:
            shape = input_shapes[record.name]
            if record.name not in weights:
                env[record.name] = self.builder.input(record.name, shape, record.dtype)
                continue
            type = TensorType(shape, record.dtype)
            is_trained = self.roles.role(record.name, type) is Role.PARAMETER
            env[record.name] = (
                OnnxWeight(type, record.name)
                if is_trained
                else OnnxConstant(type, None, record.name)
            )
        env |= {name: self.leaf(name, record) for name, record in graph.initializers.items()}
        if not graph.outputs:
            raise ImportModelError("the graph has no outputs")
        nodes = sorted_nodes(graph, list(env), graph.outputs)
        self.run_nodes(nodes, env, self.model.opset, depth=0)
        outputs: list[Value] = []
        for name in graph.outputs:
            self._check_made(name)
            outputs.append(self.resolve(env[name]))
        return outputs

    def leaf(self, name: str, record: TensorRecord) -> OnnxEntry:
        """A stored tensor: a parameter, or a constant with its values if the file has them."""
        type = TensorType(record.shape, record.dtype)
        if record.num_elements and self.roles.role(name, type) is Role.PARAMETER:
            if type.dtype.is_float:
                return self._stored(name, record)
            # Quantized, so that the values in the file are not those of the parameter.
            return OnnxWeight(TensorType(record.shape, DType.FLOAT32), name)
        # Larger integers are weights of few bits, whose values nothing depends on.
        is_packed = not type.dtype.is_float and record.num_elements > MOST_INDICES
        has_values = record.has_values() and not is_packed
        return OnnxConstant(type, record.load() if has_values else None, name)

    def _stored(self, name: str, record: TensorRecord) -> OnnxWeight | Value:
        """A stored parameter: another one, or its transpose, if it is a copy of that."""
        stored = self.model.graph.initializers
        copy = self.twice.get(name) if stored.get(name) is record else None
        type = TensorType(record.shape, record.dtype)
        if copy is None:
            return self.stored.setdefault(record, OnnxWeight(type, name, record))
        original = self.leaf(copy.of, stored[copy.of])
        if not isinstance(original, OnnxWeight):
            return OnnxWeight(type, name, record)
        self.joined[name] = copy
        if not copy.is_turned:
            return original
        return self.builder.add(Transpose((1, 0)), self.resolve(original), name=name)

    def run_nodes(
        self, nodes: Sequence[NodeRecord], env: dict[str, OnnxEntry], opset: int, depth: int
    ) -> None:
        """Converts nodes in order. `env` maps names to what they stand for; results are added."""
        if depth > DEEPEST_NESTING:
            raise ImportModelError(
                f"functions or branches are nested too deeply; expected at most {DEEPEST_NESTING}"
            )
        for node in nodes:
            self.builder.origin = node.name
            results = self._convert_in_context(node, env, opset, depth)
            env.update(
                (name, entry)
                for name, entry in zip(node.results, results, strict=False)
                if name and entry is not None
            )
            self.unmade.update((n, node.label) for n in node.results if n and n not in env)

    def _check_made(self, name: str) -> None:
        """Raises `UnsupportedOpError` if a result that is read is one that a converter does not
        make."""
        if name in self.unmade:
            raise UnsupportedOpError(
                f"{self.unmade[name]}: its result {name!r} is not supported here"
            )

    def _convert_in_context(
        self, node: NodeRecord, env: Mapping[str, OnnxEntry], opset: int, depth: int
    ) -> Sequence[OnnxEntry | None]:
        try:
            return self._convert(node, env, opset, depth)
        except UnsupportedOpError:
            raise
        except RecursionError as error:
            raise ImportModelError(f"{node.label}: nested too deeply") from error
        except DistirError as error:
            raise ImportModelError(_in_context(node, env, str(error))) from error
        except Exception as error:  # a damaged file can break a converter in any way
            message = f"operands or attributes are not as expected ({error!r})"
            raise ImportModelError(_in_context(node, env, message)) from error

    def _convert(
        self, node: NodeRecord, env: Mapping[str, OnnxEntry], opset: int, depth: int
    ) -> Sequence[OnnxEntry | None]:
        missing = [name for name in node.operands if name and name not in env]
        if missing:
            self._check_made(missing[0])
            raise ImportModelError(f"its operand {missing[0]!r} is not computed anywhere")
        entries = [env[name] if name else None for name in node.operands]
        key = node.type_key
        function = self.model.functions.get((node.domain, node.op_type))
        if function is not None:
            return self._call_function(function, node, entries, opset, depth)
        if key == "Identity":
            return [self._alias(entries[0])]
        if key == "Constant":
            return [self._constant_node(node)]
        if key == "ConstantOfShape" and depth == 0 and self._is_weight_maker(node, entries):
            return [self._weight_of_shape(node, entries)]
        if key == "If":
            return self._branch(node, entries, env, opset, depth)
        if key in _ON_LISTS:
            return [self._on_list(key, node, entries, env, opset, depth)]
        if key == "NonZero" and not isinstance(entries[0], OnnxConstant):
            raise UnsupportedOpError(_in_context(node, env, unknown_op(node.type_key)))
        converter = find_converter(key)
        if converter is None:
            return self._convert_defined(node, entries, env, opset, depth)
        given = [entry for entry in entries if entry is not None]
        is_known = all(isinstance(entry, OnnxConstant) for entry in given)
        if is_known and not _looks_up_positions(key, given):
            return self._fold(converter, node, cast("list[OnnxConstant | None]", entries), opset)
        call = Call(node, opset, self.builder, entries, self.resolve, self.axis_maps)
        is_shape = key in ("Shape", "Size")
        return [self._entry(each, node, is_shape) for each in self._converted(converter, call)]

    def _converted(self, converter: Converter, call: Call) -> Sequence[Any]:
        """What a converter returns; attributes that it has not asked for are told."""
        returned = _as_sequence(converter(call))
        notes = self.builder.notes
        notes += [note for note in call.unread if note not in notes]
        return returned

    def _entry(self, returned: Any, node: NodeRecord, from_shape: bool) -> OnnxEntry | None:
        if returned is None or isinstance(returned, (Value, OnnxWeight)):
            return returned
        if isinstance(returned, OnnxConstant):
            return replace(returned, from_shape=from_shape)
        return _known(returned, node.results[0], from_shape)

    # --- sources ---------------------------------------------------------------------------------

    def resolve(self, entry: OnnxEntry) -> Value:
        """The value of the function that an entry stands for.

        What several ops read becomes a parameter of its own for each of them where exporters may
        have merged what was equal before training, such as zero biases.
        """
        if isinstance(entry, Value):
            return entry
        if isinstance(entry, TensorList):
            raise ImportModelError("a sequence of tensors stands where a tensor was expected")
        if isinstance(entry, OnnxConstant):
            if entry not in self.constant_values:
                self.constant_values[entry] = _declare_constant(self.builder, entry)
            return self.constant_values[entry]
        if entry in self.weight_values and not self._may_be_merged(entry):
            return self.weight_values[entry]
        count = self.copies.get(entry.name, 0) + 1
        self.copies[entry.name] = count
        name = entry.name if count == 1 else f"{entry.name}#{count}"
        value = self.builder.parameter(name, entry.type.shape, entry.type.dtype)
        self.weight_values[entry] = value
        if entry.record is not None:
            self.weights[value] = entry.record
        return value

    def _may_be_merged(self, weight: OnnxWeight) -> bool:
        """Whether a tensor of the file may stand for several that were equal: all its elements are,
        or, where the file does not tell, it is a vector."""
        record = weight.record
        if record is None or not self.roles.stores_values or not record.has_values():
            return not is_wide(weight.type.shape)
        return is_uniform(record)

    def _alias(self, entry: OnnxEntry | None) -> OnnxEntry | None:
        """What an Identity makes. A vector becomes another one, since exporters write so what they
        have merged."""
        if isinstance(entry, OnnxWeight) and not is_wide(entry.type.shape):
            return replace(entry)
        return entry

    def _constant_node(self, node: NodeRecord) -> OnnxEntry:
        name = node.results[0]
        for key, value in node.attributes.items():
            if key == "value" and isinstance(value, TensorRecord):
                return self.leaf(name, value)
            if key in ("value_float", "value_floats"):
                return _known(as_dtype(value, DType.FLOAT32), name)
            if key in ("value_int", "value_ints"):
                return _known(as_dtype(value, DType.INT64), name)
        raise ImportModelError("a Constant without a readable value; expected a tensor or number")

    def _is_weight_maker(self, node: NodeRecord, entries: Sequence[OnnxEntry | None]) -> bool:
        """Whether a ConstantOfShape makes a parameter, as in files without weights, and not a
        mask."""
        value = node.attributes.get("value")
        dtype = value.dtype if isinstance(value, TensorRecord) else DType.FLOAT32
        shape = entries[0] if entries else None
        if not dtype.is_float or not isinstance(shape, OnnxConstant) or shape.array is None:
            return False
        if shape.from_shape:  # the shape of a mask depends on inputs, that of a weight does not
            return False
        type = TensorType(_sizes(shape.array), dtype)
        return self.roles.role(node.results[0], type) is Role.PARAMETER

    def _weight_of_shape(self, node: NodeRecord, entries: Sequence[OnnxEntry | None]) -> OnnxWeight:
        value = node.attributes.get("value")
        dtype = value.dtype if isinstance(value, TensorRecord) else DType.FLOAT32
        shape = entries[0]
        assert isinstance(shape, OnnxConstant)
        assert shape.array is not None
        return OnnxWeight(TensorType(_sizes(shape.array), dtype), node.results[0])

    # --- constants -------------------------------------------------------------------------------

    def _fold(
        self,
        converter: Converter,
        node: NodeRecord,
        entries: Sequence[OnnxConstant | None],
        opset: int,
    ) -> Sequence[OnnxEntry | None]:
        """Computes an op on constants: converts it to a function of its own and evaluates that."""
        scratch = Builder("constants")
        declared: dict[Value, OnnxConstant] = {}

        def resolve(entry: OnnxEntry) -> Value:
            if isinstance(entry, Value):
                return entry
            assert isinstance(entry, OnnxConstant)
            value = _declare_constant(scratch, entry)
            declared[value] = entry
            return value

        call = Call(node, opset, scratch, entries, resolve, self.axis_maps)
        returned = self._converted(converter, call)
        arrays = self._compute(scratch)
        from_shape = any(entry is not None and entry.from_shape for entry in entries)
        results: list[OnnxEntry | None] = []
        for value, name in zip(returned, node.results, strict=False):
            if isinstance(value, Value):
                entry = declared.get(value)
                folded = OnnxConstant(value.type, arrays.get(value), name, from_shape)
                results.append(entry or folded)
            else:
                results.append(self._entry(value, node, from_shape))
        return results

    def _compute(self, scratch: Builder) -> dict[Value, Array]:
        """The values of all results in `scratch` that can be computed and are small enough."""
        import numpy as np

        known = {value: array for value, array in scratch.constants.items() if array is not None}
        for node in scratch.nodes:
            size = max((value.type.num_elements for value in node.results), default=0)
            if size > MOST_FOLDED_ELEMENTS:
                continue
            is_repeated = isinstance(node.op, Expand)  # elements that repeat take no memory
            nbytes = 0 if is_repeated else sum(value.type.size_bytes for value in node.results)
            if self.folded_bytes + nbytes > MOST_FOLDED_BYTES:
                continue
            if any(operand not in known for operand in node.operands):
                continue
            with np.errstate(all="ignore"):
                arrays = node.op.evaluate(*(known[operand] for operand in node.operands))
            for value, array in zip(node.results, arrays, strict=True):
                known[value] = as_dtype(array, value.type.dtype).reshape(value.type.shape)
                self.folded_bytes += _held_bytes(known[value])
        return known

    # --- lists of tensors ------------------------------------------------------------------------

    def _on_list(
        self,
        key: str,
        node: NodeRecord,
        entries: Sequence[OnnxEntry | None],
        env: Mapping[str, OnnxEntry],
        opset: int,
        depth: int,
    ) -> OnnxEntry:
        """The result of an op on sequences of tensors, by the tensors in them."""
        given = [entry for entry in entries if entry is not None]
        if key == "SequenceConstruct":
            return TensorList(given[0].type, tuple(given))
        if key == "SplitToSequence":
            return self._split_to_list(node, given, opset)
        items = given[0].items if isinstance(given[0], TensorList) else ()
        if not items:
            raise ImportModelError("its operand is not a sequence of tensors of known length")
        if key == "SequenceAt":
            position = given[1]
            if not isinstance(position, OnnxConstant) or position.array is None:
                raise ImportModelError("its position depends on data; expected a constant")
            return items[int(position.array.reshape(()))]
        if key == "SequenceLength":
            import numpy as np

            return _known(np.asarray(len(items), np.int64), node.results[0])
        names = tuple(f"{node.results[0]}.{i}" for i in range(len(items)))
        inner = {**env, **dict(zip(names, items, strict=True))}
        axis = int(node.attributes.get("axis", 0))
        concat = replace(node, op_type="Concat", operands=names, attributes={"axis": axis})
        if node.attributes.get("new_axis", 0):
            raise UnsupportedOpError(_in_context(node, env, "new_axis is not supported"))
        (result,) = self._convert(concat, inner, opset, depth)
        assert result is not None
        return result

    def _split_to_list(
        self, node: NodeRecord, given: Sequence[OnnxEntry], opset: int
    ) -> TensorList:
        from distir.ops.tensor import Reshape, Split

        x = self.resolve(given[0])
        axis = int(node.attributes.get("axis", 0)) % x.type.rank
        size = x.type.shape[axis]
        sizes = (1,) * size
        if len(given) > 1:
            count = given[1]
            if not isinstance(count, OnnxConstant) or count.array is None:
                raise ImportModelError("the sizes of its parts depend on data; expected constants")
            numbers = [int(n) for n in count.array.reshape(-1)]
            if count.array.ndim:
                sizes = tuple(numbers)
            else:
                part = max(1, numbers[0])
                sizes = tuple(min(part, size - i) for i in range(0, size, part))
        if len(sizes) > 1 << 12:
            raise ImportModelError(f"it makes {len(sizes)} parts; expected at most {1 << 12}")
        parts = self.builder.apply(Split(axis, sizes), x)
        if len(given) == 1 and not node.attributes.get("keepdims", 1):
            shape = (*x.type.shape[:axis], *x.type.shape[axis + 1 :])
            parts = tuple(self.builder.add(Reshape(shape), part) for part in parts)
        return TensorList(parts[0].type, parts)

    # --- control flow ----------------------------------------------------------------------------

    def _branch(
        self,
        node: NodeRecord,
        entries: Sequence[OnnxEntry | None],
        env: Mapping[str, OnnxEntry],
        opset: int,
        depth: int,
    ) -> Sequence[OnnxEntry | None]:
        """The results of an `If` whose condition is known, from the branch that is taken. An input
        that is a condition by itself, such as whether a cache is used, is false."""
        condition = entries[0] if entries else None
        if isinstance(condition, OnnxConstant) and condition.array is not None:
            holds = bool(condition.array.all())
        elif isinstance(condition, Value) and condition in self.builder.inputs:
            holds = False
            self.decided.add(condition)
            note = f"{condition.name} is false, so of two branches the one without it is simulated"
            if note not in self.builder.notes:
                self.builder.notes.append(note)
        else:
            raise UnsupportedOpError(
                _in_context(node, env, "its condition depends on data; export without control flow")
            )
        body = node.attributes["then_branch" if holds else "else_branch"]
        if not isinstance(body, GraphRecord):
            raise ImportModelError("a branch is not a graph")
        inner = dict(env)
        for name, record in body.initializers.items():
            inner[name] = self.leaf(name, record)
        self.run_nodes(sorted_nodes(body, list(inner), body.outputs), inner, opset, depth + 1)
        return [inner.get(name) for name in body.outputs]

    def _convert_defined(
        self,
        node: NodeRecord,
        entries: Sequence[OnnxEntry | None],
        env: Mapping[str, OnnxEntry],
        opset: int,
        depth: int,
    ) -> Sequence[OnnxEntry | None]:
        """The results of an op without a converter, which ONNX defines by other ops."""
        types = [None if each is None else each.type for each in entries]
        function = defined_function(node, opset, types)
        if function is None:
            raise UnsupportedOpError(_in_context(node, env, unknown_op(node.type_key)))
        try:
            return self._call_function(function, node, entries, opset, depth)
        except UnsupportedOpError as error:
            raise UnsupportedOpError(_in_context(node, env, str(error))) from error

    def _call_function(
        self,
        function: FunctionRecord,
        node: NodeRecord,
        entries: Sequence[OnnxEntry | None],
        opset: int,
        depth: int,
    ) -> Sequence[OnnxEntry | None]:
        """The results of a function, whose body is converted in place of the call."""
        given = {**function.defaults, **node.attributes}
        inner: dict[str, OnnxEntry] = {
            name: entry
            for name, entry in zip(function.inputs, entries, strict=False)
            if entry is not None
        }
        absent = {name for name in function.inputs if name not in inner}
        nodes = tuple(_bind(each, given, absent) for each in function.nodes)
        body = GraphRecord(function.name, (), {}, nodes, function.outputs)
        outputs = [
            name for name, wanted in zip(function.outputs, node.results, strict=False) if wanted
        ]
        ordered = sorted_nodes(body, list(inner), outputs)
        self.run_nodes(ordered, inner, function.opset or opset, depth + 1)
        return [inner.get(name) for name in function.outputs]


def _bind(node: NodeRecord, given: Mapping[str, Any], absent: set[str]) -> NodeRecord:
    """A node of a function's body for one call: references to the call's attributes are replaced,
    and operands that the call does not give are empty."""
    attributes = dict(node.attributes)
    for name, reference in node.references.items():
        if given.get(reference) is not None:
            attributes[name] = given[reference]
    operands = tuple("" if name in absent else name for name in node.operands)
    return NodeRecord(node.op_type, node.domain, node.name, operands, node.results, attributes)


def _looks_up_positions(key: str, entries: Sequence[OnnxEntry]) -> bool:
    """Whether rows of a table are looked up as many as an input is long: the op stays, as it says
    how long inputs may be."""
    table, *others = entries
    return (
        key in ("Gather", "Slice")
        and isinstance(table, OnnxConstant)
        and table.type.dtype.is_float
        and table.type.rank > 1
        and not table.from_shape
        and any(isinstance(each, OnnxConstant) and each.from_shape for each in others)
    )


def _declare_constant(builder: Builder, entry: OnnxConstant) -> Value:
    if entry.array is None:
        return builder.table(entry.name, entry.type.shape, entry.type.dtype)
    return builder.constant(entry.array, entry.type.dtype, entry.name)


def _held_bytes(array: Array) -> int:
    """The memory that the elements of an array take; those that only repeat others take none."""
    sizes = zip(array.shape, array.strides, strict=True)
    return int(array.itemsize) * math.prod(size for size, stride in sizes if stride)


def _sizes(array: Array) -> tuple[int, ...]:
    """The shape that an array of sizes gives."""
    shape = tuple(int(size) for size in array.reshape(-1))
    check_shape("its result", shape)
    return shape


_DTYPE_OF_NUMPY = {
    "float64": DType.FLOAT64,
    "float32": DType.FLOAT32,
    "float16": DType.FLOAT16,
    "int64": DType.INT64,
    "int32": DType.INT32,
    "int16": DType.INT16,
    "int8": DType.INT8,
    "uint8": DType.UINT8,
    "bool": DType.BOOL,
}


def _known(array: Array, name: str, from_shape: bool = False) -> OnnxConstant:
    type = TensorType(tuple(array.shape), _DTYPE_OF_NUMPY[array.dtype.name])
    return OnnxConstant(type, array, name, from_shape)


def _as_sequence(returned: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", returned) if isinstance(returned, (list, tuple)) else (returned,)


def _in_context(node: NodeRecord, env: Mapping[str, OnnxEntry], message: str) -> str:
    """An error message with the op and the types of its operands in front."""
    fed: list[str] = []
    for name in node.operands[:6]:
        entry = env.get(name)
        fed.append(f"{name}: {entry.type}" if entry is not None else name or "(none)")
    prefix = f"{node.label}, fed by {', '.join(fed) or 'nothing'}: "
    whole = message if message.startswith(prefix) else prefix + message
    return whole if len(whole) <= LONGEST_MESSAGE else whole[:LONGEST_MESSAGE] + " …"


_ON_LISTS = (
    "SequenceConstruct",
    "SplitToSequence",
    "SequenceAt",
    "SequenceLength",
    "ConcatFromSequence",
)
