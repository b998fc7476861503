"""Options that several subcommands share."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from autotune.statement import (
    DEFAULT_CLUSTER,
    DEFAULT_SPACE,
    DEFAULT_STACK,
    Goal,
    ProblemStatement,
)
from distir.errors import DistirError, shown
from distir.limits import MOST_TOKENS

if TYPE_CHECKING:
    from autotune.problem import Problem
    from distir.strategy import Strategy

SUPPRESS = argparse.SUPPRESS


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def whole(text: str) -> int:
    """A whole number of at least 0."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return number


_UNITS_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


_THOUSANDS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def amount(text: str) -> float:
    """A number above 0, in which `B` stands for a billion."""
    times = _THOUSANDS.get(text[-1:].upper(), 1.0)
    try:
        number = float(text if times == 1.0 else text[:-1]) * times
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, such as 2.5 or 300B")
    return number


def seconds(text: str) -> float:
    """A time above 0: `90s`, `30m`, `6h`, `1h30m`, or a plain number of seconds."""
    parts = re.findall(r"([\d.]+)([dhms])", text)
    try:
        whole = "".join(number + unit for number, unit in parts) == text
        numbers = [(float(number), _UNITS_SECONDS[unit]) for number, unit in parts]
        found = sum(number * unit for number, unit in numbers) if whole else float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time above 0, such as 90s, 30m, 6h or a number of seconds"
        )
    return found


def share(text: str) -> float:
    """A percentage below 100 %, as a fraction."""
    try:
        found = float(text.removesuffix("%")) / 100 if text.endswith("%") else math.nan
    except ValueError:
        found = math.nan
    if not 0 <= found < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a percentage from 0% to less than 100%, such as 5%"
        )
    return found


def size(text: str) -> tuple[str, int]:
    """A size of a dim, as `NAME=N`."""
    name, _, number = text.partition("=")
    if not name or not number.isdecimal() or not 0 < int(number[:20]) <= MOST_TOKENS:
        raise argparse.ArgumentTypeError(
            f"{shown(text)}; expected NAME=N, such as past=1024, with N from 1 to {MOST_TOKENS:,}"
        )
    return name, int(number)


