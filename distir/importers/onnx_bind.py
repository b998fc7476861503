"""Binds the symbolic dims of a file to probe sizes that occur nowhere else in it."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from distir.errors import ImportModelError
from distir.importers.onnx_file import GraphRecord, InputRecord, TensorRecord

_BATCH_SIZES = (2, 3, 5, 7, 11, 13, 17, 19, 23)
_OTHER_SIZES = tuple(range(24, 1024, 8))
_SHORT_SIZES = (22, 20, 18, 14, 10, 21, 15, 9, 6, 12, 16, 8, 4, 7, 5)
"""Sequence lengths for models whose table of positions is shorter than the usual probe sizes."""
MOST_TRACED_SIZES = 6
"""Numbers in the file that are tried as the size of a symbolic dim."""
_SPATIAL_SIZES = (224, 256, 384, 64, 32, 299, 512)


_UNSPACED_SIGN = re.compile(r"\w(-|(?<!/)/(?!/))[^\W\d]")
"""In names such as `batch-size` and `batch/size`; exporters write spaces around a minus, and
`s-1` is arithmetic."""


def _quotient(a: int, b: int) -> int:
    return a // b


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _quotient,
    ast.Div: _quotient,
}


@dataclass(frozen=True, slots=True)
class Binding:
    """Sizes of the symbolic dims, and the shapes of the inputs that follow from them."""

    shapes: Mapping[str, tuple[int, ...]]
    """Per input its shape."""
    symbols: Mapping[str, int]
    """The size of each symbol."""
    dims: Mapping[str, tuple[str | None, ...]]
    """Per input and dim: the text of the symbolic size; None if the file or the user fixes it."""
    lengths: tuple[str, ...] = ()
    """The symbols left open that stand for neither a batch nor the size of an image."""
    note: str = ""

    def with_fixed_lengths(self) -> Binding:
        """The same for a file that was found to work at no other lengths."""
        bound = ", ".join(f"{name} = {self.symbols[name]}" for name in self.lengths)
        note = f"the file works only at {bound}, as it was traced"
        fixed = set(self.lengths)
        dims = {
            name: tuple(
                None if text is None or fixed.intersection(names_in(text)) else text
                for text in texts
            )
            for name, texts in self.dims.items()
        }
        notes = [each for each in (self.note, note) if each]
        return replace(self, dims=dims, lengths=(), note="; ".join(notes))


@dataclass(frozen=True, slots=True)
class _Symbols:
    """The symbols of a file by what they seem to mean, in order of appearance."""

    batch: tuple[str, ...]
    sequence: tuple[str, ...]
    spatial: tuple[str, ...]


def bindings(
    graph: GraphRecord,
    batch_size: int | None,
    sequence_length: int | None,
    sizes: Mapping[str, int],
) -> Iterator[Binding]:
    """Bindings to try, best first.

    At first caches of keys and values are empty, and all other symbols have different sizes. Then
    symbols of one kind are equal, because a file may give two names to one size. Then they are
    bound to numbers that occur in the file, because a traced export may work only at the sizes it
    was traced with. Raises `ImportModelError` if `sizes` names an unknown symbol.
    """
    dims = {record.name: _texts(record) for record in graph.inputs}
    symbols = _classify(graph, dims)
    unknown = set(sizes) - set(symbols.batch + symbols.sequence + symbols.spatial)
    if unknown:
        known = ", ".join(symbols.batch + symbols.sequence + symbols.spatial) or "none"
        raise ImportModelError(f"no dim is called {min(unknown)!r}; symbolic dims: {known}")
    taken = _sizes_in_use(graph) | {*sizes.values()}
    asked = {
        **(dict.fromkeys(symbols.batch, batch_size) if batch_size else {}),
        **(dict.fromkeys(symbols.sequence, sequence_length) if sequence_length else {}),
        **sizes,
    }

    def binding(
        bound: Mapping[str, int], note: str = "", fixed: Collection[str] = frozenset(sizes)
    ) -> Binding:
        lengths = tuple(n for n in symbols.sequence if bound[n] and n not in fixed)
        shapes = {
            record.name: tuple(
                size if isinstance(size, int) else _evaluate(str(text), bound)
                for size, text in zip(record.dims, dims[record.name], strict=True)
            )
            for record in graph.inputs
        }
        left = {
            name: tuple(None if text in fixed else text for text in texts)
            for name, texts in dims.items()
        }
        return Binding(shapes, bound, left, lengths, note)

    caches = [name for name in _caches(graph, dims, symbols) if name not in sizes]
    for empty in (caches, []) if caches else ([],):
        note = f"caches are assumed to be empty: {' = '.join(empty)} = 0" if empty else ""
        for spatial in _SPATIAL_SIZES if symbols.spatial else (0,):
            zero = dict.fromkeys(empty, 0)
            for bound in _candidates(symbols, taken, spatial, zero):
                yield binding({**bound, **asked, **zero}, note)
    for bound, note, names in _traced_sizes(graph, symbols, taken):
        yield binding({**bound, **asked}, note, {*sizes, *names})


def _texts(record: InputRecord) -> tuple[str | None, ...]:
    """The texts of an input's symbolic sizes; a size without a name is named by its position."""
    return tuple(
        None if isinstance(size, int) else size or f"dim{position}"
        for position, size in enumerate(record.dims)
    )


