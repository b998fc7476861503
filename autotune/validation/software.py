"""The software that a row was measured with, and what it does where the row does not say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from autotune.validation.hardware import hardware_words
from autotune.validation.rows import MeasuredRow, UnusableRowError
from autotune.validation.words import read_data

__all__ = [
    "Completion",
    "Software",
    "StatedFact",
    "StatedValue",
    "facts_of",
    "known_software",
    "software_of",
    "unknown_software",
    "values_of",
]

_SAYS = (
    "source",
    "source_group",
    "software",
    "release",
    "date",
    "notes",
    "zero_stage",
    "schedule",
    "precision",
    "token_dispatcher",
)
"""Columns that tell the software, and what it does."""


@dataclass(frozen=True, slots=True)
class Software:
    """What rows were measured with: a release of some training software, the stack it is costed
    with, and what it does where a row does not say, with reasons."""

    name: str
    stack: str
    assumes: dict[str, Any]
    because: dict[str, str]
    where: Mapping[str, re.Pattern[str]]
    """By column: a pattern that is found in rows of this software."""
    does: Mapping[str, Any]
    """Fields of the stack that are otherwise with this software, unless a row says so."""
    is_general: bool = False
    """Whether rows get it that say nothing of their software."""
    is_known: bool = True
    """Whether rows say with it which software it was; of some software they must say the year."""

    def fits(self, row: MeasuredRow) -> bool:
        """Whether the row says nothing against this software."""
        return _found_in_columns(row, self.where)


@dataclass(frozen=True, slots=True)
class StatedFact:
    """A fact about the stack that rows state in words."""

    name: str
    value: Any
    denied: Any
    """The value where the row denies what the pattern finds: "nothing" if that states nothing, None
    if it is not looked at whether it does."""
    pattern: re.Pattern[str]
    because: str
    where: Mapping[str, re.Pattern[str]]
    """By column: a pattern that has to be found as well."""

    def stated_by(self, row: MeasuredRow, said: str) -> StatedFact | None:
        """The fact as the row states it, which says all this in words; None if it does not."""
        if not _found_in_columns(row, self.where):
            return None
        mentions = list(self.pattern.finditer(said))
        if not mentions:
            return None
        if self.denied is None or not all(is_denied(said, found) for found in mentions):
            return self
        return None if self.denied == NOTHING else replace(self, value=self.denied)


def _found_in_columns(row: MeasuredRow, where: Mapping[str, re.Pattern[str]]) -> bool:
    """Whether every pattern is found in its column. The hardware is also what a file is named."""
    said = {"hardware": hardware_words(row)} if "hardware" in where else {}
    return all(own.search(said.get(column, row.text(column))) for column, own in where.items())


NOTHING = "nothing"
_DENIED_BEFORE = re.compile(
    r"(?<![a-z])(?:no|not|non|never|without|w/o|disabl(?:e|ed|es|ing)|lacks?)[-_ ]+"
    r"(?:(?:the|any|use|uses|using|enabled?|of|with|ep|moe|expert|token|nvidia|cuda)[-_ ]+)*$"
)
_DENIED_AFTER = re.compile(
    r"[\w-]*[ '\"`\]]*(?:[=:]|is|are|was|were)?\s*['\"]?"
    r"(?:off|false|no|none|not|never|disabled|unused|0(?![.\d]))(?![a-z])"
)
_DENIED_WITHIN = re.compile(r"(?<![a-z])(?:not|no|never|without)(?![a-z])")


def is_denied(said: str, found: re.Match[str]) -> bool:
    """Whether a text, in lower case, denies what was found in it: without DeepEP, overlap: off, an
    exchange that is not hidden."""
    before, after = said[: found.start()], said[found.end() :]
    return (
        _DENIED_BEFORE.search(before) is not None
        or _DENIED_AFTER.match(after) is not None
        or _DENIED_WITHIN.search(found[0]) is not None
    )


@dataclass(frozen=True, slots=True)
class StatedValue:
    """A value for a blank that rows state in words."""

    name: str
    value: Any
    because: str


class Completion:
    """Fills blanks of one row with what its software does, and keeps a list of that."""

    def __init__(self, software: Software, told: Mapping[str, StatedValue] | None = None) -> None:
        self._software = software
        self._told = told or {}
        self.used: list[str] = []

    def value(self, name: str, stated: Any = None) -> Any:
        """What is stated, in a column or in words, or else assumed; raises `UnusableRowError` where
        neither is."""
        if stated is not None:
            return stated
        told = self._told.get(name)
        if told is not None:
            self.used.append(f"{name} = {told.value}: {told.because}")
            return told.value
        assumed = self._software.assumes.get(name)
        if assumed is None:
            raise UnusableRowError(f"{name} not stated")
        because = self._software.because.get(name, "")
        self.used.append(f"{name} = {assumed}" + (f": {because}" if because else ""))
        return assumed

    def note(self, assumption: str) -> None:
        """Adds an assumption that is not a default."""
        if assumption:
            self.used.append(assumption)


def software_of(row: MeasuredRow) -> Software:
    """The first entry whose patterns are all found in the row."""
    said = row.words(_SAYS)
    for software, pattern in _known():
        if pattern.search(said) and software.fits(row):
            return software
    raise AssertionError("the last entry of software.toml takes what is left")


def unknown_software(row: MeasuredRow) -> Software:
    """What is assumed of a row that does not say which software it was measured with."""
    return next(each for each in known_software() if each.is_general and each.fits(row))


def facts_of(row: MeasuredRow) -> list[StatedFact]:
    """What the row says about its stack, one entry for each fact: the first pattern found. A column
    for the dispatcher counts before words elsewhere."""
    found = dict[str, StatedFact]()
    dispatcher = f"dispatcher {row.words(('token_dispatcher',))}"
    for said in (dispatcher, row.words((*_SAYS, "schedule"))):
        for fact in _facts():
            stated = None if fact.name in found else fact.stated_by(row, said)
            if stated is not None:
                found[fact.name] = stated
    return list(found.values())


def values_of(row: MeasuredRow) -> dict[str, StatedValue]:
    """What the row says in words where a column is blank, by name: the first pattern found."""
    said, found = row.words(_SAYS), dict[str, StatedValue]()
    for entry in _values():
        told = entry.pattern.search(said)
        if told is not None:
            stated = _number_in(told) if entry.value is None else entry.value
            if entry.denied is not None and is_denied(said, told):
                stated = entry.denied
            found.setdefault(entry.name, StatedValue(entry.name, stated, entry.because))
    return found


class _Worded(NamedTuple):
    """How rows state a value in words."""

    pattern: re.Pattern[str]
    name: str
    value: Any
    """None: the number that the pattern names."""
    denied: Any
    """The value where the row denies what the pattern finds; None: it is not looked at whether it
    does."""
    because: str


def _number_in(told: re.Match[str]) -> float:
    """The number that one of a pattern's groups names."""
    number = float(next(text for text in told.groupdict().values() if text))
    return int(number) if number.is_integer() else number


