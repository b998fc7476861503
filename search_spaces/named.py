"""Which values are searched: spaces by name, and spaces written down in a YAML file.

extends: standard              # small (if nobody says), standard or full
tp: [1, 2, 4, 8]               # a list of values, or one value
zero: [0, 1, 3]
schedule: [1f1b, interleaved, zb-h1, my_schedule.txt]
chunks: all                    # every sensible value; `default`: what it is if nobody says;
                               # `long`: all in inference and where sequences are long
recompute: none
microbatch_size: [1, 2]        # samples, in place of `microbatches`, which counts
offload: [none, optimizer]     # what may rest in the memory of the host
axes: auto                     # lists of axes that the model itself suggests; {cp: auto}: for cp
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from distir.errors import DistirError, UnknownNameError, shown
from distir.files import is_file, user_path
from distir.registry import Registry
from distir.rules.memory import recomputation_is_known
from distir.strategy import Strategy, checked_microbatch_size, format_lists, parse_lists
from distir.yaml_text import read_yaml
from search_spaces.parameters import Value

Allowed: TypeAlias = tuple[Value, ...] | Literal["all", "default", "long"]
"""Values of a dimension: these, all that make sense, or the one it has if nobody says; `long`: all
where context parallelism may pay (`LONG_SEQUENCE`), otherwise the one."""

LONG_SEQUENCE = 8192
"""Tokens from which on a sequence is often shared by devices in training. In inference, where a
prompt is all that there is to share, it is at any length."""

SpaceSource: TypeAlias = str | Path | Mapping[str, Any]
"""A name in `SPACES`, a YAML file, or what such a file says."""

DEFAULTS: dict[str, Value] = {
    each.name: each.default for each in fields(Strategy) if each.default is not MISSING
}
"""Choices and what they are if nobody says."""

MICROBATCH_SIZE = "microbatch_size"
"""The key of a space that says of which sizes microbatches may be, in place of their number."""


GENERATED = ("auto",)
"""An axis list that stands for all that are generated from the model's axes."""

GENERATED_FOR = "tp"
"""The degree whose lists are generated if nobody says which."""


UNNAMED = "space"
"""The name of a space that is given by its values."""


class SpaceError(DistirError, ValueError):
    """A search space is described wrongly."""


@dataclass(frozen=True, slots=True)
class Searched:
    """Which values each dimension may take; what is not named here takes all."""

    name: str
    values: Mapping[str, Allowed] = field(default_factory=dict[str, Allowed])
    listed: tuple[str, ...] = field(default=(), repr=False)
    """Dimensions whose values a user's file lists one by one."""

    def allowed(self, name: str) -> Allowed:
        """What is said of dimension `name`."""
        return self.values.get(name, "all")

    @property
    def values_listed(self) -> dict[str, tuple[Value, ...]]:
        """The values that a user's file lists one by one, by dimension; what stands for others that
        are made of a model is left out."""
        found: dict[str, tuple[Value, ...]] = {}
        for name in self.listed:
            allowed = self.allowed(name)
            values = allowed if isinstance(allowed, tuple) else ()
            if name == "axes":
                values = tuple(v for v in values if GENERATED not in parse_lists(v).values())
            found[name] = values
        return found

    def values_of(self, name: str, every: Sequence[Value]) -> Sequence[Value]:
        """Values of dimension `name`, `every` being all that make sense."""
        allowed = self.allowed(name)
        if isinstance(allowed, tuple):
            return allowed
        return every if allowed == "all" else (DEFAULTS[name],)

    def to_yaml(self) -> str:
        """What a YAML file says of this space; `searched` reads the same values from it."""
        import yaml

        said = {name: self.allowed(name) for name in DEFAULTS}
        if MICROBATCH_SIZE in self.values:  # from which the number of microbatches follows
            del said["microbatches"]
            said[MICROBATCH_SIZE] = self.allowed(MICROBATCH_SIZE)
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in said.items()}
        return yaml.safe_dump(plain, sort_keys=False, default_flow_style=None)

    def stating(self, name: str, value: Value) -> Searched:
        """The same, but that dimension `name` takes one value where strategies may have it."""
        checked = _checked(name, value)
        values: dict[str, Allowed] = {**self.values, name: (checked,)}
        listed = tuple(each for each in self.listed if each != name)
        return Searched(f"{self.name} with {name} {checked}", values, listed)


SPACES: Registry[Searched] = Registry("space")
"""The spaces that have a name, each part of the next."""


def _add(name: str, summary: str, **values: Allowed) -> None:
    SPACES.add(name, Searched(name, values), summary)


