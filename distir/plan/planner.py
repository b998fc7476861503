"""Makes plans for one workload, and remembers what they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

from distir.axes.model import Axis
from distir.errors import StrategyError, shown
from distir.garbage import collection_paused
from distir.mesh import MESH_CHOICES, mesh_axes, padded_sizes
from distir.plan.block_program import instantiate_block
from distir.plan.chains import ChainPlacer, Keeping
from distir.plan.fingerprint import Fingerprints
from distir.plan.hosting import with_values_on_host
from distir.plan.model import BlockProgram, Plan, Stage, in_one_stage
from distir.plan.model_programs import ModelPrograms
from distir.rules import explain, rules_of
from distir.schedules import CompiledSchedule, compile_schedule, find_schedule, forward_only
from distir.strategy import AUTO, Strategy
from distir.transforms.instantiate import Sizes
from distir.transforms.place import Mesh
from distir.transforms.token_passes import NO_PASSES, TokenPasses
from distir.workload import Workload

_mesh_choices = attrgetter(*MESH_CHOICES)


@dataclass(frozen=True, slots=True)
class ProgramKind:
    """What programs of blocks have in common that differ in sizes alone."""

    mesh: Mesh
    keeping: Keeping
    zero: int
    keeps_parameters: bool
    offloads: frozenset[str] = frozenset()
    sync_every: int = 1
    outer_optimizer: str = "mean"

    @property
    def sharing(self) -> tuple[object, ...]:
        """All but `keeping`: equal for kinds whose equal blocks have one program at the same
        sizes."""
        synchronising = self.sync_every, self.outer_optimizer
        return self.mesh, self.zero, self.keeps_parameters, self.offloads, *synchronising


class Planner:
    """Makes plans for one workload."""

    def __init__(
        self,
        workload: Workload,
        *,
        fuse: bool = False,
        narrow: bool = False,
        token_passes: TokenPasses = NO_PASSES,
        loss_copies: int = 0,
    ) -> None:
        """`fuse`: whether chains of elementwise ops run as one kernel; `narrow`: whether devices
        have the type that the workload's products run in, so that what they alone read is made in
        it; `token_passes`: what happens to tokens on their way to experts and back; `loss_copies`:
        how many copies of the logits in fp32 the loss holds."""
        self.workload = workload
        self.rules = rules_of(workload)
        self.fuse = fuse
        self.narrow = narrow
        self.token_passes = token_passes
        self.loss_copies = loss_copies
        self.program = workload.program
        self._placer = ChainPlacer(workload, fuse=fuse, narrow=narrow)
        self._schedules: dict[object, CompiledSchedule] = {}
        self._meshes: dict[object, Mesh] = {}
        self._grids: dict[object, tuple[Mesh, tuple[int, ...]]] = {}
        self._instantiated: dict[object, ModelPrograms] = {}
        self._block_programs: dict[object, dict[object, BlockProgram]] = {}
        self._sizes_of: dict[object, Sizes] = {}
        self._fingerprints = Fingerprints()
        self._explained: tuple[Strategy, str | None] | None = None
        """The last strategy that was asked about; several ask about one, one after the other."""

    # --- what a strategy means -------------------------------------------------------------------

    def explain(self, strategy: Strategy) -> str | None:
        """Why the strategy cannot be applied to this workload, or None."""
        if self._explained is None or self._explained[0] is not strategy:
            self._explained = strategy, explain(self.rules, strategy)
        return self._explained[1]

    def mesh(self, strategy: Strategy) -> tuple[Mesh, tuple[int, ...]]:
        """The device grid of a stage and its degrees. Equal grids are one, whatever the degrees."""
        chosen = _mesh_choices(strategy)
        if chosen not in self._grids:
            axes = mesh_axes(self.program, strategy)
            padded = frozenset(padded_sizes(self.program, axes, self.workload.vocabulary_multiple))
            key = (*(replace(axis, degree=0) for axis in axes), padded)
            mesh = self._meshes.get(key)
            if mesh is None:
                mesh = self._meshes[key] = Mesh(
                    tuple(axis.name for axis in axes),
                    tuple(axis.entries for axis in axes),
                    self.program.blocks.group,
                    tuple(axis.user for axis in axes),
                    frozenset(axis.name for axis in axes if axis.shards_state),
                    padded,
                )
            self._grids[chosen] = mesh, tuple(axis.degree for axis in axes)
        return self._grids[chosen]

    def schedule(self, strategy: Strategy) -> CompiledSchedule:
        """The strategy's schedule for its ranks, chunks and microbatches; raises
        `ScheduleError`."""
        return self.schedule_of(strategy, strategy.microbatches)

    def schedule_of(self, strategy: Strategy, microbatches: int) -> CompiledSchedule:
        """`schedule` with another number of microbatches."""
        family = find_schedule(strategy.schedule) if self.workload.training else forward_only
        key = (family, strategy.pp, strategy.chunks, microbatches)
        if key not in self._schedules:
            self._schedules[key] = compile_schedule(family.made(*key[1:]))
        return self._schedules[key]

    @collection_paused()
    def fingerprint(self, strategy: Strategy) -> int:
        """A number that is equal for strategies of equal placed programs: those that differ, if at
        all, in numbers (degrees, microbatches) and in how axis lists are spelled. ZeRO, the
        schedule and what a plan picks per stage are not looked at."""
        kind = self.kind(strategy)
        chain = self._placer.chain(kind.mesh, kind.keeping)
        stored = self._placer.stored_layouts(kind.mesh, kind.keeping)
        return self._fingerprints.of_chain(kind.mesh, chain, stored)

    # --- programs of blocks ----------------------------------------------------------------------

    def kind(self, strategy: Strategy) -> ProgramKind:
        """The kind of the programs of a strategy's blocks."""
        mesh, _ = self.mesh(strategy)
        zero = strategy.zero if mesh.sharding else 0
        return ProgramKind(
            mesh,
            Keeping.of(strategy),
            zero,
            strategy.keeps_parameters,
            strategy.offloads,
            strategy.sync_every,
            strategy.outer_optimizer,
        )

    def block_programs(self, strategy: Strategy) -> tuple[BlockProgram, ...]:
        """One program per block of the model in one stage; equal blocks share theirs."""
        return self.model_programs(strategy).of_stage(0, len(self.program.blocks.blocks))

    def model_programs(self, strategy: Strategy) -> ModelPrograms:
        """The programs of blocks, of which stages take theirs."""
        kind, (_, degrees) = self.kind(strategy), self.mesh(strategy)
        samples = self.workload.batch_size // strategy.microbatches
        key = (kind, degrees, samples)
        if key not in self._instantiated:
            self._instantiated[key] = self.programs_at(*key)
        return self._instantiated[key]

    def programs_at(
        self,
        kind: ProgramKind,
        degrees: tuple[int, ...],
        samples: int,
        known: dict[object, BlockProgram] | None = None,
    ) -> ModelPrograms:
        """The programs of blocks, for `samples` that are computed at once by a mesh of these
        degrees; both may be `Many`. `known` keeps the programs of kinds that differ only in what
        they keep, at the same sizes, and gets the new ones."""
        if known is None:
            sizes = self._known_sizes(kind.mesh, degrees, samples)
            programs = self._programs_of(kind, degrees, samples)
        else:
            sizes, programs = self.sizes(kind.mesh, degrees, samples), known
        return self.programs_of(kind, sizes, programs)

    def programs_of(
        self, kind: ProgramKind, sizes: Sizes, programs: dict[object, BlockProgram]
    ) -> ModelPrograms:
        """`programs_at` these sizes, given the `programs` that are known there."""
        if not kind.keeping.layers and not kind.keeping.picked:
            return ModelPrograms.alike(self._chain_programs(kind, sizes, programs))
        kept, recomputed = (
            self._chain_programs(replace(kind, keeping=keeping), sizes, programs)
            for keeping in kind.keeping.of_layers
        )
        layers = self.program.layers
        recomputed = tuple(
            (recomputed if block in layers else kept)[block] for block in range(len(kept))
        )
        return ModelPrograms(kept, recomputed, layers, kind.keeping.layers)

    def _programs_of(
        self, kind: ProgramKind, degrees: tuple[int, ...], samples: int
    ) -> dict[object, BlockProgram]:
        """The known programs of blocks at these sizes, whatever axis lists lead to them."""
        key = (*kind.sharing[1:], degrees, samples)
        return self._block_programs.setdefault(key, {})

    def _chain_programs(
        self, kind: ProgramKind, sizes: Sizes, programs: dict[object, BlockProgram]
    ) -> tuple[BlockProgram, ...]:
        """One program per block, all of one chain. Recomputed ops are placed as they were in the
        forward pass, so blocks that recompute hand on what blocks that keep everything do: blocks
        of two such chains fit together."""
        mesh, keeping = kind.mesh, kind.keeping
        stored = self._placer.stored_layouts(mesh, keeping)
        found: list[BlockProgram] = []
        chain = self._placer.chain(mesh, keeping)
        for place, (placed, layouts) in enumerate(zip(chain, stored, strict=True), start=1):
            padded = tuple((axis, sizes.of(axis)) for axis in placed.mesh.padded)
            # The backward pass of the last block follows its forward pass at once.
            hosts = "activations" in kind.offloads and place < len(chain)
            key = (placed, tuple(layouts.values()), padded, hosts)
            if key not in programs:
                made = instantiate_block(
                    placed,
                    sizes,
                    self.workload.types,
                    layouts,
                    self.fuse,
                    kind.zero,
                    kind.keeps_parameters,
                    self.narrow,
                    self.token_passes,
                    self.loss_copies,
                    kind.offloads,
                    kind.sync_every,
                    kind.outer_optimizer,
                )
                programs[key] = with_values_on_host(made) if hosts else made
            found.append(programs[key])
        return tuple(found)

    def _known_sizes(self, mesh: Mesh, degrees: tuple[int, ...], samples: int) -> Sizes:
        """`sizes`, of which equal ones are one: lists differ, and few of them in what they pad."""
        padded = (
            (axis, tuple(any(entry.axis is axis for entry in entries) for entries in mesh.lists))
            for axis in mesh.padded
        )
        key = (degrees, samples, frozenset(padded))
        if key not in self._sizes_of:
            self._sizes_of[key] = self.sizes(mesh, degrees, samples)
        return self._sizes_of[key]

    def sizes(self, mesh: Mesh, degrees: tuple[int, ...], samples: int) -> Sizes:
        """Sizes of all axes, for `samples` at once; axes that the mesh pads are longer."""
        axes = self.workload.sizes(samples)
        unpadded: dict[Axis, int] = {}
        for axis in mesh.padded:
            listed = (any(entry.axis is axis for entry in entries) for entries in mesh.lists)
            pieces = math.prod(n for n, has in zip(degrees, listed, strict=True) if has)
            step = pieces * self.workload.vocabulary_multiple
            for member in self.program.members[axis]:
                unpadded[member] = member.size
                axes[member] = -(-member.size // step) * step
        return Sizes(axes, degrees, self.workload.types.compute, unpadded)

    # --- plans -----------------------------------------------------------------------------------

    def plan(self, strategy: Strategy, cuts: Iterable[int], recomputed: Sequence[str] = ()) -> Plan:
        """The plan with stages cut before the blocks in `cuts` (ascending, without 0). `recomputed`
        says per block what it recomputes, where the strategy leaves that to the plan (nothing if it
        is empty). Raises `StrategyError` if a stage would have no blocks."""
        reason = self.explain(strategy)
        if reason is not None:
            raise StrategyError(reason)
        programs = self.model_programs(strategy)
        if recomputed:
            programs = self._picked(strategy, recomputed)
        bounds = [0, *cuts, len(programs.kept)]
        if not all(a < b for a, b in pairwise(bounds)):
            raise StrategyError(
                f"stages begin at blocks {shown(bounds[:-1])}; expected each stage to have at "
                f"least one of the model's {len(programs.kept)} blocks"
            )
        mesh, degrees = self.mesh(strategy)
        whole = self.workload.program
        stages = tuple(
            Stage(
                index, tuple(range(a, b)), in_one_stage(whole, range(a, b), programs.of_stage(a, b))
            )
            for index, (a, b) in enumerate(pairwise(bounds))
        )
        return Plan(
            self.workload,
            strategy,
            mesh,
            self._known_sizes(mesh, degrees, self.workload.batch_size // strategy.microbatches),
            stages,
            self.schedule(strategy),
            tuple(recomputed),
        )

    def _picked(self, strategy: Strategy, recomputed: Sequence[str]) -> ModelPrograms:
        """Per block the program that recomputes so. Blocks that recompute hand on what others do,
        so that they fit together."""
        if len(recomputed) != self.workload.num_blocks or strategy.recompute != AUTO:
            raise StrategyError(
                f"{len(recomputed)} blocks of {self.workload.num_blocks} are said to recompute, "
                f"with recompute = {strategy.recompute}; expected all, with {AUTO}"
            )
        chains = {
            policy: self.model_programs(replace(strategy, recompute=policy)).kept
            for policy in dict.fromkeys(recomputed)
        }
        return ModelPrograms.alike(
            tuple(chains[policy][block] for block, policy in enumerate(recomputed))
        )
