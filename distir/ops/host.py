"""Copies between a device and its host.

They are collectives of one device: a part of the plan that takes time on a link and computes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from distir.cost.collectives import CollectiveKind
from distir.ir.core import Array
from distir.ir.registered import register_op
from distir.ir.types import TensorType
from distir.ops.collective import Collective

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
    """Moves a value to the memory of the host. On the device the result takes no memory; that of
    the operand is free when the copy has been made, so the result counts as a view of it."""

    is_view: ClassVar[bool] = True

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


__all__ = ["HOST", "HostCopy", "ToDevice", "ToHost"]