class _Collected(argparse.Action):
    """Collects `NAME=N` in a mapping, which is not there if the option is not."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        name, number = values
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), name: number})


def add_model_options(
    parser: argparse.ArgumentParser,
    devices: str,
    *,
    required: bool = True,
    several_devices: bool = False,
) -> None:
    """Options that state the problem; `devices` describes the default of `--devices`, which may
    take several numbers. Commands that read plans need no model."""
    group = parser.add_argument_group("model and cluster")
    group.add_argument(
        "--model",
        required=required,
        default=SUPPRESS,
        metavar="M",
        help="a name (see `models`), an ONNX file, a Hugging Face config.json, "
        "package.module:function or file.py:function",
    )
    add_hardware_options(group)
    number = str if several_devices else positive
    group.add_argument("--devices", type=number, default=SUPPRESS, metavar="N", help=devices)
    group.add_argument(
        "--batch-size",
        type=positive,
        default=SUPPRESS,
        metavar="B",
        help="samples per step over all devices (default: enough to cut it in many ways; the "
        "report states it)",
    )
    group.add_argument(
        "--sequence-length",
        type=positive,
        default=SUPPRESS,
        metavar="S",
        help="tokens per sample (default: the model's own)",
    )
    group.add_argument(
        "--mode",
        type=str.lower,
        choices=("training", "inference"),
        default="training",
        help="training (forward, backward, optimizer step) or inference (forward only)",
    )
    group.add_argument(
        "--precision",
        default=SUPPRESS,
        help="fp32, tf32 for products and fp32 for the rest, fp16, bf16, fp8 for products and bf16 "
        "for the rest, or pure-bf16, whose optimizer keeps nothing in fp32 (default: bf16 with "
        "fp32 master weights; fp16 on devices without bf16)",
    )
    group.add_argument(
        "--gradient-precision",
        type=str.lower,
        default=SUPPRESS,
        metavar="TYPE",
        help="the type in which gradients of parameters are accumulated and sent: compute (the "
        "type in which they are computed) or fp32 (default: compute)",
    )
    group.add_argument(
        "--optimizer", default=SUPPRESS, help="sgd, momentum or adam (default: adam)"
    )
    group.add_argument(
        "--vocabulary-multiple",
        type=positive,
        default=SUPPRESS,
        metavar="N",
        help="pad each device's part of the vocabulary to a multiple of this, as Megatron-LM does "
        "to 128 (default: 1, only as much as tp needs)",
    )
    group.add_argument(
        "--loss",
        default=SUPPRESS,
        help="cross-entropy, mse or sum, for models that come without one "
        "(default: whatever suits the output)",
    )
    group.add_argument(
        "--price",
        type=amount,
        default=SUPPRESS,
        metavar="DOLLARS",
        help="dollars per device and hour, to report what training costs",
    )
    group.add_argument(
        "--tokens",
        type=amount,
        default=SUPPRESS,
        metavar="N",
        help="tokens to train on, such as 300B or 1.5e12, to report how long that takes and what "
        "it costs",
    )
    group.add_argument(
        "--output",
        default=SUPPRESS,
        metavar="NAME",
        help="the output to which the loss applies (default: the main one)",
    )


def add_hardware_options(group: Any) -> None:
    """Options that state what runs the model: cluster, devices, software."""
    group.add_argument(
        "--cluster",
        default=DEFAULT_CLUSTER,
        metavar="C",
        help="a name (see `clusters`) or a TOML file",
    )
    group.add_argument(
        "--device",
        default=SUPPRESS,
        metavar="D",
        help="other devices for the cluster: a name (see `devices`) or a TOML file "
        "(default: the cluster's own)",
    )
    group.add_argument(
        "--stack",
        default=SUPPRESS,
        metavar="STACK",
        help="the software that runs the plan: a name (see `stacks`) or a TOML file "
        f"(default: {DEFAULT_STACK})",
    )
    group.add_argument(
        "--attention",
        choices=("fused", "eager"),
        default=SUPPRESS,
        help="attention as one kernel (fused), or as products and a softmax (eager); if given, "
        "also for files and functions (default: as the stack does it, in files and functions as "
        "they state it)",
    )
    group.add_argument(
        "--dropout",
        action=argparse.BooleanOptionalAction,
        default=SUPPRESS,
        help="apply the dropout that the model states (default; never in inference)",
    )
    group.add_argument(
        "--size",
        type=size,
        action=_Collected,
        dest="sizes",
        default=SUPPRESS,
        metavar="NAME=N",
        help="a size that an ONNX file leaves open besides batch and sequence, by its name there, "
        "such as the length of a decoder's past (repeatable)",
    )
    group.add_argument(
        "--imbalance",
        type=float,
        default=SUPPRESS,
        metavar="X",
        help="tokens of the fullest expert of a mixture divided by the mean (default: 1, balanced)",
    )


def add_space_option(
    parser: argparse.ArgumentParser, default: str = DEFAULT_SPACE, *, layers: bool = True
) -> None:
    """The options that say which strategies are looked at; `layers`: also how many layers of a
    stage they recompute."""
    group = parser.add_argument_group("search space")
    group.add_argument(
        "--space",
        default=default,
        metavar="SPACE",
        help=f"which choices vary (default: {default}): small (degrees, microbatches, two "
        "schedules), standard (also sequence parallelism, ZeRO, recomputation, interleaving), full "
        "(every choice there is), or a YAML file that lists values",
    )
    if layers:
        group.add_argument(
            "--recompute",
            type=str.lower,
            dest="recomputation",
            default=SUPPRESS,
            metavar="WHAT",
            help="what all strategies recompute: none, selective, full, or auto, which takes for "
            "each layer what fits and is fastest (default: as in the space)",
        )
        add_recomputed_layers_option(group, SUPPRESS, "as in the space, usually all layers")
        add_offload_option(group, "as in the space, usually nothing")
        group.add_argument(
            "--axes",
            dest="axis_lists",
            default=SUPPRESS,
            metavar="LISTS",
            help="which logical axes degrees split: auto tries all lists of tp that make different "
            "plans, cp=auto does so for another degree, tp=heads,ffn states one list (default: as "
            "in the space)",
        )
        add_mesh_option(group, "mesh", "all that make different plans are tried")


def add_mesh_option(group: Any, name: str, otherwise: str) -> None:
    """The option that states mesh axes of a user's own, kept under `name`; `otherwise` says what is
    split along those whose lists `--axes` does not state."""
    group.add_argument(
        "--mesh",
        dest=name,
        default=SUPPRESS,
        metavar="AXES",
        help="mesh axes of your own in place of tp, outermost first, such as data=4,model=8; "
        f"--axes states lists for these names, such as data=batch; for the others {otherwise}",
    )


def add_recomputed_layers_option(group: Any, default: Any, otherwise: str) -> None:
    """The option that counts the layers of a stage that are recomputed; `otherwise` says what holds
    without it."""
    group.add_argument(
        "--recompute-layers",
        type=positive,
        default=default,
        metavar="N",
        help="recompute only in the first N layers of every pipeline stage; the others keep "
        f"everything (default: {otherwise})",
    )


def add_offload_option(group: Any, otherwise: str) -> None:
    """The option that says what rests in the memory of the host; `otherwise` says what holds
    without it."""
    group.add_argument(
        "--offload",
        type=str.lower,
        default=SUPPRESS,
        metavar="WHAT",
        help="what to keep in the memory of the host, separated by commas: optimizer (its state "
        "and gradients, and it runs there), parameters (copied to the device for each pass), "
        "activations (what blocks keep for their backward passes), or none "
        f"(default: {otherwise})",
    )


def add_microbatch_options(group: Any) -> None:
    """Options that say how a replica's share of the batch is cut: by number, or by size."""
    group.add_argument(
        "--microbatches",
        type=positive,
        default=SUPPRESS,
        metavar="N",
        help="pieces of each replica's share of the batch (default: 1)",
    )
    group.add_argument(
        "--microbatch-size",
        type=positive,
        default=SUPPRESS,
        metavar="N",
        help="samples of a microbatch, instead of the number of microbatches; without "
        "--batch-size, the batch is dp · microbatches of this size",
    )


