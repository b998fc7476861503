"""Reads clusters, devices and software stacks: those that come with distir, or a user's TOML file.

A cluster file:

    name = "lab"
    summary = "4 × A100 per node, 100 Gbit/s network"    # optional
    devices = 8                                          # optional: devices if nobody says
    device = "a100-sxm4-80gb"                            # a name, a file, or a table [device]
    devices_per_node = 4                                 # optional: of a machine, for launchers
                                                         # (by default of the innermost level)

    [[levels]]                                           # innermost first
    name = "NVLink"
    size = 4                                             # devices per unit
    bandwidth = "300 GB/s"                               # per device, one direction (a list where
                                                         # links differ: the slowest counts)
    latency = "3.4 us"                                   # of one step of a collective

    [[levels]]
    name = "Ethernet"                                    # the outermost level needs no size
    bandwidth = "25 Gbit/s"
    latency = "14 us"
    medium = "network"                                   # or "board", the default with a size

    [host]                                               # optional: what devices may offload to
    devices = 4                                          # devices that share a host
    memory = "1 TB"                                      # of a host, as its
    memory_bandwidth = "400 GB/s"
    link = "32 GB/s"                                     # per device, each direction
    all_links = "64 GB/s"                                # optional: of its devices together
    latency = "10 us"                                    # optional: of one copy

and a table [device], if the device is not a known one. A file of a device says the same, without
the heading:

    [device]
    name = "A100"
    memory = "80 GiB"
    memory_bandwidth = "2039 GB/s"
    peak = { fp32 = "19.5 TFLOP/s", bf16 = "312 TFLOP/s" }
    sustained_fraction = 1.0                             # optional
    portable_fraction = 1.0                              # optional: with Ampere's instructions
    rate_spread = 0.15                                   # optional: uncertainty of the former
    power = "400 W"                                      # optional: for the metric `energy`
    platform = "cuda"                                    # optional, for launchers: or rocm, xla

A software stack states facts about software. Its constants are those that all stacks share
(`constants.toml`), except the constants that its own table [constants] overrides:

    name = "lab-stack"
    dispatch = "eager"                                   # or "blocking", or "compiled"
    fuses_elementwise = true                             # optional
    attention = "fused"                                  # or "eager": scores are written to memory
    attention_kernels = "native"                         # "portable" (FlashAttention-2), "first"
    overlaps_gradients = true                            # settled during the last backward pass
    overlaps_messages = "always"                         # or "interleaved" schedules only, "never"
    scatters_messages = true                             # sent in parts by those that hold it
    overlaps_activations = false                         # gathers are pipelined with products
    overlaps_exchanges = false                           # experts' exchanges: beside a microbatch
    sends_copies_once = false                            # a token is sent to a node once
    sorts_tokens = false                                 # by expert after an exchange, and back
    sends_narrow_tokens = false                          # tokens go to experts in fp8
    pads_experts = false                                 # experts' rows are copied to be aligned
    collectives = "rings"                                # (NCCL), or also by "levels" (PCCL)
    allocator = "blocks"                                 # or growing "segments", or "static"
    spells_loss_out = false                              # the loss runs op by op on fp32 logits
    fp8_scaling = "delayed"                              # or "current", "rows", "blocks"
    spells_norms_out = false                             # RMS norms run op by op on fp32 copies
    routing_kernels = 0                                  # launched around experts, per pass
    groups_experts = true                                # products of experts are launched as one
    loss_copies = 0                                      # of logits in fp32, beside its gradient
    loss_metrics = 0                                     # losses that are computed again, to log
    balances_context = true                              # causal attention: equal work for all
    claims_memory = true                                 # simulated memory is near a measured one
    products = "products.toml"                           # optional: measured products, a file

    [constants]                                          # optional
    eager_launch = "20 us"

A file of measured products says on which device and with which software they were measured, and
has a table per point. Where it holds (`products.py`) it takes the place of the stack's rates:

    device = "A100-SXM4-80GB"                            # the name of the device
    versions = "PyTorch 2.4, CUDA 12.4"
    products = [
      { dtype = "bf16", rows = 2048, columns = 3072, inner = 1024, seconds = "81 us" },
      { dtype = "bf16", rows = 512, columns = 512, inner = 64, batch = 16, seconds = "12 us" },
    ]                                                    # optional: launch = "9 us", on the host

Any table may contain a table `sources` that says, key by key, where the numbers come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import cast, get_args

from distir.arguments import checked
from distir.cost.cluster import Cluster, ClusterLevel, Host, Medium
from distir.cost.collectives import CollectiveLibrary
from distir.cost.device import DTYPES, PLATFORMS, Device
from distir.cost.products import MeasuredProduct, MeasuredProducts
from distir.cost.reader import TomlTable, read_toml
from distir.cost.stack import (
    Allocator,
    AttentionForm,
    AttentionKernels,
    KernelDispatch,
    MessageOverlap,
    Scaling,
    SoftwareStack,
)
from distir.errors import ClusterError, UnknownNameError
from distir.files import beside, is_file, is_folder, user_path
from distir.units import BYTES, BYTES_PER_SECOND, FLOPS_PER_SECOND, SECONDS, WATTS

__all__ = [
    "DEFAULT_STACK",
    "cluster_names",
    "device_names",
    "load_cluster",
    "load_device",
    "load_products",
    "load_stack",
    "stack_names",
]

DEFAULT_STACK = "fsdp-compiled"
"""The software stack that is used if none is named."""

_HERE = Path(__file__).resolve().parent


def cluster_names() -> list[str]:
    """Names of the clusters that come with distir."""
    return sorted(_shipped("clusters"))


def device_names() -> list[str]:
    """Names of the devices that come with distir."""
    return sorted(_shipped("devices"))


def stack_names() -> list[str]:
    """Names of the software stacks that come with distir."""
    return sorted(_shipped("stacks"))


@checked
def load_cluster(
    spec: str | Path, devices: int | None = None, device: str | Path | Device | None = None
) -> Cluster:
    """The cluster with the name `spec`, or that a TOML file at this path describes.

    `devices` is the number of devices; by default what the file says, or one node. `device`, by
    name, by file or loaded, takes the place of the cluster's own.

    Raises `UnknownNameError`, which names similar names, or `ClusterError` with file and key.
    """
    cluster = _read_cluster(_find("cluster", "clusters", spec))
    if devices is not None:
        cluster = cluster.with_devices(devices)
    if isinstance(device, (str, Path)):
        device = load_device(device)
    return cluster if device is None else cluster.with_device(device)


@checked
def load_device(spec: str | Path) -> Device:
    """The device with the name `spec`, or that a TOML file at this path describes.

    Raises `UnknownNameError`, which names similar names, or `ClusterError` with file and key.
    """
    return _read_whole_device(_find("device", "devices", spec))


@checked
def load_stack(spec: str | Path = DEFAULT_STACK) -> SoftwareStack:
    """The software stack with the name `spec`, or that a TOML file at this path describes.

    Raises `UnknownNameError`, which names similar names, or `ClusterError` with file and key.
    """
    return _read_stack(_find("software stack", "stacks", spec))


def load_products(path: str | Path) -> MeasuredProducts:
    """The measured products of a TOML file; raises `ClusterError` with file and key."""
    file = user_path(path)
    if not is_file(file):
        raise ClusterError(f"{file}: there is no such file of measured products")
    top = read_toml(file)
    device, versions = top.text("device"), top.text("versions")
    points = tuple(_read_product(table) for table in top.tables("products"))
    top.sources()
    top.finish()
    try:
        return MeasuredProducts(device, versions, points)
    except ClusterError as error:
        raise top.fail(error) from error


def _read_product(table: TomlTable) -> MeasuredProduct:
    point = MeasuredProduct(
        dtype=table.choice("dtype", DTYPES),
        rows=table.integer("rows"),
        columns=table.integer("columns"),
        inner=table.integer("inner"),
        batch=table.integer("batch", 1),
        seconds=table.quantity("seconds", SECONDS),
        launch_seconds=table.quantity("launch", SECONDS) if "launch" in table else None,
    )
    table.finish()
    return point


@lru_cache(maxsize=8)
def _shipped(folder: str) -> dict[str, Path]:
    return {path.stem: path for path in (_HERE / folder).glob("*.toml")}


def _find(description: str, folder: str, spec: str | Path) -> Path:
    """The file that `spec` means: a name in `folder`, in any case, or a path. `description` says
    in errors what was looked for."""
    shipped = _shipped(folder)
    if isinstance(spec, str) and spec.lower() in shipped:
        return shipped[spec.lower()]
    path = user_path(spec)
    if is_file(path):
        return path
    if isinstance(spec, Path) or path.suffix == ".toml" or len(path.parts) > 1:
        if is_folder(path):
            raise ClusterError(f"{path} is a folder; expected a {description} file")
        raise ClusterError(f"{path}: there is no such {description} file")
    raise UnknownNameError(description, spec, shipped)


def _read_cluster(path: Path) -> Cluster:
    top = read_toml(path)
    name = top.name()
    summary = top.text("summary", "")
    device = _read_device_entry(top, path.parent)
    tables = top.tables("levels")
    levels = tuple(_read_level(table, table is tables[-1]) for table in tables)
    one_node = math.prod(level.size or 1 for level in levels)
    devices = top.integer("devices", one_node)
    host = _read_host(top.table("host")) if "host" in top else None
    node = top.integer("devices_per_node") if "devices_per_node" in top else None
    top.sources()
    top.finish()
    _check_machines(top, "devices_per_node", node, levels)
    _check_machines(top, "host.devices", host and host.devices, levels)
    try:
        return Cluster(
            name=name,
            summary=summary,
            device=device,
            levels=levels,
            num_devices=devices,
            host=host,
            devices_per_node=node,
        )
    except ClusterError as error:
        raise top.fail(error) from error


def _check_machines(
    top: TomlTable, key: str, devices: int | None, levels: Sequence[ClusterLevel]
) -> None:
    """Raises `ClusterError` if machines with so many devices would be cut by the units of a level:
    what a level joins is a part of a machine, or several machines."""
    unit = 1
    for level in levels:
        unit *= level.size or 0
        if devices is not None and unit and devices % unit and unit % devices:
            raise top.error(
                key,
                f"is {devices}, and level {level.name!r} joins {unit} devices; expected a divisor "
                "or a multiple of these",
            )


def _read_host(table: TomlTable) -> Host:
    devices = table.integer("devices")
    memory = table.quantity("memory", BYTES)
    bandwidth = table.quantity("memory_bandwidth", BYTES_PER_SECOND)
    link = table.quantity("link", BYTES_PER_SECOND)
    shared = table.quantity("all_links", BYTES_PER_SECOND) if "all_links" in table else math.inf
    latency = table.quantity("latency", SECONDS) if "latency" in table else 0.0
    sources = table.sources()
    table.finish()
    try:
        return Host(
            devices=devices,
            memory_bytes=memory,
            memory_bandwidth_bytes_per_second=bandwidth,
            link_bytes_per_second=link,
            all_links_bytes_per_second=shared,
            latency_seconds=latency,
            sources=sources,
        )
    except ClusterError as error:
        raise table.fail(error) from error


def _read_device_entry(top: TomlTable, folder: Path) -> Device:
    """The device that the key `device` names or, as a table, describes. A file is looked for in
    the cluster's folder first."""
    if not top.is_text("device"):
        return _read_device(top.table("device"))
    spec = top.text("device")
    try:
        return load_device(beside(folder, spec))
    except UnknownNameError as error:
        raise top.error("device", f"is an {error}; a table [device] may describe it") from error