def _classify(graph: GraphRecord, dims: Mapping[str, tuple[str | None, ...]]) -> _Symbols:
    """Sorts symbols by where they stand: first dims are batches, the last two dims of an image are
    spatial, others are sequences."""
    batch: dict[str, None] = {}
    sequence: dict[str, None] = {}
    spatial: dict[str, None] = {}
    for record in graph.inputs:
        is_image = record.dtype.is_float and len(record.dims) >= 4 and record.dims[1] is not None
        for position, text in enumerate(dims[record.name]):
            for name in names_in(text) if text is not None else ():
                if position == 0:
                    batch[name] = None
                elif is_image and position >= 2 and len(dims[record.name]) - position <= 2:
                    spatial[name] = None
                else:
                    sequence[name] = None
    for name in batch:
        sequence.pop(name, None)
    for name in sequence:
        spatial.pop(name, None)
    both = {name for record in graph.inputs for name in _last_two(dims[record.name])}
    for name in [name for name in spatial if name not in both or name in batch]:
        del spatial[name]
        if name not in batch:
            sequence[name] = None
    return _Symbols(tuple(batch), tuple(sequence), tuple(spatial))


def _caches(
    graph: GraphRecord, dims: Mapping[str, tuple[str | None, ...]], symbols: _Symbols
) -> tuple[str, ...]:
    """The symbols that stand for the length of a cache: by themselves, they stand only in several
    float inputs `[batch, heads, length, depth]`."""
    users: dict[str, list[InputRecord]] = {}
    for record in graph.inputs:
        for text in dims[record.name]:
            if text is not None:
                users.setdefault(text, []).append(record)
    return tuple(
        name
        for name in symbols.sequence
        if len(users.get(name, ())) > 1
        and all(each.dtype.is_float and len(each.dims) >= 4 for each in users[name])
    )


def _traced_sizes(
    graph: GraphRecord, symbols: _Symbols, taken: set[int]
) -> Iterator[tuple[dict[str, int], str, Sequence[str]]]:
    """Bindings of symbols to numbers in the file's small integer tensors, which shapes are computed
    from, each with a note and the symbols that it fixes. The most frequent come first, and those
    that are sizes of stored tensors last."""
    stored = {size for record in graph.initializers.values() for size in record.shape}
    counts = Counter(n for n in _integers(graph) if 1 < n < 1 << 16)
    common = [number for number, _ in counts.most_common()]
    computed = [number for number in common if number not in stored][:MOST_TRACED_SIZES]
    tried = [*computed, *[number for number in common if number in stored][:MOST_TRACED_SIZES]]
    spatial = _SPATIAL_SIZES[0] if symbols.spatial else 0
    for names in (symbols.sequence, symbols.batch):
        for number in tried if names else ():
            bound = _bind(symbols, taken, False, spatial) | dict.fromkeys(names, number)
            note = f"the file works only at {' = '.join(names)} = {number}, as it was traced"
            yield bound, note, names


def _last_two(texts: tuple[str | None, ...]) -> tuple[str, ...]:
    """The symbols of the last two dims if both are symbolic, as those of an image are."""
    last = [text for text in texts[-2:] if text is not None]
    return tuple(last) if len(last) == 2 else ()


