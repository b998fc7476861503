"""What an iteration's time and a device's memory are made of: the names of their shares, as results
carry them and as people read them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "SECONDS",
    "communication",
    "is_communication",
    "memory_shares",
    "share_heading",
]

_COMMUNICATION = "_communication"
_BYTES = "_bytes"


def communication(mesh_axis: str) -> str:
    """The share of time that is spent waiting for data along a mesh axis."""
    return f"{mesh_axis}{_COMMUNICATION}"


def is_communication(share: str) -> bool:
    """Whether a share of time is spent waiting for data."""
    return share.endswith(_COMMUNICATION)


SECONDS = (
    "compute",
    communication("tp"),
    communication("dp"),
    communication("pp"),
    "bubble",
    "optimizer",
    "overhead",
)
"""Shares of time that every rank has, in the order they are shown; communication along other mesh
axes follows. They add up to the iteration."""


def memory_shares(
    *,
    parameters: float,
    gradients: float,
    optimizer: float,
    state_inputs: float,
    activations: float,
    buffers: float,
) -> Mapping[str, float]:
    """Bytes of a device by what holds them, in the order they are shown."""
    held = {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "state_inputs": state_inputs,
        "activations": activations,
        "buffers": buffers,
    }
    return {f"{holder}{_BYTES}": size for holder, size in held.items()}


def share_heading(share: str) -> str:
    """A share for people: `tp communication`, `optimizer`."""
    return share.removesuffix(_BYTES).replace("_", " ")
