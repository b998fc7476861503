"""From files of a framework to a model, a workload and a strategy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.launch.errors import LaunchError
from autotune.launch.facts import (
    MODEL,
    SIZES,
    WORKLOAD_FACTS,
    Cuts,
    Facts,
    facts_given,
    model_facts,
    model_of,
    strategy_of,
)
from autotune.launch.nodes import stated_size
from autotune.launch.rows import Options, shown, unset
from autotune.launch.sources import LAUNCHER, Source, devices_of, program_of, read_source
from autotune.launch.target import TARGETS, Note, Target
from distir.files import is_file
from distir.models.transformer import TransformerConfig
from distir.strategy import Strategy

if TYPE_CHECKING:
    from distir.models.zoo import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What a user says beside a file, of what the file leaves open."""

    target: str | None = None
    devices: int | None = None
    batch_size: int | None = None
    sequence_length: int | None = None
    model: str | None = None
    """A name or file of a model, for files that do not describe it."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of variables and of options, by name."""
    ignored: tuple[str, ...] = ()
    """Options that are not understood, and do not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a file states."""

    path: Path
    target: Target
    options: Options
    facts: Facts
    strategy: Strategy
    model: str
    """The name of the model: the zoo's, if it is one of the zoo."""
    source: Any
    """What loads the model: a name, a file, or a configuration."""
    dropout: bool
    not_modelled: tuple[Note, ...]

    @property
    def per_node(self) -> int | None:
        """The devices of every node, where the file says so."""
        nodes, each = self.options.get("--nnodes", 1), self.options.get("--nproc-per-node")
        return stated_size(nodes, each, self.facts["devices"])

    @property
    def cuts(self) -> Cuts | None:
        """The layers of every stage, where the file says so."""
        return self.facts.get("cuts")

    @property
    def statement(self) -> dict[str, Any]:
        """The fields of a `ProblemStatement`, without cluster and space."""
        found = {name: self.facts[name] for name in WORKLOAD_FACTS if name in self.facts}
        stated = {"model": self.source, "devices": self.facts["devices"], **found}
        return stated if self.dropout else {**stated, "dropout": False}


def read_launch(path: str | Path, stated: Stated) -> Reading:
    """Reads a script, a command line or a file of options.

    Raises `LaunchError` if it cannot be read, has an option that is not understood, or leaves
    something open that `stated` does not say either.
    """
    source = read_source(Path(path), dict(stated.settings))
    target, options = recognised(source, stated.target)
    options = {target.aliases.get(name, name): given for name, given in options.items()}
    settings = _settings(source, target, stated.settings)
    replaced = tuple(_replaced(options, settings))
    options = {**options, **settings}
    _check_set(source, target, options)
    noted = (*_unread(source), *replaced, *_not_modelled(source, target, options, stated.ignored))
    known = _known(source, options, stated)
    facts = _facts(target, options, known)
    strategy = strategy_of(facts)
    name, loaded, dropout = _model(source, target, facts, stated)
    return Reading(
        path=source.path,
        target=target,
        options=options,
        facts=facts,
        strategy=strategy,
        model=name,
        source=loaded,
        dropout=dropout,
        not_modelled=(
            *noted,
            *_other_model(target, options, facts),
            *target.assumed(options, facts),
        ),
    )


def recognised(source: Source, name: str | None) -> tuple[Target, Options]:
    """The framework that a file is for, and its options. Raises `LaunchError` if it is for none, or
    a script launches several."""
    targets = [TARGETS.get(name)] if name else [entry.value for entry in TARGETS]
    if name is None and (other := _unsupported(source)) is not None:
        known = ", ".join(each.name for each in targets)
        raise LaunchError(
            f"{source.path}: this is a file of {other}, which cannot be read; expected one of "
            f"{known}"
        )
    for target in targets:
        commands: list[Sequence[str]] = []
        options = target.read(replace(source, is_neutral=target.is_neutral, told=commands.append))
        if options is not None:
            others = (each for each in targets if each is not target)
            _check_alone(source, target, commands, others if source.is_script else ())
            return target, options
    if source.is_script and (word := source.open_launch) is not None:
        raise LaunchError(
            f"{source.path}: {shown(word)} may be the launch, but its value is known only at run "
            f"time; state it by --set {word.strip('${}')}='…'"
        )
    known = ", ".join(each.name for each in targets)
    raise LaunchError(
        f"{source.path}: it has no options of {known}; expected a launch script, its "
        "command line, or a file of options"
    )


UNSUPPORTED: Mapping[str, Collection[str]] = {
    "GPT-NeoX": ("pipe_parallel_size", "model_parallel_size"),
    "axolotl": ("base_model",),
}
"""Frameworks that are not read and whose files have sections of those that are, by keys of theirs,
which no framework that is read has."""


