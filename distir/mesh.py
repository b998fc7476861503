"""The mesh of a strategy: the devices that share a stage, as mesh axes with axis lists.

Each degree of the strategy becomes one mesh axis, or several. Mesh axes are nested: where several
split one logical axis, the first is outermost. On which devices of the cluster they lie is said by
`distir.plan.grid`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from distir.axes.model import Axis
from distir.errors import StrategyError
from distir.factoring import tensor_factors
from distir.program import UNNAMED, Program
from distir.strategy import MARKS, Strategy, own_mesh
from distir.transforms.place import AxisListEntry


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One dimension of the devices that share a stage.

    `entries` is its axis list: the logical axes that it may split, in order of preference. `user`
    is the degree of the strategy that it belongs to, or its own name where a user has named it:
    under that its communication is reported; several mesh axes may share a degree. `shards_state`
    says whether ZeRO shards along it.
    """

    name: str
    degree: int
    entries: tuple[AxisListEntry, ...]
    user: str
    shards_state: bool = False


MESH_CHOICES = (
    "dp",
    "ep",
    "cp",
    "tp",
    "sequence_parallel",
    "zero",
    "zero_degree",
    "cp_exchange",
    "axes",
    "etp",
    "expert_order",
)
"""The fields of a strategy that its mesh depends on."""


