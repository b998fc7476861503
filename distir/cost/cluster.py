"""Equal devices in a hierarchy of levels (board, node, rack, network).

Devices with close numbers are close to each other in the hierarchy:

level 0, size 8        devices 0-7 │ devices 8-15 │ …        NVLink domain
level 1, no limit      ───────── network ──────────
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from distir.cost.collectives import Medium
from distir.cost.device import Device
from distir.errors import ClusterError, shown
from distir.limits import (
    LEAST_RATE,
    LONGEST_SECONDS,
    MOST_BYTES,
    MOST_DEVICES,
    MOST_LEVELS,
    MOST_RATE,
)
from distir.units import counted

__all__ = ["Cluster", "ClusterLevel", "Group", "Host", "Medium", "Senders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLevel:
    """One level of the hierarchy: how many units of the level below it joins, and by what links.

    Raises `ClusterError` if a number is out of range.
    """

    name: str
    size: int | None
    """Units of the level below (at the innermost, devices) in one unit; None: no limit."""
    bandwidth_bytes_per_second: float
    """Bandwidth per device and direction while all devices send; of the slowest link if links
    differ."""
    latency_seconds: float
    """Latency of one step of a collective between two devices that this level joins."""
    medium: Medium = "board"
    pair_bandwidth_bytes_per_second: float = math.inf
    """The most that one device can send to one other: less than `bandwidth_bytes_per_second` where
    a device's links lead to different peers instead of a switch."""
    sources: Mapping[str, str] = field(
        default_factory=dict[str, str], repr=False, compare=False, hash=False
    )
    """By key of its file, where a value comes from, as far as that is stated."""

    def __post_init__(self) -> None:
        if self.size is not None and not 1 <= self.size <= MOST_DEVICES:
            raise ClusterError(
                f"size of level {self.name!r} is {shown(self.size)}; expected at least 1, at most "
                f"{MOST_DEVICES:,}"
            )
        if not LEAST_RATE <= self.bandwidth_bytes_per_second <= MOST_RATE:
            raise ClusterError(
                f"bandwidth of level {self.name!r} is {self.bandwidth_bytes_per_second}; "
                f"expected more than 0: at least {LEAST_RATE:g} B/s, at most {MOST_RATE:g} B/s"
            )
        if not self.pair_bandwidth_bytes_per_second >= LEAST_RATE:
            raise ClusterError(
                f"pair bandwidth of level {self.name!r} is "
                f"{self.pair_bandwidth_bytes_per_second}; expected more than 0: at least "
                f"{LEAST_RATE:g} B/s"
            )
        if not 0 <= self.latency_seconds <= LONGEST_SECONDS:
            raise ClusterError(
                f"latency of level {self.name!r} is {self.latency_seconds}; expected at least 0, "
                "at most a century"
            )

    def reached_bandwidth_bytes_per_second(self, peers: int) -> float:
        """Bytes per second that one device can send to `peers` other devices at once."""
        return min(self.bandwidth_bytes_per_second, peers * self.pair_bandwidth_bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The processors and the memory that `devices` neighbouring devices share, as one node has it.

    Raises `ClusterError` if a number is out of range.
    """

    devices: int
    memory_bytes: float
    memory_bandwidth_bytes_per_second: float
    """Of all its memory."""
    link_bytes_per_second: float
    """Between one device and the host, in each direction."""
    all_links_bytes_per_second: float = math.inf
    """Between all devices together and the host, in each direction, where they share links."""
    latency_seconds: float = 0.0
    """Of one copy."""
    sources: Mapping[str, str] = field(
        default_factory=dict[str, str], repr=False, compare=False, hash=False
    )
    """By key of its file, where a value comes from, as far as that is stated."""

    def __post_init__(self) -> None:
        if not 1 <= self.devices <= MOST_DEVICES:
            raise ClusterError(
                f"{shown(self.devices)} devices share a host; expected at least 1, at most "
                f"{MOST_DEVICES:,}"
            )
        if not 0 < self.memory_bytes <= MOST_BYTES:
            raise ClusterError(
                f"the memory of the host is {self.memory_bytes} bytes; expected more than 0, at "
                "most an exabyte"
            )
        for what, rate in (
            ("memory bandwidth of the host", self.memory_bandwidth_bytes_per_second),
            ("link to the host", self.link_bytes_per_second),
            ("links to the host", min(self.all_links_bytes_per_second, MOST_RATE)),
        ):
            if not LEAST_RATE <= rate <= MOST_RATE:
                raise ClusterError(
                    f"{what}: {rate} B/s; expected at least {LEAST_RATE:g} B/s, at most "
                    f"{MOST_RATE:g} B/s"
                )
        if not 0 <= self.latency_seconds <= LONGEST_SECONDS:
            raise ClusterError(
                f"latency of the host is {self.latency_seconds}; expected at least 0, at most a "
                "century"
            )

    def sharing(self, num_devices: int) -> int:
        """Devices that share the host in a cluster of so many."""
        return min(self.devices, num_devices)


@dataclass(frozen=True, slots=True)
class Group:
    """How a group of communicating devices spreads over the levels.

    A collective runs in many congruent groups at once; this describes the worst of them.
    """

    size: int
    fan_out: tuple[int, ...]
    """Per level, innermost first: the most units of the level below that the members in one unit
    occupy."""
    rails: tuple[int, ...]
    """Per level: the fewest members in one unit of the level below. Each sends over its own
    link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal devices joined by levels, innermost first. The last unit may be partly used.

    Raises `ClusterError` if levels and number of devices contradict each other.
    """

    name: str
    device: Device
    levels: tuple[ClusterLevel, ...]
    num_devices: int
    summary: str = ""
    host: Host | None = None
    """What devices may offload to; None where nothing is known of it."""
    devices_per_node: int | None = None
    """Devices of one machine, for which launchers start processes; None: a unit of the innermost
    level."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.levels) <= MOST_LEVELS:
            raise ClusterError(
                f"cluster {self.name!r} has {len(self.levels) or 'no'} levels; expected at least "
                f"one, at most {MOST_LEVELS}"
            )
        for level in self.levels[:-1]:
            if level.size is None:
                raise ClusterError(
                    f"level {level.name!r} of cluster {self.name!r} has no size; only the "
                    "outermost level may be without limit"
                )
        joined = math.prod(level.size or 1 for level in self.levels)
        if joined > MOST_DEVICES:
            raise ClusterError(
                f"the levels of cluster {self.name!r} join {shown(joined)} devices; expected at "
                f"most {MOST_DEVICES:,}"
            )
        if not 1 <= self.num_devices <= MOST_DEVICES:
            raise ClusterError(
                f"the number of devices is {shown(self.num_devices)}; expected at least 1, at most "
                f"{MOST_DEVICES:,}"
            )
        if self.devices_per_node is not None and not 1 <= self.devices_per_node <= MOST_DEVICES:
            raise ClusterError(
                f"a node of cluster {self.name!r} has {shown(self.devices_per_node)} devices; "
                f"expected at least 1, at most {MOST_DEVICES:,}"
            )
        if self.num_devices > self.capacity:
            raise ClusterError(
                f"cluster {self.name!r} holds {counted(int(self.capacity), 'device')}, not "
                f"{self.num_devices}; its outermost level {self.levels[-1].name!r} has a size"
            )

    @property
    def capacity(self) -> float:
        """The most devices that the levels can join; infinite if the outermost level has no
        size."""
        sizes = [level.size for level in self.levels]
        return math.inf if None in sizes else math.prod(size or 1 for size in sizes)

    @property
    def host_bytes_per_device(self) -> float:
        """The memory of its host that a device has if all have equal parts; 0 where nothing is
        known of it."""
        host = self.host
        return host.memory_bytes / host.sharing(self.num_devices) if host is not None else 0.0

    @property
    def without_host(self) -> str:
        """What to say where nothing is known of the host and it is needed."""
        return (
            f"nothing is known of the hosts of cluster {self.name!r}; a table [host] of its file "
            "says what memory devices may offload to"
        )

    @property
    def devices_per_unit(self) -> tuple[int, ...]:
        """Devices in a full unit of each level, innermost first; all devices if it has no size."""
        units: list[int] = []
        for level in self.levels:
            below = units[-1] if units else 1
            units.append(max(self.num_devices, below) if level.size is None else below * level.size)
        return tuple(units)

    @property
    def node_devices(self) -> int:
        """Devices of a full node, for which a launcher starts processes."""
        return self.devices_per_node or self.devices_per_unit[0]

    def with_devices(self, num_devices: int) -> Cluster:
        """The same hardware with another number of devices, over as many units as needed."""
        return replace(self, num_devices=num_devices)

    def with_device(self, device: Device) -> Cluster:
        """The same levels joining other devices; a name of its own says which."""
        if device == self.device:
            return self
        return replace(self, device=device, name=f"{self.name} with {device.name}", summary="")

    def group(self, size: int, stride: int = 1) -> Group:
        """The groups along a mesh axis: `size` devices, `stride` apart, anywhere in the cluster."""
        return self.product_group(((size, stride),))

    def product_group(self, axes: Sequence[tuple[int, int]]) -> Group:
        """The groups along several mesh axes at once, each given as `(size, stride)`.

        A group has the devices `start + Σ kᵢ · strideᵢ` with `kᵢ < sizeᵢ`. A stride is a multiple
        of what the axes with smaller strides span. Raises `ClusterError` if no such group fits.
        """
        members = _digits(axes)
        last = sum((size - 1) * stride for size, stride in members)
        if any(size < 1 or stride < 1 for size, stride in axes) or last >= self.num_devices:
            sizes = " x ".join(str(size) for size, _ in axes)
            strides = " and ".join(str(stride) for _, stride in axes)
            raise ClusterError(
                f"no group of {sizes} devices {strides} apart among {self.num_devices} devices"
            )
        return _group(self.devices_per_unit, self.num_devices, members)

    def group_across(self, members: tuple[Senders, ...]) -> Group:
        """Groups with one device of each set, at equal positions in the sets (such as the devices
        of several pipeline stages)."""
        return _group_across(self.devices_per_unit, members)

    def crossed_level(self, distance: int, senders: Senders | None = None) -> int:
        """Index of the outermost level that a message from a device to the one `distance` further
        on crosses: the worst over the senders, or over all devices if none are given. Raises
        `ClusterError` if there are no devices that far apart."""
        if not 0 < distance < self.num_devices:
            raise ClusterError(f"no devices {distance} apart among {self.num_devices} devices")
        return _crossed_level(self.devices_per_unit, self.num_devices, distance, senders)


@dataclass(frozen=True, slots=True)
class Senders:
    """Devices that send at the same time, such as those of one pipeline stage.

    They are `repeats` rows of `width` neighbouring devices; the first row begins at device
    `start`, each following one `period` devices further on.
    """

    start: int
    width: int
    period: int = 0
    repeats: int = 1

    def devices(self) -> NDArray[np.int64]:
        """The numbers of the devices."""
        blocks = self.start + self.period * np.arange(self.repeats)
        return (blocks[:, None] + np.arange(self.width)).ravel()


def _digits(axes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Mesh axes from the innermost to the outermost; axes that are contiguous are merged."""
    merged: list[tuple[int, int]] = []
    for size, stride in sorted(axes, key=lambda axis: axis[1]):
        if merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        elif size > 1 or not merged:
            merged.append((size, stride))
    return tuple(merged)


@lru_cache(maxsize=4096)
def _group(units: tuple[int, ...], num_devices: int, axes: tuple[tuple[int, int], ...]) -> Group:
    """The worst over all congruent groups: where sizes do not divide, some groups straddle
    units."""
    shape: list[int] = []
    spanned = 1
    for size, stride in axes:
        shape[:0] = [size, stride // spanned]
        spanned = size * stride
    shape.insert(0, max(1, num_devices // spanned))
    # Dims, outermost first: the blocks, then in turn positions along a mesh axis and between axes.
    devices = np.arange(math.prod(shape)).reshape(shape)
    along = list(range(1, len(shape), 2))
    between = list(range(0, len(shape), 2))
    count = math.prod(size for size, _ in axes)
    return _worst_group(units, devices.transpose(*between, *along).reshape(-1, count))


@lru_cache(maxsize=4096)
def _group_across(units: tuple[int, ...], members: tuple[Senders, ...]) -> Group:
    return _worst_group(units, np.stack([senders.devices() for senders in members], axis=1))


def _worst_group(units: tuple[int, ...], members: NDArray[np.int64]) -> Group:
    """The worst of some groups at every level. `units` are devices per unit of each level,
    `members` the devices of the groups, of shape (groups, members)."""
    count = members.shape[1]
    fan_out: list[int] = []
    rails: list[int] = []
    below = _unit_numbers(members)
    for unit in units:
        occupied = _unit_numbers(members // unit)
        fan_out.append(int(_units_per_unit(occupied, below).max()))
        rails.append(int(np.bincount(below.ravel()).min()))
        below = occupied
    return Group(count, tuple(fan_out), tuple(rails))


def _unit_numbers(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers the units that each group occupies, from 0; different groups get different numbers.

    `units[i, j]` is the unit in which member j of group i lies; members of a unit are adjacent.
    """
    starts = np.ones(units.shape, dtype=np.int64)
    starts[:, 1:] = units[:, 1:] != units[:, :-1]
    return starts.cumsum().reshape(units.shape) - 1


def _units_per_unit(outer: NDArray[np.int64], inner: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many occupied units of the level below lie in each occupied unit of a level."""
    _, first = np.unique(inner, return_index=True)
    return np.bincount(outer.ravel()[first])


@lru_cache(maxsize=4096)
def _crossed_level(
    units: tuple[int, ...], num_devices: int, distance: int, senders: Senders | None
) -> int:
    sending = np.arange(num_devices) if senders is None else senders.devices()
    sending = sending[sending + distance < num_devices]
    for level, unit in enumerate(units[:-1]):
        if np.all(sending // unit == (sending + distance) // unit):
            return level
    return len(units) - 1