def _unsupported(source: Source) -> str | None:
    """The framework that is not read and that a file of options is for, if it is for one."""
    keys = {str(key).replace("-", "_") for key in source.table or ()}
    return next((n for n, own in UNSUPPORTED.items() if not keys.isdisjoint(own)), None)


def _check_alone(
    source: Source, target: Target, read: Sequence[Sequence[str]], others: Iterable[Target]
) -> None:
    """Raises `LaunchError` if another command of a script launches another framework."""
    found = {target.name: read}
    for other in others:
        commands: list[Sequence[str]] = []
        try:
            options = other.read(replace(source, is_neutral=other.is_neutral, told=commands.append))
        except LaunchError:  # it has a launch, which cannot be read
            options = {}
        if options is not None and commands != read:
            found[other.name] = commands
    if len(found) > 1:
        told = (
            f"{name} ({program_of(commands[-1])})" if commands else name
            for name, commands in found.items()
        )
        raise LaunchError(
            f"{source.path}: it launches several frameworks, {', '.join(told)}; state the one to "
            f"read with --target, such as --target {list(found)[-1]}, or put its command into a "
            "file "
            "of its own"
        )


def _settings(source: Source, target: Target, settings: Mapping[str, str]) -> dict[str, Any]:
    """The options among what a user states by name, with or without dashes. Raises `LaunchError`
    for a name that is neither an option nor a variable."""
    found: dict[str, Any] = {}
    for name, given in settings.items():
        options = [each for each in (name, f"--{name}") if each in target.table.options]
        found |= dict.fromkeys(options, given)
        if not options and not source.names(name):
            raise LaunchError(
                f"--set {name}: {source.path} has no such variable, and {target.label} has no such "
                "option that is understood here"
            )
    return found


def _unread(source: Source) -> Iterable[Note]:
    """Notes on files that a script reads in and that are not there: they may set variables."""
    for name in source.script.unread if source.is_script else ():
        yield Note(
            "source", "this file is not beside the script, so what it sets is not read", name
        )


def _replaced(options: Options, settings: Options) -> Iterable[Note]:
    """Notes on what commands would print where a user states a value: there may be more to it."""
    for name in settings:
        given = options.get(name)
        if isinstance(given, str) and given.startswith("$("):
            yield Note(name, "the stated value is taken as all that it prints", given)


def _known(source: Source, options: Options, stated: Stated) -> dict[str, Any]:
    """What is known before the table is read: what a user states, and the devices."""
    devices = stated.devices or devices_of(options)
    if devices is None:
        raise LaunchError(
            f"{source.path}: it does not state the number of devices; state it with --devices"
        )
    given = {
        "devices": devices,
        "batch_size": stated.batch_size,
        "sequence_length": stated.sequence_length,
        "model_given": stated.model,
    }
    return {name: value for name, value in given.items() if value is not None}


def _check_set(source: Source, target: Target, options: Options) -> None:
    """Raises `LaunchError` if the value of an option that counts is a variable without a value.
    Paths of files do not count."""
    for name, given in options.items():
        if name not in target.table.options or name.endswith("-file"):
            continue
        values: list[object] = list(given) if isinstance(given, (list, tuple)) else [given]  # type: ignore[arg-type]
        for value in values:
            if isinstance(value, str) and value.startswith("$"):
                raise unset(f"{source.path}: {name}", value)


def _not_modelled(
    source: Source, target: Target, options: Options, ignored: Collection[str]
) -> Iterable[Note]:
    """Notes on options that bear on time and are not simulated, and on those that are `ignored`.
    Raises `LaunchError` for others that are not known, or that the framework has no more."""
    _check_ignored(source, target, options, ignored)
    others = {n: g for n, g in options.items() if n in ignored or not _is_read(target, n, g)}
    unknown: list[str] = []
    for name, given in others.items():
        reason = "ignored, as requested" if name in ignored else target.not_modelled(name)
        if name in target.removed and name not in ignored:
            raise LaunchError(
                f"{source.path}: {target.label} refuses {name}, which was removed; state "
                f"{target.removed[name]} instead of it, or with --set together with --ignore={name}"
            )
        if reason is None:
            unknown.append(name)
        elif given not in (False, None) and str(given).lower() not in ("false", "no"):
            yield Note(name, reason, given)
    if unknown:
        raise LaunchError(f"{source.path}: {_unknown(target, unknown)}")


def _is_read(target: Target, name: str, given: Any) -> bool:
    """Whether nothing is to be told of an option."""
    return name in LAUNCHER or _is_understood(target, name) or target.is_empty_section(name, given)


