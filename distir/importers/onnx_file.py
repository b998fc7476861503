"""Reads an ONNX file into plain records. No other module knows how protobuf stores them.

Nothing in a file is trusted: sizes, paths, names and types are checked here, and errors in them are
raised as `ImportModelError`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, cast

from distir.errors import ImportModelError
from distir.files import check_no_output, is_file
from distir.ir.core import Array
from distir.ir.types import DType, TensorType
from distir.limits import MOST_DIMS, MOST_ELEMENTS

_DTYPES: dict[int, DType] = {
    1: DType.FLOAT32,
    2: DType.UINT8,
    3: DType.INT8,
    4: DType.INT32,  # uint16
    5: DType.INT16,
    6: DType.INT32,
    7: DType.INT64,
    9: DType.BOOL,
    10: DType.FLOAT16,
    11: DType.FLOAT64,
    12: DType.INT64,  # uint32
    13: DType.INT64,  # uint64
    16: DType.BFLOAT16,
    17: DType.FLOAT8,
    18: DType.FLOAT8,
    19: DType.FLOAT8,
    20: DType.FLOAT8,
    21: DType.UINT8,  # uint4
    22: DType.INT8,  # int4
}
_CODES = {"FLOAT": 1, "UINT8": 2, "INT8": 3, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9,
    "FLOAT16": 10, "DOUBLE": 11, "BFLOAT16": 16}  # fmt: skip
"""Codes of the most common types, by the names that old files use."""
_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2,
    17: 1, 18: 1, 19: 1, 20: 1}  # fmt: skip
"""Bytes per element of raw data, by the code of its type."""
_HALVES = (21, 22)
"""Codes of types of which a byte, or a number, has two elements, the first in its lower bits."""
_TYPED_FIELDS = {1: "float_data", 7: "int64_data", 11: "double_data", 12: "uint64_data",
    13: "uint64_data"}  # fmt: skip
"""The field with an element per number, by the code of its type; of others it is `int32_data`."""
_OTHER_DTYPES = {8: "string", 14: "complex64", 15: "complex128", 23: "fp4"}

_NUMPY_NAMES: dict[DType, str] = {
    DType.FLOAT64: "float64",
    DType.FLOAT32: "float32",
    DType.BFLOAT16: "float32",
    DType.FLOAT16: "float16",
    DType.FLOAT8: "float32",
    DType.INT64: "int64",
    DType.INT32: "int32",
    DType.INT16: "int16",
    DType.INT8: "int8",
    DType.UINT8: "uint8",
    DType.BOOL: "bool",
}


def as_dtype(array: Array, dtype: DType) -> Array:
    """The array in the NumPy type for `dtype`: float32 for types that NumPy does not have."""
    import numpy as np

    return np.asarray(array).astype(_NUMPY_NAMES[dtype], copy=False)


def onnx_package(submodule: str = "") -> Any:
    """The package onnx, or a submodule of it, imported when it is needed."""
    # By name, because type checkers take a plain import for the module `onnx.py` beside this one.
    return importlib.import_module(f"onnx.{submodule}" if submodule else "onnx")


def read_dtype(code: int | str, where: str) -> DType:
    """The element type with this ONNX code or old name. Raises `ImportModelError` for a type that
    is not supported; `where` says in the message what has it."""
    if isinstance(code, str):
        code = _CODES.get(code.upper(), 0)
    if code not in _DTYPES:
        found = _OTHER_DTYPES.get(code, f"number {code}")
        raise ImportModelError(
            f"{where} has element type {found}; expected a float, integer or boolean type"
        )
    return _DTYPES[code]


def check_shape(what: str, shape: Sequence[int]) -> None:
    """Raises `ImportModelError` for shapes that no sound file has; `what` says what has it."""
    if (
        len(shape) > MOST_DIMS
        or any(size < 0 for size in shape)
        or math.prod(shape) > MOST_ELEMENTS
    ):
        raise ImportModelError(
            f"{what} has shape {list(shape)[:MOST_DIMS]}; expected at most {MOST_DIMS} dims, "
            f"{MOST_ELEMENTS} elements and no negative size"
        )


@dataclass(frozen=True, slots=True, eq=False)
class TensorRecord:
    """A tensor stored in the file or declared by it. `load` gives its values."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    proto: Any
    source: Path | None = None
    """The external file with the values, if there is one; it may not exist."""
    in_file: bool = True
    """Whether the values are in the ONNX file itself; where weights are stripped, they are not."""

    @property
    def num_elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def has_values(self) -> bool:
        """Whether `load` can find values."""
        return self.in_file or (self.source is not None and is_file(self.source))

    def load(self, *, mapped: bool = False) -> Array:
        """The values; if `mapped`, in the type that they are stored in, and those in an external
        file stay there until they are used. Raises `ImportModelError` if they cannot be read or do
        not fit the type."""
        import numpy as np

        try:
            if self.source is not None:
                array = self._load_external(self.source, mapped=mapped)
            else:
                array = onnx_package("numpy_helper").to_array(self.proto)
            array = np.asarray(array).reshape(self.shape)
            return array if mapped else as_dtype(array, self.dtype)
        except (ValueError, TypeError, OSError, OverflowError) as error:
            raise ImportModelError(
                f"the values of tensor {self.name!r} do not fit its type "
                f"{self.dtype.short_name}{list(self.shape)}: {error}"
            ) from error

    def _load_external(self, path: Path, *, mapped: bool) -> Array:
        import numpy as np

        entries = {_text(e.key): _text(e.value) for e in self.proto.external_data}
        offset = int(entries.get("offset", 0))
        code = int(self.proto.data_type)
        dtype = np.dtype(onnx_package("helper").tensor_dtype_to_np_dtype(code))
        wanted = _raw_bytes(code, self.num_elements)
        if offset < 0 or offset + wanted > path.stat().st_size:
            raise ValueError(f"{path.name} ends before byte {offset + wanted}")
        if mapped:
            return np.memmap(path, dtype, "r", offset, (self.num_elements,))
        with path.open("rb") as file:
            file.seek(offset)
            raw = file.read(wanted)
        if code not in _HALVES:
            return np.frombuffer(raw, dtype)
        pairs = np.frombuffer(raw, np.uint8)
        numbers = np.stack([pairs & 15, pairs >> 4], -1).reshape(-1)[: self.num_elements]
        is_signed = _DTYPES[code] is DType.INT8
        return numbers.astype(np.int8) - 16 * (numbers > 7) if is_signed else numbers