def _read_whole_device(path: Path) -> Device:
    return _read_device(read_toml(path))


def _read_device(table: TomlTable) -> Device:
    name = table.name()
    memory = table.quantity("memory", BYTES)
    bandwidth = table.quantity("memory_bandwidth", BYTES_PER_SECOND)
    peak = _read_peak(table.table("peak"))
    sustained = table.number("sustained_fraction", 1.0)
    portable = table.number("portable_fraction", 1.0)
    spread = table.number("rate_spread", 0.0)
    power = table.quantity("power", WATTS) if "power" in table else None
    platform = table.choice("platform", PLATFORMS) if "platform" in table else None
    sources = table.sources()
    table.finish()
    try:
        return Device(
            name=name,
            memory_bytes=memory,
            memory_bandwidth_bytes_per_second=bandwidth,
            peak_flops_per_second=peak,
            sustained_fraction=sustained,
            portable_fraction=portable,
            rate_spread=spread,
            sources=sources,
            power_watts=power,
            platform=platform,
        )
    except ClusterError as error:
        raise table.fail(error) from error


def _read_peak(table: TomlTable) -> dict[str, float]:
    for dtype in table.names:
        if dtype not in DTYPES:
            raise table.error(dtype, f"is not a known type; expected one of {', '.join(DTYPES)}")
    return {dtype: table.quantity(dtype, FLOPS_PER_SECOND) for dtype in table.names}


