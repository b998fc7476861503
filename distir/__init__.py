"""distir: an intermediate representation of distributed programs, made to be simulated.

    import distir

    model = distir.load_model("gpt2")
    cluster = distir.load_cluster("dgx-a100", devices=16)
    result = distir.simulate(model, distir.Strategy(dp=4, tp=4), cluster, batch_size=64)

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distir.registry import provide

if TYPE_CHECKING:
    from distir.api import (
        Cluster,
        LoadedModel,
        SimulationResult,
        Simulator,
        Strategy,
        Workload,
        load_cluster,
        load_model,
        simulate,
    )

__version__ = "0.2.0"
"""Also the version of `search_spaces`, `autotune` and `experiments`, which come along."""

provide("distir.ops", "distir.ops")

__all__ = [
    "Cluster",
    "LoadedModel",
    "SimulationResult",
    "Simulator",
    "Strategy",
    "Workload",
    "load_cluster",
    "load_model",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'distir' has no attribute {name!r}")
    from distir import api

    return getattr(api, name)
