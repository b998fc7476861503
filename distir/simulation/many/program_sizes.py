"""Strategies sorted by the programs that their devices run, and by the sizes in these programs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Indices, distinct
from distir.mesh import MESH_CHOICES
from distir.plan import Planner
from distir.plan.planner import ProgramKind
from distir.strategies import Strategies

KIND = ("zero", "recompute", "recompute_every", "keep_gathered", "placement")
"""What the kind of its programs and their place on the cluster depend on besides the mesh."""


@dataclass(frozen=True, slots=True)
class ProgramSizes:
    """Sizes at points: degrees of the mesh, of shape (points, mesh axes), samples of a microbatch,
    pipeline ranks; and whether some schedule has the backward pass in two parts."""

    degrees: Indices
    samples: Indices
    ranks: Indices
    splits: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sizes(self) -> tuple[bytes, ...]:
        """Equal where sizes are."""
        return self.degrees.tobytes(), self.samples.tobytes(), self.ranks.tobytes()

    def taken(self, which: Indices) -> ProgramSizes:
        """Some of them."""
        return ProgramSizes(
            self.degrees[which], self.samples[which], self.ranks[which], self.splits[which]
        )


def kinds_of(
    planner: Planner, table: Strategies
) -> tuple[list[tuple[ProgramKind, str]], Indices, Indices, Indices]:
    """Kinds of programs with their placement, and which of them each strategy has; the different
    degrees of meshes, of shape (meshes, mesh axes), and which of them each strategy has."""
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


__all__ = ["ProgramSizes", "kinds_of"]