@dataclass(frozen=True, slots=True, eq=False)
class NodeRecord:
    """One op of the file. Names of optional operands that are absent are empty."""

    op_type: str
    domain: str
    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: Mapping[str, Any]
    """int, float, str, TensorRecord, GraphRecord, or a tuple of them."""
    references: Mapping[str, str] = field(default_factory=dict[str, str])
    """Inside a model-local function: attributes that take their values from attributes of the call,
    by name."""
    ranks: Mapping[str, int] = field(default_factory=dict[str, int])
    """The number of dims of those results whose shapes the file states."""

    @property
    def type_key(self) -> str:
        """The type of the op, behind its domain if that is not ONNX's."""
        return f"{self.domain}:{self.op_type}" if self.domain else self.op_type

    @property
    def label(self) -> str:
        """The op and its name in the file, for error messages."""
        name = self.name or (self.results[0] if self.results else "")
        return f"{self.type_key} {name!r}"


Dims = tuple[int | str | None, ...]
"""Declared dims. Each is a size, the text of a symbolic size, or None if it has neither."""


@dataclass(frozen=True, slots=True, eq=False)
class InputRecord:
    """A declared input."""

    name: str
    dims: Dims
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class GraphRecord:
    """A graph, or the body of a branch or function, with its nodes in the file's order."""

    name: str
    inputs: tuple[InputRecord, ...]
    initializers: Mapping[str, TensorRecord]
    nodes: tuple[NodeRecord, ...]
    outputs: tuple[str, ...]
    declared: Mapping[str, Dims] = field(default_factory=dict[str, Dims])
    """The dims of those outputs whose shapes are declared."""
    stated_kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the exporter says initializers were: PARAMETER, BUFFER or CONSTANT_TENSOR, as PyTorch
    writes it; of those that it computed it says nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class FunctionRecord:
    """A model-local function: ops that a file names once and calls with tensors and attributes."""

    name: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Any]
    nodes: tuple[NodeRecord, ...]
    opset: int | None


@dataclass(frozen=True, slots=True, eq=False)
class ModelRecord:
    """A whole ONNX file."""

    graph: GraphRecord
    opset: int
    functions: Mapping[tuple[str, str], FunctionRecord]


