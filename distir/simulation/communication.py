"""What a plan communicates: per mesh axis and kind of collective how often, how many bytes, and how
many of the seconds are exposed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from distir.shares import communication, is_communication
from distir.simulation.result import SimulationResult
from distir.simulation.step import Step

__all__ = ["CollectiveUse", "collectives_of", "exposed_seconds"]


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """What a device sends in a step by one kind of collective, or of message, mean over ranks."""

    along: str
    """The choice of the strategy whose devices take part: dp, tp, …"""
    level: str
    """The outermost level of the cluster that the devices span."""
    op: str
    count: float
    size_bytes: float
    """Over all of them, the size of the whole tensor per device."""
    seconds: float
    """Over all of them, on their stream."""
    exposed: float
    """Seconds in which the device waits. Waiting is known per choice, and shared among its kinds as
    their seconds are; it may be for others that come late, so more can be exposed than is sent."""

    @property
    def hidden(self) -> float:
        """Seconds that pass beside computation."""
        return max(0.0, self.seconds - self.exposed)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "mesh_axis": self.along,
            "level": self.level,
            "kind": self.op,
            "count": self.count,
            "bytes": self.size_bytes,
            "exposed_seconds": self.exposed,
            "hidden_seconds": self.hidden,
        }


def exposed_seconds(result: SimulationResult) -> dict[str, float]:
    """Seconds of waiting for data, mean over ranks, by the choice along which they travel."""
    found: defaultdict[str, float] = defaultdict(float)
    for stage in result.stages:
        for share, seconds in stage.seconds.items():
            if is_communication(share) and seconds:
                found[share.removesuffix(communication(""))] += seconds / len(result.stages)
    return dict(found)


def collectives_of(step: Step, result: SimulationResult) -> tuple[CollectiveUse, ...]:
    """What a device communicates in a step, by choice, level and kind."""
    ranks = len(result.stages)
    rows: defaultdict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    busy: defaultdict[str, float] = defaultdict(float)
    for each in step.traffic:
        row = rows[each.along, each.level, each.op]
        row[0] += each.count / ranks
        row[1] += each.size_bytes / ranks
        row[2] += each.seconds / ranks
        row[3] += each.waited / ranks
        busy[each.along] += each.waited / ranks
    exposed = exposed_seconds(result)
    return tuple(
        CollectiveUse(
            along,
            level,
            op,
            count,
            size,
            seconds,
            exposed.get(along, 0.0) * (waited / busy[along] if busy[along] else 1.0),
        )
        for (along, level, op), (count, size, seconds, waited) in sorted(rows.items())
    )
