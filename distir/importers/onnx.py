"""Imports ONNX files: `import_onnx(path)`.

A file is read without its weights, since shapes are enough. Symbolic dims are bound to *probe*
sizes that occur nowhere else in the model, so that axes are not confused because their sizes happen
to be equal. A batch that the file fixes at 1 is found and widened. Errors in a file are raised as
`ImportModelError`, or as `UnsupportedOpError` that names the op and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import distir.importers.onnx_ops  # noqa: F401  (importing registers converters)
from distir.errors import DistirError, ImportModelError, UnsupportedOpError
from distir.garbage import collection_paused
from distir.importers.onnx_bind import Binding, bindings
from distir.importers.onnx_convert import Conversion
from distir.importers.onnx_file import Dims, GraphRecord, ModelRecord, read_model
from distir.importers.onnx_roles import Decision, TensorRoles
from distir.importers.onnx_twice import stored_twice, told
from distir.importers.per_sample import gather_per_sample
from distir.importers.tidy import merge_slices, merge_strides, without_unused
from distir.importers.unit_batch import widen_batch
from distir.importers.written import join_written
from distir.ir.builder import Builder
from distir.ir.core import Array, Node, Value
from distir.ir.function import Function
from distir.ir.verifier import verify

PROBE_BATCH = 3
"""The batch to which a batch that the file fixes at 1 is widened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """The function of a model file, and what else the file says."""

    function: Function
    symbols: Mapping[str, int]
    """The size that each symbolic dim was bound to."""
    input_dims: Mapping[str, tuple[str | None, ...]]
    """Per input and dim: the name of the symbolic size, or None if the file fixes the size."""
    lengths: tuple[str, ...]
    """The symbols that stand for neither a batch nor the size of an image."""
    decisions: Mapping[str, Decision]
    """Per float tensor of the file: whether it is a parameter or a table, and why."""
    weights: Mapping[Value, Array] = field(default_factory=dict[Value, Any])
    """Values of parameters, if they were asked for and the file has them."""
    at_other_lengths: Function | None = None
    """The function at other `lengths`, if there are any and the file can have others. Where it
    differs by more than these, the file computes lengths from them."""


def import_onnx(source: str | Path | Any, **options: Any) -> Function:
    """The function of an ONNX file or `onnx.ModelProto`; see `read_onnx` for options and errors."""
    return read_onnx(source, **options).function


@collection_paused()
def read_onnx(
    source: str | Path | Any,
    *,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    sizes: Mapping[str, int] | None = None,
    parameters: Collection[str] = (),
    tables: Collection[str] = (),
    load_weights: bool = False,
    widen: bool = True,
) -> ImportedModel:
    """Reads an ONNX file or `onnx.ModelProto`.

    `batch_size` and `sequence_length` bind symbolic dims (probe sizes by default); `sizes` binds
    them by name. Fixed dims stay as they are, except a batch of 1, which is widened unless `widen`
    is false. `parameters` and `tables` name tensors of the file whose role would be guessed wrong.
    With `load_weights`, the values of parameters are returned where the file has them.

    Raises `ImportModelError` if the file cannot be read, and `UnsupportedOpError` for an unknown
    op.
    """
    model = read_model(source)
    name = _name(model, source)
    twice = stored_twice(model.graph)

    def convert(binding: Binding) -> tuple[Conversion, Function]:
        roles = TensorRoles(model.graph, parameters, tables, model.functions)
        return _convert(Conversion(model, roles, Builder(name), twice), binding)

    def widened(conversion: Conversion, function: Function) -> Function:
        wide = batch_size or PROBE_BATCH
        return _widened(function, conversion, wide) if widen else function

    first_error: DistirError | None = None
    said: list[str] = []
    for binding in bindings(model.graph, batch_size, sequence_length, sizes or {}):
        try:
            conversion, function = convert(binding)
        except UnsupportedOpError:
            raise
        except ImportModelError as error:
            first_error = first_error or error
            said.append(str(error))
            continue
        _check_declared(model.graph, binding, function, lambda other: convert(other)[1])
        function = widened(conversion, function)
        others = _at_other_lengths(model.graph, binding, lambda each: widened(*convert(each)))
        if others is None and binding.lengths:
            binding = binding.with_fixed_lengths()
        joined = [told(conversion.joined)] if conversion.joined else []
        function = _with_notes(function, [*([binding.note] if binding.note else []), *joined])
        verify(function)
        records = {value: conversion.weights.get(value) for value in function.parameters}
        weights = {
            value: record.load()
            for value, record in records.items()
            if load_weights and record is not None and record.has_values()
        }
        return ImportedModel(
            function=function,
            at_other_lengths=others,
            symbols=binding.symbols,
            input_dims={value.name: binding.dims[value.name] for value in function.inputs},
            lengths=binding.lengths,
            decisions=conversion.roles.decisions,
            weights=weights,
        )
    assert first_error is not None
    symbols = next(bindings(model.graph, batch_size, sequence_length, sizes or {})).symbols
    # A message that is the same at several sizes does not depend on them.
    if not symbols or (len(said) > 1 and len(set(said)) == 1):
        raise first_error
    bound = ", ".join(f"{name} = {size}" for name, size in symbols.items())
    raise ImportModelError(
        f"{first_error}; tried with {bound}; if the file needs other sizes, state them by name"
    ) from first_error