def mesh_axes(program: Program, strategy: Strategy) -> tuple[MeshAxis, ...]:
    """The mesh axes of a strategy, outermost first; those of degree 1 are left out.

    Raises `StrategyError` if the strategy states axis lists with names that no axis of the model
    has.
    """
    stated = {user: entries_of(program, names) for user, names in strategy.axis_lists.items()}
    own = tuple(
        MeshAxis(name, degree, stated[f"{name}:{degree}"], name)
        for name, degree in own_mesh(strategy.axes).items()
    )
    sharing = strategy.zero_degree or strategy.dp
    samples = tuple(dict.fromkeys(_entry(program, axis) for axis in program.batches))
    dp = stated.get("dp", samples)
    # Ops whose operands and results all carry experts are split over these, others over samples.
    experts = tuple(AxisListEntry(axis, everywhere=True) for axis in program.blocks.expert_axes)
    ep = stated.get("ep", (*experts, *samples))
    cp = stated.get("cp", _context_entries(program, strategy))
    shared = strategy.expert_factors
    every = (
        MeshAxis("dp.replica", strategy.dp // sharing, dp, "dp"),
        MeshAxis("dp", sharing // shared.dp, dp, "dp", shards_state=True),
        MeshAxis("ep", shared.dp, ep, "ep", shards_state=True),
        *_context_axes(strategy.cp, shared.cp, cp, experts),
        *(own or _tensor_axes(program, strategy, stated.get("tp"), experts, shared.tp)),
    )
    return tuple(axis for axis in every if axis.degree > 1)


def _entry(
    program: Program, axis: Axis, *, everywhere: bool = False, ring: bool = False
) -> AxisListEntry:
    """An entry for an axis, which lists name by its representative."""
    return AxisListEntry(program.blocks.group.get(axis, axis), everywhere, ring)


def _rings(program: Program, axes: Iterable[Axis]) -> tuple[AxisListEntry, ...]:
    """Entries marked `~` for these axes and for those on the other side of a boundary to them."""
    tied = program.axes.tied
    wanted = dict.fromkeys(map(tied, axes))
    sides = (each for root in wanted for each in program.all_axes if tied(each) is root)
    return tuple(dict.fromkeys(_entry(program, axis, ring=True) for axis in sides))


def _sequences(program: Program) -> tuple[AxisListEntry, ...]:
    return tuple(dict.fromkeys(_entry(program, axis) for axis in program.extents.sequences))


def _context_axes(
    degree: int,
    sharing: int,
    entries: tuple[AxisListEntry, ...],
    experts: tuple[AxisListEntry, ...],
) -> tuple[MeshAxis, ...]:
    """The mesh axes of context parallelism: one, or two where groups of `sharing` neighbours among
    its devices share experts as well."""
    alone = MeshAxis("cp", degree // sharing, entries, "cp", shards_state=True)
    both = MeshAxis("cp", sharing, (*experts, *entries), "cp", shards_state=True)
    if sharing == 1:
        return (alone,)
    return (
        (both,) if alone.degree == 1 else (replace(alone, name="cp.1"), replace(both, name="cp.2"))
    )


def _context_entries(program: Program, strategy: Strategy) -> tuple[AxisListEntry, ...]:
    heads: tuple[AxisListEntry, ...] = ()
    if strategy.cp_exchange == "ring":
        return _rings(program, program.extents.sequences)
    if strategy.cp_exchange == "all-to-all":
        heads = tuple(_entry(program, a, everywhere=True) for a in program.blocks.head_axes)
    return (*heads, *_sequences(program))


def _tensor_axes(
    program: Program,
    strategy: Strategy,
    stated: tuple[AxisListEntry, ...] | None,
    experts: tuple[AxisListEntry, ...],
    sharing: int,
) -> tuple[MeshAxis, ...]:
    """The mesh axes of tensor parallelism: one, or several where the degree does not divide an
    internal axis. Then the outer ones split that axis, and the others the axis inside it.

    Outermost are the `sharing` devices that share experts, whose lists begin with `experts`;
    `stated` is the strategy's own list, if any.
    """
    blocks, degree = program.blocks, strategy.tp
    if stated is not None:
        return (MeshAxis("tp", degree, stated, "tp"),)
    sizes = [(str(number), axis.size) for number, axis in enumerate(blocks.internal_axes)]
    inner = {
        str(number): blocks.inner_axes[axis].size
        for number, axis in enumerate(blocks.internal_axes)
        if axis in blocks.inner_axes
    }
    factors = tensor_factors(sizes, inner, degree, sharing) or (degree,)
    # An output axis that neither divides nor can be padded stays whole.
    outputs = (axis for axis in blocks.output_axes if _fits(program, axis, degree))
    sequences = _sequences(program) if strategy.sequence_parallel else ()
    ends = (*map(AxisListEntry, outputs), *sequences)
    found: list[MeshAxis] = []
    for number, factor in enumerate(factors):
        reached = math.prod(factors[: number + 1])
        own = [
            axis
            if math.gcd(axis.size, degree) % reached == 0
            else blocks.inner_axes.get(axis, axis)
            for axis in blocks.internal_axes
        ]
        name = "tp" if len(factors) == 1 else f"tp.{number + 1}"
        shared = experts if reached <= sharing else ()
        found.append(MeshAxis(name, factor, (*shared, *map(AxisListEntry, own), *ends), "tp"))
    return tuple(found)


def _fits(program: Program, axis: Axis, pieces: int) -> bool:
    """Whether an output axis can be split into this many equal pieces, padded if need be. An axis
    shorter than the number of pieces is not worth padding."""
    return axis.size % pieces == 0 or (axis in program.paddable and axis.size > pieces)


def padded_sizes(program: Program, axes: Sequence[MeshAxis], multiple: int = 1) -> dict[Axis, int]:
    """The padded sizes of the axes (representatives) that may be padded, and do not divide by the
    number of pieces that the mesh splits them into times `multiple`: the next multiple of that."""
    found: dict[Axis, int] = {}
    splitting = _splitting(axes)
    for axis in program.blocks.output_axes:
        step = multiple * math.prod(each.degree for each in splitting.get(axis, ()))
        if axis in program.paddable and axis.size % step:
            found[axis] = -(-axis.size // step) * step
    return found


def _splitting(axes: Sequence[MeshAxis]) -> dict[Axis, list[MeshAxis]]:
    """Per listed axis, the mesh axes that may split it."""
    found: dict[Axis, list[MeshAxis]] = {}
    for each in axes:
        for axis in dict.fromkeys(entry.axis for entry in each.entries):
            found.setdefault(axis, []).append(each)
    return found


# --- lists that a strategy states itself ----------------------------------------------------------


def entries_of(program: Program, names: Sequence[str]) -> tuple[AxisListEntry, ...]:
    """The entries of an axis list that is given by names of axes, such as `heads*` or `sequence~`
    (see the glossary for the marks). `heads` stands for `heads`, `heads2` and so on.

    Raises `StrategyError` if no axis of the model has a name.
    """
    found: dict[AxisListEntry, None] = {}
    for name in names:
        label, marks = name.rstrip(MARKS), name[len(name.rstrip(MARKS)) :]
        axes = program.named(label)
        if not axes:
            known = ", ".join(label for label in program.families if label != UNNAMED)
            raise StrategyError(f"unknown axis {label!r}; the model's axes are {known}")
        if "~" in marks:
            found.update(dict.fromkeys(_rings(program, axes)))
        else:
            everywhere = "*" in marks
            found.update({_entry(program, axis, everywhere=everywhere): None for axis in axes})
    return tuple(found)


def undivided(program: Program, axes: Sequence[MeshAxis], sizes: Mapping[Axis, int]) -> str | None:
    """Why the axis lists do not fit the sizes of axes: names the first listed axis that cannot be
    split into equal pieces over all mesh axes whose lists have it. None if all can."""
    padded = padded_sizes(program, axes)
    for axis, by in _splitting(axes).items():
        if axis in padded:
            continue
        pieces = math.prod(each.degree for each in by)
        lengths = (sizes.get(each, each.size) for each in program.members[axis])
        size = next((length for length in lengths if length % pieces), None)
        if size is not None:
            users = " x ".join(dict.fromkeys(each.user for each in by))
            label = program.label(axis)
            return f"{label} ({size}) is not divisible by {users} = {pieces}, whose lists have it"
    return None


__all__ = ["MESH_CHOICES", "MeshAxis", "entries_of", "mesh_axes", "padded_sizes", "undivided"]
