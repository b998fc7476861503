"""Tables between facts and options, read in both directions.

A row says how some facts are spelled in some options. The same rows write the options of a launch
and read those of a file, so what is written is read back; `tests/launch` holds them to it.

    value("tp", "--tensor-model-parallel-size")                      a number or a word as it is
    words("cp_exchange", "--cp-comm-type", {"ring": "p2p"}, …)       words that are called otherwise
    flag("sequence_parallel", "--sequence-parallel")                 there, or not
    row(facts, options, write, read)                                 anything else
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from autotune.launch.errors import LaunchError, UnstatedError
from autotune.launch.facts import MODEL, Facts
from distir.errors import shown as brief

Options: TypeAlias = Mapping[str, Any]
"""What a file states: options by their names. The value of a flag is True; a value that comes from
a command line is a text, or a list of texts where several words follow an option."""

ABSENT: Any = object()
"""The default of an option that has none: one that is always written, and asked for if a file lacks
it."""


@dataclass(frozen=True, slots=True)
class Row:
    """How some facts are spelled in some options."""

    facts: tuple[str, ...]
    options: tuple[str, ...]
    """What the row writes and reads; the first is shown as what states the facts."""
    write: Callable[[Facts], Options]
    """The options for these facts; it may read any fact."""
    read: Callable[[Options, Facts], Facts]
    """The facts for these options, given those of the rows above."""
    unsaid: str = ""
    """What is shown where no option is written; by default that the first is at its default."""

    @property
    def of_model(self) -> bool:
        """Whether it is about a model alone."""
        return bool(self.facts) and all(name.startswith(MODEL) for name in self.facts)


row = Row


def value(
    fact: str,
    option: str,
    default: Any = ABSENT,
    *,
    kind: type[Any] = int,
    always: bool = False,
    aliases: tuple[str, ...] = (),
    least: int | None = None,
) -> Row:
    """A row for a number or word that is spelled as it is. It is not written where it is the
    framework's `default`, unless `always`. `aliases` are other names that files may use, and
    `least` is the smallest number that is one."""

    def write(facts: Facts) -> Options:
        if facts[fact] == default and not always:
            return {}
        return {option: facts[fact]}

    def read(options: Options, facts: Facts) -> Facts:
        for name in (option, *aliases):
            if name in options:
                return {fact: typed(kind, name, options[name], least)}
        if default is ABSENT:
            if fact in facts:
                return {}
            raise missing(option)
        return {fact: default}

    return Row((fact,), (option, *aliases), write, read)


def words(
    fact: str,
    option: str,
    spelled: Mapping[Any, Any],
    default: Any = ABSENT,
    *,
    always: bool = False,
) -> Row:
    """A row for a choice whose values are called otherwise: `spelled` gives our word theirs."""
    ours = {str(theirs).lower(): word for word, theirs in spelled.items()}

    def write(facts: Facts) -> Options:
        if facts[fact] == default and not always:
            return {}
        if facts[fact] not in spelled:
            known = ", ".join(map(str, spelled))
            raise LaunchError(
                f"{fact} = {facts[fact]} cannot be stated by {option}; expected {known}"
            )
        return {option: spelled[facts[fact]]}

    def read(options: Options, facts: Facts) -> Facts:
        if option not in options:
            if default is ABSENT:
                raise missing(option)
            return {fact: default}
        word = as_word(options[option])
        if word not in ours:
            known = ", ".join(str(each) for each in spelled.values())
            raise LaunchError(f"{option} is {shown(options[option])}; expected {known}")
        return {fact: ours[word]}

    return Row((fact,), (option,), write, read)


def flag(fact: str, option: str, *, when: Any = True, otherwise: Any = False) -> Row:
    """A row for an option that is there when the fact is `when`, and not there otherwise."""

    def write(facts: Facts) -> Options:
        return {option: True} if facts[fact] == when else {}

    def read(options: Options, facts: Facts) -> Facts:
        return {fact: when if truth(option, options.get(option, False)) else otherwise}

    return Row((fact,), (option,), write, read)


def switch(fact: str, option: str, *, default: bool = False) -> Row:
    """A row for an option that is true or false, and always written."""

    def read(options: Options, facts: Facts) -> Facts:
        return {fact: truth(option, options.get(option, default))}

    return Row((fact,), (option,), lambda facts: {option: bool(facts[fact])}, read)


def fixed(option: str, stated: Any) -> Row:
    """A row for an option that is always written and says nothing of a strategy."""
    return Row((), (option,), lambda facts: {option: stated}, lambda options, facts: {})


def missing(option: str) -> LaunchError:
    """The error for an option that is needed and not stated."""
    return UnstatedError(f"{option} is not stated; state it with --set {option.lstrip('-')}=VALUE")


def typed(kind: type[Any], option: str, given: Any, least: int | None = None) -> Any:
    """An option's value as a number or word; raises `LaunchError` if it is none, or a number below
    the `least`."""
    found = _typed(kind, option, given)
    if least is not None and found < least:
        raise LaunchError(f"{option} is {shown(found)}; expected a number of at least {least}")
    return found


def _typed(kind: type[Any], option: str, given: Any) -> Any:
    expected = {int: "a whole number", float: "a number", str: "a word"}
    _check_said(option, given)
    if kind is str and isinstance(given, str):
        return given
    if kind is not str and not isinstance(given, bool):
        try:
            number = float(given)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if kind is float and abs(number) < float("inf"):
            return number
        if abs(number) < 1 << 62 and number == int(number):
            return int(number)
    raise LaunchError(f"{option} is {shown(given)}; expected {expected[kind]}")


def truth(option: str, given: Any) -> bool:
    """The value of a flag: True, or a word for true or false."""
    if isinstance(given, bool):
        return given
    if str(given).lower() in ("true", "1", "yes"):
        return True
    if str(given).lower() in ("false", "0", "no", "none", "null"):
        return False
    _check_said(option, given)
    raise LaunchError(f"{option} is {shown(given)}; expected true or false")


def at_most_one(framework: str, options: Options, names: Iterable[str]) -> None:
    """Raises `LaunchError` if several of these options are stated, of which a framework takes
    one."""
    stated = [name for name in names if options.get(name) not in (None, False, "false", "False")]
    if len(stated) > 1:
        raise LaunchError(
            f"{' and '.join(stated)} contradict each other, and {framework} refuses them together; "
            "leave out all but one"
        )


AUTO = "auto"
"""What stands for a value that the program that reads a file puts in."""


def _check_said(option: str, given: Any) -> None:
    """Raises `LaunchError` if a value is left open."""
    if isinstance(given, str) and "$" in given:
        raise unset(option, given)
    if given == AUTO:
        name = option.lstrip("-")
        raise LaunchError(
            f"{option} is {AUTO!r}, which leaves the value to the program; state it with --set "
            f"{name}=VALUE"
        )


_WORKED_OUT = re.compile(r"\$\(|\$\{(?:[#!]|\w+(?:[#%/^,]|:[^-=?+]))")
"""What a command prints, or what is made of a variable's value: `${#GPUS[@]}`, `${NAME%.*}`."""


