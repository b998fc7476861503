"""The cost model: a cluster and a software stack, which engines ask for seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from distir.cost import device as on_device
from distir.cost.amounts import Amount, larger, smaller, soft_maximum
from distir.cost.band import SIZES, Band, extrapolated
from distir.cost.cluster import Cluster, ClusterLevel, Group, Host, Senders
from distir.cost.collectives import CollectiveKind, Copies, Link, Route, collective_seconds
from distir.cost.products import MeasuredProducts
from distir.cost.stack import SoftwareStack
from distir.cost.work import Work
from distir.errors import ClusterError

__all__ = ["CostModel", "Job"]

MOST_OF_A_JOB = 1e24
"""Tokens, or dollars per device and hour, above which a number is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a workload is run for, as far as it is stated: prices and goals follow from that, and
    seconds of an iteration do not. Raises `ClusterError` for numbers that nobody has."""

    price: float | None = None
    """Dollars per device and hour."""
    tokens: float | None = None
    """Tokens to go through in all."""

    def __post_init__(self) -> None:
        for name, value in (("price", self.price), ("number of tokens", self.tokens)):
            if value is not None and not 0 < value <= MOST_OF_A_JOB:
                raise ClusterError(
                    f"the {name} is {value}; expected more than 0, at most {MOST_OF_A_JOB:g}"
                )


@dataclass(frozen=True, slots=True, repr=False)
class CostModel:
    """Seconds of ops and of communication on a cluster that runs a software stack.

    Works, bytes and counts may be arrays with one number per plan; then so are the seconds.
    """

    cluster: Cluster
    stack: SoftwareStack
    job: Job | None = None
    """What it is all for; None where nobody asks."""

    def __repr__(self) -> str:
        return f"<CostModel of {self.cluster.name} with {self.stack.name}>"

    @property
    def without_fixed_overlap(self) -> CostModel:
        """The same where no fixed fraction of experts' exchanges hides behind another microbatch:
        for schedules with overlapped pairs, which say themselves what runs side by side."""
        if not self.stack.overlaps_exchanges:
            return self
        return replace(self, stack=replace(self.stack, overlaps_exchanges=False))

    @property
    def products(self) -> MeasuredProducts | None:
        """The measured products that hold on the cluster's devices; None if there are none."""
        table = self.stack.products
        return table if table is not None and table.holds_on(self.cluster.device.name) else None

    def band(
        self,
        *,
        mixture: bool = False,
        devices: int | None = None,
        parameters: int = 0,
        sequence: int = 0,
    ) -> Band:
        """How far measured times may be from the seconds of this model, of a dense model or of a
        mixture of experts. The stack says which software it is and how that sends tokens.
        `devices` (default: all), `parameters` and tokens per `sequence` say whether runs of that
        size were measured."""
        device, stack = self.cluster.device, self.stack
        devices = self.cluster.num_devices if devices is None else devices
        sizes = {
            "devices": devices,
            "nodes": -(-devices // (self.cluster.levels[0].size or devices)),
            "parameters": parameters,
            "sequence": sequence,
        }
        added, beyond = extrapolated(
            sizes,
            {name: getattr(stack, f"known_{name}") for name in SIZES},
            {name: getattr(stack, f"{name}_spread") for name in SIZES},
        )
        return Band(
            hardware=device.rate_spread,
            source=stack.source_spread,
            model=stack.mixture_spread if mixture else 0.0,
            extrapolation=added,
            layout=stack.layout_spread,
            repeat=stack.repeat_spread,
            width=stack.band_width,
            width95=stack.band95_width,
            beyond=beyond,
        )

    def needed_bytes(self, tensor_bytes: Amount, communicators: Amount) -> Any:
        """Memory that a device must have for tensors to hold `tensor_bytes` at their peak, with
        what the stack reserves."""
        return tensor_bytes + self.stack.reserve_bytes(tensor_bytes, communicators)

    def fits(self, tensor_bytes: Amount, communicators: Amount) -> Any:
        """Whether the devices have that memory: a bool, or an array of bools."""
        return self.needed_bytes(tensor_bytes, communicators) <= self.cluster.device.memory_bytes

    def room_bytes(self, communicators: Amount) -> Amount:
        """What tensors may hold on a device, besides what the stack reserves; 0 if nothing is
        left."""
        fixed = self.stack.reserve_bytes(0.0, communicators)
        per_byte = 1.0 + self.stack.reserve_bytes(1.0, 0) - self.stack.reserve_bytes(0.0, 0)
        return larger(0.0, self.cluster.device.memory_bytes - fixed) / per_byte

    def fits_host(self, host_bytes: Amount) -> Any:
        """Whether a device's part of its host's memory holds what it offloads: a bool, or an array
        of bools."""
        return host_bytes <= self.cluster.host_bytes_per_device

    @property
    def host(self) -> Host:
        """The host of a node. Raises `ClusterError` if nothing is known of it."""
        if self.cluster.host is None:
            raise ClusterError(self.cluster.without_host)
        return self.cluster.host

    def host_copy_seconds(self, size_bytes: Amount) -> Amount:
        """Seconds to copy `size_bytes` between a device and its host, while all devices of the host
        do so."""
        host = self.host
        shared = host.all_links_bytes_per_second / host.sharing(self.cluster.num_devices)
        rate = min(host.link_bytes_per_second, shared) * self.stack.board_link_efficiency
        return self.stack.collective_launch_seconds + host.latency_seconds + size_bytes / rate

    def host_memory_seconds(self, moved_bytes: Amount) -> Amount:
        """Seconds in which a host reads and writes `moved_bytes` for each of its devices."""
        host = self.host
        rate = host.memory_bandwidth_bytes_per_second * self.stack.memory_efficiency
        return moved_bytes * host.sharing(self.cluster.num_devices) / rate

    def op_seconds(self, work: Work) -> Amount:
        """Seconds of an op; the device's kernels and the host's launches overlap."""
        return on_device.op_seconds(work, self.cluster.device, self.stack)

    def kernel_seconds(self, work: Work) -> Amount:
        """Seconds of an op on the device, without host launches."""
        return on_device.kernel_seconds(work, self.cluster.device, self.stack)

    def least_product_seconds(self, work: Work) -> Amount:
        """Seconds that no product with at least this work takes less than, whatever its sizes."""
        modelled, table = self.kernel_seconds(work), self.products
        if table is None:
            return modelled
        return smaller(modelled, work.flops * table.least_seconds_per_flop(work.dtype))

    def least_launch_seconds(self, work: Work) -> Amount:
        """Seconds that no host takes less than to launch the kernels of a product."""
        table = self.products
        least = math.inf if table is None else table.least_launch_seconds
        return work.kernels * min(self.stack.launch_seconds, least)

    def launch_seconds(self, work: Work) -> Amount:
        """Seconds that the host takes to launch the kernels of an op."""
        return work.kernels * self.stack.launch_seconds

    def host_bound_seconds(self, device_seconds: Amount, launch_seconds: Amount) -> Amount:
        """Seconds of a stretch of program whose kernels take `device_seconds` and whose launches
        take `launch_seconds`.

        A host that runs ahead overlaps the two: the result is little more than the longer one. With
        a host that waits for every kernel they add up.
        """
        return soft_maximum(self.stack.host_order, device_seconds, launch_seconds)

    def collective_seconds(
        self,
        kind: CollectiveKind,
        size_bytes: Amount,
        group: Group,
        times: Amount = 1,
        copies: Copies | None = None,
    ) -> Amount:
        """Seconds of `times` equal collectives over `group`, one after the other.

        `size_bytes` is the full tensor per device: what an all-reduce reduces, the input of a
        reduce-scatter, the result of an all-gather, the local tensor of an all-to-all, what a shift
        hands to the next device. A group of one takes no time. `copies` says how many of the rows
        of an all-to-all are copies of one.
        """
        return times * self.seconds_over(kind, size_bytes, self.route(group), copies)

    def seconds_over(
        self,
        kind: CollectiveKind,
        size_bytes: Amount,
        route: Route,
        copies: Copies | None = None,
    ) -> Amount:
        """Seconds of a collective over a route: that of one group, or (as arrays) those of many
        groups that exchange over the same levels. Arguments as for `collective_seconds`."""
        if not route:
            return 0.0 * size_bytes
        once = copies if self.stack.sends_copies_once else None
        moving = collective_seconds(kind, size_bytes, route, once, self.stack.collectives)
        return self.stack.collective_launch_seconds + moving

    def point_to_point_seconds(
        self, size_bytes: Amount, distance: int, senders: Senders | None = None
    ) -> Amount:
        """Seconds to send `size_bytes` from every sender to the device `distance` further on;
        without `senders`, from the device for which that takes longest."""
        return self.hop_seconds(size_bytes, self.cluster.crossed_level(distance, senders))

    def hop_seconds(self, size_bytes: Amount, crossed_level: int) -> Amount:
        """Seconds to send `size_bytes` over the level with the index `crossed_level`."""
        level = self.cluster.levels[crossed_level]
        moving = size_bytes / self.bandwidth_bytes_per_second(level, peers=1)
        return self.stack.collective_launch_seconds + level.latency_seconds + moving

    def bandwidth_bytes_per_second(self, level: ClusterLevel, peers: int) -> float:
        """Bytes per second that one device reaches over a level, in one direction, while it sends
        to `peers` others."""
        stack = self.stack
        efficiency = (
            stack.network_link_efficiency
            if level.medium == "network"
            else stack.board_link_efficiency
        )
        return level.reached_bandwidth_bytes_per_second(peers) * efficiency

    def route(self, group: Group) -> Route:
        """The levels over which the members of a group exchange data, innermost first."""
        return tuple(
            Link(
                fan_out,
                rails,
                self.bandwidth_bytes_per_second(level, fan_out - 1),
                level.latency_seconds,
                level.medium,
            )
            for level, fan_out, rails in zip(
                self.cluster.levels, group.fan_out, group.rails, strict=True
            )
            if fan_out > 1
        )
