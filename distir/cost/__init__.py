"""From work and hardware to seconds.

Hardware (`clusters/`, `devices/`) and software stacks (`profiles/`) are data.
"""

from __future__ import annotations

from distir.cost.band import Band
from distir.cost.cluster import Cluster, Group, Level
from distir.cost.collectives import CollectiveKind
from distir.cost.device import Device
from distir.cost.loader import (
    cluster_names,
    device_names,
    load_cluster,
    load_device,
    load_profile,
    profile_names,
)
from distir.cost.model import CostModel
from distir.cost.profile import CostProfile
from distir.cost.work import OpClass, Work

__all__ = [
    "Band",
    "Cluster",
    "CollectiveKind",
    "CostModel",
    "CostProfile",
    "Device",
    "Group",
    "Level",
    "OpClass",
    "Work",
    "cluster_names",
    "device_names",
    "load_cluster",
    "load_device",
    "load_profile",
    "profile_names",
]
