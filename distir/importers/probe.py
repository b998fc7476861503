"""Probe sizes: batch and sequence at which a model is built so that its axes can be inferred."""

from __future__ import annotations

from collections.abc import Callable, Collection

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