def _at_other_lengths(
    graph: GraphRecord, binding: Binding, convert: Callable[[Binding], Function]
) -> Function | None:
    """The function at other lengths than those of the binding, as `convert` makes it: at twice or
    half of them, or at a few more; None if the file can have none of these."""
    found = {name: binding.symbols[name] for name in binding.lengths}
    for others in (
        {name: 2 * size for name, size in found.items()},
        {name: max(1, size // 2) for name, size in found.items()},
        {name: size + 8 for name, size in found.items()},
    ):
        try:
            return convert(next(bindings(graph, None, None, {**binding.symbols, **others})))
        except DistirError:  # as it may be made for the lengths that it has
            continue
    return None


def _convert(conversion: Conversion, binding: Binding) -> tuple[Conversion, Function]:
    builder = conversion.builder
    outputs = conversion.run(binding.shapes)
    read = {value for node in builder.nodes for value in node.operands}
    dropped = {v for v in builder.inputs if not v.type.num_elements} | conversion.decided
    function = Function(
        name=builder.name,
        inputs=tuple(v for v in builder.inputs if v in read or v not in dropped),
        parameters=tuple(builder.parameters),
        constants=dict(builder.constants),
        nodes=tuple(builder.nodes),
        outputs=tuple(outputs),
        notes=tuple(builder.notes),
    )
    function = join_written(without_unused(function))
    function = without_unused(gather_per_sample(merge_slices(merge_strides(function))))
    for value in (*function.inputs, *function.parameters, *function.outputs):
        _check_elements(value)
    for node in function.nodes:
        for value in node.results:
            _check_elements(value)
        _check_operands(node)
    return conversion, function


def _check_declared(
    graph: GraphRecord,
    binding: Binding,
    function: Function,
    convert: Callable[[Binding], Function],
) -> None:
    """Raises `ImportModelError` if an output is declared with another shape than it has.

    A size that changes with those that the file leaves open may be declared as it was when the file
    was made: `convert` gives the function at other sizes.
    """
    found = [value.type.shape for value in function.outputs]
    declared = [graph.declared.get(name) for name in graph.outputs]
    wrong = [
        position
        for position, (dims, shape) in enumerate(zip(declared, found, strict=True))
        if dims is not None and not _agree(dims, shape)
    ]
    if not wrong:
        return
    twice = {name: 2 * size for name, size in binding.symbols.items()}
    try:
        others = convert(next(bindings(graph, None, None, twice))).outputs if twice else ()
    except DistirError:  # made for the sizes that it has
        return
    for position in wrong:
        dims, shape = declared[position] or (), found[position]
        other = others[position].type.shape if others else shape
        fixed = tuple(a if a == b else None for a, b in zip(shape, other, strict=True))
        if not _agree(dims, fixed):
            raise ImportModelError(
                f"the output {graph.outputs[position]!r} is declared with the shape "
                f"{_written(dims)}, but its ops make {_written(shape)}; correct the shape, or the "
                "ops"
            )


def _agree(declared: Dims, shape: Sequence[int | None]) -> bool:
    """Whether a shape is as declared, where both say a size."""
    return len(declared) == len(shape) and all(
        not isinstance(theirs, int) or ours is None or ours == theirs
        for theirs, ours in zip(declared, shape, strict=True)
    )


def _written(dims: Dims) -> str:
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def _check_elements(value: Value) -> None:
    if value.type.num_elements == 0:
        raise ImportModelError(f"{value} has no elements; expected sizes of at least 1")


def _check_operands(node: Node) -> None:
    taken = len(node.op.signature(node.operand_types, node.result_types).operands)
    if taken != len(node.operands):
        raise ImportModelError(
            f"{node.op.name} {node.results[0].name!r} has {len(node.operands)} operands; it takes "
            f"{taken}"
        )


def _widened(function: Function, conversion: Conversion, batch_size: int) -> Function:
    """The function with a batch of 1 widened, if the first dims of its inputs are 1; with a note
    that says why if it cannot be widened."""
    positions = {value: 0 for value in function.inputs if value.type.shape[:1] == (1,)}
    if not positions or batch_size == 1:
        return function
    renamed: dict[Value, Value] = {}
    try:
        wide = widen_batch(function, positions, batch_size, conversion.axis_maps, renamed)
    except DistirError as error:
        note = f"the file fixes the batch at 1, and it could not be widened: {error}"
        return _with_note(function, note)
    for old, new in renamed.items():
        if old in conversion.weights:
            conversion.weights[new] = conversion.weights[old]
    return _with_note(wide, f"the file's batch of 1 was widened to {batch_size}")


def _with_note(function: Function, note: str) -> Function:
    from dataclasses import replace

    return replace(function, notes=(*function.notes, note))


def _with_notes(function: Function, notes: Sequence[str]) -> Function:
    for note in notes:
        function = _with_note(function, note)
    return function


def _name(model: ModelRecord, source: str | Path | Any) -> str:
    return Path(source).stem if isinstance(source, (str, Path)) else model.graph.name or "model"


__all__: Sequence[str] = ("ImportedModel", "import_onnx", "read_onnx")
