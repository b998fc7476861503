"""A target: a framework, as data. What others add is one file that makes one and registers it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotune.launch.facts import MODEL, STRATEGY_FACTS, Facts, Launch
from autotune.launch.limits import Changes, Limit, usual
from autotune.launch.rows import Options, Table
from distir.limits import MOST_NAME_CHARACTERS
from distir.registry import LAST, Registry, provide
from distir.rules import Value

if TYPE_CHECKING:
    from autotune.launch.sources import Source
    from distir.rules import Rule, WorkloadFacts

TARGET_GROUP = "autotune.targets"
"""Entry-point group of targets."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know, and why: an option or a subject, and a reason in a sentence."""

    what: str
    reason: str
    value: Any = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"what": self.what, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Files:
    """What is written for a launch: the one command that starts it on a node, and files by their
    path in a folder."""

    command: str
    files: Mapping[str, str]


def _nothing(facts: Facts) -> Iterable[Note]:
    return ()


def _nothing_read(options: Options, facts: Facts) -> Iterable[Note]:
    return ()


def _as_is(facts: Facts) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """A framework: how facts are spelled in its options, what it cannot state, what its files look
    like.

    What the rows of `table` do not mention of a strategy cannot be stated and is refused.
    """

    name: str
    version: str
    """The release whose options these are."""
    summary: str
    """What lists show, in one line."""
    stack: str
    """The software stack that runs as the framework does."""
    table: Table
    limits: Sequence[Limit] = ()
    """What the framework cannot state of what the table has options for."""
    write: Callable[[Launch, Options], Files]
    """The command and the files for a launch and its options. A pure function."""
    read: Callable[[Source], Options | None]
    """The options in what a user has, or None if it is not for this framework."""
    approximated: Callable[[Facts], Iterable[Note]] = _nothing
    """What the framework does otherwise than it was simulated."""
    as_run: Callable[[Facts], Mapping[str, Any]] = _as_is
    """What a problem must state (fields of `ProblemStatement`) to be simulated as the framework
    runs it, beside its software stack."""
    as_run_strategy: Callable[[Facts], Changes] = _as_is
    """Fields of the strategy that name what the framework does more closely than files do."""
    states_cuts: bool = False
    """Whether files say where the stages of a pipeline begin."""
    fuses_qkv: bool | None = None
    """Whether one product makes queries, keys and values where there are as many of each; None: as
    the model has it."""
    overlaps_pairs: bool = False
    """Whether the two passes of an overlapped pair of a schedule run side by side."""
    usual: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What a problem states if nobody says otherwise (fields of `ProblemStatement`), where it is
    searched for this framework."""
    platforms: Sequence[str] = ("cuda", "rocm")
    """Platforms of the devices on which what is written runs (`PLATFORMS` of `distir.cost.device`).
    """
    searches: Mapping[str, Sequence[Value]] = field(default_factory=dict[str, Sequence[Value]])
    """Values that are searched of fields where the framework's are not the usual ones."""
    own: Sequence[str] = ()
    """Fields whose values in `searches` are searched even where a space leaves the field at its
    default, since the framework's default is another one."""
    missing: Callable[[Facts], Iterable[Note]] = _nothing
    """What a user has to add: data, tokenizer, …"""
    is_neutral: Callable[[str], bool] = lambda option: False
    """Whether an option bears neither on time nor on memory."""
    not_modelled: Callable[[str], str | None] = lambda option: None
    """Why an option that bears on time or memory is not simulated; None for an unknown one."""
    removed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Options at which the framework stops, as it has them no more, and what to state instead."""
    known: Collection[str] = ()
    """Names of options that no row mentions and that are known, of which near ones are named where
    a file has another; `section.*` stands for whatever a section has."""
    assumed: Callable[[Options, Facts], Iterable[Note]] = _nothing_read
    """What options that are read mean otherwise than it is simulated, given the facts."""
    dry_run: str = ""
    """How the framework itself tries a configuration without training; a sentence, or nothing."""
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other spellings of options."""

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    @cached_property
    def all_limits(self) -> tuple[Limit, ...]:
        """The limits, and after them those of fields that no row mentions and no limit of the
        target's own is about."""
        unsaid = [name for name in STRATEGY_FACTS if name not in self.table.facts]
        own = {each.name for each in self.limits}
        others = (each for each in usual(unsaid, self.name) if each.name not in own)
        return (*self.limits, *others)

    def near(self, option: str) -> str:
        """A known option that is near to one; nothing if there is none."""
        names = [*self.table.options, *(name for name in self.known if name[-1] != "*")]
        found = get_close_matches(option[:MOST_NAME_CHARACTERS], names, n=1, cutoff=0.8)
        return found[0] if found else ""

    def is_empty_section(self, option: str, given: Any) -> bool:
        """Whether this is a section of known options with nothing in it."""
        names = (*self.table.options, *self.known)
        return given in (None, {}) and any(name.startswith(f"{option}.") for name in names)

    def rules(self, workload: WorkloadFacts) -> tuple[Rule, ...]:
        """The limits as rules for a workload, which prune a space to what can be stated."""
        return tuple(each.rule.of(workload) for each in self.all_limits)

    @property
    def states(self) -> tuple[str, ...]:
        """The fields of a strategy that can be stated, as far as the limits allow."""
        return tuple(name for name in STRATEGY_FACTS if name in self.table.facts)

    @property
    def states_model(self) -> bool:
        """Whether sizes of a model are options."""
        return f"{MODEL}hidden" in self.table.facts


TARGETS: Registry[Target] = Registry("target", group=TARGET_GROUP)
"""Frameworks by name: those of `autotune.launch.targets`, and those of installed packages."""

provide(TARGET_GROUP, "autotune.launch.targets")


def add_target(target: Target, order: int = LAST) -> Target:
    """Registers a target under its name."""
    return TARGETS.add(target.name, target, target.summary, order)


__all__ = [
    "TARGETS",
    "TARGET_GROUP",
    "Files",
    "Note",
    "Target",
    "add_target",
]