def _candidates(
    symbols: _Symbols, taken: set[int], spatial: int, empty: dict[str, int]
) -> Iterator[dict[str, int]]:
    """Sizes of all symbols to try, at one size of images; those of `empty` are 0."""
    apart = _bind(symbols, taken, False, spatial) | empty
    yield apart
    if symbols.sequence:
        yield _bind(symbols, taken, False, spatial, _SHORT_SIZES) | empty
    if len(symbols.sequence) > 1 or len(symbols.batch) > 1:
        yield _bind(symbols, taken, True, spatial) | empty
    if len(symbols.sequence) == 3:  # a mask may span the cached and the new positions
        for name in symbols.sequence:
            others = sum(apart[other] for other in symbols.sequence if other != name)
            yield {**apart, name: others}


def _bind(
    symbols: _Symbols,
    taken: set[int],
    tied: bool,
    spatial: int,
    lengths: tuple[int, ...] = _OTHER_SIZES,
) -> dict[str, int]:
    """A size for each symbol that is not `taken`; equal for symbols of one kind if `tied`."""
    bound: dict[str, int] = {}
    used = set(taken)
    for names, candidates in ((symbols.batch, _BATCH_SIZES), (symbols.sequence, lengths)):
        size = None
        for name in names:
            if size is None or not tied:
                size = _free_size(candidates, used, bound)
            bound[name] = size
            used.add(size)
    bound |= dict.fromkeys(symbols.spatial, spatial)
    return bound


def _free_size(candidates: tuple[int, ...], used: set[int], bound: Mapping[str, int]) -> int:
    """The first size that is not used, nor gives a used size when added to one that is bound."""
    for size in candidates:
        if size not in used and not any(size + other in used for other in bound.values()):
            return size
    return next((size for size in candidates if size not in bound.values()), candidates[0])


def _sizes_in_use(graph: GraphRecord) -> set[int]:
    """The sizes of stored tensors and inputs, and the numbers in small integer tensors."""
    used = {size for record in _tensors(graph) for size in record.shape}
    used.update(_integers(graph))
    for record in graph.inputs:
        used.update(size for size in record.dims if isinstance(size, int))
    return used


def _tensors(graph: GraphRecord) -> list[TensorRecord]:
    """The initializers and the tensors in Constant nodes."""
    values = (node.attributes.get("value") for node in graph.nodes)
    constants = [value for value in values if isinstance(value, TensorRecord)]
    return [*graph.initializers.values(), *constants]


def _integers(graph: GraphRecord) -> Iterator[int]:
    """The numbers in small integer tensors, as often as they occur."""
    import numpy as np

    for record in _tensors(graph):
        if not record.dtype.is_float and record.in_file and record.num_elements <= 64:
            yield from (int(number) for number in np.asarray(record.load()).reshape(-1))


def names_in(text: str) -> list[str]:
    """The symbols in the text of a symbolic size, which may be an expression."""
    tree = _parse(text)
    if tree is None:
        return [text]
    return list(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))


def _parse(text: str) -> ast.expr | None:
    """The syntax tree of an expression such as `past + sequence`; None if the text is no
    such expression: it is then one name, such as `batch-size`."""
    if len(text) > 200 or _UNSPACED_SIGN.search(text):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = [*ast.walk(tree)]
    has_names = any(isinstance(node, ast.Name) for node in nodes)
    return tree if has_names and all(map(_is_understood, nodes)) else None


def _is_understood(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, (ast.BinOp, ast.Name, ast.Load, *_OPERATORS))


def _evaluate(text: str, bound: Mapping[str, int]) -> int:
    if text in bound:
        return bound[text]
    tree = _parse(text)
    size = 0 if tree is None else _evaluate_tree(tree, bound)
    if size < 1:
        raise ImportModelError(f"the symbolic size {text!r} is {size}; expected at least 1")
    return size


def _evaluate_tree(tree: ast.expr, bound: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Name):
        return bound[tree.id]
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        left, right = (_evaluate_tree(side, bound) for side in (tree.left, tree.right))
        if right != 0 or not isinstance(tree.op, (ast.Div, ast.FloorDiv)):
            return _OPERATORS[type(tree.op)](left, right)
    raise ImportModelError(f"the symbolic size {ast.unparse(tree)!r} is not understood")
