"""What to know of a problem before its answer is read: decisions that were made for the user, and
how far the model, the software and the hardware are from what they are taken for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from distir.units import format_flops_per_second, percent

if TYPE_CHECKING:
    from distir.cost import Band, Cluster, Device, SoftwareStack
    from distir.workload import Workload

SPLITS_MOST = {"dp": 0.99, "tp": 0.9}
"""What a degree splits at least of a model's work where nothing is said: small parts, such as the
first layer of a vision model, are never split by tensor parallelism."""


def model_notes(workload: Workload, stated: Mapping[str, int], devices: int) -> Iterator[str]:
    """What to know of the model on so many devices; `stated` are the sizes that the user gives of
    what a file leaves open."""
    yield from workload.program.function.notes
    yield from _several_batches(workload)
    yield from _open_length(workload)
    yield from _left_open(workload, stated)
    if devices > 1:
        yield from _not_split(workload)


def hardware_notes(
    workload: Workload, hardware: Cluster, stack: SoftwareStack, band: Band
) -> Iterator[str]:
    """What to know of the cluster and of the software that runs the model on it; `band` says how
    far measured times may be from simulated ones."""
    yield from _of_another_device(stack, hardware)
    yield from _in_another_type(workload, hardware.device)
    yield from _beyond_measured_runs(band)
    yield from _unclaimed_memory(stack)


def _several_batches(workload: Workload) -> Iterator[str]:
    """What to know of a model whose inputs have samples of their own."""
    program, size = workload.program, workload.batch_size
    if len(program.batches) == 1:
        return
    inputs = program.function.inputs
    names = [
        next(value.name for value in inputs if axis in program.axes.of(value))
        for axis in program.batches
    ]
    beside = f"{', '.join(names[:-1])} and {names[-1]}"
    yield f"{beside} each have samples of their own: a batch of {size} means {size} of each."


def _open_length(workload: Workload) -> Iterator[str]:
    """What is told where nobody says how long a sequence is."""
    if workload.length_is_open:
        yield (
            f"The model leaves the length of its sequence open; {workload.length:,} tokens are "
            "assumed; state another length with --sequence-length."
        )


def _left_open(workload: Workload, stated: Mapping[str, int]) -> Iterator[str]:
    """What to know of lengths that the file leaves open, and that nobody has stated."""
    program, model = workload.program, workload.model
    extents = program.extents
    sized = {program.axes.tied(axis) for axis in (*extents.batches, *extents.sequences)}
    sizes = workload.sizes(1)
    read = {value for node in program.function.nodes for value in node.operands}
    found: dict[str, int] = {}
    for value in (each for each in program.function.inputs if each in read):
        dims = program.axes.dims[value]
        for name, dim in zip(model.symbols.get(value.name, ()), dims, strict=False):
            if name in model.lengths and name not in stated and len(dim) == 1:
                if program.axes.tied(dim[0]) not in sized:
                    found[name] = sizes.get(dim[0], dim[0].size)
    for name, size in found.items():
        yield (
            f"The file leaves {name} open; {size} is assumed; state another size with --size "
            f"{name}=N."
        )


def _not_split(workload: Workload) -> Iterator[str]:
    """What is told of work that parallelism does not divide among devices."""
    blocks = workload.program.blocks
    samples = {blocks.group.get(axis, axis) for axis in workload.program.batches}
    inside = (*blocks.internal_axes, *blocks.inner_axes.values())
    split = {
        "dp": workload.share_along(samples),
        "tp": workload.share_along({*inside, *blocks.output_axes, *blocks.expert_axes}),
    }
    for name, share in split.items():
        if share < SPLITS_MOST[name]:
            yield (
                f"{name} splits only {percent(share)} of the work of the model's products; the "
                "rest has no axis to split, so every device does all of it."
            )


def _of_another_device(stack: SoftwareStack, hardware: Cluster) -> Iterator[str]:
    """That measured products are of another device than those of the cluster, if they are."""
    table, device = stack.products, hardware.device.name
    if table is not None and not table.holds_on(device):
        yield (
            f"The products of {stack.name} were measured on {table.device}, so they are not used "
            f"on {device}."
        )


def _in_another_type(workload: Workload, device: Device) -> Iterator[str]:
    """That products run in another type than the precision says, where the device states no rate
    for that one."""
    from distir.simulation.pricing.instructions import products_run_as
    from distir.workload import PRECISIONS

    runs_as = products_run_as(workload, device)
    wanted = workload.types.product or workload.types.compute.short_name
    if runs_as == wanted:
        return
    rate = format_flops_per_second(device.peak(runs_as))
    *some, last = (name for name in PRECISIONS if device.supports(name))
    has = " and ".join([", ".join(some), last] if some else [last])
    yield (
        f"{device.name} has no {wanted}: products run in {runs_as}, at up to {rate}. It has {has}; "
        "choose one with --precision."
    )


def _beyond_measured_runs(band: Band) -> Iterator[str]:
    """That the system or the model is larger than those of all measured runs, if it is."""
    if band.beyond:
        wider = f": a deviation of {percent(band.extrapolation)} is added to the band"
        yield f"Beyond measured runs: {band.beyond}{wider if band.extrapolation else ''}."


def _unclaimed_memory(stack: SoftwareStack) -> Iterator[str]:
    """That the stack's memory may be off by more than times are, if it may."""
    if not stack.claims_memory:
        said = stack.unclaimed_memory
        yield f"{said[:1].upper()}{said[1:]}."


__all__ = ["hardware_notes", "model_notes"]
