"""Copies between a device and its host.

They are collectives of one device: a part of the plan that takes time on a link and computes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.cost.collectives import CollectiveKind
from distir.ir.core import Array, Node, Op
from distir.ir.registered import register_op
from distir.ir.types import TensorType
from distir.ops.collective import Bucket, Collective, Distributed

HOST = "host"
"""The stream of copies between a device and its host, and what they are reported under."""


class HostCopy(Collective):
    """Base of copies between a device and its host."""

    __slots__ = ()

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands

    def exchange(self, shards: Sequence[Array]) -> list[Array]:
        return list(shards)

    def message_bytes(self, operand: TensorType, result: TensorType) -> int:
        return operand.size_bytes


@register_op("ToHost")
@dataclass(frozen=True, slots=True)
class ToHost(HostCopy):
    """Copies a value to the memory of the host. On the device the result takes no memory."""

    mesh_axes: tuple[str, ...] = ()
    degree: int = 1

    @property
    def kind(self) -> CollectiveKind:
        return "to_host"


@register_op("ToDevice")
@dataclass(frozen=True, slots=True)
class ToDevice(HostCopy):
    """Copies a value from the memory of the host to that of the device."""

    mesh_axes: tuple[str, ...] = ()
    degree: int = 1

    @property
    def kind(self) -> CollectiveKind:
        return "to_device"


@register_op("Landed")
@dataclass(frozen=True, slots=True)
class Landed(Distributed):
    """Compute waits until copies to the host have been made. The operands are what was copied,
    whose memory is free afterwards, and the copies."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return ()

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return ()


def rests_on_host(op: Op) -> bool:
    """Whether the results of an op are in the memory of the host."""
    return isinstance(op.parts[0] if isinstance(op, Bucket) else op, ToHost)


def device_bytes(node: Node) -> tuple[int, ...]:
    """Per result of a node, the bytes that it takes on the device if it is no view."""
    if rests_on_host(node.op):
        return (0,) * len(node.results)
    return tuple([value.type.size_bytes for value in node.results])


__all__ = ["HOST", "HostCopy", "Landed", "ToDevice", "ToHost", "device_bytes", "rests_on_host"]
