"""The strategy: a user's choice of how a model is distributed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any, cast

from distir.arguments import plain_value
from distir.errors import StrategyError, UnknownNameError, shown
from distir.factoring import EXPERT_ORDERS, ExpertFactors, expert_factors
from distir.limits import MOST_DEVICES, MOST_LAYERS, MOST_MICROBATCHES, MOST_STEPS

PLACEMENT = "tp-cp-ep-dp-pp"
"""The usual order of degrees on the devices, innermost first: those that communicate most have the
nearest neighbours (Narayanan et al. 2021)."""


AUTO = "auto"
"""The recomputation that is chosen per layer."""

OFFLOADS = ("optimizer", "parameters", "activations")
"""What may rest in the memory of the host; see `Strategy.offload`."""

OUTER_OPTIMIZERS = ("mean", "nesterov")
"""What replicas that synchronise every few steps make of their parameters; see
`Strategy.outer_optimizer`."""

KEEP_GATHERED = ("none", "parameters", "activations", "all")
"""Which gathered values are kept for the backward pass, in order of memory."""

KEEPS_PARAMETERS, KEEPS_ACTIVATIONS = ("parameters", "all"), ("activations", "all")
"""Those of `KEEP_GATHERED` with which parameters, or activations, are kept."""


def checked_placement(placement: object) -> str:
    """The placement in lower case; raises `StrategyError` if it is not an order of all degrees."""
    names = placement.lower().split("-") if isinstance(placement, str) else []
    if sorted(names) != sorted(PLACEMENT.split("-")):
        raise StrategyError(
            f"placement is {shown(placement)}; expected all of tp, cp, ep, dp and pp, innermost "
            f"first, such as {PLACEMENT}"
        )
    return "-".join(names)


CP_EXCHANGES = ("gather", "ring", "all-to-all")
"""How context parallelism brings keys and values together; see `Strategy.cp_exchange`."""

MARKS = "*~"
"""Marks that may follow the name of an axis in a list: `*` everywhere, `~` ring."""

DEGREES = ("dp", "tp", "pp", "cp", "ep")
"""Kinds of parallelism: fields of a strategy that count devices."""

IN_ORDER_ALONE = ("schedule", "chunks", "microbatches")
"""Choices that decide in what pieces and in what order every device runs the layers it keeps."""

TAKEN = (*DEGREES, "compute", "gradients", "host", "actions")
"""Names that no mesh axis of a user's own can have: reports have them for something else."""

LISTED = ("dp", "ep", "cp", "tp")
"""Degrees whose axis lists a strategy can state."""


def checked_microbatch_size(samples: object) -> int:
    """The samples of a microbatch; raises `StrategyError` if they are no number of samples."""
    if type(samples) is not int or samples < 1:
        raise StrategyError(
            f"microbatch_size is {shown(samples)}; expected a whole number of at least 1"
        )
    return samples


MOST_LISTS_KNOWN = 1 << 12
"""Texts of axis lists that are not read again."""


def parse_lists(axes: object) -> dict[str, tuple[str, ...]]:
    """Axis lists by degree, from a text such as `tp=heads,ffn;cp=sequence`, or from a mapping from
    degrees to lists of names. Mesh axes of a user's own, which share the devices of `tp`, state how
    many these are, outermost first, as in `data:4=batch;model:8=heads,ffn`; their lists may be
    empty. Raises `StrategyError` if they cannot be read."""
    return dict(_parsed(axes)) if isinstance(axes, str) else _read_lists(axes)


@lru_cache(MOST_LISTS_KNOWN)
def _parsed(axes: str) -> dict[str, tuple[str, ...]]:
    return _read_lists(axes)