def read_model(source: str | Path | Any) -> ModelRecord:
    """Reads an ONNX file, given by path, or an `onnx.ModelProto`.

    Raises `ImportModelError` if the package onnx is missing, or the file is missing or damaged.
    """
    try:
        onnx = onnx_package()
    except ImportError as error:
        raise ImportModelError(
            "reading ONNX files needs the package onnx; install it with: pip install onnx"
        ) from error
    if isinstance(source, onnx.ModelProto):
        return _read(source, None)
    path = Path(source)
    if not is_file(path):
        raise ImportModelError(f"there is no file {str(path)!r}; expected an ONNX model")
    check_no_output(path, ImportModelError)
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise ImportModelError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf raises its own family, unrelated to ours
        reason = str(error).split("\n")[0]
        raise ImportModelError(
            f"{str(path)!r} is not an ONNX model: {reason}; the file may be incomplete, or a Git "
            "LFS pointer: download or export it again"
        ) from error
    try:
        return _read(proto, path.parent)
    except ImportModelError as error:
        raise ImportModelError(f"{path}: {error}") from error


def read_function(proto: Any, defaults: Mapping[str, Any], opset: int) -> FunctionRecord:
    """An `onnx.FunctionProto` whose attributes have these defaults, as messages, and whose body has
    this opset where it names none."""
    reader = _Reader(None)
    read = reader.function(proto)
    given = {name: reader.attribute(each, proto.name) for name, each in defaults.items()}
    return replace(read, defaults={**read.defaults, **given}, opset=read.opset or opset)


def written_attribute(value: Any) -> Any:
    """The value of an attribute, which is no graph, as `onnx.helper.make_node` takes it."""
    return value.proto if isinstance(value, TensorRecord) else value


def written_type(type: TensorType | None) -> Any:
    """The type as an `onnx.TypeProto`; an empty one for an operand that is absent."""
    helper = onnx_package("helper")
    if type is None:
        return onnx_package().TypeProto()
    code = next(code for code, dtype in _DTYPES.items() if dtype is type.dtype)
    return helper.make_tensor_type_proto(code, type.shape)


def _read(proto: Any, folder: Path | None) -> ModelRecord:
    if not proto.HasField("graph"):
        raise ImportModelError("the file holds no graph; expected an ONNX model")
    reader = _Reader(folder)
    try:
        opset = _default_opset(proto.opset_import)
        if opset is None:
            raise ImportModelError(
                "the file does not state an opset of the default domain; export it again"
            )
        functions = {
            (_domain(each.domain), _text(each.name)): reader.function(each)
            for each in proto.functions
        }
        for version in (opset, *(each.opset for each in functions.values())):
            _check_opset(version)
        graph = reader.graph(proto.graph)
        _check_outputs(graph)
        return ModelRecord(graph, opset, functions)
    except RecursionError as error:
        raise ImportModelError("the file nests graphs too deeply") from error


def _default_opset(imports: Any) -> int | None:
    versions = [int(entry.version) for entry in imports if _domain(entry.domain) == ""]
    return max(versions, default=None)


def _check_opset(version: int | None) -> None:
    newest: int = onnx_package("defs").onnx_opset_version()
    if version is not None and not 1 <= version <= newest:
        raise ImportModelError(
            f"the file has opset {version}; expected 1 to {newest}, which the installed package "
            "onnx knows; update that package, or export the model with one of these"
        )


def _check_outputs(graph: GraphRecord) -> None:
    made = {name for node in graph.nodes for name in node.results}
    made |= {record.name for record in graph.inputs} | set(graph.initializers)
    missing = [name for name in graph.outputs if name not in made]
    if missing:
        raise ImportModelError(
            f"the output {missing[0]!r} is declared, but no op makes it, and it is not an input; "
            "remove it from the file, or add the op"
        )


def _domain(domain: str | bytes) -> str:
    return "" if _text(domain) == "ai.onnx" else _text(domain)


