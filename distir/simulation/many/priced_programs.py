"""The programs of blocks at many program sizes, and their prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats, Indices, distinct_rows
from distir.cost.amounts import Divergence, Many, many
from distir.cost.cluster import Group
from distir.cost.collectives import CollectiveKind, Copies, Link, Route
from distir.plan import BlockProgram, ModelPrograms
from distir.plan.grid import DeviceGrid
from distir.plan.planner import ProgramKind
from distir.simulation.many.program_sizes import ProgramSizes
from distir.simulation.pricing.instructions import Pricing, narrower_products
from distir.simulation.pricing.stages import StagePricer
from distir.transforms.instantiate import Sizes


@dataclass(frozen=True, slots=True)
class ManyPricing(Pricing):
    """Prices at many program sizes, whose meshes differ in their degrees. `routes` keeps, per mesh
    axes, the routes of the groups along them, each with the program sizes that have it; `known`
    keeps the seconds of collectives, as many programs have equal ones."""

    routes: dict[tuple[str, ...], list[tuple[Route, Indices]]] = field(
        default_factory=dict[tuple[str, ...], "list[tuple[Route, Indices]]"]
    )
    known: dict[object, Many] = field(default_factory=dict[object, Many])

    def collective(
        self,
        kind: CollectiveKind,
        mesh_axes: tuple[str, ...],
        size_bytes: float,
        times: float = 1,
        copies: Copies | None = None,
    ) -> float:
        """Seconds of collectives; groups whose routes cross the same levels are priced together."""
        if not mesh_axes:
            return times * cast("float", self.cost.host_copy_seconds(size_bytes))
        key = (kind, mesh_axes, size_bytes, copies)
        if key not in self.known:
            self.known[key] = self._once(kind, mesh_axes, size_bytes, copies)
        return times * cast("float", self.known[key])

    def _once(
        self,
        kind: CollectiveKind,
        mesh_axes: tuple[str, ...],
        size_bytes: float,
        copies: Copies | None,
    ) -> Many:
        routes = self._routes(mesh_axes)
        moved = np.broadcast_to(np.asarray(size_bytes), sum(len(own) for _, own in routes))
        found = np.empty(len(moved))
        for route, own in routes:
            found[own] = self.cost.seconds_over(kind, moved[own], route, copies)
        return found.view(Many)

    def _routes(self, mesh_axes: tuple[str, ...]) -> list[tuple[Route, Indices]]:
        known = self.routes
        if mesh_axes not in known:
            spaced = [each for each in self.grid.mesh if each.name in mesh_axes]
            both = [number for each in spaced for number in (each.degree, each.stride)]
            keys = np.stack(np.broadcast_arrays(*both), axis=-1).reshape(-1, len(both))
            first, which = distinct_rows(keys)
            groups = [
                self.cost.cluster.product_group(
                    tuple((int(a), int(b)) for a, b in keys[place].reshape(-1, 2))
                )
                for place in first
            ]
            alike: dict[tuple[bool, ...], list[int]] = {}
            for number, group in enumerate(groups):
                alike.setdefault(tuple(n > 1 for n in group.fan_out), []).append(number)
            known[mesh_axes] = [
                self._joined([groups[number] for number in numbers], np.array(numbers), which)
                for numbers in alike.values()
            ]
        return known[mesh_axes]

    def _joined(
        self, groups: Sequence[Group], numbers: Indices, which: Indices
    ) -> tuple[Route, Indices]:
        """The routes of groups, given with their numbers, as one route of arrays, and the program
        sizes that have one of these groups."""
        sizes = np.flatnonzero(np.isin(which, numbers))
        own = np.searchsorted(numbers, which[sizes])
        routes = zip(*map(self.cost.route, groups), strict=True)
        return tuple(_joined_links(links, own) for links in routes), sizes


def _joined_links(links: Sequence[Link], own: Indices) -> Link:
    """Links over one level as a link of arrays, with the numbers of those at the places `own`."""
    return Link(
        many([each.fan_out for each in links])[own],
        many([each.rails for each in links])[own],
        many([each.bandwidth_bytes_per_second for each in links])[own],
        many([each.latency_seconds for each in links])[own],
        links[0].medium,
    )


class PricedPrograms:
    """The programs of blocks at many program sizes, and their prices. Kinds with one mesh have
    shapes and prices in common, and kinds that differ only in what is recomputed or stays gathered
    equal blocks, whose programs are shared."""

    def __init__(
        self, pricer: StagePricer, kind: ProgramKind, placement: str, sizes: ProgramSizes
    ) -> None:
        self.pricer = pricer
        axes = range(len(kind.mesh.names))
        degrees: Any = tuple(many(sizes.degrees[:, axis]) for axis in axes)
        samples: Any = many(sizes.samples)
        ranks: Any = many(sizes.ranks)
        self.num_sizes = len(sizes)
        self._size_choices = kind.mesh, degrees, samples
        grid = DeviceGrid.of(kind.mesh, degrees, ranks, placement)
        product = narrower_products(pricer.workload, pricer.cost.cluster.device)
        self.pricing = ManyPricing(pricer.cost, grid, product)
        self.tied_seconds: dict[tuple[int, tuple[int, ...], bytes], Floats] = {}
        """Seconds, per size, in which some of a number of ranks add up gradients of so many bytes:
        what is known of them."""
        self._known: dict[object, dict[object, BlockProgram]] = {}
        self._parts: NDArray[np.bool_] | None = None
        """The sizes at which some kind has other programs than at the others."""

    @cached_property
    def _sizes(self) -> Sizes:
        return self.pricer.planner.sizes(*self._size_choices)

    def of(self, kind: ProgramKind) -> ModelPrograms:
        """The programs of all blocks of a kind. Raises `Divergence` where those of another kind at
        the same sizes did: programs that differ in size alone differ for most kinds alike."""
        if self._parts is not None:
            raise Divergence(self._parts)
        known = self._known.setdefault(kind.sharing, {})
        try:
            return self.pricer.planner.programs_of(kind, self._sizes, known)
        except Divergence as divergence:
            self._parts = divergence.where
            raise


__all__ = ["ManyPricing", "PricedPrograms"]