def _read_lists(axes: object) -> dict[str, tuple[str, ...]]:
    if axes == AUTO:
        raise StrategyError(
            "axes = auto stands for all lists of a space, which only run, grid and compare search; "
            "expected the list of one strategy, such as tp=heads,ffn"
        )
    lists: dict[str, tuple[str, ...]] = {}
    for user, names in _stated_lists(axes):
        own = own_degree(user)
        if user not in LISTED and own is None:
            raise StrategyError(
                f"{UnknownNameError('degree with an axis list', user, LISTED)}; a mesh axis of "
                "your own states its devices, such as data:4"
            )
        name = user.partition(":")[0]
        if name in (known.partition(":")[0] for known in lists):
            raise StrategyError(f"axes state two lists for {name}; expected one")
        stated = () if own is not None and names == [""] else tuple(dict.fromkeys(names))
        lists[user if own is None else f"{name}:{own}"] = stated
        if (own is None and not stated) or any(not name.rstrip(MARKS) for name in stated):
            raise StrategyError(
                f"axes state {','.join(names)!r} for {user}; expected names of axes, such as "
                f"{user}=heads,ffn"
            )
    if "tp" in lists and (own := next((user for user in lists if ":" in user), None)):
        raise StrategyError(
            f"axes state lists for tp and for {own}, which shares the devices of tp; expected one "
            "of them"
        )
    return in_order(lists)


