"""What the free text of a column means, by the declared patterns of `vocabulary.toml`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.validation.rows import MeasuredRow, UnusableRowError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Meaning", "check_kind_of_run", "meaning_of", "read_data", "read_toml_data"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a text says: values by name, numbers among them, and what had to be assumed."""

    values: dict[str, Any]
    assumption: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    pattern: re.Pattern[str]
    means: dict[str, Any]
    excluded: str
    assumption: str


def meaning_of(row: MeasuredRow, column: str) -> Meaning | None:
    """The meaning of a row's text, or None where it is blank.

    Raises `UnusableRowError` for a text that is not known, or known as something that cannot be
    simulated.
    """
    text = row.text(column)
    if not text:
        return None
    for entry in _vocabulary()[column]:
        found = entry.pattern.fullmatch(text)
        if found is None:
            continue
        if entry.excluded:
            raise UnusableRowError(entry.excluded, text)
        stated = {name: _number(each) for name, each in found.groupdict().items() if each}
        return Meaning({**entry.means, **stated}, entry.assumption)
    raise UnusableRowError(f"{column} is not understood", text)


def check_kind_of_run(row: MeasuredRow, column: str) -> None:
    """Raises `UnusableRowError` for a text that is known as something that cannot be simulated; one
    that is not known is left to `meaning_of`."""
    text = row.text(column)
    entry = next((e for e in _vocabulary()[column] if e.pattern.fullmatch(text)), None)
    if text and entry is not None and entry.excluded:
        raise UnusableRowError(entry.excluded, text)


def read_data(name: str) -> dict[str, Any]:
    """A data file beside this one."""
    return read_toml_data(Path(__file__).resolve().parent / name)


def read_toml_data(path: Path) -> dict[str, Any]:
    """A data file of the package; it is as it should be."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


@lru_cache(maxsize=1)
def _vocabulary() -> dict[str, list[_Entry]]:
    return {
        column: [
            _Entry(
                re.compile(entry["pattern"], re.IGNORECASE | re.DOTALL),
                entry["means"],
                entry.get("excluded", ""),
                entry.get("assumption", ""),
            )
            for entry in entries
        ]
        for column, entries in read_data("vocabulary.toml").items()
    }
