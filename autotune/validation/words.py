"""What the free text of a column means, by the declared patterns of `vocabulary.toml`."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.validation.rows import MeasuredRow, UnusableRowError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "Meaning",
    "check_kind_of_run",
    "meaning_of",
    "numbers_unread",
    "read_data",
    "read_toml_data",
    "shards_of",
]

_TRUE = re.compile(r"(true|yes|y|on|1|enabled?)\W*", re.IGNORECASE)
_FALSE = re.compile(r"(false|no|n|off|0|none|null|disabled?)\W*", re.IGNORECASE)
_DENIED = re.compile(
    r"((we|they|it|is|are|was|were|do|does|did|run|trained|training)\s+)*"
    r"(no|not|without|don'?t|doesn'?t)\s+((use|using|need|any|the|apply|enable|have)\s+)*"
    r"(?P<what>.+)",
    re.IGNORECASE,
)
_INSIDE = re.compile(r"[^()]+\((?!no\b|not\b|without\b)([^()]+)\)\W*", re.IGNORECASE)


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
    for reading in _readings(column, text):
        for entry in _vocabulary()[column]:
            found = entry.pattern.fullmatch(reading)
            if found is None:
                continue
            if entry.excluded:
                raise UnusableRowError(entry.excluded, text)
            stated = {name: _number(each) for name, each in found.groupdict().items() if each}
            return Meaning({**entry.means, **stated}, entry.assumption)
    raise UnusableRowError(f"{column} is not understood", text)


def _readings(column: str, text: str) -> Iterator[str]:
    """A text as it stands, and then as what it may be: an option of a command line or of a file
    (`--recompute-granularity full`, `checkpoint=False`), which says its value, or `yes` by being
    there, whatever is remarked behind it; something denied (`without checkpointing`), which says
    `no`; and a name with its meaning behind it in parentheses."""
    option = _options().get(column)
    bare = text.lstrip("-")
    said = None if option is None else option.fullmatch(bare)
    value = "" if said is None else said["value"].strip(" \"'\t")
    if said is not None and _FALSE.fullmatch(f"{value}{said['rest'].strip('() ')}"):
        yield "no"  # patterns of names take what follows for remarks
    yield text
    yield bare
    if said is not None:
        yield from (said["name"], "yes") if not value or _TRUE.fullmatch(value) else (value,)
    elif option is not None:
        if _is_denied(option, bare):
            yield "no"
        elif (inside := _INSIDE.fullmatch(text)) is not None:
            yield inside[1]


def _is_denied(option: re.Pattern[str], text: str) -> bool:
    """Whether a text says that something is not done, and no more."""
    denied = _DENIED.fullmatch(text)
    said = None if denied is None else option.fullmatch(denied["what"])
    return said is not None and not said["value"] and not said["rest"]


def shards_of(text: str) -> dict[str, int]:
    """Numbers of devices that share what is sharded, or of copies of it, wherever a text names
    them."""
    found: dict[str, int] = {}
    for entry in _vocabulary()["shards"]:
        named = entry.pattern.search(text)
        if named is not None:
            found |= {name: int(each) for name, each in named.groupdict().items() if each}
    return found


def numbers_unread(text: str, read: Collection[object]) -> list[int]:
    """Numbers in a text on sharding that stand for themselves, and are not among those `read`; up
    to 3 they may be stages."""
    numbers = [int(each) for each in re.findall(r"(?<![\w.])\d{1,9}(?![\w.])", text)]
    return [each for each in numbers if each > 3 and each not in read]


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
def _options() -> dict[str, re.Pattern[str]]:
    """Per column the options that state it, and what follows them."""
    names: dict[str, str] = read_data("vocabulary.toml")["options"]
    return {
        column: re.compile(
            rf"(?P<name>{own})(\s*[=:]\s*|\s+|(?=[,;(])|$)(?P<value>[^,;(]*)(?P<rest>.*)",
            re.IGNORECASE | re.DOTALL,
        )
        for column, own in names.items()
    }


@lru_cache(maxsize=1)
def _vocabulary() -> dict[str, list[_Entry]]:
    return {
        column: [
            _Entry(
                re.compile(entry["pattern"], re.IGNORECASE | re.DOTALL),
                entry.get("means", {}),
                entry.get("excluded", ""),
                entry.get("assumption", ""),
            )
            for entry in entries
        ]
        for column, entries in read_data("vocabulary.toml").items()
        if column != "options"
    }
