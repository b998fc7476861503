"""Which device is where: a strategy's mesh laid on numbered devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from distir.cost.cluster import Cluster, Group, Senders
from distir.transforms.place import Mesh

RANKS = "pp"
"""Stands for the pipeline ranks among the mesh axes."""
OWN_PLACE = "tp"
"""Where mesh axes that a user has named are laid on the devices."""


@dataclass(frozen=True)
class Spacing:
    """A mesh axis on numbered devices: neighbours along it are `stride` apart. `user` is the choice
    of the strategy that it belongs to."""

    name: str
    user: str
    degree: int
    stride: int


@dataclass(frozen=True)
class DeviceGrid:
    """Where the devices of a plan lie: mesh axes in mesh order, and the pipeline's ranks.

    How splits of one logical axis nest is the mesh's business; how far apart devices are is only
    said here.
    """

    mesh: tuple[Spacing, ...]
    ranks: Spacing

    @classmethod
    def of(cls, mesh: Mesh, degrees: Sequence[int], ranks: int, placement: str) -> DeviceGrid:
        """The mesh and the ranks laid on devices in the order of `placement`, which names the
        innermost first. Of the mesh axes of one choice the last is the innermost."""
        order = placement.split("-")
        places = [(RANKS, RANKS, ranks), *zip(mesh.names, mesh.users, degrees, strict=True)][::-1]
        stride = 1
        spaced: dict[str, Spacing] = {}
        for place in sorted(places, key=lambda place: _position(order, place[1])):
            spaced[place[0]] = Spacing(*place, stride)
            stride *= place[2]
        return cls(tuple(spaced[name] for name in mesh.names), spaced[RANKS])

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.ranks.degree * math.prod(each.degree for each in self.mesh)

    def senders(self, rank: int) -> Senders:
        """The devices of a rank."""
        stride = self.ranks.stride
        period = stride * self.ranks.degree
        return Senders(rank * stride, stride, period, self.devices // period)

    @cached_property
    def _of_name(self) -> dict[str, Spacing]:
        return {spacing.name: spacing for spacing in (*self.mesh, self.ranks)}

    def stride(self, mesh_axis: str) -> int:
        """Distance between neighbours along a mesh axis, in device numbers."""
        return self._of_name[mesh_axis].stride

    def members(self, mesh_axes: Sequence[str]) -> int:
        """How many devices differ along these mesh axes only."""
        return math.prod(self._of_name[name].degree for name in mesh_axes)

    def group(self, cluster: Cluster, mesh_axes: Sequence[str]) -> Group:
        """The devices that differ along these mesh axes only, as a cluster sees them."""
        chosen = [self._of_name[name] for name in mesh_axes]
        return cluster.product_group(tuple((each.degree, each.stride) for each in chosen))

    def stream(self, mesh_axes: Sequence[str]) -> str:
        """The communication stream of a collective: that of the choice which its outermost mesh
        axis belongs to."""
        return self._of_name[mesh_axes[0]].user


def _position(order: Sequence[str], user: str) -> int:
    """Where a choice stands in the order; mesh axes of a user's own are in the place of `tp`."""
    return order.index(user if user in order else OWN_PLACE)


__all__ = ["RANKS", "DeviceGrid", "Spacing"]