def strategy_of(arguments: argparse.Namespace) -> Strategy:
    """The strategy that the arguments state; chunks are what the schedule needs if nobody says.

    Raises `StrategyError` for numbers that no strategy has, if the size and the number of
    microbatches do not make the batch, and for an order of experts that nobody shares.
    """
    from dataclasses import fields

    from distir.schedules import find_schedule
    from distir.strategy import Strategy, lists_of_mesh, own_mesh

    values = {each.name: getattr(arguments, each.name, None) for each in fields(Strategy)}
    if values["axes"] is not None:
        values["axes"] = ";".join(values["axes"])
    if (mesh := getattr(arguments, "own_mesh", None)) is not None:
        values["axes"] = lists_of_mesh(mesh, values["axes"] or "")
        if values["tp"] in (None, 1):
            values["tp"] = math.prod(own_mesh(values["axes"]).values())
    family = find_schedule(values["schedule"] or Strategy().schedule)
    values["schedule"] = family.name
    if values["chunks"] is None:
        values["chunks"] = family.default_chunks if arguments.mode == "training" else 1
    stated = {name: value for name, value in values.items() if value is not None}
    strategy = Strategy.from_dict(stated)
    _check_expert_order(strategy)
    return _in_microbatches(strategy, arguments)


def _check_expert_order(strategy: Strategy) -> None:
    """Raises `StrategyError` for an order that means nothing. It is no rule: a space of one order
    has plans without `ep`, too."""
    from distir.errors import StrategyError
    from distir.factoring import EXPERT_ORDERS

    if strategy.ep == 1 and strategy.expert_order != EXPERT_ORDERS[0]:
        raise StrategyError(
            f"expert_order = {strategy.expert_order} says which devices share experts, but ep is "
            f"1; expert_order = {EXPERT_ORDERS[0]} would do"
        )