def in_order(lists: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Axis lists in the order of degrees, and behind them a user's own mesh axes as they come."""
    users = [*(user for user in LISTED if user in lists), *(u for u in lists if u not in LISTED)]
    return {user: lists[user] for user in users}


def own_degree(user: str) -> int | None:
    """The devices along a mesh axis of a user's own, which is written `name:devices`; None for
    degrees and for what is no such axis."""
    name, colon, devices = user.partition(":")
    if not colon or not name.isidentifier() or name in TAKEN:
        return None
    stated = int(devices) if devices.isdecimal() and len(devices) < 9 else 0
    return stated or None


def own_mesh(axes: str) -> dict[str, int]:
    """The mesh axes of a user's own in axis lists, with the devices along each."""
    found = {user: own_degree(user) for user in parse_lists(axes)}
    return {user.partition(":")[0]: own for user, own in found.items() if own is not None}


def words_apart(one: str, other: str) -> int:
    """How many words two texts of axis lists do not share."""
    first, second = (
        {(user, name) for user, names in parse_lists(axes).items() for name in names}
        for axes in (one, other)
    )
    return len(first ^ second)


def lists_of_mesh(mesh: str, axes: str = "", otherwise: str = "") -> str:
    """Axis lists on a mesh of a user's own, such as `data=4,model=8`, outermost first: those that
    `axes` state by these names, and `otherwise` for the others.

    Raises `StrategyError` if they cannot be read, or if lists have a name that the mesh has not.
    """
    stated = dict(_stated_lists(axes))
    users: dict[str, list[str]] = {}
    known: list[str] = []
    for part in mesh.split(","):
        name, _, devices = (each.strip() for each in part.partition("="))
        user = f"{name}:{devices}"
        if own_degree(user) is None or name in known:
            raise StrategyError(
                f"the mesh is {shown(mesh)}; expected names with numbers of devices, such as "
                f"data=4,model=8, each once, and none of {', '.join(TAKEN)}"
            )
        users[user] = stated.pop(name, [otherwise])
        known.append(name)
    unknown = next((name for name in stated if name not in LISTED), None)
    if unknown is not None:
        raise StrategyError(str(UnknownNameError("mesh axis", unknown, known)))
    return format_lists(parse_lists({**stated, **users}))


@cache
def further_axes(axes: str) -> int:
    """The mesh axes of a user's own that are more than the one `tp` whose devices they share."""
    return max(0, sum(devices > 1 for devices in own_mesh(axes).values()) - 1) if axes else 0


def stated_degrees(axes: str) -> tuple[str, ...]:
    """The degrees whose lists are stated; a user's own mesh axes are in the place of `tp`."""
    stated = ("tp" if own_degree(user) else user for user in parse_lists(axes))
    return tuple(dict.fromkeys(stated))


def _stated_lists(axes: object) -> Iterator[tuple[str, list[str]]]:
    if isinstance(axes, Mapping):
        for user, names in cast("Mapping[object, object]", axes).items():
            listed = names.split(",") if isinstance(names, str) else names
            if not isinstance(listed, (list, tuple)):
                found = shown(cast("object", axes))
                raise StrategyError(f"axes are {found}; expected lists of names")
            yield str(user), [str(name).strip() for name in cast("Sequence[object]", listed)]
        return
    if not isinstance(axes, str):
        raise StrategyError(
            f"axes are {shown(axes)}; expected lists such as tp=heads,ffn;cp=sequence"
        )
    for stated in axes.split(";") if axes else ():
        user, _, names = stated.partition("=")
        yield user.strip(), [name.strip() for name in names.split(",")]


def parse_offload(offload: object) -> str:
    """What rests on the host, each name once and in order, from a text such as
    `parameters,optimizer`; empty or `none`: nothing. Raises `StrategyError` for other names."""
    if not isinstance(offload, str):
        raise StrategyError(f"offload is {shown(offload)}; expected names such as optimizer")
    names = {name.strip().lower() for name in offload.split(",")} - {"", "none"}
    for name in sorted(names.difference(OFFLOADS)):
        raise StrategyError(str(UnknownNameError("offload", name, ("none", *OFFLOADS))))
    return ",".join(name for name in OFFLOADS if name in names)


def format_lists(lists: Mapping[str, Sequence[str]]) -> str:
    """The inverse of `parse_lists`."""
    return ";".join(f"{user}={','.join(names)}" for user, names in lists.items())


def _like(now: object, name: str, text: str) -> int | bool | str:
    """A choice that is written as text, of the type that it has now."""
    if isinstance(now, bool):
        if text.lower() not in ("true", "yes", "false", "no"):
            raise StrategyError(f"{name} is {shown(text)}; expected yes or no")
        return text.lower() in ("true", "yes")
    if not isinstance(now, int):
        return text
    if not text.isdecimal() or len(text) > 9:
        raise StrategyError(f"{name} is {shown(text)}; expected a whole number")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Degrees of parallelism, microbatches, schedule and memory techniques.

    `devices = dp · tp · cp · pp`. `microbatches` counts per data-parallel replica.
    """

    dp: int = 1
    """Data-parallel replicas."""
    tp: int = 1
    """Devices that share each layer."""
    pp: int = 1
    """Pipeline ranks."""
    cp: int = 1
    """Devices that share each sequence."""
    ep: int = 1
    """Devices that share the experts of a mixture: of `dp`, `cp` and `tp`, as `expert_order` and
    `etp` say (see `expert_factors`)."""
    microbatches: int = 1
    """Pieces that each replica's share of the batch is cut into."""
    schedule: str = "1f1b"
    """Name of the pipeline schedule, or the path of a schedule file."""
    chunks: int = 1
    """Stages per pipeline rank."""
    zero: int = 0
    """ZeRO stage: what is sharded at rest over the devices that hold equal parameters, those of
    data and context parallelism. 1: the optimizer's state, 2: gradients too, 3: parameters too
    (Rajbhandari et al. 2020)."""
    recompute: str = "none"
    """Name of a recomputation policy: which values are computed again in the backward pass instead
    of kept (`distir.transforms.recompute`). `auto`: of each layer what is found to fit and to take
    least time (`distir.simulation.recomputing`)."""
    recompute_every: int = 1
    """Only every n-th block recomputes; the others keep everything."""
    recompute_layers: int = 0
    """The first layers of every pipeline stage that recompute, at most; the others keep everything,
    as Megatron-LM's `--recompute-method block` has it. 0: those that `recompute_every` says."""
    keep_gathered: str = "none"
    """What is kept for the backward pass instead of gathered again: none, parameters (of ZeRO 3),
    activations (of sequence parallelism) or all."""
    sequence_parallel: bool = False
    """Whether activations are split over the sequence between the products that `tp` splits."""
    zero_degree: int = 0
    """Number of neighbouring replicas over which `zero` shards; each such group holds a copy of the
    states (hybrid sharding, Zhao et al. 2023). 0: all replicas."""
    cp_exchange: str = "gather"
    """How context parallelism brings keys and values together: `gather`; `ring`, in which they
    travel from device to device while attention computes with those at hand (Liu et al. 2023); or
    `all-to-all`, which splits heads instead of the sequence in attention (Jacobs et al. 2023)."""
    axes: str = ""
    """Axis lists that replace those of the techniques, such as `tp=heads,ffn;cp=heads*,sequence`:
    per degree, the logical axes that its devices may split, in order of preference. `axis*` counts
    only where all activations of an op have the axis; with `axis~` they travel in a ring where the
    op allows it. In place of `tp`, its devices may be mesh axes of a user's own, outermost first:
    `data:4=batch;model:8=heads,ffn` for `tp` 32."""
    placement: str = PLACEMENT
    """The order in which degrees are laid on the devices, innermost first."""
    etp: int = 0
    """Devices of `tp` that split the width of each expert; the others share experts. 0: all `tp`,
    or none where `ep` fits only so."""
    expert_order: str = "replicas"
    """Which devices share experts: `replicas` first, then those of `cp`; or the `nearest`, those of
    `cp` before replicas."""
    offload: str = ""
    """What rests in the memory of the host, separated by commas. `optimizer`: the optimizer's state
    and gradients, and its step is run there (Ren et al. 2021, ZeRO-Offload). `parameters`: those of
    a block are copied to the device for each of its passes, while the block before is computed.
    `activations`: what a block keeps for its backward pass is copied to the host as soon as it is
    made, which has to be done when the next block is computed, and back while the backward pass of
    the block after it is computed; the last block of the model keeps everything on the device,
    because its backward pass comes at once (Isaev et al. 2023, Calculon)."""
    sync_every: int = 1
    """Every how many steps the replicas of `dp` synchronise. 1: they add up their gradients in
    every step. More: each updates parameters of its own from its own gradients, and after every so
    many steps all take the mean of their parameters (Lin et al. 2018, local SGD), which changes the
    numbers."""
    outer_optimizer: str = "mean"
    """What replicas that synchronise every few steps go on from. `mean`: the mean of their
    parameters. `nesterov`: each keeps a copy of the parameters of the last synchronisation and a
    momentum, takes the mean difference from that copy for a gradient, and makes a step of SGD with
    Nesterov momentum from the copy (Douillard et al. 2023, DiLoCo)."""

    def __post_init__(self) -> None:
        counts = ("dp", "tp", "pp", "cp", "ep", "microbatches", "chunks", "recompute_every")
        for name in (*counts, "sync_every"):
            value = getattr(self, name)
            if type(value) is not int:  # it may be one of NumPy
                value = plain_value(value)
                object.__setattr__(self, name, value)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise StrategyError(
                    f"{name} is {shown(value)}; expected a whole number of at least 1"
                )
        if self.microbatches > MOST_MICROBATCHES:
            raise StrategyError(
                f"microbatches is {shown(self.microbatches)}; expected at most "
                f"{MOST_MICROBATCHES:,}"
            )
        for name, number, most in (
            ("the product of the degrees", self.devices, MOST_DEVICES),
            ("ep", self.ep, MOST_DEVICES),
            ("chunks", self.chunks, MOST_LAYERS),
            ("recompute_every", self.recompute_every, MOST_LAYERS),
            ("sync_every", self.sync_every, MOST_STEPS),
        ):
            if number > most:
                raise StrategyError(f"{name} is {shown(number)}; expected at most {most:,}")
        if type(self.recompute_layers) is not int or not 0 <= self.recompute_layers <= MOST_LAYERS:
            raise StrategyError(
                f"recompute_layers is {shown(self.recompute_layers)}; expected a number of layers "
                f"per stage of at most {MOST_LAYERS:,}, or 0 for all"
            )
        if type(self.zero) is not int or self.zero not in (0, 1, 2, 3):
            raise StrategyError(f"zero is {shown(self.zero)}; expected 0, 1, 2 or 3")
        if type(self.zero_degree) is not int or self.zero_degree < 0:
            raise StrategyError(
                f"zero_degree is {shown(self.zero_degree)}; expected a number of replicas, or 0 "
                "for all"
            )
        if type(self.etp) is not int or not 0 <= self.etp <= MOST_DEVICES:
            raise StrategyError(
                f"etp is {shown(self.etp)}; expected a number of devices of tp, or 0 for all that "
                "fit"
            )
        if self.expert_order not in EXPERT_ORDERS:
            raise UnknownNameError("expert_order", str(self.expert_order), EXPERT_ORDERS)
        if self.cp_exchange not in CP_EXCHANGES:
            raise UnknownNameError("cp_exchange", str(self.cp_exchange), CP_EXCHANGES)
        object.__setattr__(self, "axes", format_lists(parse_lists(self.axes)))
        object.__setattr__(self, "offload", parse_offload(self.offload))
        for name in ("schedule", "recompute"):
            if not isinstance(getattr(self, name), str):
                raise StrategyError(f"{name} is {shown(getattr(self, name))}; expected a name")
        if self.sequence_parallel not in (False, True):
            raise StrategyError(
                f"sequence_parallel is {shown(self.sequence_parallel)}; expected true or false"
            )
        if self.keep_gathered not in KEEP_GATHERED:
            raise StrategyError(
                str(UnknownNameError("keep_gathered", str(self.keep_gathered), KEEP_GATHERED))
            )
        if self.outer_optimizer not in OUTER_OPTIMIZERS:
            unknown = UnknownNameError(
                "outer_optimizer", str(self.outer_optimizer), OUTER_OPTIMIZERS
            )
            raise StrategyError(str(unknown))
        object.__setattr__(self, "placement", checked_placement(self.placement))

    @property
    def devices(self) -> int:
        """Number of devices that the strategy occupies."""
        return self.dp * self.tp * self.cp * self.pp

    @property
    def communicators(self) -> int:
        """Number of kinds of parallelism whose devices communicate: degrees above 1, and a user's
        own mesh axes in the place of `tp`."""
        return sum(getattr(self, name) > 1 for name in DEGREES) + further_axes(self.axes)

    @property
    def axis_lists(self) -> Mapping[str, tuple[str, ...]]:
        """The axis lists that the strategy states: names of axes by degree."""
        return parse_lists(self.axes)

    def devices_along(self, user: str) -> int:
        """The devices along a degree, or along a mesh axis of a user's own (`data:4`)."""
        return own_degree(user) or getattr(self, user)

    @property
    def expert_factors(self) -> ExpertFactors:
        """The numbers of devices along each degree that share experts; all 1 if `ep` does not
        fit."""
        found = expert_factors(self.ep, self.dp, self.cp, self.tp, self.etp, self.expert_order)
        return found or ExpertFactors()

    @property
    def order(self) -> tuple[str, ...]:
        """The degrees above 1 in the order in which they are laid on the devices, innermost
        first."""
        return tuple(name for name in self.placement.split("-") if getattr(self, name, 1) > 1)

    @property
    def keeps_parameters(self) -> bool:
        """Whether gathered parameters are kept for the backward pass."""
        return self.keep_gathered in KEEPS_PARAMETERS

    @property
    def keeps_activations(self) -> bool:
        """Whether gathered activations are kept for the backward pass."""
        return self.keep_gathered in KEEPS_ACTIVATIONS

    @property
    def offloads(self) -> frozenset[str]:
        """What rests on the host: names of `OFFLOADS`."""
        return frozenset(self.offload.split(",") if self.offload else ())

    @property
    def stages(self) -> int:
        """Pipeline stages: ranks times chunks."""
        return self.pp * self.chunks

    def differs_in_order_alone(self, other: Strategy) -> bool:
        """Whether the two differ in nothing but schedule, chunks and microbatches: every device
        keeps the same layers, in other pieces and another order."""
        order: dict[str, Any] = {name: getattr(other, name) for name in IN_ORDER_ALONE}
        return replace(self, **order) == other

    @property
    def label(self) -> str:
        """A short readable name such as `dp2-tp8-pp1-m4-1f1b`; most defaults are left out."""
        parts = [f"dp{self.dp}", f"tp{self.tp}", f"pp{self.pp}"]
        parts += [f"cp{self.cp}"] if self.cp > 1 else []
        parts += [f"ep{self.ep}"] if self.ep > 1 else []
        parts += [f"etp{self.etp}"] if self.etp else []
        parts += [self.expert_order] if self.expert_order != EXPERT_ORDERS[0] else []
        parts += [f"m{self.microbatches}", self.schedule]
        parts += [f"c{self.chunks}"] if self.chunks > 1 else []
        parts += [f"z{self.zero}"] if self.zero and self.dp * self.cp > 1 else []
        again = self.recompute + (f"/{self.recompute_every}" if self.recompute_every > 1 else "")
        again += f":{self.recompute_layers}" if self.recompute_layers else ""
        parts += [again] if self.recompute != "none" else []
        parts += [f"keep:{self.keep_gathered}"] if self.keep_gathered != "none" else []
        parts += [f"host:{self.offload}"] if self.offload else []
        parts += [f"sync{self.sync_every}"] if self.sync_every > 1 else []
        parts += [self.outer_optimizer] if self.outer_optimizer != OUTER_OPTIMIZERS[0] else []
        parts += ["sp"] if self.sequence_parallel else []
        parts += [f"zd{self.zero_degree}"] if self.zero_degree else []
        parts += [self.cp_exchange] if self.cp_exchange != "gather" else []
        parts += [self.axes] if self.axes else []
        parts += [f"on:{','.join(self.order)}"] if self.placement != PLACEMENT else []
        return "-".join(parts)

    def in_microbatches_of(self, samples: int, batch_size: int) -> Strategy:
        """The strategy whose replicas cut their share of a batch of `batch_size` samples into
        microbatches of `samples`.

        Raises `StrategyError` if the batch cannot be cut so.
        """
        step = self.dp * checked_microbatch_size(samples)
        if batch_size % step:
            raise StrategyError(
                f"the batch ({batch_size}) is not divisible by dp · microbatch_size = {self.dp} · "
                f"{samples}; try a batch of {-(-batch_size // step) * step}"
            )
        return replace(self, microbatches=batch_size // step)

    def with_changes(self, text: str) -> Strategy:
        """The strategy with the choices that a text such as `tp=4,dp=1,schedule=gpipe` states.

        Raises `StrategyError` if it cannot be read.
        """
        values = self.to_dict()
        for part in text.split(","):
            name, equals, value = (each.strip() for each in part.partition("="))
            if name not in values:
                raise StrategyError(str(UnknownNameError("choice", name, values)))
            if not equals or not value:
                raise StrategyError(f"{shown(text)}: expected {name}=VALUE")
            values[name] = _like(values[name], name, value)
        return Strategy.from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """The strategy as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Strategy:
        """The inverse of `to_dict`. Raises `StrategyError` for unknown keys; `micro_batch`, which
        results state beside the strategy, is ignored."""
        values = {name: value for name, value in values.items() if name != "micro_batch"}
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise StrategyError(
                f"unknown strategy key {shown(unknown[0])}; expected one of "
                f"{', '.join(sorted(known))}"
            )
        return cls(**values)
