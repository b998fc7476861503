"""Hardware × stack: the one object that engines ask for seconds."""

from __future__ import annotations

from dataclasses import dataclass

from distir.cost import device as on_device
from distir.cost.amounts import Amount, soft_maximum
from distir.cost.band import Band
from distir.cost.cluster import Cluster, Group, Level, Senders
from distir.cost.collectives import CollectiveKind, Copies, Link, Route, collective_seconds
from distir.cost.profile import CostProfile
from distir.cost.work import Work

__all__ = ["CostModel"]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of ops and of communication on a cluster with a software stack."""

    cluster: Cluster
    profile: CostProfile

    @property
    def band(self) -> Band:
        """How far measured times may be from those said here."""
        device, profile = self.cluster.device, self.profile
        return Band(device.rate_spread, profile.source_spread, profile.repeat_spread)

    def op_seconds(self, work: Work) -> Amount:
        """Time of an op: device time and host launch time overlap."""
        return on_device.op_seconds(work, self.cluster.device, self.profile)

    def kernel_seconds(self, work: Work) -> Amount:
        """Time of an op on the device, host launches aside."""
        return on_device.kernel_seconds(work, self.cluster.device, self.profile)

    def launch_seconds(self, work: Work) -> Amount:
        """Time of the host to launch an op's kernels."""
        return work.kernels * self.profile.launch_seconds

    def host_bound_seconds(self, device_seconds: Amount, launch_seconds: Amount) -> Amount:
        """Time of a stretch of program: the host runs ahead of the device, so that neither the
        device's time nor that of all its launches is exceeded by much; or waits, so that they add
        up."""
        return soft_maximum(self.profile.host_order, device_seconds, launch_seconds)

    def collective_seconds(
        self,
        kind: CollectiveKind,
        size_bytes: Amount,
        group: Group,
        times: Amount = 1,
        copies: Copies | None = None,
    ) -> Amount:
        """Time of a collective over `group`, of so many in a row.

        `size_bytes` is the full tensor per device: what is reduced, the input of a reduce-scatter,
        the result of an all-gather, the local tensor of an all-to-all, what a shift hands to the
        next. A group of one costs nothing. `copies` are those among the rows of an all-to-all.
        """
        return times * self.seconds_over(kind, size_bytes, self.route(group), copies)

    def seconds_over(
        self,
        kind: CollectiveKind,
        size_bytes: Amount,
        route: Route,
        copies: Copies | None = None,
    ) -> Amount:
        """The same over a route: that of one group, or of many with the same levels."""
        if not route:
            return 0.0 * size_bytes
        once = copies if self.profile.sends_copies_once else None
        moving = collective_seconds(kind, size_bytes, route, once)
        return self.profile.collective_launch_seconds + moving

    def point_to_point_seconds(
        self, size_bytes: Amount, distance: int, senders: Senders | None = None
    ) -> Amount:
        """Time to send `size_bytes` from every sender to the device `distance` on; without
        senders, the worst anywhere."""
        return self.hop_seconds(size_bytes, self.cluster.crossed_level(distance, senders))

    def hop_seconds(self, size_bytes: Amount, crossed_level: int) -> Amount:
        """Time to send `size_bytes` over a level, by its index."""
        level = self.cluster.levels[crossed_level]
        moving = size_bytes / self.bandwidth_bytes_per_second(level, peers=1)
        return self.profile.collective_launch_seconds + level.latency_seconds + moving

    def bandwidth_bytes_per_second(self, level: Level, peers: int) -> float:
        """What one device reaches at a level, one direction, with so many peers to send to."""
        profile = self.profile
        efficiency = (
            profile.network_link_efficiency
            if level.medium == "network"
            else profile.board_link_efficiency
        )
        return level.reached_bandwidth_bytes_per_second(peers) * efficiency

    def route(self, group: Group) -> Route:
        """The levels that the group's members exchange over, innermost first."""
        return tuple(
            Link(
                fan_out,
                rails,
                self.bandwidth_bytes_per_second(level, fan_out - 1),
                level.latency_seconds,
            )
            for level, fan_out, rails in zip(
                self.cluster.levels, group.fan_out, group.rails, strict=True
            )
            if fan_out > 1
        )
