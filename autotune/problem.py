"""A question to answer: this model on that cluster, with a batch, in a mode; and which
strategies there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.objectives.evaluation import Evaluation
from autotune.objectives.simulator import Simulates, simulated
from distir.errors import DistirError
from distir.strategy import Strategy
from search_spaces import SearchSpace, WorkloadFacts, distribution_space

if TYPE_CHECKING:
    from distir.workload import Mode

DEFAULT_CLUSTER = "dgx-a100"
DEFAULT_DEVICES = 16


@dataclass(frozen=True, slots=True)
class Problem:
    """A workload on a cluster, with its space of strategies and its simulator."""

    model: str
    cluster: str
    devices: int
    mode: str
    batch_size: int
    workload: WorkloadFacts
    space: SearchSpace
    simulator: Simulates
    memory_bytes: float
    """Memory of one device."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """How the workload was asked for, as far as it matters to a reader: sequence length,
    precision, …
    """
    changed: Callable[..., Problem] | None = field(default=None, repr=False)
    """Makes the same problem with other `devices` or `batch_size`, if that is possible."""

    @property
    def simulate(self) -> Callable[[Strategy], Evaluation]:
        """The default simulator as a function from strategies to evaluations."""
        return simulated(self.simulator, self.memory_bytes)

    @property
    def title(self) -> str:
        """One line: `gpt2, training, batch 256, 16 devices of dgx-a100`."""
        shown = [
            f"{name.replace('_', ' ')} {value}" for name, value in self.settings.items() if value
        ]
        parts = [self.model, self.mode, f"batch {self.batch_size}", *shown]
        return ", ".join([*parts, f"{self.devices} devices of {self.cluster}"])

    def check_not_empty(self) -> None:
        """Raises `DistirError`, saying what would do, if there is no valid strategy at all."""
        if self.space.count():
            return
        whole = self.space.impossible(Strategy(dp=self.devices))
        raise DistirError(
            f"no strategy uses exactly {self.devices} devices for {self.model} with batch "
            f"{self.batch_size}; pure data parallelism, for one: {whole}"
        )


def default_batch_size(devices: int, mode: str) -> int:
    """A batch with many ways to cut it: `devices` times a power of two.

    The least such number of at least 256 samples (64 for inference) and two per device.
    """
    enough = 256 if mode == "training" else 64
    per_device = 2
    while devices * per_device < enough:
        per_device *= 2
    return devices * per_device


def load_problem(
    model: Any,
    cluster: Any = DEFAULT_CLUSTER,
    *,
    devices: int = DEFAULT_DEVICES,
    mode: Mode = "training",
    batch_size: int | None = None,
    **options: Any,
) -> Problem:
    """Loads model and cluster (names, files, or objects loaded before) and puts the problem
    together.

    `options` go to `distir.Workload`: `sequence_length`, `precision`, `optimizer`, `loss`,
    `output`.
    """
    import distir

    if devices < 1:
        raise DistirError(f"there are {devices} devices; expected at least 1")
    given = {name: value for name, value in options.items() if value is not None}
    batch = default_batch_size(devices, mode) if batch_size is None else batch_size
    loaded = (
        distir.load_model(model) if isinstance(model, (str, Path)) or callable(model) else model
    )
    hardware = (
        distir.load_cluster(cluster, devices)
        if isinstance(cluster, (str, Path))
        else cluster.with_devices(devices)
    )
    workload = distir.Workload(model=loaded, mode=mode, batch_size=batch, **given)

    def changed(**changes: Any) -> Problem:
        asked = {"devices": devices, "batch_size": batch_size, **changes}
        return load_problem(loaded, hardware, mode=mode, **asked, **given)

    return Problem(
        model=loaded.name,
        cluster=hardware.name,
        devices=devices,
        mode=mode,
        batch_size=batch,
        workload=workload,
        space=distribution_space(workload, devices),
        simulator=distir.Simulator(workload, hardware),
        memory_bytes=hardware.device.memory_bytes,
        settings=given,
        changed=changed,
    )
