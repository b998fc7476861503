"""Probe sizes: batch and sequence at which a model is built so that its axes can be inferred."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from distir.errors import ImportModelError
from distir.ir import Function

_SEQUENCES = (23, 29, 31, 37, 41, 43, 47, 53, 19, 17, 13, 11, 7, 5, 3, 2)
_BATCHES = (11, 13, 17, 19, 7, 5, 3, 2)


def probe_sizes(taken: Collection[int] = (), longest: int | None = None) -> tuple[int, int]:
    """A batch size and a sequence length (at most `longest`) that are not `taken`, if possible.

    They are primes, so that they can be recognised in a product, and unlike any other size of the
    model, so that no other dim is taken for batch or sequence by chance. Later the axes are resized
    to the workload's batch and sequence.
    """
    sequence = _first(_SEQUENCES, taken, longest or max(_SEQUENCES))
    return _first(_BATCHES, {*taken, sequence}, max(_BATCHES)), sequence


def _first(candidates: Collection[int], taken: Collection[int], largest: int) -> int:
    fitting = [size for size in candidates if size <= largest]
    return next((size for size in fitting if size not in taken), fitting[0] if fitting else 1)


def build_at_probe_sizes(
    build: Callable[[int, int], Function], longest: int | None = None
) -> Function:
    """The function that `build(batch, sequence)` makes, at sizes that no parameter has."""
    batch, sequence = probe_sizes(longest=longest)
    function = build(batch, sequence)
    taken = {size for value in function.parameters for size in value.type.shape}
    if taken.isdisjoint((batch, sequence)):
        return function
    return build(*probe_sizes(taken, longest))


def build_at_possible_sizes(
    build: Callable[[int, int], Function], batch: int | None, sequence: int | None
) -> tuple[Function, int]:
    """The function that `build(batch, sequence)` makes, and its sequence length: at probe sizes if
    it can have them.

    Where it cannot, as when it cuts sequences into pieces, it is built with the usual `sequence`,
    and else with the usual `batch`, too, if it has such. Raises the last `ImportModelError`.
    """
    lengths: list[int] = []

    def at(batch: int, sequence: int) -> Function:
        lengths.append(sequence)
        return build(batch, sequence)

    probe, _ = probe_sizes()
    attempts: list[Callable[[], Function]] = [lambda: build_at_probe_sizes(at)]
    if sequence is not None:
        attempts.append(lambda: at(probe, sequence))
    if batch is not None and batch > 1:
        attempts.append(lambda: at(batch, sequence or probe_sizes()[1]))
    *others, last = attempts
    for attempt in others:
        try:
            return attempt(), lengths[-1]
        except ImportModelError:
            continue
    return last(), lengths[-1]


def dims_of_sequences(
    function: Function, length: int, build: Callable[[int], Function]
) -> Mapping[str, tuple[int, ...]]:
    """Per input of a function that `build(length)` made, the dims that are as long as the sequence:
    they are twice as long where that is. Where it cannot be built so, all dims of that length."""
    try:
        doubled = build(2 * length).inputs
    except ImportModelError:
        doubled = ()
    shapes = {value.name: value.type.shape for value in doubled}
    found = {
        value.name: tuple(
            dim
            for dim, size in enumerate(value.type.shape)
            if size == length and shapes.get(value.name, {dim: 2 * length})[dim] == 2 * length
        )
        for value in function.inputs
    }
    return {name: dims for name, dims in found.items() if dims}
