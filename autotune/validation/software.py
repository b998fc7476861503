"""The software that a row was measured with, and what it does where the row does not say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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
    is_general: bool = False
    """Whether rows get it that say nothing of their software."""
    is_known: bool = True
    """Whether rows say with it which software it was; of some software they must say the year."""

    def fits(self, row: MeasuredRow) -> bool:
        """Whether the row says nothing against this software."""
        return all(pattern.search(row.text(column)) for column, pattern in self.where.items())


@dataclass(frozen=True, slots=True)
class StatedFact:
    """A fact about the stack that rows state in words."""

    name: str
    value: Any
    pattern: re.Pattern[str]
    because: str
    where: Mapping[str, re.Pattern[str]]
    """By column: a pattern that has to be found as well."""

    def holds(self, row: MeasuredRow, said: str) -> bool:
        """Whether the row, which says all this in words, states the fact."""
        others = all(own.search(row.text(column)) for column, own in self.where.items())
        return others and self.pattern.search(said) is not None


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
    """What the row says about its stack, one entry for each fact: the first pattern found."""
    said, found = row.words(_SAYS), dict[str, StatedFact]()
    for fact in _facts():
        if fact.name not in found and fact.holds(row, said):
            found[fact.name] = fact
    return list(found.values())


def values_of(row: MeasuredRow) -> dict[str, StatedValue]:
    """What the row says in words where a column is blank, by name: the first pattern found."""
    said, found = row.words(_SAYS), dict[str, StatedValue]()
    for pattern, name, value, because in _values():
        told = pattern.search(said)
        if told is not None:
            stated = float(told["number"]) if value is None else value
            found.setdefault(name, StatedValue(name, stated, because))
    return found


@lru_cache(maxsize=1)
def _values() -> list[tuple[re.Pattern[str], str, Any, str]]:
    return [
        (
            re.compile(entry["pattern"], re.IGNORECASE),
            entry["name"],
            entry.get("value"),
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
