"""Arrays of a rank's devices, counted while they are alive.

A value lives from the op that makes it to its last reader; what a view shows is kept by the view.
Counted are the arrays that are really there, at the size of the elements that the plan computes
in (NumPy computes in float64).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from distir.execute.devices import Shards
from distir.ir.core import Value


@dataclass(slots=True, eq=False)
class Storage:
    """Memory that one array takes on each device, and how many live values show it."""

    size_bytes: float
    views: int = 0


@dataclass(slots=True)
class Meter:
    """Bytes that a rank's devices hold for activations, now and at most."""

    live: float = 0.0
    peak: float = 0.0

    def add(self, size_bytes: float) -> None:
        """Some more is held."""
        self.live += size_bytes
        self.peak = max(self.peak, self.live)

    def restart(self) -> None:
        """The peak is measured from now on."""
        self.peak = self.live


@dataclass(slots=True)
class Held:
    """What is held of one microbatch on one stage, by slot. Slots without a storage (parameters,
    and what depends on inputs alone) do not count."""

    meter: Meter
    shards: dict[int, Shards] = field(default_factory=dict[int, Shards])
    storage: dict[int, Storage] = field(default_factory=dict[int, Storage])

    def put(self, slot: int, shards: Shards, value: Value) -> None:
        """A new array per device."""
        self.show(slot, shards, Storage(array_bytes(shards, value)))

    def show(self, slot: int, shards: Shards, storage: Storage | None) -> None:
        """An array in memory that is (or may be) there already."""
        self.shards[slot] = shards
        if storage is not None:
            if storage.views == 0:
                self.meter.add(storage.size_bytes)
            storage.views += 1
            self.storage[slot] = storage

    def drop(self, slot: int) -> None:
        """The value is not read again."""
        del self.shards[slot]
        storage = self.storage.pop(slot, None)
        if storage is not None:
            storage.views -= 1
            if storage.views == 0:
                self.meter.add(-storage.size_bytes)


def array_bytes(shards: Shards, value: Value) -> float:
    """Bytes of a value on the device that holds most of it, in the value's element type."""
    itemsize = value.type.dtype.itemsize
    return float(max(np.size(shard) for shard in shards) * itemsize)
