"""Which device is where: a strategy's mesh laid on numbered devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from distir.cost.cluster import Cluster, Group
from distir.transforms.place import Mesh

RANKS = "pp"
"""Stands for the pipeline ranks among the mesh axes."""


@dataclass(frozen=True)
class Spacing:
    """A mesh axis on numbered devices: neighbours along it are `stride` apart. `user` is the choice
    of the strategy that it belongs to."""

    name: str
    user: str
    degree: int
    stride: int


@dataclass(frozen=True)
class Grid:
    """Where the devices of a plan lie: mesh axes in mesh order, and the pipeline's ranks.

    How splits of one logical axis nest is the mesh's business; how far apart devices are is only
    said here.
    """

    mesh: tuple[Spacing, ...]
    ranks: Spacing

    @classmethod
    def of(cls, mesh: Mesh, degrees: Sequence[int], ranks: int) -> Grid:
        """The mesh laid on consecutive devices, its last axis innermost, ranks outermost."""
        stride = 1
        spaced: list[Spacing] = []
        for place in reversed(list(zip(mesh.names, mesh.users, degrees, strict=True))):
            spaced.insert(0, Spacing(*place, stride))
            stride *= place[2]
        return cls(tuple(spaced), Spacing(RANKS, RANKS, ranks, stride))

    @cached_property
    def _of_name(self) -> dict[str, Spacing]:
        return {spacing.name: spacing for spacing in (*self.mesh, self.ranks)}

    def stride(self, mesh_axis: str) -> int:
        """Distance between neighbours along a mesh axis, in device numbers."""
        return self._of_name[mesh_axis].stride

    def group(self, cluster: Cluster, mesh_axes: Sequence[str]) -> Group:
        """The devices that differ along these mesh axes only, as a cluster sees them."""
        chosen = [self._of_name[name] for name in mesh_axes]
        return cluster.product_group(tuple((each.degree, each.stride) for each in chosen))

    def stream(self, mesh_axes: Sequence[str]) -> str:
        """The communication stream of a collective: that of the choice which its outermost mesh
        axis belongs to."""
        return self._of_name[mesh_axes[0]].user


__all__ = ["RANKS", "Grid", "Spacing"]