def _in_microbatches(strategy: Strategy, arguments: argparse.Namespace) -> Strategy:
    """The strategy with the microbatches that the arguments state by their size, if they do."""
    from distir.errors import StrategyError

    batch, size = (getattr(arguments, name, None) for name in ("batch_size", "microbatch_size"))
    if batch is None or size is None:
        return strategy
    cut = strategy.in_microbatches_of(size, batch)
    if hasattr(arguments, "microbatches") and cut != strategy:
        raise StrategyError(
            f"microbatches = {strategy.microbatches}, but a batch of {batch} in microbatches of "
            f"{size} on dp = {strategy.dp} is {cut.microbatches}; leave one of them out"
        )
    return cut


def typed(argv: Sequence[str], names: Iterable[str]) -> frozenset[str]:
    """Those of the arguments `names` that the command line states, in full or abbreviated as
    argparse allows; the others have their defaults."""
    known = {f"--{name.replace('_', '-')}": name for name in names}
    known |= {f"--no-{option[2:]}": name for option, name in known.items()}
    words = {word.partition("=")[0] for word in argv if word.startswith("--")}
    exact = {known[word] for word in words if word in known}
    cut = [word for word in words if word not in known]
    return frozenset(
        exact | {name for option, name in known.items() for w in cut if option.startswith(w)}
    )


def given(arguments: argparse.Namespace, stated: type[Any]) -> dict[str, Any]:
    """The arguments that a dataclass has fields for, as far as they were given."""
    from dataclasses import fields

    names = (each.name for each in fields(stated))
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def problem_of(arguments: argparse.Namespace) -> Problem:
    """The problem that the arguments state."""
    from autotune.problem import load_problem

    stated = given(arguments, ProblemStatement)
    if hasattr(arguments, "objective"):
        suited = goal_of(arguments).suited(ProblemStatement(**stated))
        stated |= {} if suited.batch_size is None else {"batch_size": suited.batch_size}
    return load_problem(**stated)


def goal_of(arguments: argparse.Namespace) -> Goal:
    """What the arguments say is to be made large or small."""
    return Goal(**given(arguments, Goal))


def add_objective_options(parser: argparse.ArgumentParser, *, trials: bool = True) -> None:
    """Options that say what is made large or small; `trials`: also how trials are made."""
    group = parser.add_argument_group("objective")
    group.add_argument(
        "--objective",
        default="throughput",
        metavar="O",
        help="throughput, latency, memory or another metric (see `objectives`), a plug-in's name, "
        "module:attribute or file.py:attribute",
    )
    group.add_argument(
        "--metric", default=SUPPRESS, help="the metric that counts, if the objective gives several"
    )
    group.add_argument(
        "--direction",
        choices=("maximize", "minimize"),
        default=SUPPRESS,
        help="overrides the objective's own (a plug-in is minimized unless it says otherwise)",
    )
    if not trials:
        return
    group.add_argument(
        "--trial-timeout",
        type=seconds,
        default=SUPPRESS,
        metavar="TIME",
        help="give up a trial after this long: 90s, 30m, 6h, or a number of seconds",
    )
    group.add_argument(
        "--isolate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run a plug-in in a process of its own, so that a crash does not end the search",
    )


def add_jobs_options(parser: argparse.ArgumentParser) -> None:
    """Options that spread the evaluation of a space over processes."""
    group = parser.add_argument_group("processes")
    group.add_argument(
        "--jobs", type=positive, default=1, metavar="N", help="processes that evaluate strategies"
    )
    group.add_argument(
        "--backend",
        choices=("loky", "dask", "ray"),
        default="loky",
        help="where the processes run: on this machine, or on a Dask or Ray cluster (found by "
        "$DASK_SCHEDULER_ADDRESS or $RAY_ADDRESS, otherwise started here)",
    )


def add_where_option(parser: argparse.ArgumentParser, default: str, text: str) -> None:
    """The option that says what computes on real processes; `text` says in which type."""
    parser.add_argument(
        "--on",
        choices=("numpy", "cpu", "cuda"),
        default=default,
        help=f"what computes: numpy, or PyTorch on CPUs or GPUs; {text} (default: {default})",
    )


def names_in(text: str) -> list[str]:
    """Names separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise DistirError(f"{text!r} contains no names; expected names separated by commas")
    return names