def _text(text: str | bytes) -> str:
    """A string of the file; protobuf returns bytes where it is not UTF-8."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


_STATED_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


class _Reader:
    """Turns protobuf messages into records."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def graph(self, proto: Any, is_body: bool = False) -> GraphRecord:
        """A graph with its nodes as they stand in the file; `is_body` if it is within another."""
        if len(proto.sparse_initializer):
            raise ImportModelError("the file has sparse initializers; expected dense ones")
        initializers: dict[str, TensorRecord] = {}
        for tensor in proto.initializer:
            record = self.tensor(tensor)
            if record.name in initializers:
                raise ImportModelError(f"initializer {record.name!r} is declared twice")
            initializers[record.name] = record
        inputs = tuple(
            self.input_of_body(value) if is_body else self.input(value)
            for value in proto.input
            if _text(value.name) not in initializers
        )
        outputs = tuple(_text(value.name) for value in proto.output)
        declared = {_text(value.name): _dims(shaped) for value, shaped in _shaped(proto.output)}
        ranks = {
            _text(value.name): len(shaped.shape.dim)
            for value, shaped in _shaped((*proto.value_info, *proto.output))
        }
        nodes = tuple(self.node(node, ranks) for node in proto.node)
        kinds = dict(_stated_kinds(proto))
        return GraphRecord(_text(proto.name), inputs, initializers, nodes, outputs, declared, kinds)

    def function(self, proto: Any) -> FunctionRecord:
        """A model-local function."""
        defaults: dict[str, Any] = dict.fromkeys(map(_text, proto.attribute))
        for attribute in proto.attribute_proto:
            defaults[_text(attribute.name)] = self.attribute(
                attribute, f"function {_text(proto.name)}"
            )
        return FunctionRecord(
            name=_text(proto.name),
            domain=_domain(proto.domain),
            inputs=tuple(map(_text, proto.input)),
            outputs=tuple(map(_text, proto.output)),
            defaults=defaults,
            nodes=tuple(self.node(node) for node in proto.node),
            opset=_default_opset(proto.opset_import),
        )

    def node(self, proto: Any, ranks: Mapping[str, int] | None = None) -> NodeRecord:
        """One op; `ranks` has those of values whose shapes the file states."""
        attributes: dict[str, Any] = {}
        references: dict[str, str] = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                references[_text(attribute.name)] = _text(attribute.ref_attr_name)
            else:
                attributes[_text(attribute.name)] = self.attribute(
                    attribute, f"op {_text(proto.op_type)}"
                )
        results = tuple(map(_text, proto.output))
        return NodeRecord(
            op_type=_text(proto.op_type),
            domain=_domain(proto.domain),
            name=_text(proto.name),
            operands=tuple(map(_text, proto.input)),
            results=results,
            attributes=attributes,
            references=references,
            ranks={name: ranks[name] for name in results if name in ranks} if ranks else {},
        )

    def attribute(self, proto: Any, where: str) -> Any:
        """The value of an attribute."""
        kind = int(proto.type)
        if kind == 1:
            return float(proto.f)
        if kind == 2:
            return int(proto.i)
        if kind == 3:
            return bytes(proto.s).decode("utf-8", "replace")
        if kind == 4:
            return self.tensor(proto.t)
        if kind == 5:
            return self.graph(proto.g, is_body=True)
        if kind == 6:
            return tuple(float(number) for number in proto.floats)
        if kind == 7:
            return tuple(int(number) for number in proto.ints)
        if kind == 8:
            return tuple(bytes(text).decode("utf-8", "replace") for text in proto.strings)
        if kind == 9:
            return tuple(self.tensor(tensor) for tensor in proto.tensors)
        if kind == 10:
            return tuple(self.graph(graph, is_body=True) for graph in proto.graphs)
        raise ImportModelError(f"{where}: attribute {_text(proto.name)!r} has no readable type")

    def tensor(self, proto: Any) -> TensorRecord:
        """A tensor; its values are read when they are needed."""
        name = _text(proto.name)
        shape = tuple(int(size) for size in proto.dims)
        check_shape(f"tensor {name!r}", shape)
        dtype = read_dtype(int(proto.data_type), f"tensor {name!r}")
        if int(proto.data_location) == 1:
            return TensorRecord(
                name, shape, dtype, proto, self._external_path(proto, name), in_file=False
            )
        return TensorRecord(name, shape, dtype, proto, in_file=_has_data(proto, name, shape))

    def _external_path(self, proto: Any, name: str) -> Path | None:
        """The external file with a tensor's values; None if there is no place to look for it."""
        location = next(
            (_text(e.value) for e in proto.external_data if _text(e.key) == "location"), ""
        )
        parts = PurePath(location).parts
        if not parts or PurePath(location).is_absolute() or ".." in parts or "\0" in location:
            raise ImportModelError(
                f"tensor {name!r} states that its values are in {location[:200]!r}; expected a "
                "file "
                "inside the model's folder"
            )
        if self._folder is None:  # a model handed over in memory
            return None
        try:
            path = (self._folder / location).resolve()
            inside = path.is_relative_to(self._folder.resolve())
        except (ValueError, OSError, RuntimeError):
            return None
        check_no_output(path, ImportModelError)
        return path if inside else None

    def input_of_body(self, proto: Any) -> InputRecord:
        """An input of a loop's body, whose type need not be declared: loops are not read, so that
        its name alone is."""
        return InputRecord(_text(proto.name), (), DType.FLOAT32)

    def input(self, proto: Any) -> InputRecord:
        """A declared input."""
        where = f"input {_text(proto.name)!r}"
        if not proto.type.HasField("tensor_type"):
            raise ImportModelError(f"{where} is not a tensor; expected tensors as inputs")
        tensor = proto.type.tensor_type
        if not tensor.HasField("shape"):
            raise ImportModelError(f"{where} has no shape; export the model with shapes")
        dtype = read_dtype(int(tensor.elem_type), where)
        return InputRecord(_text(proto.name), _dims(tensor), dtype)


