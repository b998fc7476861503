"""A question to answer: this model on that cluster, with a batch, in a mode; and which
strategies there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.objectives import load_objective
from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective, ObjectiveFunction
from autotune.objectives.simulator import Simulates, simulated, simulated_many
from distir.errors import DistirError
from distir.strategy import Strategy
from search_spaces import SearchSpace, SpaceSource, WorkloadFacts, distribution_space, searched

if TYPE_CHECKING:
    from distir.cost import Band, CostProfile
    from distir.importers.load import LoadedModel
    from distir.models.layers import AttentionKind
    from distir.workload import Mode, Workload

DEFAULT_CLUSTER = "dgx-a100"
DEFAULT_STACK = "fsdp-compiled"
DEFAULT_DEVICES = 16
DEFAULT_SPACE = "small"


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
    space_name: str = DEFAULT_SPACE
    """The space as it was asked for."""
    band: Band | None = None
    """How far measured times may be from simulated ones; None where that is not known."""
    notes: tuple[str, ...] = ()
    """What was decided for the user and is worth knowing."""
    changed: Callable[..., Problem] | None = field(default=None, repr=False)
    """Makes the same problem with other `devices`, `batch_size` or `space`, if that is possible."""

    @property
    def simulate(self) -> Callable[[Strategy], Evaluation]:
        """The default simulator as a function from strategies to evaluations."""
        return simulated(self.simulator, self.memory_bytes)

    def objective(
        self,
        spec: str | Objective | ObjectiveFunction,
        *,
        metric: str | None = None,
        direction: str | None = None,
    ) -> Objective:
        """An objective over this problem's simulator; see `load_objective`."""
        return load_objective(
            spec,
            self.simulate,
            metric=metric,
            direction=direction,
            simulate_many=simulated_many(self.simulator, self.memory_bytes),
        )

    @property
    def title(self) -> str:
        """One line: `gpt2, training, batch 256, 16 devices of dgx-a100`."""
        shown = [
            _setting(name.replace("_", " "), value)
            for name, value in self.settings.items()
            if value is not None
        ]
        parts = [self.model, self.mode, f"batch {self.batch_size}", *shown]
        devices = "1 device" if self.devices == 1 else f"{self.devices} devices"
        return ", ".join([*parts, f"{devices} of {self.cluster}"])

    def check_not_empty(self) -> None:
        """Raises `DistirError`, saying what would do, if there is no valid strategy at all."""
        if self.space.count():
            return
        whole = self.space.explain(Strategy(dp=self.devices))
        raise DistirError(
            f"no strategy of the space {self.space_name} uses exactly {self.devices} devices for "
            f"{self.model} with batch {self.batch_size}; pure data parallelism, for one: {whole}"
        )


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value}"


def default_batch_size(devices: int, mode: str) -> int:
    """A batch with many ways to cut it: `devices` times a power of two.

    The least such number of at least 256 samples (64 for inference) and two per device.
    """
    enough = 256 if mode == "training" else 64
    per_device = 2
    while devices * per_device < enough:
        per_device *= 2
    return devices * per_device


def model_as_run(
    model: Any,
    software: CostProfile,
    attention: AttentionKind | None = None,
    imbalance: float | None = None,
) -> LoadedModel:
    """A model, by name, file or object, with attention as the software or the user has it. A file
    or a function says itself how its attention is, unless the user does: then it is found and
    fused, or spelled out."""
    from distir import load_model
    from distir.transforms.fused_attention import with_eager_attention, with_fused_attention

    how = attention or software.attention
    loaded: LoadedModel = (
        load_model(model, attention=how, imbalance=imbalance or 1.0)
        if isinstance(model, (str, Path)) or callable(model)
        else model
    )
    if attention is None:
        return loaded
    change = with_fused_attention if attention == "fused" else with_eager_attention
    return replace(loaded, function=change(loaded.function))


def _several_batches(workload: Workload) -> tuple[str, ...]:
    """What to know of a model whose inputs have samples of their own."""
    program, size = workload.program, workload.batch_size
    if len(program.batches) == 1:
        return ()
    inputs = program.function.inputs
    names = [
        next(value.name for value in inputs if axis in program.axes.of(value))
        for axis in program.batches
    ]
    beside = f"{', '.join(names[:-1])} and {names[-1]}"
    return (f"{beside} have samples of their own: a batch of {size} is {size} of each.",)


def load_problem(
    model: Any,
    cluster: Any = DEFAULT_CLUSTER,
    *,
    devices: int = DEFAULT_DEVICES,
    mode: Mode = "training",
    batch_size: int | None = None,
    precision: str | None = None,
    stack: Any = DEFAULT_STACK,
    attention: AttentionKind | None = None,
    imbalance: float | None = None,
    space: SpaceSource = DEFAULT_SPACE,
    **options: Any,
) -> Problem:
    """Loads model and cluster (names, files, or objects loaded before) and puts the problem
    together.

    `space` is the name of a search space, a YAML file, or what such a file says. `stack` is
    the software, by name, file or object; `attention` overrides how it runs that (see
    `model_as_run`). `imbalance` is what the fullest expert of a mixture gets over the mean.
    `options` go to `distir.Workload`: `sequence_length`, `optimizer`, `loss`, `output`, `dropout`.
    """
    import distir
    from distir.api import default_precision
    from distir.cost import load_profile

    if devices < 1:
        raise DistirError(f"there are {devices} devices; expected at least 1")
    looked_through = searched(space)
    given = {name: value for name, value in options.items() if value is not None}
    batch = default_batch_size(devices, mode) if batch_size is None else batch_size
    software = load_profile(stack) if isinstance(stack, (str, Path)) else stack
    loaded = model_as_run(model, software, attention, imbalance)
    hardware = (
        distir.load_cluster(cluster, devices)
        if isinstance(cluster, (str, Path))
        else cluster.with_devices(devices)
    )
    notes: tuple[str, ...] = ()
    if precision is None:
        precision = default_precision(hardware)
        if precision != "bf16":
            told = f"{hardware.device.name} has no bf16; the precision is {precision} instead."
            notes = (told,)
            given["precision"] = precision
    else:
        given["precision"] = precision
    options = {**given, "precision": precision}
    if software.name != DEFAULT_STACK:
        given["stack"] = software.name
    if attention is not None:
        given["attention"] = attention
    if imbalance is not None:
        given["imbalance"] = imbalance
    workload = distir.Workload(model=loaded, mode=mode, batch_size=batch, **options)
    workload.sizes(batch)  # says now, not in every trial, if the model has no such sequence
    notes = (*notes, *_several_batches(workload))

    def changed(**changes: Any) -> Problem:
        asked: dict[str, Any] = {
            "devices": devices,
            "batch_size": batch_size,
            "space": space,
            "stack": software,
            "attention": attention,
            "imbalance": imbalance,
        }
        return load_problem(loaded, hardware, mode=mode, **{**asked, **options, **changes})

    simulator = distir.Simulator(workload, hardware, software)
    return Problem(
        model=loaded.name,
        cluster=hardware.name,
        devices=devices,
        mode=workload.mode,
        batch_size=batch,
        workload=workload,
        space=distribution_space(workload, devices, looked_through),
        simulator=simulator,
        memory_bytes=hardware.device.memory_bytes,
        band=simulator.cost.band,
        settings=given,
        space_name=looked_through.name,
        notes=notes,
        changed=changed,
    )