def _is_understood(target: Target, name: str) -> bool:
    """Whether an option is read, or bears neither on time nor on memory."""
    neutral = target.is_neutral(name) and name not in target.removed
    return neutral or name in target.table.options


def _check_ignored(
    source: Source, target: Target, options: Options, ignored: Collection[str]
) -> None:
    """Raises `LaunchError` for a name that is to be ignored and is not there, or is understood."""
    known = {name for name in options if _is_understood(target, name)}
    for name in ignored:
        if name not in options or name in known:
            fault = "is understood" if name in known else f"is not in {source.path}"
            raise LaunchError(
                f"--ignore {name}: the option {fault}; expected one that is not understood"
            )


MOST_UNKNOWN = 20
"""Options that are not understood and that a message names."""


def _unknown(target: Target, names: Sequence[str]) -> str:
    """That some options are not understood, with what is near to them and how to leave them out."""
    told = names[:MOST_UNKNOWN]
    alone = len(names) == 1
    are, that = ("is not an option", "is") if alone else ("are not options", "are")
    more = f" and {len(names) - len(told)} more" if len(names) > len(told) else ""
    near = [(name, target.near(name)) for name in told]
    meant = [there if alone else f"{there} for {name}" for name, there in near if there]
    hint = f"; did you mean {', '.join(meant)}?" if meant else ""
    ignored = " ".join(f"--ignore={name}" for name in told)
    return (
        f"{', '.join(told)}{more} {are} of {target.label} that {that} understood here{hint}; if "
        f"{'it does' if alone else 'they do'} not affect time or memory, add {ignored}"
    )


def _facts(target: Target, options: Options, known: Facts) -> dict[str, Any]:
    """What options state, beside what is known. Of a model that is given they need not say
    anything: it may be one that they cannot state."""
    given = facts_given(known["model_given"]) if "model_given" in known else {}
    if not target.states_model:
        given = {name: each for name, each in given.items() if name == f"{MODEL}layers"}
    own = target.states_model and "model_given" in known
    return target.table.read(options, {**given, **known}, without_model=own)


def _other_model(target: Target, options: Options, facts: Facts) -> Iterable[Note]:
    """Notes on sizes of a file's model that are others than those of the one that is given."""
    if "model_given" not in facts:
        return
    stated = target.table.read_model(options)
    if f"{MODEL}layers" not in facts:
        return  # nobody knows its sizes
    for name in (f"{MODEL}{size}" for size in SIZES):
        if name in stated and stated[name] != facts.get(name):
            row = next(each for each in target.table.rows if name in each.facts)
            reason = f"--model has {facts.get(name, 'none')}, which is simulated"
            yield Note(row.options[0], reason, stated[name])


# --- the model ------------------------------------------------------------------------------------


def _model(source: Source, target: Target, facts: Facts, stated: Stated) -> tuple[str, Any, bool]:
    """The name of the model, what loads it, and whether it drops what it says."""
    if stated.model is not None:
        return stated.model, stated.model, facts.get("dropout", True)
    if "model_source" in facts:
        return facts["model_source"], facts["model_source"], facts.get("dropout", True)
    if MODEL + "layers" not in facts:
        beside = source.path.parent / "config.json"
        if is_file(beside) and beside != source.path:
            return str(beside), str(beside), True
        raise LaunchError(
            f"{source.path}: it does not state the model, and there is no config.json beside it; "
            "state it with --model"
        )
    config = model_of(facts, source.path.stem)
    for found in _zoo():
        for dropout in (True, False):
            known = found if dropout else _without_dropout(found)
            if _same(target, facts, known):
                return found.name, found.name, dropout or not found.dropout
    return config.name, config, True


def _zoo() -> Iterable[TransformerConfig]:
    from distir.models.zoo import ZOO

    configs: list[ModelConfig] = [entry.value for entry in ZOO]
    return (each for each in configs if isinstance(each, TransformerConfig))


def _same(target: Target, facts: Facts, config: TransformerConfig) -> bool:
    """Whether a known model would be launched with the same options. The table of positions counts
    where positions are learned."""
    own = model_facts(config)
    if any(facts.get(f"{MODEL}{name}") != own[f"{MODEL}{name}"] for name in ("layers", "hidden")):
        return False
    if not config.learned_positions:
        own[f"{MODEL}positions"] = facts.get(f"{MODEL}positions")
    said = {name: value for name, value in facts.items() if not name.startswith(MODEL)}
    try:
        return target.table.write({**said, **own}) == target.table.write(facts)
    except LaunchError:
        return False  # the framework has no such model


def _without_dropout(config: TransformerConfig) -> TransformerConfig:
    return replace(config, dropout=0.0, attention_dropout=0.0, inner_dropout=0.0)


__all__ = ["Reading", "Stated", "read_launch", "recognised", "shown"]
