"""What a simulation says about a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from distir.cost import Band
from distir.errors import DistirError
from distir.metrics import iteration_seconds, memory_use
from distir.registry import Registry
from distir.strategy import Strategy


@dataclass(frozen=True, slots=True)
class StageReport:
    """One pipeline rank: exposed seconds and bytes at the instant of the peak, each by their share
    (`distir.shares`). `blocks` are the runs of blocks it holds, one `(first, end)` per chunk."""

    stage: int
    blocks: tuple[tuple[int, int], ...]
    seconds: Mapping[str, float]
    memory: Mapping[str, float]
    recomputed: Mapping[str, int] = field(default_factory=dict[str, int])
    """The number of layers by what they recompute, where that is chosen per layer."""
    host_bytes: float = 0.0
    """Bytes per device in the memory of the host."""

    @property
    def peak_memory_bytes(self) -> float:
        """Bytes at the peak."""
        return sum(self.memory.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "stage": self.stage,
            "blocks": [list(run) for run in self.blocks],
            "seconds": dict(self.seconds),
            "memory": dict(self.memory),
            **({"recomputed": dict(self.recomputed)} if self.recomputed else {}),
            **({"host_bytes": self.host_bytes} if self.host_bytes else {}),
        }


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What there is to say of one strategy. If it is not feasible, it does not fit; the metrics
    hold all the same."""

    strategy: Strategy
    feasible: bool
    reason: str | None
    metrics: Mapping[str, float]
    """By name: every one of `distir.metrics`."""
    stages: tuple[StageReport, ...] = field(repr=False)
    band: Band = field(default_factory=Band)
    """How far the measured time may be from the predicted one."""
    padding: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By label the axes that are padded so that they divide: their size, and the padded one."""
    memory_limit_bytes: float = math.inf
    """Memory of a device, which tensors and what the software reserves have to fit in."""
    host_limit_bytes: float = math.inf
    """A device's part of the memory of its host."""

    make_step: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    """Makes the `Step` of the plan, for pictures; None where the engine makes none."""

    @property
    def plot(self) -> Any:
        """Figures for notebooks: `plot.time()` and `plot.memory()`.

        Raises `DistirError` where nothing is installed that draws, or there is no step to draw.
        """
        if self.make_step is None:
            raise DistirError("there are no figures of this result: its engine makes no steps")
        return FIGURES.get("plan")(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the way to make a step, which leads to the whole simulator.
        kept = [each.name for each in fields(self) if each.name != "make_step"]
        return type(self), tuple(getattr(self, name) for name in kept)

    @property
    def memory(self) -> dict[str, float]:
        """Bytes that tensors hold at the peak, that the software reserves, and that a device has;
        and those in the memory of the host, where something is offloaded."""
        held = max((stage.host_bytes for stage in self.stages), default=0.0)
        return {
            **memory_use(self.metrics, self.memory_limit_bytes),
            **({"host_bytes": held, "host_limit_bytes": self.host_limit_bytes} if held else {}),
        }

    def _repr_html_(self) -> str:
        from distir.metrics import METRICS
        from distir.simulation.notebook import plan_html

        known = [each.value for each in METRICS if each.name in self.metrics]
        said = [f"{each.heading} {each.unit(self.metrics[each.name])}" for each in known]
        fits = "fits" if self.feasible else f"does not fit: {self.reason}"
        lines = [f"It {fits}.", "; ".join(said)]
        seconds, memory = ([s.seconds for s in self.stages], [s.memory for s in self.stages])
        return plan_html(self.strategy.label, lines, seconds, memory)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "strategy": self.strategy.to_dict(),
            "feasible": self.feasible,
            "reason": self.reason,
            "metrics": dict(self.metrics),
            "memory": self.memory,
            "band": self.band.to_dict(self.metrics[iteration_seconds.name]),
            "stages": [stage.to_dict() for stage in self.stages],
            "padding": {label: list(sizes) for label, sizes in self.padding.items()},
        }


FIGURES: Registry[Callable[[SimulationResult], Any]] = Registry("figures", "distir.figures")
"""What draws a simulated plan, by the name `plan`. Here nothing does: a package that does offers it
in the entry-point group `distir.figures`."""
