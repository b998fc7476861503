"""The cost model: seconds of ops and communication on given hardware and software.

Devices (`devices/`), clusters (`clusters/`) and software stacks (`stacks/`) are TOML files.
"""

from __future__ import annotations

from distir.cost.band import Band
from distir.cost.cluster import Cluster, ClusterLevel, Group, Host
from distir.cost.collectives import CollectiveKind
from distir.cost.device import Device
from distir.cost.loader import (
    cluster_names,
    device_names,
    load_cluster,
    load_device,
    load_products,
    load_stack,
    stack_names,
)
from distir.cost.model import CostModel, Job
from distir.cost.products import MeasuredProduct, MeasuredProducts, products_text
from distir.cost.stack import SoftwareStack
from distir.cost.work import OpClass, Work

# Former names of what is now called a software stack and a cluster level.
CostProfile = SoftwareStack
Level = ClusterLevel
load_profile = load_stack
profile_names = stack_names

__all__ = [
    "Band",
    "Cluster",
    "ClusterLevel",
    "CollectiveKind",
    "CostModel",
    "Device",
    "Group",
    "Host",
    "Job",
    "MeasuredProduct",
    "MeasuredProducts",
    "OpClass",
    "SoftwareStack",
    "Work",
    "cluster_names",
    "device_names",
    "load_cluster",
    "load_device",
    "load_products",
    "load_stack",
    "products_text",
    "stack_names",
]
