"""Strict reading of TOML tables: every value is read with its type, and unknown keys are errors.

All errors are `ClusterError`s that name the file and the key.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from distir.errors import ClusterError, checked_name, shown
from distir.files import read_parsed
from distir.units import Quantity, UnitError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["TomlTable", "read_toml", "toml_value"]


def read_toml(path: Path) -> TomlTable:
    """The top-level table of a file; raises `ClusterError` if it cannot be read."""
    return TomlTable(str(path), "", read_parsed(path, tomllib.loads, "TOML", ClusterError))


def toml_value(value: bool | int | str) -> str:
    """A value as TOML has it, whose strings escape as those of JSON do, and one character more."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


class TomlTable:
    """A table of a TOML file that knows its path in the file and which of its keys were read."""

    def __init__(self, file: str, path: str, values: Mapping[str, Any]) -> None:
        self._file = file
        self._path = path
        self._values = values
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        """Whether an optional key is present; asking for a key makes it a known key."""
        self._read.add(key)
        return key in self._values

    @property
    def names(self) -> list[str]:
        """All keys, read or not."""
        return list(self._values)

    def is_text(self, key: str) -> bool:
        """Whether `key` is present and its value is a text."""
        return isinstance(self._values.get(key), str)

    def name(self) -> str:
        """The value of the key `name`."""
        name = self.text("name")
        return checked_name(name, f"{self._file}: {self._path or 'the table'}", ClusterError)

    def text(self, key: str, default: str | None = None) -> str:
        """The value of a key as a text that is not empty."""
        value = self._value(key, default)
        if not isinstance(value, str) or not (value or value == default):
            raise self.error(key, f"is {shown(value)}; expected a text")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """The value of a key that must be one of `choices`; without a default it must be there."""
        value = self.text(key, default)
        if value not in choices:
            raise self.error(key, f"is {shown(value)}; expected one of {', '.join(choices)}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """The value of a key that must be `true` or `false`."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"is {shown(value)}; expected true or false")
        return value

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """The value of a key that must be a whole number of at least `least`."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(key, f"is {shown(value)}; expected a whole number of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The value of a key that must be a number without unit."""
        value = self._value(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.error(key, f"is {shown(value)}; expected a number without unit")
        try:
            return float(value)
        except OverflowError as error:  # a whole number of hundreds of digits
            raise self.error(key, f"is {shown(value)}; expected a number without unit") from error

    def quantity(self, key: str, quantity: Quantity) -> float:
        """The value of a key that must be a number with a unit, converted to base units."""
        return self._parse(key, self._value(key), quantity)

    def smallest_quantity(self, key: str, quantity: Quantity) -> float:
        """The value of a key that must be a number with a unit or a list of them: the smallest."""
        value = self._value(key)
        values: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
        if not values:
            raise self.error(
                key, f"is empty; expected {quantity.name} such as {quantity.example!r}"
            )
        return min(self._parse(key, item, quantity) for item in values)

    def table(self, key: str) -> TomlTable:
        """The value of a key that must be a table."""
        value = self._value(key)
        if not isinstance(value, dict):
            raise self.error(key, f"is {shown(value)}; expected a table [{self._name(key)}]")
        return TomlTable(self._file, self._name(key), cast("dict[str, Any]", value))

    def tables(self, key: str) -> list[TomlTable]:
        """The value of a key that must be a list of at least one table."""
        value: object = self._value(key)
        items = cast("list[Any]", value) if isinstance(value, list) else []
        if not items or not all(isinstance(item, dict) for item in items):
            found = shown(cast("object", value))
            raise self.error(key, f"is {found}; expected one or more tables [[{self._name(key)}]]")
        return [
            TomlTable(self._file, f"{self._name(key)}[{index}]", item)
            for index, item in enumerate(items)
        ]

    def sources(self) -> dict[str, str]:
        """The optional table `sources`: key by key, where the numbers of this table come from."""
        if "sources" not in self:
            return {}
        table = self.table("sources")
        return {key: table.text(key) for key in table.names}

    def finish(self) -> None:
        """Raises `ClusterError` if the table has a key that nothing has read."""
        for key in self._values:
            if key not in self._read:
                near = difflib.get_close_matches(key, self._read, n=1)
                known = near[0] if near else ", ".join(sorted(self._read))
                hint = f"did you mean {known!r}?" if near else f"expected one of {known}"
                raise self.error(key, f"is not a known key; {hint}")

    def error(self, key: str, problem: str) -> ClusterError:
        """An error that names file and key."""
        return ClusterError(f"{self._file}: {self._name(key)} {problem}")

    def fail(self, problem: object) -> ClusterError:
        """An error that names the file."""
        return ClusterError(f"{self._file}: {problem}")

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _value(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise self.error(key, f"is missing{self._slip(key)}")
        return value

    def _slip(self, key: str) -> str:
        """`; is it meant by 'bandwith'?`, or nothing: keys of the table that nothing has read yet
        and whose names are almost that of one that is missing."""
        unread = [each for each in self._values if each not in self._read]
        near = difflib.get_close_matches(key, unread, cutoff=0.8)
        return f"; is it meant by {' or '.join(map(repr, near))}?" if near else ""

    def _parse(self, key: str, value: Any, quantity: Quantity) -> float:
        if not isinstance(value, str):
            problem = f"is {shown(value)}, which is not {quantity.name}"
            raise self.error(key, f"{problem}; expected a text such as {quantity.example!r}")
        try:
            return quantity.parse(value)
        except UnitError as error:
            raise self.error(key, f"= {error}") from error