def _read_level(table: TomlTable, outermost: bool) -> ClusterLevel:
    name = table.name()
    unlimited = outermost and "size" not in table
    size = None if unlimited else table.integer("size")
    bandwidth = table.smallest_quantity("bandwidth", BYTES_PER_SECOND)
    pair = math.inf
    if "pair_bandwidth" in table:
        pair = table.smallest_quantity("pair_bandwidth", BYTES_PER_SECOND)
        if pair > bandwidth:
            raise table.error(
                "pair_bandwidth",
                f"is {pair:g} B/s, more than a device can send in total, bandwidth = "
                f"{bandwidth:g} B/s; expected at most that, or none where links lead to a switch",
            )
    latency = table.quantity("latency", SECONDS)
    default = "network" if size is None else "board"
    medium = cast("Medium", table.choice("medium", ("board", "network"), default))
    sources = table.sources()
    table.finish()
    try:
        return ClusterLevel(
            name=name,
            size=size,
            bandwidth_bytes_per_second=bandwidth,
            latency_seconds=latency,
            medium=medium,
            pair_bandwidth_bytes_per_second=pair,
            sources=sources,
        )
    except ClusterError as error:
        raise table.fail(error) from error


def _read_stack(path: Path) -> SoftwareStack:
    top = read_toml(path)
    name, summary = top.name(), top.text("summary", "")
    dispatch = cast("KernelDispatch", top.choice("dispatch", get_args(KernelDispatch), "compiled"))
    fuses = top.boolean("fuses_elementwise", False)
    overlaps_gradients = top.boolean("overlaps_gradients", True)
    overlaps_messages = cast(
        "MessageOverlap", top.choice("overlaps_messages", get_args(MessageOverlap), "always")
    )
    scatters_messages = top.boolean("scatters_messages", True)
    overlaps_activations = top.boolean("overlaps_activations", False)
    overlaps_exchanges = top.boolean("overlaps_exchanges", False)
    sends_copies_once = top.boolean("sends_copies_once", False)
    sorts_tokens = top.boolean("sorts_tokens", False)
    sends_narrow_tokens = top.boolean("sends_narrow_tokens", False)
    pads_experts = top.boolean("pads_experts", False)
    library = top.choice("collectives", get_args(CollectiveLibrary), "rings")
    allocator = cast("Allocator", top.choice("allocator", get_args(Allocator), "blocks"))
    spells_loss_out = top.boolean("spells_loss_out", False)
    scaling = cast("Scaling", top.choice("fp8_scaling", get_args(Scaling), "delayed"))
    spells_norms_out = top.boolean("spells_norms_out", False)
    routing_kernels = top.integer("routing_kernels", 0, least=0)
    groups_experts = top.boolean("groups_experts", True)
    loss_copies = top.integer("loss_copies", 0, least=0)
    loss_metrics = top.integer("loss_metrics", 0, least=0)
    balances_context = top.boolean("balances_context", True)
    claims_memory = top.boolean("claims_memory", True)
    attention = cast("AttentionForm", top.choice("attention", ("fused", "eager"), "fused"))
    kernels = top.choice("attention_kernels", get_args(AttentionKernels), "native")
    products = _read_products_entry(top, path.parent)
    shared = _shared_constants()
    constants, sources = dict(shared[0]), dict(shared[1])
    if "constants" in top:
        table = top.table("constants")
        own, stated = _read_constants(table)
        constants |= own
        sources = {key: said for key, said in sources.items() if key not in table.names} | stated
    sources |= top.sources()
    top.finish()
    try:
        return SoftwareStack(
            name=name,
            summary=summary,
            dispatch=dispatch,
            fuses_elementwise=fuses,
            attention=attention,
            attention_kernels=cast("AttentionKernels", kernels),
            overlaps_gradients=overlaps_gradients,
            overlaps_messages=overlaps_messages,
            scatters_messages=scatters_messages,
            overlaps_activations=overlaps_activations,
            overlaps_exchanges=overlaps_exchanges,
            sends_copies_once=sends_copies_once,
            sorts_tokens=sorts_tokens,
            sends_narrow_tokens=sends_narrow_tokens,
            pads_experts=pads_experts,
            collectives=cast("CollectiveLibrary", library),
            allocator=allocator,
            spells_loss_out=spells_loss_out,
            fp8_scaling=scaling,
            spells_norms_out=spells_norms_out,
            routing_kernels=routing_kernels,
            groups_experts=groups_experts,
            loss_copies=loss_copies,
            loss_metrics=loss_metrics,
            balances_context=balances_context,
            claims_memory=claims_memory,
            products=products,
            sources=sources,
            **constants,
        )
    except ClusterError as error:
        raise top.fail(error) from error


def _read_products_entry(top: TomlTable, folder: Path) -> MeasuredProducts | None:
    """The measured products of the file that the key `products` names. A file is looked for in the
    stack's folder first."""
    if "products" not in top:
        return None
    spec = top.text("products")
    return load_products(beside(folder, spec))


@lru_cache(maxsize=1)
def _shared_constants() -> tuple[dict[str, float], dict[str, str]]:
    """The constants that all stacks share, and where they come from."""
    return _read_constants(read_toml(_HERE / "constants.toml"))


def _read_constants(table: TomlTable) -> tuple[dict[str, float], dict[str, str]]:
    """The constants of a table, by field of `SoftwareStack`; those that it does not have are left
    out. Then by key where they come from."""
    constants: dict[str, float] = {}
    for field in (field.name for field in fields(SoftwareStack) if field.type == "float"):
        key, unit = field, None
        for ending, units in (("_seconds", SECONDS), ("_bytes", BYTES)):
            if field.endswith(ending):
                key, unit = field.removesuffix(ending), units
        if key in table:
            constants[field] = table.number(key) if unit is None else table.quantity(key, unit)
    sources = table.sources()
    table.finish()
    return constants, sources
