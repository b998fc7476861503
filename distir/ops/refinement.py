"""The loops of a Reshape: how the dims of two shapes with the same elements correspond."""

from __future__ import annotations

from collections.abc import Sequence

from distir.ir.signature import Kind, Signature, SignatureBuilder


def reshape_signature(source: Sequence[int], target: Sequence[int]) -> Signature:
    """The signature of a Reshape, whose loops are the common refinement of both shapes:
    `(6, 4) -> (2, 3, 4)` has loops 2, 3, 4.

    Dims without a common refinement, as in `(4, 6) -> (6, 4)`, are whole on both sides.
    """
    builder = SignatureBuilder()
    from_dims: list[list[int]] = [[] for _ in source]
    to_dims: list[list[int]] = [[] for _ in target]
    for source_run, target_run in _matching_runs(source, target):
        pieces = _common_refinement(
            [source[i] for i in source_run], [target[i] for i in target_run]
        )
        if pieces is None:
            sides = ((source_run, source, from_dims), (target_run, target, to_dims))
            for run, shape, dims in sides:
                for i in run:
                    dims[i].extend(builder.loop(shape[i], Kind.WHOLE))
            continue
        for from_dim, to_dim, size in pieces:
            loop = builder.loop(size)
            from_dims[source_run[from_dim]].extend(loop)
            to_dims[target_run[to_dim]].extend(loop)
    return builder.build([tuple(map(tuple, from_dims))], [tuple(map(tuple, to_dims))])


def _matching_runs(
    source: Sequence[int], target: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of dims with equal products on both sides; dims of size 1 are left out. All
    dims of a tensor without elements are one run: nothing tells which of them belong together."""
    runs: list[tuple[list[int], list[int]]] = []
    left = [i for i, size in enumerate(source) if size != 1]
    right = [i for i, size in enumerate(target) if size != 1]
    if 0 in source:
        return [(left, right)]
    i = j = 0
    while i < len(left) and j < len(right):
        run: tuple[list[int], list[int]] = ([left[i]], [right[j]])
        a, b = source[left[i]], target[right[j]]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a *= source[left[i]]
                run[0].append(left[i])
                i += 1
            else:
                b *= target[right[j]]
                run[1].append(right[j])
                j += 1
        runs.append(run)
    return runs


def _common_refinement(
    source: Sequence[int], target: Sequence[int]
) -> list[tuple[int, int, int]] | None:
    """The common refinement of two shapes: pieces `(source dim, target dim, size)`, outermost
    first; None if there is none."""
    pieces: list[tuple[int, int, int]] = []
    i = j = 0
    a, b = source[0], target[0]
    while True:
        if a % b and b % a:
            return None
        size = min(a, b)
        pieces.append((i, j, size))
        a, b = a // size, b // size
        if a == 1:
            i += 1
        if b == 1:
            j += 1
        if i == len(source) or j == len(target):
            return pieces
        a = source[i] if a == 1 else a
        b = target[j] if b == 1 else b