def _stated_kinds(graph: Any) -> Iterator[tuple[str, str]]:
    """The names and kinds of values of which the file says what they were to the exporter."""
    for value in graph.value_info:
        for entry in getattr(value, "metadata_props", ()):
            if _text(entry.key) == _STATED_KIND:
                yield _text(value.name), _text(entry.value)


def _shaped(values: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """The declarations of tensors that state a shape, each with its type."""
    for value in values:
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type") and tensor.HasField("shape"):
            yield value, tensor


def _dims(tensor: Any) -> Dims:
    """The dims of a declared type that has a shape."""
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_param") and dim.dim_param:
            dims.append(_text(dim.dim_param))
            continue
        size = int(dim.dim_value) if dim.HasField("dim_value") else -1
        # Some exporters write 0 or -1 for "any size".
        dims.append(size if size > 0 else None)
    return tuple(dims)


def _has_data(proto: Any, name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor has its values in the file. Raises `ImportModelError` if it has some of
    them, or more."""
    code, wanted = int(proto.data_type), math.prod(shape)
    raw = len(proto.raw_data)
    if raw:
        found, wanted, unit = raw, _raw_bytes(code, wanted), "bytes"
    else:
        wanted = -(-wanted // 2) if code in _HALVES else wanted
        found, unit = len(getattr(proto, _TYPED_FIELDS.get(code, "int32_data"))), "numbers"
    if found not in (0, wanted):
        raise ImportModelError(
            f"tensor {name!r} of shape {list(shape)} has {found:,} {unit} of values; expected "
            f"{wanted:,}, or none in a file without weights: it may be damaged; export it again"
        )
    return found == wanted


def _raw_bytes(code: int, elements: int) -> int:
    """The bytes that elements of a type take in a file."""
    return -(-elements // 2) if code in _HALVES else elements * _BYTES[code]


def sorted_nodes(
    graph: GraphRecord, available: Sequence[str], outputs: Sequence[str]
) -> tuple[NodeRecord, ...]:
    """The nodes that `outputs` need, in topological order. `available` are names that exist before.

    Raises `ImportModelError` for names that are missing, assigned twice, or part of a cycle.
    """
    producers: dict[str, NodeRecord] = {}
    known = set(available)
    for node in graph.nodes:
        for name in node.results:
            if name and (name in producers or name in known):
                raise ImportModelError(f"{node.label} assigns {name!r}, which exists already")
            if name:
                producers[name] = node
    done: dict[int, bool] = {}
    order: list[NodeRecord] = []
    for output in outputs:
        stack: list[tuple[str, NodeRecord | None]] = [(output, None)]
        while stack:
            name, leaving = stack.pop()
            if leaving is not None:
                done[id(leaving)] = True
                order.append(leaving)
                continue
            if name in known:
                continue
            node = producers.get(name)
            if node is None:
                raise ImportModelError(
                    f"{name!r} is read, but it is not an input, an initializer or the result of an "
                    "op"
                )
            state = done.get(id(node))
            if state is None:
                done[id(node)] = False
                stack.append((name, node))
                stack.extend((operand, None) for operand in reversed(_reads(node)))
            elif not state:  # nodes that are begun and not done lie on the path that led here
                raise ImportModelError(f"{node.label} depends on its own result {name!r}")
    return tuple(order)


def _reads(node: NodeRecord) -> list[str]:
    """The names that a node reads, including those that its branches read from the graph."""
    names = [name for name in node.operands if name]
    for value in node.attributes.values():
        graphs = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        for graph in graphs:
            if isinstance(graph, GraphRecord):
                names.extend(outer_names(graph))
    return names


def outer_names(graph: GraphRecord) -> Iterator[str]:
    """The names that the body of a branch reads from the graph around it."""
    own = {value.name for value in graph.inputs} | set(graph.initializers)
    own.update(name for node in graph.nodes for name in node.results)
    for node in graph.nodes:
        yield from (name for name in _reads(node) if name not in own)
    produced = {name for node in graph.nodes for name in node.results}
    yield from (name for name in graph.outputs if name not in own | produced)
