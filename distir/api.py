"""The library's front door: load a model, load a cluster, simulate a strategy, verify and keep its
plan. `__all__` lists the public names of `distir`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from distir.arguments import checked
from distir.cost import Cluster, SoftwareStack, load_cluster, load_stack
from distir.cost.loader import DEFAULT_STACK
from distir.errors import DistirError
from distir.execute.verify import Verification, verify
from distir.importers.load import LoadedModel, load_source
from distir.ir import Builder, DType, Function
from distir.plan import Plan
from distir.plan_text import load_plan, save_plan
from distir.simulation import SimulationResult, Simulator
from distir.strategy import Strategy
from distir.workload import Workload


def load_model(source: str | Path | Callable[..., object], **options: Any) -> LoadedModel:
    """A model by zoo name, ONNX file, Hugging Face `config.json`, `package.module:function`,
    `file.py:function`, or the Python function itself. Options as for
    `distir.importers.load.load_source`."""
    return load_source(source, **options)


@checked
def simulate(
    model: LoadedModel | str | Path | Callable[..., object],
    strategy: Strategy,
    cluster: Cluster | str | Path,
    *,
    stack: SoftwareStack | str | Path = DEFAULT_STACK,
    **workload: Any,
) -> SimulationResult:
    """Simulates one strategy. `stack` is the software stack, by name or file. `workload` are fields
    of `Workload`: `batch_size`, `mode`, `sequence_length`, `precision`, `optimizer`, `loss`,
    `output`.

    The precision is bf16, or fp16 on devices without bf16, unless given. Raises `StrategyError` if
    the strategy cannot run; one that does not fit in memory is a result with `feasible` False. To
    simulate many strategies, keep a `Simulator`.
    """
    stack = stack if isinstance(stack, SoftwareStack) else load_stack(stack)
    if not isinstance(model, LoadedModel):
        model = load_model(model, attention=stack.attention)
    hardware = cluster if isinstance(cluster, Cluster) else load_cluster(cluster, strategy.devices)
    given: dict[str, Any] = {"precision": hardware.device.usual_precision, **workload}
    asked = Workload(model=model, **given).at_its_length()
    return Simulator(asked, hardware, stack).simulate(strategy)


__all__ = [
    "Builder",
    "Cluster",
    "DType",
    "DistirError",
    "Function",
    "LoadedModel",
    "Plan",
    "SimulationResult",
    "Simulator",
    "SoftwareStack",
    "Strategy",
    "Verification",
    "Workload",
    "load_cluster",
    "load_model",
    "load_plan",
    "load_stack",
    "save_plan",
    "simulate",
    "verify",
]
