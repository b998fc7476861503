"""One registry for every kind of named thing: ops, schedules, models, clusters, samplers, …"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from distir.errors import UnknownNameError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A registered thing with the name it is shown by and one line that describes it."""

    name: str
    value: T
    summary: str


class Registry(Generic[T]):
    """Names to things. Names match without regard to case; a duplicate raises."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def add(self, name: str, value: T, summary: str = "") -> T:
        """Registers `value` under `name`; raises `ValueError` if the name is taken."""
        key = name.lower()
        if key in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[key] = Entry(name, value, summary)
        return value

    def register(self, name: str, summary: str = "") -> Callable[[T], T]:
        """The decorator form of `add`."""
        return lambda value: self.add(name, value, summary)

    def get(self, name: str) -> T:
        """The thing called `name`; raises `UnknownNameError` naming the near ones."""
        entry = self._entries.get(name.lower())
        if entry is None:
            raise UnknownNameError(self.kind, name, self.names())
        return entry.value

    def names(self) -> list[str]:
        """All names, in the order of registration."""
        return [entry.name for entry in self._entries.values()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._entries

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)