_add(
    "small",
    "dp, tp, pp, microbatches, gpipe and 1f1b; everything else as it is by default",
    cp="default",
    ep="default",
    sequence_parallel="default",
    zero="default",
    recompute="default",
    recompute_every="default",
    recompute_layers="default",
    expert_order="default",
    etp="default",
    keep_gathered="default",
    schedule=("gpipe", "1f1b"),
    chunks="default",
    placement="default",
    zero_degree="default",
    cp_exchange="default",
    axes="default",
    offload="default",
    sync_every="default",
    outer_optimizer="default",
)
_add(
    "standard",
    "adds sequence and expert parallelism, ZeRO 1 and 3, recomputation, the interleaved schedule; "
    "context parallelism for sequences of 8,192 and more, and in inference",
    cp="long",
    zero=(0, 1, 3),
    recompute_every="default",
    recompute_layers="default",
    expert_order="default",
    etp="default",
    keep_gathered="default",
    schedule=("gpipe", "1f1b", "interleaved"),
    chunks="default",
    placement="default",
    zero_degree="default",
    cp_exchange="default",
    axes="default",
    offload="default",
    sync_every="default",
    outer_optimizer="default",
)
_add(
    "full",
    "adds context parallelism at any length, all of ZeRO, hybrid sharding, every n-th block, every "
    "schedule and numbers of chunks; keeping what was gathered",
    recompute_layers="default",
    expert_order="default",
    etp="default",
    placement="default",
    axes="default",
    offload="default",
    sync_every="default",
    outer_optimizer="default",
)


def searched(source: SpaceSource) -> Searched:
    """The space that a name, a YAML file or its content describes. Raises `SpaceError` for anything
    else, which programs may hand in."""
    return _searched(source)


def _searched(given: object) -> Searched:
    if isinstance(given, Mapping):
        return _from_content(cast("Mapping[str, Any]", given), UNNAMED)
    if not isinstance(given, (str, Path)):
        raise SpaceError(
            f"the space is {shown(given)}; expected {', '.join(SPACES.names())}, a YAML file or "
            "what such a file says"
        )
    if given in SPACES:
        return SPACES.get(str(given))
    path = user_path(given)
    if path.suffix.lower() in (".yaml", ".yml") or len(path.parts) > 1 or is_file(path):
        return _from_content(_read(path), str(given), path.parent)
    raise UnknownNameError("space", str(given), [*SPACES.names(), "FILE.yaml"])


def _read(path: Path) -> Mapping[str, Any]:
    content = read_yaml(path, SpaceError)
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise SpaceError(
            f"{path}: a {type(content).__name__}; expected dimensions with their values, "
            "such as tp: [1, 2, 4]"
        )
    return cast("Mapping[str, Any]", content)


def _from_content(content: Mapping[str, Any], where: str, folder: Path | None = None) -> Searched:
    """The space that `content` describes; files that it names lie in `folder`, if there is one, or
    where we work."""
    base = content.get("extends", "small")
    if not isinstance(base, str):
        raise SpaceError(f"{where}: extends is {shown(base)}; expected {', '.join(SPACES.names())}")
    values = dict(SPACES.get(base).values)
    for name, given in content.items():
        if name == "extends":
            continue
        if name not in (*DEFAULTS, MICROBATCH_SIZE):
            known = [*DEFAULTS, MICROBATCH_SIZE, "extends"]
            raise SpaceError(f"{where}: {UnknownNameError('dimension', str(name), known)}")
        values[name] = _allowed(name, given, where, folder)
    if {"microbatches", MICROBATCH_SIZE} <= content.keys():
        raise SpaceError(
            f"{where}: microbatches and {MICROBATCH_SIZE} are both stated; expected one of them, "
            "since the other follows from the batch and dp"
        )
    of_a_file = folder is not None
    listed = (name for name in content if of_a_file and isinstance(values.get(name), tuple))
    return Searched(where, values, tuple(listed))


def _allowed(name: str, given: object, where: str, folder: Path | None) -> Allowed:
    if name == MICROBATCH_SIZE and given in ("default", "long"):
        raise SpaceError(f"{where}: {name} is {given}; expected sizes in samples, or `all`")
    if given in ("all", "default", "long"):
        return given
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    values = tuple(cast("Sequence[object]", given if listed else (given,)))
    if not values:
        raise SpaceError(f"{where}: {name} has no values; expected at least one, or `all`")
    try:
        return tuple(dict.fromkeys(_checked(name, value, folder) for value in values))
    except DistirError as error:
        raise SpaceError(f"{where}: {error}") from error


def _checked(name: str, value: object, folder: Path | None = None) -> Value:
    """`value` in the form that strategies have it; a schedule's file is looked for in `folder`
    first."""
    if name == "axes":
        return format_lists({GENERATED_FOR: GENERATED} if value == "auto" else parse_lists(value))
    if name == MICROBATCH_SIZE:
        return checked_microbatch_size(value)
    wanted = type(DEFAULTS[name])
    if type(value) is not wanted:
        kinds = {int: "a whole number", str: "a name", bool: "true or false"}
        raise SpaceError(f"{name} is {shown(value)}; expected {kinds[wanted]}")
    if name == "schedule":
        from distir.schedules import find_schedule

        return find_schedule(str(value), folder).name
    if name == "recompute" and (reason := recomputation_is_known(str(value))):
        raise SpaceError(reason)
    return getattr(Strategy.from_dict({name: value}), name)


@cache
def recomputations() -> tuple[str, ...]:
    """Every way to recompute that is searched, the least first."""
    from distir.transforms.recompute import RECOMPUTE

    order = ("none", "selective", "full")
    # How far a checkpointed layer is run again, and what is selected, is the software's choice.
    names = [name for name in RECOMPUTE.names() if name not in ("needed", "alternate")]
    return tuple(sorted(names, key=lambda n: order.index(n) if n in order else 9))