def unset(option: str, given: str) -> LaunchError:
    """The error for a value that has a variable without a value, or that a command would print."""
    if _WORKED_OUT.search(given):
        return LaunchError(
            f"{option} is {shown(given)}, which is not executed; state it with --set "
            f"{option.rpartition(' ')[2].lstrip('-')}=VALUE"
        )
    name = given.partition("$")[2].strip("{}").split(":")[0].split("}")[0] or "NAME"
    return LaunchError(
        f"{option} is {shown(given)}, which has no value here; state it with --set {name}=VALUE"
    )


def as_word(given: Any) -> str:
    """A value as a word in lower case; of an endless number, how long it is."""
    return (given if isinstance(given, str) else brief(given)).lower()


def shown(given: Any) -> str:
    """A value in a message, cut short."""
    text = brief(given)
    return text if len(text) <= 60 else f"{text[:57]}…"


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of a framework, in the order in which they are read."""

    rows: tuple[Row, ...]

    @property
    def facts(self) -> frozenset[str]:
        """Every fact that some option states."""
        return frozenset(fact for each in self.rows for fact in each.facts)

    @property
    def options(self) -> frozenset[str]:
        """Every option that is written or read."""
        return frozenset(option for each in self.rows for option in each.options)

    def write(self, facts: Facts) -> dict[str, Any]:
        """The options that state the facts. Rows about facts that are not there, as of a model that
        is no transformer, are left out."""
        written: dict[str, Any] = {}
        for each in self._stated(facts):
            written.update(each.write(facts))
        return written

    def stated(self, facts: Facts) -> dict[str, str]:
        """By fact the options that state it, as they are written; `default` after the name of an
        option that need not be written."""
        said: dict[str, str] = {}
        for each in self._stated(facts):
            written = each.write(facts)
            text = " ".join(spelled(name, given) for name, given in written.items())
            for fact in each.facts:
                said[fact] = text or each.unsaid or f"{each.options[0]} (default)"
        return said

    def read(
        self, options: Options, known: Facts, *, without_model: bool = False
    ) -> dict[str, Any]:
        """The facts that options state, beside what is `known` already, which rows may read and
        which stays as it is. `without_model`: what options state of a model is not read."""
        facts = dict(known)
        for each in self.rows:
            if not (without_model and each.of_model):
                facts |= {n: v for n, v in each.read(options, facts).items() if n not in known}
        return facts

    def read_model(self, options: Options) -> dict[str, Any]:
        """The facts of a model, if options state a whole one; else nothing. Raises `LaunchError`
        for one that cannot be read."""
        facts: dict[str, Any] = {}
        try:
            for each in self.rows:
                if each.of_model:
                    facts |= each.read(options, facts)
        except UnstatedError:
            return {}
        return facts

    def _stated(self, facts: Facts) -> Iterable[Row]:
        return (each for each in self.rows if all(name in facts for name in each.facts))


def spelled(option: str, given: Any) -> str:
    """An option with its value, as people write it."""
    if given is True and option.startswith("-"):
        return option
    if isinstance(given, (list, tuple)):
        return " ".join([option, *map(str, given)])  # type: ignore[arg-type]
    if isinstance(given, bool):
        return f"{option} {str(given).lower()}"
    return f"{option} {given}"
