"""What users state, as values: a problem, and what is looked for.

The fields are the one list of these arguments: functions take them by `takes`, and the options of
the command line are read by their names. Nothing heavy is imported here, so that `--help` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from distir.arguments import Checked
from distir.errors import DistirError

if TYPE_CHECKING:
    from autotune.objectives.objective import Objective, ObjectiveFunction
    from autotune.problem import Problem
    from distir.cost import Cluster, Device, SoftwareStack
    from distir.models.layers import AttentionKind
    from distir.workload import Mode
    from search_spaces import SpaceSource

P = ParamSpec("P")
Stated = TypeVar("Stated")
Result = TypeVar("Result")

DEFAULT_CLUSTER = "dgx-a100"
DEFAULT_STACK = "fsdp-compiled"
DEFAULT_DEVICES = 16
DEFAULT_SPACE = "standard"
TRAINING_ALONE = ("gradient_precision", "optimizer", "loss", "dropout", "tokens")
"""What of a statement is about training, and means nothing in inference."""


def takes(
    arguments: Callable[P, Stated],
) -> Callable[[Callable[[Stated], Result]], Callable[P, Result]]:
    """Lets a function of one value, such as a `ProblemStatement`, be called with what the value is
    made of: `f(model, devices=8)` for `f(ProblemStatement(model, devices=8))`.
    """

    def decorate(function: Callable[[Stated], Result]) -> Callable[P, Result]:
        known = signature(arguments).parameters

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> Result:
            for name in kwargs:
                if name not in known:
                    near = " or ".join(get_close_matches(name, known, n=2))
                    meant = f"; did you mean {near}?" if near else ""
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}{meant}"
                    )
            return function(arguments(*args, **kwargs))

        returned = signature(function).return_annotation
        shown = signature(arguments).replace(return_annotation=returned)
        called.__signature__ = shown  # type: ignore[attr-defined]
        return called

    return decorate


@dataclass(frozen=True)
class ProblemStatement(Checked):
    """A problem as it is stated: by names, files or objects. None leaves a choice to what the
    other choices suggest.
    """

    model: Any
    """A zoo name, an ONNX file, a Hugging Face `config.json`, `package.module:function`,
    `file.py:function`, the function itself, or a loaded model. Or a `Problem`, which states
    everything else too.
    """
    cluster: str | Path | Cluster = DEFAULT_CLUSTER
    """A name, a TOML file or a loaded cluster."""
    _: KW_ONLY
    device: str | Path | Device | None = None
    """What the cluster consists of: a name, a TOML file or a loaded device; by default the
    cluster's own.
    """
    devices: int | None = None
    """How many devices; by default those of a loaded cluster, and 16 of one that is named."""
    mode: Mode = "training"
    batch_size: int | Literal["least"] | None = None
    """Samples per step over all devices; by default enough for many ways to cut it, or, where the
    latency of inference is looked for, the `least` that the devices can share.
    """
    sequence_length: int | None = None
    """Tokens per sample; by default the model's own."""
    sizes: Mapping[str, int] | None = None
    """Sizes that an ONNX file leaves open beside batch and sequence, by their names in the file,
    such as the length of the past of a decoder."""
    precision: str | None = None
    """By default bf16, or fp16 on devices without bf16."""
    gradient_precision: str | None = None
    """What gradients of parameters are added up in: `compute` (the default), `fp32` or `both`."""
    optimizer: str | None = None
    """`sgd`, `momentum` or `adam` (the default)."""
    loss: str | None = None
    """`cross-entropy`, `mse` or `sum`, for models without one; by default what suits the output."""
    output: str | None = None
    """The output that the loss is about; by default the main one."""
    dropout: bool | None = None
    """Whether training drops what the model says, as it does by default."""
    vocabulary_multiple: int | None = None
    """What each piece of a vocabulary is padded to a multiple of; by default 1, just so that `tp`
    divides it."""
    stack: str | Path | SoftwareStack = DEFAULT_STACK
    """The software that runs the plan: a name, a TOML file or a loaded stack."""
    attention: AttentionKind | None = None
    """Overrides how the stack, a file or a function has attention: `fused` or `eager`."""
    imbalance: float | None = None
    """What the fullest expert of a mixture gets over the mean; by default 1, balanced."""
    price: float | None = None
    """Dollars per device and hour, for what training costs."""
    tokens: float | None = None
    """Tokens to train on, for how long that takes and what it costs."""
    space: SpaceSource = DEFAULT_SPACE
    """The strategies to look at: `small`, `standard`, `full`, a YAML file, or what such a file
    says, as in `{"extends": "standard", "zero": [0, 3]}`.
    """

    axis_lists: str | None = None
    """Axis lists that all strategies state, such as `tp=heads,ffn`; `auto`: all that make different
    plans. By default what the space says."""
    mesh: str | None = None
    """Mesh axes of one's own that share the devices of `tp`, outermost first, such as
    `data=4,model=8`. `axis_lists` may state the lists of some by their names; of the others all
    that make different plans are looked at."""
    recomputation: str | None = None
    """What all strategies recompute, such as `auto`; by default what the space says."""
    recompute_layers: int | None = None
    """Layers of a stage that strategies recompute which recompute something; by default what the
    space says."""
    offload: str | None = None
    """What all strategies leave in the memory of the host, such as `optimizer`; by default what the
    space says."""

    @property
    def is_made(self) -> bool:
        """Whether the model is a `Problem` already, which says everything."""
        from autotune.problem import Problem

        return isinstance(self.model, Problem)

    @property
    def num_devices(self) -> int:
        """How many devices there are, stated or by default."""
        if self.devices is not None:
            return self.devices
        cluster = self.cluster
        return DEFAULT_DEVICES if isinstance(cluster, (str, Path)) else cluster.num_devices

    def stated(self) -> dict[str, Any]:
        """The arguments by name, with how many devices there are."""
        named = {each.name: getattr(self, each.name) for each in fields(ProblemStatement)}
        return named | {"devices": self.num_devices}

    @classmethod
    def bearing(cls, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Of arguments by name those that mean something in the mode that they state."""
        idle = TRAINING_ALONE if stated.get("mode") == "inference" else ()
        return {name: value for name, value in stated.items() if name not in idle}

    def check_inference(self) -> None:
        """Raises `DistirError` if something is stated that is about training alone."""
        for name in TRAINING_ALONE:
            if getattr(self, name) is not None:
                raise DistirError(
                    f"{name} applies to training, and the mode is inference, which has no use for "
                    "it; leave it out"
                )

    def check_alone(self) -> None:
        """Raises `DistirError` if anything is stated beside a model that is a `Problem` already."""
        usual = ProblemStatement(self.model).stated()
        changed = [name for name, value in self.stated().items() if value != usual[name]]
        if changed:
            raise DistirError(
                f"the problem is made already, and {', '.join(changed)} cannot change it; state "
                "them when it is made, with load_problem"
            )


@dataclass(frozen=True, kw_only=True)
class Goal(Checked):
    """What is looked for: an objective, and how it is measured."""

    objective: str | ObjectiveFunction | Objective = "throughput"
    """A name, `module:attribute`, `file.py:attribute`, or a callable from a strategy to a
    number.
    """
    metric: str | None = None
    """Which of an objective's metrics counts, if not the one it names itself."""
    direction: Literal["maximize", "minimize"] | None = None
    """`maximize` or `minimize`, if not what the objective says."""
    trial_timeout: float | None = None
    """Seconds after which a trial is given up."""
    isolate: bool = True
    """Whether a plug-in runs in a process of its own, which it may end without ending the search;
    a trial with a time limit does anyway.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trial_timeout is not None and not self.isolate:
            raise DistirError(
                "--trial-timeout ends a trial in a process of its own, and --no-isolate rules that "
                "out; leave one of them out"
            )

    def apart(self, objective: Objective) -> bool:
        """Whether trials run in a process of their own."""
        if self.trial_timeout is not None:
            return True
        return self.isolate and not objective.trusted and hasattr(os, "fork")

    def suited(self, statement: ProblemStatement) -> ProblemStatement:
        """The statement with what the goal decides and nobody said: who asks for the latency of
        inference means a single request, or as few as the devices can share.
        """
        from distir.metrics import find_metric, iteration_seconds

        named = find_metric(self.objective) if isinstance(self.objective, str) else None
        asks_for_latency = named is iteration_seconds and statement.mode == "inference"
        if not asks_for_latency or statement.batch_size is not None or statement.is_made:
            return statement
        return replace(statement, batch_size="least")

    def over(self, problem: Problem) -> Objective:
        """The objective, over the problem's simulator."""
        objective = problem.objective(self.objective, metric=self.metric, direction=self.direction)
        self.check_isolates(objective)
        return objective

    def check_isolates(self, objective: Objective) -> None:
        """Raises `DistirError` if an objective is not to be isolated that never is."""
        if objective.trusted and not self.isolate:
            raise DistirError(
                f"--no-isolate applies to plug-ins, and {objective.name} is simulated, in this "
                "process; leave it out"
            )
