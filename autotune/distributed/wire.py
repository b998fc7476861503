"""The wire of a process: collectives and ring exchanges of plans, carried by a messenger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.distributed.messenger import Messenger, ProcessGroup, packed, unpacked
from distir.execute.devices import Coordinate, WirePart
from distir.ir.core import Array, Node
from distir.ops.collective import AllGather, AllReduce, AllToAll, Collective, ReduceScatter
from distir.ops.ring import CirculatingBlock, Ring


@dataclass(frozen=True, slots=True)
class ProcessWire:
    """The wire (see `distir.execute.devices`) of a process: `first` is the process of the first
    device of its rank."""

    messenger: Messenger
    own: int
    first: int

    def exchange(self, parts: Sequence[WirePart], group: Sequence[int]) -> list[Array]:
        """The device's results of collectives over the group. What has one type goes as one
        message."""
        results: dict[int, Array] = {}
        by_type: dict[object, list[int]] = {}
        for index, part in enumerate(parts):
            key = part.value.type.dtype, getattr(part.op, "reduction", None)
            by_type.setdefault(key, []).append(index)
        for indices in by_type.values():
            made = self._exchange([parts[index] for index in indices], group)
            results.update(zip(indices, made, strict=True))
        return [results[index] for index in range(len(parts))]

    def _exchange(self, parts: Sequence[WirePart], group: Sequence[int]) -> list[Array]:
        first = parts[0].op
        talk, processes, name = self.messenger, self._processes(group), axes_name(first.mesh_axes)
        itemsize, degree = parts[0].value.type.dtype.itemsize, first.degree
        place = list(group).index(self.own)
        ops, shards = [part.op for part in parts], [part.shard for part in parts]
        if len(group) == 1:
            return [op.exchange([shard])[0] for op, shard in zip(ops, shards, strict=True)]
        if isinstance(first, AllReduce):
            total = talk.all_reduce(packed(shards), processes, first.reduction, name, itemsize)
            return unpacked(total, shards)
        if isinstance(first, (ReduceScatter, AllToAll)):
            cut = [_cut(op, shard, degree) for op, shard in zip(ops, shards, strict=True)]
            per_member = list(zip(*cut, strict=True))
            sent = [packed(pieces) for pieces in per_member]
            came = talk.all_to_all(sent, processes, name, itemsize)
        else:
            per_member = [shards] * degree
            came = talk.all_gather(packed(shards), processes, name, itemsize)
        received = [unpacked(flat, like) for flat, like in zip(came, per_member, strict=True)]
        return [
            _joined(op, list(pieces), place)
            for op, pieces in zip(ops, zip(*received, strict=True), strict=True)
        ]

    def go_round(
        self,
        op: Ring,
        operands: Sequence[Array],
        node: Node,
        places: Sequence[Coordinate],
        group: Sequence[int],
    ) -> tuple[Array, ...]:
        """The device's results of a ring exchange."""
        place = list(group).index(self.own)
        passing = _Passing(self.messenger, op, node, places, self._processes(group), place)
        return op.exchange([places[place]], [operands], passing.pass_on)[0]

    def _processes(self, group: Sequence[int]) -> ProcessGroup:
        return tuple(self.first + index for index in group)


def _cut(op: Collective, shard: Array, degree: int) -> list[Array]:
    """What a device sends to each of the group."""
    if isinstance(op, AllToAll):
        return op.scatter.split(shard, degree)
    return op.cut.split(shard, degree) if isinstance(op, ReduceScatter) else [shard] * degree


def _joined(op: Collective, pieces: list[Array], place: int) -> Array:
    """The result of a collective from what the devices of the group sent, in their order."""
    if isinstance(op, AllGather):
        return op.cut.join(pieces)
    if isinstance(op, AllToAll):
        return op.gather.join(pieces)
    if isinstance(op, ReduceScatter):
        return AllReduce(op.mesh_axes, op.degree, op.reduction).exchange(pieces)[0]
    return op.exchange(pieces)[place]


def axes_name(mesh_axes: Sequence[str]) -> str:
    """The name under which messages along these mesh axes are counted."""
    return ",".join(mesh_axes)


@dataclass(slots=True)
class _Passing:
    """Passes blocks round a ring, of which this process is device number `place`.

    Blocks go round once, and a second time if sums travel with them. What does not change is sent
    the first time alone: it is `known` by the device that a block began at.
    """

    messenger: Messenger
    ring: Ring
    node: Node
    places: Sequence[Coordinate]
    processes: ProcessGroup
    place: int
    passes: int = 0
    known: dict[int, dict[int, Array]] = field(default_factory=dict[int, dict[int, Array]])

    def pass_on(self, blocks: Sequence[CirculatingBlock]) -> list[CirculatingBlock]:
        """Gives the block at hand to the next device and takes that of the device before."""
        (block,) = blocks
        degree = self.ring.degree
        first_time = self.passes < degree - 1
        if not self.passes:
            self.known[self.place] = dict(block.operands)
        self.passes += 1
        turn = self.passes if first_time else self.passes - (degree - 1)
        origin = (self.place - turn) % degree
        moving = sorted(block.operands) if first_time else []
        received = self._swapped(block, moving)
        if first_time:
            self.known[origin] = dict(zip(moving, received, strict=False))
        columns = self.ring.columns_at(self.places[origin])
        sums = dict(zip(sorted(block.sums), received[len(moving) :], strict=True))
        return [CirculatingBlock(columns, dict(self.known[origin]), sums)]

    def _swapped(self, block: CirculatingBlock, moving: Sequence[int]) -> list[Array]:
        """The arrays of the block that comes, in place of those of the block at hand."""
        operands, results = self.node.operands, self.node.results
        sums = sorted(block.sums)
        arrays = [*(block.operands[i] for i in moving), *(block.sums[i] for i in sums)]
        values = [*(operands[i] for i in moving), *(results[i] for i in sums)]
        sizes = (a.size * v.type.dtype.itemsize for a, v in zip(arrays, values, strict=True))
        name, degree = axes_name(self.ring.mesh_axes), self.ring.degree
        after, before = (self.processes[(self.place + step) % degree] for step in (1, -1))
        self.messenger.send(arrays, after, name, sum(sizes))
        return self.messenger.receive(arrays, before, f"a block of the ring over {name}")


__all__ = ["ProcessWire", "axes_name"]
