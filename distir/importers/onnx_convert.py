"""From the records of an ONNX file to a Function: names, constants, weights, one call per op.

What each op becomes is in `onnx_ops`; this module only knows how an op is applied. An op whose
operands are all constants is computed at once (shape arithmetic disappears), or, where values are
not known, becomes a table without values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from distir.errors import DistirError, ImportModelError, UnsupportedOpError
from distir.importers.onnx_by_name import find_converter, known_op_types
from distir.importers.onnx_call import (
    MOST_FOLDED_ELEMENTS,
    Call,
    Constant,
    Converter,
    Entry,
    TensorList,
    Weight,
)
from distir.importers.onnx_file import (
    FunctionRecord,
    GraphRecord,
    ModelRecord,
    NodeRecord,
    TensorRecord,
    as_dtype,
    sorted_nodes,
)
from distir.importers.onnx_roles import Role, Roles
from distir.ir.builder import Builder
from distir.ir.core import Array, Value
from distir.ir.types import DType, TensorType

MOST_FOLDED_BYTES = 256 << 20
"""Memory that the computed constants of one model may take together."""
DEEPEST_NESTING = 32
LONGEST_MESSAGE = 1500


@dataclass(slots=True)
class Conversion:
    """The state of one import: names so far, the function being built, and what was decided."""

    model: ModelRecord
    roles: Roles
    builder: Builder
    axis_maps: dict[Value, tuple[int | None, ...]] = field(
        default_factory=dict[Value, tuple[int | None, ...]]
    )
    weights: dict[Value, TensorRecord] = field(default_factory=dict[Value, TensorRecord])
    weight_values: dict[Weight, Value] = field(default_factory=dict[Weight, Value])
    constant_values: dict[Constant, Value] = field(default_factory=dict[Constant, Value])
    copies: dict[str, int] = field(default_factory=dict[str, int])
    """How often a vector was entered as a parameter of its own."""
    folded_bytes: int = 0

    def run(self, input_shapes: Mapping[str, tuple[int, ...]]) -> list[Value]:
        """Converts the whole graph; returns the outputs."""
        graph = self.model.graph
        env: dict[str, Entry] = {}
        weights = self.roles.weight_inputs()
        for record in graph.inputs:
            shape = input_shapes[record.name]
            if record.name not in weights:
                env[record.name] = self.builder.input(record.name, shape, record.dtype)
                continue
            type = TensorType(shape, record.dtype)
            is_trained = self.roles.role(record.name, type) is Role.PARAMETER
            env[record.name] = (
                Weight(type, record.name) if is_trained else Constant(type, None, record.name)
            )
        env |= {name: self.leaf(name, record) for name, record in graph.initializers.items()}
        if not graph.outputs:
            raise ImportModelError("the graph has no outputs")
        nodes = sorted_nodes(graph, list(env), graph.outputs)
        self.run_nodes(nodes, env, self.model.opset, depth=0)
        outputs: list[Value] = []
        for name in graph.outputs:
            value = self.resolve(env[name])
            outputs.append(value)
        return outputs

    def leaf(self, name: str, record: TensorRecord) -> Entry:
        """A stored tensor: a parameter, or a constant with its values if the file has them."""
        type = TensorType(record.shape, record.dtype)
        if self.roles.role(name, type) is Role.PARAMETER:
            return Weight(type, name, record)
        return Constant(type, record.load() if record.has_values() else None, name)

    def run_nodes(
        self, nodes: Sequence[NodeRecord], env: dict[str, Entry], opset: int, depth: int
    ) -> None:
        """Converts nodes in order; `env` gains their results."""
        if depth > DEEPEST_NESTING:
            raise ImportModelError("functions or branches are nested too deeply")
        for node in nodes:
            self.builder.origin = node.name
            results = self._convert_in_context(node, env, opset, depth)
            env.update(
                (name, entry)
                for name, entry in zip(node.results, results, strict=False)
                if name and entry is not None
            )
            missing = [n for n in node.results[len(results) :] if n]
            if missing:
                raise UnsupportedOpError(
                    f"{node.label}: its result {missing[0]!r} is not supported here"
                )

    def _convert_in_context(
        self, node: NodeRecord, env: Mapping[str, Entry], opset: int, depth: int
    ) -> Sequence[Entry | None]:
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
        self, node: NodeRecord, env: Mapping[str, Entry], opset: int, depth: int
    ) -> Sequence[Entry | None]:
        missing = [name for name in node.operands if name and name not in env]
        if missing:
            raise ImportModelError(f"{missing[0]!r} is not computed anywhere")
        entries = [env[name] if name else None for name in node.operands]
        key = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
        function = self.model.functions.get((node.domain, node.op_type))
        if function is not None:
            return self._call_function(function, node, entries, opset, depth)
        if key == "Identity":
            return [entries[0]]
        if key == "Constant":
            return [self._constant_node(node)]
        if key == "ConstantOfShape" and self._is_weight_maker(node, entries):
            return [self._weight_of_shape(node, entries)]
        if key == "If":
            return self._branch(node, entries, env, opset, depth)
        if key in _ON_LISTS:
            return [self._on_list(key, node, entries, env, opset, depth)]
        if key == "NonZero" and not isinstance(entries[0], Constant):
            raise UnsupportedOpError(_in_context(node, env, _unsupported(key)))
        converter = find_converter(key)
        if converter is None:
            raise UnsupportedOpError(_in_context(node, env, _unsupported(key)))
        given = [entry for entry in entries if entry is not None]
        if all(isinstance(entry, Constant) for entry in given):
            return self._fold(converter, node, cast("list[Constant | None]", entries), opset)
        call = Call(node, opset, self.builder, entries, self.resolve, self.axis_maps)
        returned = converter(call)
        is_shape = key in ("Shape", "Size")
        return [self._entry(each, node, is_shape) for each in _as_sequence(returned)]

    def _entry(self, returned: Any, node: NodeRecord, from_shape: bool) -> Entry | None:
        if returned is None or isinstance(returned, Value):
            return returned
        if isinstance(returned, Constant):
            return replace(returned, from_shape=from_shape)
        return _known(returned, node.results[0], from_shape)

    # --- sources ---------------------------------------------------------------------------------

    def resolve(self, entry: Entry) -> Value:
        """The entry as a value of the function. A vector that serves several ops is a parameter
        of its own for each: exporters merge equal initializers, such as zero biases."""
        if isinstance(entry, Value):
            return entry
        if isinstance(entry, TensorList):
            raise ImportModelError("a sequence of tensors stands where a tensor was expected")
        if isinstance(entry, Constant):
            if entry not in self.constant_values:
                self.constant_values[entry] = _declare_constant(self.builder, entry)
            return self.constant_values[entry]
        is_vector = sum(size != 1 for size in entry.type.shape) <= 1
        if entry in self.weight_values and not is_vector:
            return self.weight_values[entry]
        count = self.copies.get(entry.name, 0) + 1
        self.copies[entry.name] = count
        name = entry.name if count == 1 else f"{entry.name}#{count}"
        value = self.builder.parameter(name, entry.type.shape, entry.type.dtype)
        self.weight_values[entry] = value
        if entry.record is not None:
            self.weights[value] = entry.record
        return value

    def _constant_node(self, node: NodeRecord) -> Entry:
        name = node.results[0]
        for key, value in node.attributes.items():
            if key == "value" and isinstance(value, TensorRecord):
                return self.leaf(name, value)
            if key in ("value_float", "value_floats"):
                return _known(as_dtype(value, DType.FLOAT32), name)
            if key in ("value_int", "value_ints"):
                return _known(as_dtype(value, DType.INT64), name)
        raise ImportModelError("a Constant without a readable value")

    def _is_weight_maker(self, node: NodeRecord, entries: Sequence[Entry | None]) -> bool:
        """Slimmed files make their weights by ConstantOfShape; masks are made so, too."""
        value = node.attributes.get("value")
        dtype = value.dtype if isinstance(value, TensorRecord) else DType.FLOAT32
        shape = entries[0] if entries else None
        if not dtype.is_float or not isinstance(shape, Constant) or shape.array is None:
            return False
        if shape.from_shape:  # weights do not depend on the sizes of inputs, masks do
            return False
        type = TensorType(_sizes(shape.array), dtype)
        return self.roles.role(node.results[0], type) is Role.PARAMETER

    def _weight_of_shape(self, node: NodeRecord, entries: Sequence[Entry | None]) -> Weight:
        value = node.attributes.get("value")
        dtype = value.dtype if isinstance(value, TensorRecord) else DType.FLOAT32
        shape = entries[0]
        assert isinstance(shape, Constant)
        assert shape.array is not None
        return Weight(TensorType(_sizes(shape.array), dtype), node.results[0])

    # --- constants -------------------------------------------------------------------------------

    def _fold(
        self,
        converter: Converter,
        node: NodeRecord,
        entries: Sequence[Constant | None],
        opset: int,
    ) -> Sequence[Entry | None]:
        """Applies the op in a function of its own and computes that."""
        scratch = Builder("constants")
        declared: dict[Value, Constant] = {}

        def resolve(entry: Entry) -> Value:
            assert isinstance(entry, Constant)
            value = _declare_constant(scratch, entry)
            declared[value] = entry
            return value

        returned = _as_sequence(
            converter(Call(node, opset, scratch, entries, resolve, self.axis_maps))
        )
        arrays = self._compute(scratch)
        from_shape = any(entry is not None and entry.from_shape for entry in entries)
        results: list[Entry | None] = []
        for value, name in zip(returned, node.results, strict=False):
            if isinstance(value, Value):
                entry = declared.get(value)
                folded = Constant(value.type, arrays.get(value), name, from_shape)
                results.append(entry or folded)
            else:
                results.append(self._entry(value, node, from_shape))
        return results

    def _compute(self, scratch: Builder) -> dict[Value, Array]:
        """Values of everything in `scratch` that is known and small enough."""
        import numpy as np

        known = {value: array for value, array in scratch.constants.items() if array is not None}
        for node in scratch.nodes:
            size = max((value.type.num_elements for value in node.results), default=0)
            nbytes = sum(value.type.size_bytes for value in node.results)
            if size > MOST_FOLDED_ELEMENTS or self.folded_bytes + nbytes > MOST_FOLDED_BYTES:
                continue
            if any(operand not in known for operand in node.operands):
                continue
            self.folded_bytes += nbytes
            with np.errstate(all="ignore"):
                arrays = node.op.evaluate(*(known[operand] for operand in node.operands))
            for value, array in zip(node.results, arrays, strict=True):
                known[value] = as_dtype(array, value.type.dtype).reshape(value.type.shape)
        return known

    # --- lists of tensors ------------------------------------------------------------------------

    def _on_list(
        self,
        key: str,
        node: NodeRecord,
        entries: Sequence[Entry | None],
        env: Mapping[str, Entry],
        opset: int,
        depth: int,
    ) -> Entry:
        """Ops on sequences of tensors, resolved to the tensors."""
        given = [entry for entry in entries if entry is not None]
        if key == "SequenceConstruct":
            return TensorList(given[0].type, tuple(given))
        if key == "SplitToSequence":
            return self._split_to_list(node, given, opset)
        items = given[0].items if isinstance(given[0], TensorList) else ()
        if not items:
            raise ImportModelError("its operand is not a sequence of known tensors")
        if key == "SequenceAt":
            position = given[1]
            if not isinstance(position, Constant) or position.array is None:
                raise ImportModelError("which element it takes depends on data")
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

    def _split_to_list(self, node: NodeRecord, given: Sequence[Entry], opset: int) -> TensorList:
        from distir.ops.tensor import Reshape, Split

        x = self.resolve(given[0])
        axis = int(node.attributes.get("axis", 0)) % x.type.rank
        size = x.type.shape[axis]
        sizes = (1,) * size
        if len(given) > 1:
            count = given[1]
            if not isinstance(count, Constant) or count.array is None:
                raise ImportModelError("the sizes of its parts depend on data")
            numbers = [int(n) for n in count.array.reshape(-1)]
            if count.array.ndim:
                sizes = tuple(numbers)
            else:
                part = max(1, numbers[0])
                sizes = tuple(min(part, size - i) for i in range(0, size, part))
        if len(sizes) > 1 << 12:
            raise ImportModelError(f"it makes {len(sizes)} parts")
        parts = self.builder.apply(Split(axis, sizes), x)
        if len(given) == 1 and not node.attributes.get("keepdims", 1):
            shape = (*x.type.shape[:axis], *x.type.shape[axis + 1 :])
            parts = tuple(self.builder.add(Reshape(shape), part) for part in parts)
        return TensorList(parts[0].type, parts)

    # --- control flow ----------------------------------------------------------------------------

    def _branch(
        self,
        node: NodeRecord,
        entries: Sequence[Entry | None],
        env: Mapping[str, Entry],
        opset: int,
        depth: int,
    ) -> Sequence[Entry | None]:
        """`If` whose condition is known: the branch taken."""
        condition = entries[0] if entries else None
        if not isinstance(condition, Constant) or condition.array is None:
            raise UnsupportedOpError(
                _in_context(node, env, "its condition depends on data; export without control flow")
            )
        body = node.attributes["then_branch" if bool(condition.array.all()) else "else_branch"]
        if not isinstance(body, GraphRecord):
            raise ImportModelError("a branch is not a graph")
        inner = dict(env)
        for name, record in body.initializers.items():
            inner[name] = self.leaf(name, record)
        self.run_nodes(sorted_nodes(body, list(inner), body.outputs), inner, opset, depth + 1)
        return [inner[name] for name in body.outputs]

    def _call_function(
        self,
        function: FunctionRecord,
        node: NodeRecord,
        entries: Sequence[Entry | None],
        opset: int,
        depth: int,
    ) -> Sequence[Entry | None]:
        """A model-local function, with its body in place of the call."""
        given = {**function.defaults, **node.attributes}
        inner: dict[str, Entry] = {
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
    """The node with attribute references replaced and operands that were not given emptied."""
    attributes = dict(node.attributes)
    for name, reference in node.references.items():
        if given.get(reference) is not None:
            attributes[name] = given[reference]
    operands = tuple("" if name in absent else name for name in node.operands)
    return NodeRecord(node.op_type, node.domain, node.name, operands, node.results, attributes)


def _declare_constant(builder: Builder, entry: Constant) -> Value:
    if entry.array is None:
        return builder.table(entry.name, entry.type.shape, entry.type.dtype)
    return builder.constant(entry.array, entry.type.dtype, entry.name)


def _sizes(array: Array) -> tuple[int, ...]:
    shape = tuple(int(size) for size in array.reshape(-1))
    if len(shape) > 16 or any(size < 0 for size in shape) or math.prod(shape) > 1 << 44:
        raise ImportModelError(f"a tensor of shape {list(shape)[:16]} is asked for")
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


def _known(array: Array, name: str, from_shape: bool = False) -> Constant:
    type = TensorType(tuple(array.shape), _DTYPE_OF_NUMPY[array.dtype.name])
    return Constant(type, array, name, from_shape)


def _as_sequence(returned: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", returned) if isinstance(returned, (list, tuple)) else (returned,)


def _in_context(node: NodeRecord, env: Mapping[str, Entry], message: str) -> str:
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
_CONTROL_FLOW = ("Loop", "Scan", "SequenceMap")
_RECURRENT = ("LSTM", "GRU", "RNN")


def _unsupported(key: str) -> str:
    if key in _CONTROL_FLOW:
        return f"{key} is not supported: loops whose bodies run in turn have no axes to split"
    if key in _RECURRENT:
        return f"{key} is not supported: a recurrence runs step after step; export it unrolled"
    if key.startswith(("Random", "Bernoulli", "Multinomial")):
        return f"{key} is not supported: it draws random numbers; feed them as an input"
    if "Sequence" in key or key.startswith("Optional"):
        return f"{key} is not supported: it makes sequences instead of tensors"
    if key == "NonZero":
        return (
            f"{key} is not supported: the shape of its result depends on data; a mixture of "
            "experts can be given by its config.json, or exported with experts as batched products"
        )
    if key in ("Unique", "Compress", "NonMaxSuppression"):
        return f"{key} is not supported: the shape of its result depends on data"
    if "Quant" in key or key.endswith("Integer"):
        return f"{key} is not supported: export the model before quantization"
    import difflib

    near = difflib.get_close_matches(key, known_op_types(), n=3, cutoff=0.6)
    hint = f" (near: {', '.join(near)})" if near else ""
    return (
        f"{key} is not supported{hint}; export with another opset or exporter, or register an op "
        "of this name with distir.ops.register_op, or with distir.importers.onnx_call.converts how "
        "it is expressed in known ones"
    )
