"""Arrays of a rank's devices, whose bytes are counted while they are alive.

A value lives from the op that makes it to its last reader. A view keeps the memory that it shows
alive. An array counts in the element type of the plan, although NumPy computes in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from distir.execute.devices import Shards
from distir.ir.core import Value


@dataclass(slots=True)
class Meter:
    """Bytes of activations in a memory, that of a device of a rank or of its host: now (`live`) and
    at most (`peak`)."""

    live: float = 0.0
    peak: float = 0.0

    def add(self, size_bytes: float) -> None:
        """Counts memory that is taken; negative where it is freed."""
        self.live += size_bytes
        self.peak = max(self.peak, self.live)

    def restart(self) -> None:
        """Measures the peak from now on."""
        self.peak = self.live


@dataclass(slots=True, eq=False)
class Storage:
    """The memory of one array on each device, or on its host, as `meter` counts it, and how many
    live values are views of it."""

    size_bytes: float
    meter: Meter
    views: int = 0


@dataclass(slots=True)
class LiveArrays:
    """The arrays of one microbatch on one stage, by slot. Slots without a storage (parameters and
    free values) do not count as activations."""

    meter: Meter
    host_meter: Meter
    shards: dict[int, Shards] = field(default_factory=dict[int, Shards])
    storage: dict[int, Storage] = field(default_factory=dict[int, Storage])

    def put(self, slot: int, shards: Shards, value: Value, *, on_host: bool = False) -> None:
        """Adds a value that has memory of its own, on the device or on its host."""
        meter = self.host_meter if on_host else self.meter
        self.show(slot, shards, Storage(array_bytes(shards, value), meter))

    def show(self, slot: int, shards: Shards, storage: Storage | None) -> None:
        """Adds a value whose memory may be there already: a view. None: memory is not counted."""
        self.shards[slot] = shards
        if storage is not None:
            if storage.views == 0:
                storage.meter.add(storage.size_bytes)
            storage.views += 1
            self.storage[slot] = storage

    def drop(self, slot: int) -> None:
        """Removes a value that is not read again, and frees its memory unless a view shows it."""
        del self.shards[slot]
        storage = self.storage.pop(slot, None)
        if storage is not None:
            storage.views -= 1
            if storage.views == 0:
                storage.meter.add(-storage.size_bytes)


def array_bytes(shards: Shards, value: Value) -> float:
    """Bytes of the largest shard of a value, in the value's element type."""
    itemsize = value.type.dtype.itemsize
    return float(max(shard.size for shard in shards) * itemsize)