@lru_cache(maxsize=1)
def _values() -> list[_Worded]:
    return [
        _Worded(
            re.compile(entry["pattern"], re.IGNORECASE),
            entry["name"],
            entry.get("value"),
            entry.get("denied"),
            entry["because"],
        )
        for entry in read_data("software.toml")["values"]
    ]


@lru_cache(maxsize=1)
def _facts() -> list[StatedFact]:
    return [
        StatedFact(
            entry["fact"],
            entry["value"],
            entry.get("denied"),
            re.compile(entry["pattern"], re.IGNORECASE),
            entry["because"],
            {
                column: re.compile(pattern, re.IGNORECASE)
                for column, pattern in entry.get("where", {}).items()
            },
        )
        for entry in read_data("software.toml")["facts"]
    ]


@lru_cache(maxsize=1)
def _known() -> list[tuple[Software, re.Pattern[str]]]:
    data = read_data("software.toml")
    general = data["general"]
    return [
        (
            Software(
                entry["name"],
                entry["stack"],
                {**general["assumes"], **entry.get("assumes", {})},
                {
                    **{
                        name: reason
                        for name, reason in general["because"].items()
                        if name not in entry.get("assumes", {})
                    },
                    **entry.get("because", {}),
                },
                {
                    column: re.compile(pattern, re.IGNORECASE)
                    for column, pattern in entry.get("where", {}).items()
                },
                entry.get("does", {}),
                not entry["pattern"],
                entry.get("tells_software", bool(entry["pattern"])),
            ),
            re.compile(entry["pattern"], re.IGNORECASE),
        )
        for entry in data["software"]
    ]


def known_software() -> list[Software]:
    """Every entry, in order."""
    return [software for software, _ in _known()]
