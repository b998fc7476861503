"""A question to answer: this model on that cluster, with a batch, in a mode; and which
strategies there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.objectives import load_objective
from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective, ObjectiveFunction
from autotune.objectives.simulator import Simulates, simulated, simulated_many
from autotune.problem_notes import hardware_notes, model_notes
from autotune.statement import DEFAULT_SPACE, DEFAULT_STACK, ProblemStatement, takes
from distir.errors import DistirError, UnknownNameError
from distir.factoring import divisors
from distir.metrics import METRICS, find_metric, memory_use, missing_needs, peak_memory_bytes
from distir.rules import hosts_are_known
from distir.strategies import FIELDS
from distir.strategy import AUTO, OFFLOADS, Strategy, lists_of_mesh, own_mesh
from distir.units import counted, short_number
from search_spaces import Searched, SearchSpace, WorkloadFacts, distribution_space, searched
from search_spaces.named import UNNAMED

if TYPE_CHECKING:
    from autotune.study.trial import Trial
    from distir.cost import Band, Cluster, SoftwareStack
    from distir.importers.load import LoadedModel
    from distir.ir.function import Function
    from distir.models.layers import AttentionKind
    from distir.plan.axis_lists import AxisLists
    from distir.workload import Workload


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
    """Stated properties of the workload that a reader wants to see: sequence length, precision, …
    """
    space_name: str = DEFAULT_SPACE
    """The space as it was stated."""
    space_options: str = f"--space {DEFAULT_SPACE}"
    """The options that state this space; empty where no options do."""
    searched: Searched | None = None
    """The values that the space was stated with; None where it was made otherwise."""
    framework: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The framework that the space is for, as studies keep it beside what was stated: its name
    (`framework`), and whether what it cannot state is searched too (`search_all`). Empty: none."""
    statement: ProblemStatement | None = None
    """What it was made of, where studies know it by that; None: they know it as an object."""
    band: Band | None = None
    """How far measured times may be from simulated ones; None where that is not known."""
    told: tuple[str, ...] = ()
    """Decisions made for the user that are worth a note."""
    lists: AxisLists | None = field(default=None, repr=False)
    """The axis lists that the model suggests; None if nobody asks it for them."""
    changed: Callable[..., Problem] | None = field(default=None, repr=False)
    """Makes the same problem with something else stated, such as `devices`, `precision` or `space`,
    if that is possible; raises `DistirError` if there is none."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What readers of an answer should know: decisions made for them, and what was left out of
        the space so far."""
        left_out = () if self.lists is None else self.lists.left_out
        return (*self.told, *self._never_taken(), *left_out)

    def _never_taken(self) -> Iterator[str]:
        """What a user lists for the space and no strategy can have, with the reason."""
        if self.searched is None:
            return
        for name, listed in self.searched.values_listed.items():
            if name not in self.space.names:
                continue
            why = {value: self.space.why_never(name, value) for value in listed}
            never = {value: reason for value, reason in why.items() if reason}
            if never:
                values = ", ".join(map(str, never))
                yield (
                    f"The space lists {name.replace('_', ' ')} {values}, which is impossible for "
                    f"every strategy: {next(iter(never.values()))}."
                )

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
        """An objective over this problem's simulator; see `load_objective`. Raises `DistirError`
        for a metric that the simulator does not give."""
        simulator = self.simulator
        if isinstance(spec, str):
            simulator = self._telling(self._simulated_metric(spec, metric))
        return load_objective(
            spec,
            simulated(simulator, self.memory_bytes),
            metric=metric,
            direction=direction,
            simulate_many=None
            if self.finds_layers
            else simulated_many(simulator, self.memory_bytes),
            plan_of=getattr(simulator, "plan", None),
        )

    def _simulated_metric(self, spec: str, metric: str | None) -> str:
        """The metric that is asked for by an objective's name and a metric's: of a plug-in nothing
        is known before it is called, so that it stands for itself."""
        if metric is None or find_metric(spec) is None:
            return spec
        from distir.simulation import Simulator

        if isinstance(self.simulator, Simulator) and find_metric(metric) is None:
            raise UnknownNameError("metric", metric, METRICS.names())
        return metric

    def _telling(self, spec: str) -> Simulates:
        """The simulator, so that it tells the metric that is asked for. Raises `DistirError` if
        something must be stated for that."""
        known, simulator = find_metric(spec), self.simulator
        if known is None or not known.needs:
            return simulator
        from distir.cost import Job
        from distir.simulation import Simulator

        if isinstance(simulator, Simulator):
            simulator = simulator if simulator.cost.job else simulator.run_for(Job())
            if missing := missing_needs(known, simulator.cost):
                raise DistirError(f"the objective {spec} needs {' and '.join(missing)}")
        return simulator

    @property
    def finds_layers(self) -> bool:
        """Whether it is found plan by plan, and slowly, which layers recompute."""
        name = "recompute"
        return name in self.space.names and AUTO in self.space.values(name)

    def known_lists(self, strategy: Strategy) -> dict[str, str]:
        """By degree the known technique that the axis list of a strategy comes to, if any."""
        from distir.plan.known_lists import known_lists

        planner = getattr(self.simulator, "planner", None)
        return {} if planner is None else known_lists(planner, strategy)

    def outcome(self, trial: Trial) -> dict[str, Any]:
        """A trial's strategy, metrics and, where they are known, what its devices hold and have and
        the techniques that its axis lists come to, as plain JSON values."""
        metrics = trial.evaluation.metrics
        known = peak_memory_bytes.name in metrics
        memory = {"memory": memory_use(metrics, self.memory_bytes)} if known else {}
        lists = self.known_lists(trial.strategy)
        named = {"known_lists": lists} if lists else {}
        return trial.outcome(self.batch_size) | memory | named

    def of_space(self, count: int) -> str:
        """A number of strategies: `1,899 valid strategies in the space standard`."""
        return f"{counted(count, 'valid strategy')} in {self._the_space}"

    @property
    def _the_space(self) -> str:
        return "the space" if self.space_name == UNNAMED else f"the space {self.space_name}"

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
        one = self._plainest()
        named = "pure data parallelism" if one == Strategy(dp=self.devices) else one.label
        raise DistirError(
            f"no strategy of {self._the_space} uses exactly {self.devices} devices for "
            f"{self.model} with batch {self.batch_size}; for example, {named}: "
            f"{self.space.explain(one)}"
        )

    def _plainest(self) -> Strategy:
        """Pure data parallelism, with the values that the space was stated with where it was stated
        without those."""
        plain = Strategy(dp=self.devices)
        values: Mapping[str, Any] = {} if self.searched is None else self.searched.values
        stated: dict[str, Any] = {
            name: each[0]
            for name, each in values.items()
            if name in FIELDS and isinstance(each, tuple) and getattr(plain, name) not in each
        }
        degrees = math.prod(stated.get(name, 1) for name in ("tp", "cp", "pp"))
        return replace(plain, **{"dp": max(1, self.devices // degrees), **stated})


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if name == "price":
        return f"{value:g} dollars per device and hour"
    if name == "tokens":
        return f"{short_number(value)} tokens to train on"
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
    stack: SoftwareStack,
    attention: AttentionKind | None = None,
    imbalance: float | None = None,
    sizes: Mapping[str, int] | None = None,
) -> LoadedModel:
    """A model, by name, file, configuration or object, with attention as the stack or the user has
    it, and with sizes that a file leaves open. A file or a function says itself how its attention
    is, unless the user does: then it is found and fused, or spelled out. Raises `DistirError` if
    the user does and there is none."""
    from distir.importers.load import LoadedModel, load_source
    from distir.models.layers import ATTENTION_KINDS

    how = attention or stack.attention
    if how not in ATTENTION_KINDS:
        raise UnknownNameError("attention", how, ATTENTION_KINDS)
    if sizes and isinstance(model, LoadedModel):
        raise DistirError(
            f"sizes of {', '.join(sizes)} are stated for a model that is already loaded; state "
            "them when it is loaded"
        )
    loaded: LoadedModel = (
        model
        if isinstance(model, LoadedModel)
        else load_source(
            model,
            attention=how,
            imbalance=imbalance or 1.0,
            onnx_options={"sizes": sizes} if sizes else None,
        )
    )
    if attention is None:
        return loaded
    return replace(loaded, function=_with_attention(loaded, attention))


def _with_attention(model: LoadedModel, attention: AttentionKind) -> Function:
    """The function of a model with attention of a kind. Raises `DistirError` if there is none."""
    from distir.transforms import fused_attention

    if not fused_attention.may_have_attention(model.function):
        raise DistirError(
            f"attention = {attention} says how attention is computed, but {model.name} has no "
            "attention; leave it out"
        )
    if attention == "eager":
        return fused_attention.with_eager_attention(model.function)
    found = fused_attention.with_fused_attention(model.function)
    if not fused_attention.has_fused_attention(found):
        raise DistirError(
            f"attention = fused computes attention in one kernel, but {model.name} has no "
            "attention that is just products around a softmax; leave it out"
        )
    return found


def problem_of(statement: ProblemStatement) -> Problem:
    """The problem that is stated; the model itself, if that is a problem already."""
    if isinstance(statement.model, Problem):
        statement.check_alone()
        return statement.model
    return _loaded(statement)


@takes(ProblemStatement)
def load_problem(statement: ProblemStatement) -> Problem:
    """Loads model and cluster (names, files, or objects loaded before) and puts the problem
    together. The arguments are those of `ProblemStatement`.

    Raises `DistirError` if something is not there, or if the model cannot be run so.
    """
    return problem_of(statement)


def _loaded(statement: ProblemStatement) -> Problem:
    from distir.cost import Job, load_stack
    from distir.plan.axis_lists import AxisLists
    from distir.simulation import Simulator

    if statement.num_devices < 1:
        raise DistirError(f"devices is {statement.num_devices}; expected at least 1")
    named = searched(statement.space)
    looked_through = _as_stated(named, statement)
    stack, devices = statement.stack, statement.num_devices
    if isinstance(stack, (str, Path)):
        stack = load_stack(stack)
    how = (statement.attention, statement.imbalance, statement.sizes)
    model = model_as_run(statement.model, stack, *how)
    hardware = _hardware(statement)
    precision, told = _precision(statement, hardware)
    told = (*told, *_without_hosts(looked_through, hardware))
    workload = _workload(statement, model, precision)
    if not workload.training:
        statement.check_inference()
    if statement.batch_size == "least":
        workload = _with_least_batch(workload, devices, looked_through)
        few = "sample" if workload.batch_size == 1 else "samples"
        said = (
            f"The objective is latency, so the batch is {workload.batch_size} {few}, the smallest "
            f"that {devices} devices can share; state another with --batch-size."
        )
        told = (*told, said)
    stated = statement.price is not None or statement.tokens is not None
    job = Job(price=statement.price, tokens=statement.tokens) if stated else None
    simulator = Simulator(workload, hardware, stack, job=job)
    lists = AxisLists(simulator.planner)
    made = {"model": model, "sizes": None, "cluster": hardware, "device": None, "stack": stack}
    space = distribution_space(
        workload,
        devices,
        looked_through,
        lists,
        () if hardware.host else (hosts_are_known(hardware.without_host),),
    )
    _check_had(statement, space, named.name)
    return Problem(
        model=model.name,
        cluster=hardware.name,
        devices=devices,
        mode=workload.mode,
        batch_size=workload.batch_size,
        workload=workload,
        space=space,
        simulator=simulator,
        memory_bytes=hardware.device.memory_bytes,
        band=simulator.band,
        settings=_settings(statement, precision, stack),
        space_name=looked_through.name,
        searched=looked_through,
        space_options=_space_options(statement),
        lists=lists,
        told=(
            *told,
            *model_notes(workload, statement.sizes or {}, devices),
            *hardware_notes(workload, hardware, stack, simulator.band),
        ),
        changed=partial(load_problem, **{**statement.stated(), **made}),
    )


def _as_stated(named: Searched, statement: ProblemStatement) -> Searched:
    """The space that is named, with what is stated of all of its strategies."""
    found = named
    if statement.mesh is not None:
        found = _on_mesh(found, statement.mesh, statement)
    elif statement.axis_lists is not None:
        found = found.stating("axes", statement.axis_lists)
    if statement.recomputation is not None:
        found = found.stating("recompute", statement.recomputation)
    if statement.recompute_layers:
        found = found.stating("recompute_layers", statement.recompute_layers)
    return found if statement.offload is None else found.stating("offload", statement.offload)


def _check_had(statement: ProblemStatement, space: SearchSpace, named: str) -> None:
    """Raises `DistirError` if something is stated of all strategies that none of them has."""
    stated: dict[str, Any] = {
        "recompute": statement.recomputation,
        "recompute_layers": statement.recompute_layers,
        "offload": statement.offload,
    }
    for name, value in stated.items():
        if not value or not space.count() or value in space.values(name):
            continue
        said = space.why_never(name, value) or (
            f"{name} = {value} does not go together with the other choices of the space"
        )
        raise DistirError(f"{said}; no strategy of the space {named} has it")


def _on_mesh(space: Searched, mesh: str, statement: ProblemStatement) -> Searched:
    """A space whose strategies have a mesh of a user's own in the place of `tp`."""
    stated = statement.axis_lists or AUTO
    lists = lists_of_mesh(mesh, "" if stated == AUTO else stated, AUTO)
    along = math.prod(own_mesh(lists).values())
    if statement.num_devices % along:
        raise DistirError(
            f"the mesh {mesh} has {along} devices; expected a number that divides the "
            f"{statement.num_devices} of the cluster (--devices)"
        )
    return space.stating("axes", lists).stating("tp", along)


def _space_options(statement: ProblemStatement) -> str:
    """The options that state the space of a problem; empty for a space that is no name or file."""
    if not isinstance(statement.space, (str, Path)):
        return ""
    found = f"--space {statement.space}"
    if statement.mesh is not None:
        found += f" --mesh {statement.mesh}"
    if statement.axis_lists is not None:
        found += f" --axes '{statement.axis_lists}'"
    if statement.recomputation is not None:
        found += f" --recompute {statement.recomputation}"
    if statement.recompute_layers:
        found += f" --recompute-layers {statement.recompute_layers}"
    if statement.offload is not None:
        found += f" --offload {statement.offload or 'none'}"
    return found


def _without_hosts(looked_through: Searched, hardware: Cluster) -> tuple[str, ...]:
    """What to know of a space on a cluster of whose hosts nothing is known: choices that offload
    are left out of it. Raises `DistirError` if no others are left."""
    choices = looked_through.values_of("offload", ("", *OFFLOADS))
    if hardware.host is not None or not any(choices):
        return ()
    if all(choices):
        raise DistirError(f"offloading keeps values in host memory, but {hardware.without_host}")
    return (f"Choices that offload are left out: {hardware.without_host}.",)


def _hardware(statement: ProblemStatement) -> Cluster:
    from distir.cost import load_cluster, load_device

    cluster, device = statement.cluster, statement.device
    if isinstance(cluster, (str, Path)):
        return load_cluster(cluster, statement.num_devices, device)
    if isinstance(device, (str, Path)):
        device = load_device(device)
    cluster = cluster.with_devices(statement.num_devices)
    return cluster if device is None else cluster.with_device(device)


def _precision(statement: ProblemStatement, hardware: Cluster) -> tuple[str, tuple[str, ...]]:
    """The precision that was asked for, or the usual one, with a note if that is not bf16."""
    if statement.precision is not None:
        return statement.precision, ()
    usual = hardware.device.usual_precision
    if usual == "bf16":
        return usual, ()
    return usual, (f"{hardware.device.name} has no bf16, so the precision is {usual}.",)


def _asked_of_workload(statement: ProblemStatement) -> dict[str, Any]:
    """What was asked for, by the names that a workload has for it, of what has a usual value."""
    from distir.workload import Workload

    decided = ("model", "mode", "batch_size", "precision")
    names = [each.name for each in fields(Workload) if each.name not in decided]
    asked = {name: getattr(statement, name) for name in names}
    return {name: value for name, value in asked.items() if value is not None}


def _workload(statement: ProblemStatement, model: LoadedModel, precision: str) -> Workload:
    from distir.workload import Workload

    batch = statement.batch_size
    if batch is None or batch == "least":
        batch = default_batch_size(statement.num_devices, statement.mode)
    workload = Workload(
        model=model,
        mode=statement.mode,
        batch_size=batch,
        precision=precision,
        **_asked_of_workload(statement),
    ).at_its_length()
    workload.check_model()  # says now, not in every trial, what is impossible
    return workload


def _with_least_batch(workload: Workload, devices: int, space: Searched) -> Workload:
    """The workload with the smallest batch that some strategy of the space divides over the
    devices; as it is, if none does."""
    from distir.plan import Planner
    from distir.plan.axis_lists import AxisLists

    for size in divisors(devices):
        smaller = workload.resized(batch_size=size)
        lists = AxisLists(Planner(smaller))
        if distribution_space(smaller, devices, space, lists).count():
            return smaller
    return workload


def _settings(statement: ProblemStatement, precision: str, stack: SoftwareStack) -> dict[str, Any]:
    """What of a statement matters to a reader: what is not as usual."""
    from distir.workload import Workload

    usual = {each.name: each.default for each in fields(Workload)}
    asked = _asked_of_workload(statement)
    shown = {name: value for name, value in asked.items() if value != usual[name]}
    if statement.precision is not None or precision != "bf16":
        shown["precision"] = precision
    if stack.name != DEFAULT_STACK:
        shown["stack"] = stack.name
    shown.update(statement.sizes or {})
    names = ("attention", "imbalance", "price", "tokens")
    others = {name: getattr(statement, name) for name in names}
    return shown | {name: value for name, value in others.items() if value is not None}
