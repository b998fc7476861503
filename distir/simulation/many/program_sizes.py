"""The programs of strategies, and the sizes in these programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags, Floats, Indices, distinct, distinct_rows
from distir.cost.amounts import Divergence
from distir.mesh import MESH_CHOICES
from distir.plan import Planner
from distir.plan.planner import ProgramKind
from distir.strategies import Strategies

KIND = (
    "zero",
    "recompute",
    "recompute_every",
    "recompute_layers",
    "keep_gathered",
    "offload",
    "sync_every",
    "outer_optimizer",
    "placement",
)
"""The choices of a strategy, besides those of its mesh, on which the kind of its programs and the
order of its degrees on the cluster depend."""


SIZES_TOGETHER = 1 << 11
"""Program sizes, over all kinds, whose stages are priced together: what is alike in them is done
once, which pays while there are few; many would take memory."""

BLOCKS_TOGETHER = 80_000
"""Kinds that share programs are priced in parts where the number of their sizes, times that of the
different blocks of the model, is larger: what memory allows. The fullest chunk of T5-11B on 1,024
devices of dgx-a100, space full, then peaks at 1.0 GiB, without parts at 1.3 (November 2026)."""


@dataclass(frozen=True, slots=True)
class ProgramSizes:
    """Program sizes: all numbers on which a program of one kind depends."""

    degrees: Indices
    """Degrees of the mesh, of shape (sizes, mesh axes)."""
    samples: Indices
    """Samples of a microbatch, over all replicas."""
    ranks: Indices
    """Pipeline ranks."""
    communicators: Floats
    """Kinds of parallelism whose devices communicate."""
    splits: NDArray[np.bool_]
    """Whether some schedule with this size splits the backward pass."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for equal sizes."""
        return self.degrees.tobytes(), self.samples.tobytes(), self.ranks.tobytes()

    def taken(self, which: Indices) -> ProgramSizes:
        """The sizes with these numbers."""
        return ProgramSizes(
            self.degrees[which],
            self.samples[which],
            self.ranks[which],
            self.communicators[which],
            self.splits[which],
        )


@dataclass(frozen=True, slots=True)
class SizesOfKind:
    """Program sizes of one kind, which are among the `shared` sizes of kinds with one mesh: at
    these programs are made and priced, once."""

    kind: ProgramKind
    placement: str
    which: Indices
    """Their numbers."""
    shared: ProgramSizes
    places: Indices
    """Their places among the shared sizes."""

    @classmethod
    def of(
        cls, kinds: Sequence[tuple[ProgramKind, str, Indices]], sizes: ProgramSizes
    ) -> list[SizesOfKind]:
        """Of kinds with one mesh, each with a placement and the numbers of its sizes."""
        every = sizes.taken(np.concatenate([which for _, _, which in kinds]))
        first, place = distinct_rows(np.column_stack([every.degrees, every.samples, every.ranks]))
        places = np.split(place, np.cumsum([len(which) for _, _, which in kinds])[:-1])
        shared = every.taken(first)
        return [
            cls(kind, placement, which, shared, own)
            for (kind, placement, which), own in zip(kinds, places, strict=True)
        ]

    def at(self, where: Flags) -> SizesOfKind:
        """Those that are at the marked ones of the shared sizes."""
        own, place = where[self.places], np.cumsum(where) - 1
        return replace(
            self,
            which=self.which[own],
            shared=self.shared.taken(np.flatnonzero(where)),
            places=place[self.places[own]],
        )

    def parted(self, divergence: Divergence) -> list[SizesOfKind]:
        """In two parts, each of which has one program."""
        return [self.at(divergence.where), self.at(~divergence.where)]


def few_together(kinds: Sequence[SizesOfKind], blocks: int) -> Iterator[list[SizesOfKind]]:
    """Kinds that share programs, in parts: all of them at some of the shared sizes, then all at the
    next. The model has `blocks` different blocks; parts are no larger than `BLOCKS_TOGETHER`, but
    where a single shared size is, or kinds are not spread evenly."""
    shared = len(kinds[0].shared)
    together = blocks * sum(len(each.which) for each in kinds)
    parts = min(shared, -(-together // BLOCKS_TOGETHER))
    ends = [shared * part // parts for part in range(parts + 1)]
    for first, end in pairwise(ends):
        where = np.zeros(shared, np.bool_)
        where[first:end] = True
        yield [each.at(where) for each in kinds] if end - first < shared else [*kinds]


def several_together(
    several: Sequence[Sequence[SizesOfKind]], blocks: int
) -> Iterator[list[Sequence[SizesOfKind]]]:
    """Kinds with one mesh, of which those that share programs are together: several of these at a
    time, or parts of some (see `few_together`), no more than `BLOCKS_TOGETHER` allows."""
    found: list[Sequence[SizesOfKind]] = []
    together = 0
    for kinds in several:
        for few in few_together(kinds, blocks):
            count = blocks * sum(len(each.which) for each in few)
            if found and together + count > BLOCKS_TOGETHER:
                yield found
                found, together = [], 0
            found.append(few)
            together += count
    yield found


def kinds_of(
    planner: Planner, table: Strategies
) -> tuple[list[tuple[ProgramKind, str]], Indices, Indices, Indices]:
    """The program kinds of strategies, each with a placement, and the degrees of their meshes.

    Returns the different kinds, the number of each strategy's kind, the different degrees, of shape
    (meshes, mesh axes), and the number of each strategy's degrees.
    """
    first, mesh = table.distinct(MESH_CHOICES)
    found = [planner.mesh(table[int(place)]) for place in first]
    width = max(len(degrees) for _, degrees in found)
    degrees = np.array([(*own, *[1] * (width - len(own))) for _, own in found], np.int64)
    meshes: dict[object, int] = {}
    of_mesh = [meshes.setdefault(each, len(meshes)) for each, _ in found]
    first, other = table.distinct(KIND)
    first, which = distinct(np.array(of_mesh, np.int64)[mesh] * len(first) + other)
    kinds: dict[tuple[ProgramKind, str], int] = {}
    numbers: list[int] = []
    for place in first.tolist():
        strategy = table[int(place)]
        kind = (planner.kind(strategy), strategy.placement)
        numbers.append(kinds.setdefault(kind, len(kinds)))
    return list(kinds), np.array(numbers, np.int64)[which], degrees, mesh


__all__ = ["SIZES_TOGETHER", "ProgramSizes", "SizesOfKind", "kinds_of", "several_together"]
